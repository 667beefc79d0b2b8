"""Consume queue check, in both directions, while the log is walked: each record must match the entry at its queue
offset, and no entry may be left over. State is kept per queue, not per message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import attrs

from mqbroker.store.consumequeue_entry import BLANK_SIZE
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.store.consumequeues import TOPIC_NAME, Removed
from mqbroker.store.logscan import Scanned
from mqbroker.store.offline.findings import Findings
from mqbroker.store.offline.queue_files import Entry, ExtFiles, QueueFiles
from mqbroker.store.tags_codes import TagsCodes, delay_level
from mqbroker.wire.codes import SCHEDULE_TOPIC, is_system_topic
from mqbroker.wire.names import LMQ_PREFIX, is_lmq
from mqbroker.wire.properties import DISPATCH_MARK, dispatch_names, find_property

RUNS_MAX = 20

REBUILD = "`mq store repair` rebuilds consume queues from the log"
_RESTORE = "restore the log from a copy or a slave; consumers continue with the messages after"
#: kind of a run -> its meaning for messages `first` to `last` of a queue.
_RUN_TEXTS = {
    "entry missing": "has no entry for messages {span}",
    "entry wrong": "its entries of messages {span} point elsewhere",
    "unit missing": "its entries of messages {span} lead to no unit of the extension",
    "unit wrong": "the units of messages {span} have another tags code or store time than the messages",
    "tags code wrong": "its entries of messages {span} have another tags code than the messages",
    "queue offset wrong": "the records of messages {span} say other queue offsets",
    "queue offset twice": "queue offsets {span} are in the log again",
    "entry ahead": "entries {span} point beyond the end of the log",
    "entry orphaned": "entries {span} point at no record of the queue",
}


@attrs.define
class Run:
    """Consecutive queue offsets with the same fault."""

    kind: str
    first: int
    last: int


@attrs.define
class QueueState:
    """`next`: the next queue offset, -1 before the first record. `removed`: the record of its removal."""

    topic: bytes
    files: QueueFiles
    ext: ExtFiles | None
    removed: Removed | None
    removed_records: int = 0
    next: int = -1
    records: int = 0
    first_ms: int = 0
    #: first offset, count, whether the queue itself has blanks there.
    gaps: list[tuple[int, int, bool]] = attrs.field(factory=list)
    runs: list[Run] = attrs.field(factory=list)
    runs_left_out: int = 0
    is_extra: bool = False

    def add(self, kind: str, offset: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.kind == kind and offset == last.last + 1:
            last.last = offset
        elif len(self.runs) < RUNS_MAX:
            self.runs.append(Run(kind, offset, offset))
        else:
            self.runs_left_out += 1

    def is_removed(self, offset: int, physical_offset: int, size: int) -> bool:
        """Whether a message was removed with its queue; one that still has its entry was not."""
        removed = self.removed
        if removed is None or offset >= removed.next_offset or physical_offset >= removed.until:
            return False
        return not self.files.leads_to(offset, physical_offset, size)


def tell_queue(
    queue: QueueState, findings: Findings, topics: AbstractSet[str] | None, open_from_ms: int | None
) -> None:
    """Report the findings of a queue; `topics` and `open_from_ms` as in QueueCheck.finish."""
    files = queue.files
    if queue.removed_records:
        what = f"{queue.removed_records} messages of queue {files.name} were removed with it, and are in the log only"
        findings.note("queue removed", "", 0, what)
    for start, count, is_told in queue.gaps:
        path, at = files.place(start)
        what = f"queue {files.name}: messages {_span(start, start + count - 1)} are not in the log ({count})"
        lost = 0 if queue.is_extra else count
        if is_told:
            findings.note("messages lost before", path, at, what, lost)
        else:
            findings.lost("messages missing", path, at, what, _RESTORE, lost)
    if not files.is_there and queue.records:
        _tell_missing(queue, findings, topics, open_from_ms)
        return
    for run in queue.runs:
        _tell_run(queue, run, findings, open_from_ms is not None)
    if queue.runs_left_out:
        what = f"queue {files.name}: {queue.runs_left_out} more entries are wrong"
        findings.broken("entry wrong", files.directory, 0, what, REBUILD)


def _tell_run(queue: QueueState, run: Run, findings: Findings, is_open_ended: bool) -> None:
    path, at = queue.files.place(run.first)
    text = _RUN_TEXTS[run.kind].format(span=_span(run.first, run.last))
    count = run.last - run.first + 1
    what = f"queue {queue.files.name}: {text} ({count})"
    if run.kind in ("entry missing", "unit missing") and is_open_ended and run.last == queue.next - 1:
        findings.note("entries behind", path, at, f"{what}; the next start builds them")
    elif run.kind == "entry ahead" and is_open_ended:
        findings.note("entries ahead", path, at, f"{what}; the next start cuts them")
    elif run.kind in ("entry orphaned", "entry ahead"):  # stopped cleanly, so those ahead were in the log
        findings.lost(run.kind, path, at, what, _RESTORE, 0 if queue.is_extra else count)
    else:
        findings.broken(run.kind, path, at, what, REBUILD)


def _tell_missing(
    queue: QueueState, findings: Findings, topics: AbstractSet[str] | None, open_from_ms: int | None
) -> None:
    name = queue.files.name
    topic = name.rpartition("/")[0]
    what = f"{queue.records} messages of queue {name} are in no consume queue"
    is_listed = topics is None or topic in topics or is_system_topic(topic) or topic.startswith(LMQ_PREFIX)
    if not is_listed:
        findings.note("topic deleted", "", 0, f"{what}, and their topic is not in topics.json")
    elif open_from_ms is not None and queue.first_ms >= open_from_ms:
        findings.note("entries behind", "", 0, f"{what}; the next start builds it")
    else:
        findings.broken("consume queue missing", "", 0, what, REBUILD)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


_GAP_LOOK = 10_000
_DIRT_LOOK_BYTES = 64 * 1024
_MULTI_OFFSET = b"INNER_MULTI_QUEUE_OFFSET\x01"
_LMQ = b"%LMQ%"
_SCHEDULE = SCHEDULE_TOPIC.encode()


class QueueCheck:
    """`compare` every record, in the order of the log; then `finish`.

    :param no_files: makes the files object of a queue without files, by its name.
    :param removed: the table of removed queues.
    """

    def __init__(
        self,
        queues: Mapping[tuple[bytes, int], QueueFiles],
        extensions: Mapping[tuple[bytes, int], ExtFiles],
        no_files: Callable[[str], QueueFiles],
        log_first: int,
        delay_levels_ms: Sequence[int],
        removed: Mapping[tuple[str, int], Removed],
        findings: Findings,
    ) -> None:
        self._no_files = no_files
        self._log_first = log_first
        self._knows_levels = bool(delay_levels_ms)
        self._removed = removed
        self._findings = findings
        self._queues = {
            key: QueueState(key[0], files, extensions.get(key), removed.get((key[0].decode(), key[1])))
            for key, files in queues.items()
        }
        self._has_named = not queues or any(topic.startswith(_LMQ) for topic, _ in queues)
        #: Whether queues that messages name must exist; None to judge by those that do.
        self.expects_named: bool | None = None
        self._named_absent = 0
        self._tags_codes = TagsCodes(delay_levels_ms)
        #: Number of queues that have had messages, and the sum of their next offsets; after `finish`.
        self.tally = (0, 0)

    def compare(self, item: Scanned) -> None:
        """Compare one record with its entry. Hot."""
        topic, queue_id, offset, physical_offset, size, sys_flag, _, properties = item
        if sys_flag & 4:  # SysFlag.TRANSACTION_PREPARED, which _ROLLBACK includes
            return
        try:
            queue = self._queues[topic, queue_id]
        except KeyError:
            queue = self._add_queue(topic, queue_id)
        code = self._code_when_due(item) if topic == _SCHEDULE else self._tags_codes.of_its_tag(properties)
        queue.records += 1
        if offset == queue.next and queue.files.entry(offset) == (physical_offset, size, code):
            queue.next = offset + 1
        else:
            self._compare_slowly(queue, offset, item, code)
        if DISPATCH_MARK in properties:
            self._compare_multi(item, code)

    def _add_queue(self, topic: bytes, queue_id: int) -> QueueState:
        name = topic.decode("utf-8", "replace")
        files = self._no_files(f"{name}/{queue_id}")
        queue = self._queues[topic, queue_id] = QueueState(topic, files, None, self._removed.get((name, queue_id)))
        return queue

    def _code_when_due(self, item: Scanned) -> int | None:
        """Tags code in the schedule topic; None if the delay of its level is unknown."""
        if not self._knows_levels and delay_level(item.properties) > 0:
            return None
        return self._tags_codes.of(True, item.properties, item.store_timestamp_ms)

    def _compare_slowly(self, queue: QueueState, offset: int, item: Scanned, code: int | None) -> None:
        leads_to, record = queue.files.leads_to, (item.physical_offset, item.size)
        if queue.is_removed(offset, *record):
            queue.removed_records += 1
            return
        if queue.next < 0:
            queue.first_ms = item.store_timestamp_ms
            queue.next = self._first_expected(queue, offset)
        if offset != queue.next:
            if leads_to(queue.next, *record) and (offset < queue.next or not leads_to(offset, *record)):
                queue.add("queue offset wrong", queue.next)
                queue.next += 1
                return
            if offset > queue.next:
                self._add_gap(queue, offset)
            elif offset:
                queue.add("queue offset twice", offset)
                return
            else:
                self._restart(queue, item.physical_offset)
        self._compare(queue, offset, item, code)

    def _first_expected(self, queue: QueueState, offset: int) -> int:
        """The lowest queue offset below `offset` whose entry points into the log, which must have its record."""
        expected = offset
        removed = queue.removed
        begins_at = removed.next_offset if removed is not None and offset >= removed.next_offset else 0
        while expected > begins_at:
            entry = queue.files.entry(expected - 1)
            if entry is None or _lacks_message(entry) or entry[0] < self._log_first:
                break
            expected -= 1
        return begins_at if not self._log_first else expected

    def _restart(self, queue: QueueState, physical_offset: int) -> None:
        """The topic was deleted, and created again: its queue began again, and earlier messages are in no queue."""
        path, at = queue.files.place(0)
        what = f"queue {queue.files.name} begins anew at {physical_offset} of the log: its topic was deleted before"
        self._findings.note("queue began anew", path, at, what)
        queue.runs.clear()
        queue.gaps.clear()
        queue.runs_left_out = 0
        queue.next = 0

    def _compare(self, queue: QueueState, offset: int, item: Scanned, code: int | None) -> None:
        entry = queue.files.entry(offset)
        timestamp_ms = item.store_timestamp_ms
        if entry is None or _lacks_message(entry):
            queue.add("entry missing", offset)
        elif entry[:2] != (item.physical_offset, item.size):
            queue.add("entry wrong", offset)
        elif entry[2] <= ADDRESS_MAX:
            unit = queue.ext.unit(entry[2]) if queue.ext is not None else None
            if unit is None:
                queue.add("unit missing", offset)
            elif unit.store_timestamp_ms != timestamp_ms or not _is_code(unit.tags_code, code, timestamp_ms):
                queue.add("unit wrong", offset)
        elif not _is_code(entry[2], code, timestamp_ms):
            queue.add("tags code wrong", offset)
        queue.next = offset + 1

    def _add_gap(self, queue: QueueState, end: int) -> None:
        """Record a gap: no record has the queue offsets up to `end`."""
        start = queue.next
        following = queue.files.entry(end)
        is_told = queue.files.is_there
        for offset in range(start, min(end, start + _GAP_LOOK)):
            entry = queue.files.entry(offset)
            # Blank, or a second entry for the next message: the queue itself says that this one is lost.
            is_told = is_told and entry is not None and (entry[1] == BLANK_SIZE or entry == following)
        queue.gaps.append((start, end - start, is_told))
        if len(queue.gaps) > RUNS_MAX:  # the rest as one
            _, count, told = queue.gaps.pop()
            before = queue.gaps.pop()
            queue.gaps.append((before[0], before[1] + count, before[2] and told))
        queue.next = end

    def _compare_multi(self, item: Scanned, code: int | None) -> None:
        """Compare a message that is in other queues too, with its offset in each."""
        names = dispatch_names(item.properties)
        offsets = find_property(item.properties, _MULTI_OFFSET).rstrip(b",").split(b",")
        if len(names) != len(offsets):
            return
        for name, text in zip(names, offsets, strict=True):
            if not text.isdigit() or len(text) > 18 or not _is_name(name):
                continue
            queue = self._named_queue(name, item.queue_id)
            if queue is None:
                self._named_absent += 1
                continue
            offset = int(text)
            if offset < queue.next and queue.files.leads_to(offset, item.physical_offset, item.size):
                continue  # named twice, or its own queue
            queue.is_extra = True
            queue.records += 1
            self._compare_slowly(queue, offset, item, code)

    def _named_queue(self, name: bytes, queue_id: int) -> QueueState | None:
        """A queue that a message names; None if it does not exist, and need not."""
        key = (name, 0 if name.startswith(_LMQ) else queue_id)
        queue = self._queues.get(key) or self._queues.get((name, queue_id))
        if queue is None and (self._has_named if self.expects_named is None else self.expects_named):
            return self._add_queue(*key)
        return queue

    # The end

    def finish(self, log_end: int, topics: AbstractSet[str] | None, open_from_ms: int | None) -> tuple[int, int, int]:
        """Find entries without a record, and report all findings. Returns counts: topics, queues, entries.

        `topics`: names in topics.json, None if it cannot be read. `open_from_ms`: None if the store was stopped
        cleanly. Otherwise there may be missing or surplus entries at the end; those of messages stored before this time
        were synced.
        """
        names: set[bytes] = set()
        count = entries = 0
        offsets = [offset for queue in self._queues.values() if (offset := queue.files.max_offset())]
        self.tally = len(offsets), sum(offsets)
        for queue in self._queues.values():
            queue.records -= queue.removed_records
            if queue.files.directory or queue.records:
                count += 1
                names.add(queue.topic)
            if queue.files.is_there:
                entries += self._check_rest(queue, log_end)
            tell_queue(queue, self._findings, topics, open_from_ms)
        if self._named_absent:
            what = (
                f"{self._named_absent} times a message names a queue that is not there; "
                "with -c and the broker's settings it is known whether it should be"
            )
            self._findings.note("named queues absent", "", 0, what)
        return len(names), count, entries

    def live(self) -> frozenset[tuple[bytes, int]]:
        """The queues with a message in the log, and a valid name."""
        return frozenset(key for key, queue in self._queues.items() if queue.records and _is_name(key[0]))

    def has_extra(self) -> bool:
        """Whether there are queues that share messages with others."""
        return any(queue.is_extra for queue in self._queues.values())

    def _check_rest(self, queue: QueueState, log_end: int) -> int:
        """Check the queue after its last message. Returns the number of correct entries."""
        files = queue.files
        end = start = queue.next if queue.next >= 0 else files.first
        for offset, entry in files.entries(start):
            end = offset + 1
            if entry[1] == BLANK_SIZE or entry[0] + entry[1] <= self._log_first:
                continue
            is_ahead = entry[0] + entry[1] > log_end
            queue.add("entry ahead" if is_ahead else "entry orphaned", offset)
        if files.dirt_after(end, _DIRT_LOOK_BYTES):
            path, at = files.place(end)
            self._findings.broken(
                "entries after the end", path, at, f"queue {files.name} has bytes after its end", REBUILD
            )
        return queue.records


def _lacks_message(entry: Entry) -> bool:
    """Whether an entry is unwritten, or a blank."""
    return entry[1] <= 0 or entry[1] == BLANK_SIZE


def _is_name(topic: bytes) -> bool:
    name = topic.decode("utf-8", "replace")
    return TOPIC_NAME.fullmatch(name) is not None or is_lmq(name)


def _is_code(found: int, code: int | None, timestamp_ms: int) -> bool:
    """Whether a tags code is correct; for a delayed message of unknown level, any time after its store time."""
    return found >= timestamp_ms if code is None else found == code
