"""Check of a store directory: one pass over the log, with consume queues and index compared beside it; then the
checkpoint, the abort file, the table of removed queues, and the tables in config/.

Nothing is written, locked or created. Memory is bounded by the number of queues, not of messages.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping

import attrs

from mqbroker.errors import MQError
from mqbroker.store.checkpoint import TALLY_AT, Checkpoint, decode_checkpoint
from mqbroker.store.consumequeues import TRASH, Removed
from mqbroker.store.disk import IDisk
from mqbroker.store.logscan import Damage, Scanned
from mqbroker.store.offline.detected_layout import Given, Layout, listed, read_layout
from mqbroker.store.offline.findings import Findings, Totals, when
from mqbroker.store.offline.index_check import IndexCheck, IndexReader
from mqbroker.store.offline.log_walk import Fence, Tail, walk
from mqbroker.store.offline.queue_check import QueueCheck
from mqbroker.store.offline.queue_files import QueueFiles, files_to_read, load_extensions, load_queues
from mqbroker.store.tags_codes import parse_delay_levels
from mqbroker.store.topic_removal import QueueKey, parse_removed
from mqbroker.wire.fastjson import loads

#: A table in config/ larger than this is not read.
TABLE_BYTES_MAX = 256 * 1024 * 1024
#: Kind of the finding that the table of removed queues is unreadable.
REMOVED_UNREADABLE = "removed queues unreadable"
_CHECKPOINT_READ_MAX = 1024 * 1024


@attrs.frozen
class SmallFiles:
    """is_stopped: there is no abort file. topics: names in topics.json, None if it cannot be read. removed: removed
    queues.
    """

    is_stopped: bool
    checkpoint: Checkpoint | None
    topics: frozenset[str] | None
    removed: Mapping[QueueKey, Removed]


def read_checkpoint(disk: IDisk, path: str) -> Checkpoint | None:
    """Read the checkpoint; None if there is none, or it is too short."""
    if not disk.exists(path) or disk.is_directory(path) or not 24 <= disk.file_size(path) <= _CHECKPOINT_READ_MAX:
        return None
    return decode_checkpoint(disk.read(path))


def read_small_files(disk: IDisk, layout: Layout, findings: Findings) -> SmallFiles:
    """Read checkpoint, abort file and tables; what is wrong with them is added to `findings`."""
    is_stopped = not disk.exists(layout.path("abort"))
    if not is_stopped:
        findings.note("not stopped", layout.path("abort"), 0, "a broker has it open, or was killed")
    path = layout.path("checkpoint")
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None:
        what = "it is missing or too short: after a crash the whole log is read"
        if is_stopped:
            findings.broken("checkpoint missing", path, 0, what, "nothing: the next broker to run rewrites it")
        else:
            findings.note("checkpoint missing", path, 0, what)
    topics = _check_tables(disk, layout.path("config"), findings)
    return SmallFiles(is_stopped, checkpoint, topics, _read_removed(disk, layout, findings))


def _read_removed(disk: IDisk, layout: Layout, findings: Findings) -> Mapping[QueueKey, Removed]:
    for kind in ("consumequeue", "consumequeue_ext"):
        if listed(disk, trash := layout.path(kind, TRASH)):
            findings.note("removal unfinished", trash, 0, "queues that were removed; the next start deletes them")
    path = layout.path("removedQueues.json")
    if not disk.exists(path):
        return {}
    why = "it is no file" if disk.is_directory(path) else ""
    if not why and disk.file_size(path) > TABLE_BYTES_MAX:
        why = f"{disk.file_size(path)} bytes are more than such a table has"
    if not why:
        try:
            removed, removing = parse_removed(disk.read(path))
        except ValueError as error:
            why = f"it is damaged: {' '.join(str(error).split())[:100]}"
        else:
            if removing:
                what = f"{len(removing)} queues were about to be removed; the next start removes them"
                findings.note("removal unfinished", path, 0, what)
            return removed
    advice = (
        "restore it from a copy, or move it away: then removed topics come back when consume queues are rebuilt, and "
        "must be removed again"
    )
    findings.broken(REMOVED_UNREADABLE, path, 0, f"{why}; which queues were removed is not known", advice)
    return {}


def check_checkpoint(
    path: str, checkpoint: Checkpoint, newest_ms: int, log_end: int, is_stopped: bool, findings: Findings
) -> None:
    """Compare the checkpoint with the log."""
    times = {"log": checkpoint.log_ms, "consume queues": checkpoint.queues_ms, "index": checkpoint.index_ms}
    for at, (name, time_ms) in enumerate(times.items()):
        # Java stamps a flush with the newest message that it knows, and that is in the log.
        if time_ms < 0 or time_ms > newest_ms:
            what = (
                f"it says that the {name} is on the disk up to {when(time_ms)}, "
                f"and the newest message is of {when(newest_ms)}"
            )
            advice = "after a crash too little would be read: `mq store repair` rewrites it"
            findings.broken("checkpoint ahead", path, 8 * at, what, advice)
    offsets = (checkpoint.log_offset, checkpoint.queues_offset, checkpoint.index_offset)
    for at, (name, offset) in enumerate(zip(times, offsets, strict=True)):
        if offset is not None and offset > log_end:
            what = f"it says that the {name} is on the disk up to {offset}, and the log ends at {log_end}"
            advice = "messages that were on the disk are gone: restore the log from a copy or a slave"
            report = findings.lost if name == "log" else findings.broken
            report("checkpoint ahead", path, 32 + 8 * at, what, advice)


def check_tally(path: str, noted: tuple[int, int] | None, found: tuple[int, int], findings: Findings) -> None:
    """Compare the tally of the last stop with the consume queues."""
    if noted is None or noted == found:
        return
    what = (
        f"it says that {noted[0]} consume queues were left, with {noted[1]} messages up to their ends; "
        f"there are {found[0]}, with {found[1]}"
    )
    advice = "the next start rebuilds all consume queues from the log, and so does `mq store repair`"
    findings.broken("queues changed", path, TALLY_AT, what, advice)


def _check_tables(disk: IDisk, directory: str, findings: Findings) -> frozenset[str] | None:
    names = listed(disk, directory)
    if not names:
        what = "no tables of topics, groups and offsets: consumers would start from the beginning"
        findings.broken("config missing", directory, 0, what, "restore config/ from a copy")
    tables = sorted({name.removesuffix(".bak") for name in names if name.endswith((".json", ".json.bak"))})
    topics: frozenset[str] | None = None
    for name in tables:
        path = os.path.join(directory, name)
        content, why = _read_table(disk, path)
        if why:
            content, why_backup = _read_table(disk, path + ".bak")
            what = f"{why}; its .bak{f': {why_backup}' if why_backup else ' can be read, and brokers use that'}"
            advice = f"cp {name}.bak {name}, or let the broker do it"
            if why_backup:
                advice = "restore it from a copy; brokers start without it"
            findings.broken("table unreadable", path, 0, what, advice)
        if name == "topics.json" and isinstance(content, dict):
            found = content.get("topicConfigTable")
            topics = frozenset(str(topic) for topic in found) if isinstance(found, dict) else None
    return topics


def _read_table(disk: IDisk, path: str) -> tuple[object, str]:
    """The content, or the reason why it cannot be read."""
    if not disk.exists(path) or disk.is_directory(path):
        return None, "it is missing"
    size = disk.file_size(path)
    if size > TABLE_BYTES_MAX:
        return None, f"{size} bytes are more than such a table has"
    try:
        content = loads(disk.read(path))
    except (MQError, ValueError, RecursionError, struct.error) as error:
        return None, f"it is not JSON: {' '.join(str(error).split())[:100]}"
    if not isinstance(content, dict):
        return None, "it is not a JSON object"
    return content, ""


#: Bytes of the log done, and their total.
ProgressFunction = Callable[[int, int], None]

#: Clocks are set back a little now and then; more means damage, or a wrong clock.
_CLOCK_BACK_MS = 3_600_000
_DAMAGED = (
    "restore it from a copy or a slave; our brokers pass over it, Java's cut the log there: "
    "`mq store repair --fence` makes it passable for both"
)


@attrs.frozen
class Report:
    """Result of a check. `corrupt_ranges`, `tail`: of the log, for a repair."""

    layout: Layout
    small: SmallFiles
    findings: Findings
    totals: Totals
    newest_ms: int
    corrupt_ranges: list[Damage]
    tails: list[Tail]
    live_queues: frozenset[tuple[bytes, int]]
    has_extra_queues: bool
    bad_extensions: list[str]


@attrs.define
class _LogCheck:
    """Walks the log, reports what is wrong with the log itself, and passes records on."""

    _findings: Findings
    _totals: Totals
    _is_live: bool
    newest_ms: int = 0
    corrupt_ranges: list[Damage] = attrs.field(factory=list)
    tails: list[Tail] = attrs.field(factory=list)

    def records(self, items: Iterator[Scanned | Damage | Fence | Tail]) -> Iterator[Scanned]:
        totals = self._totals
        for item in items:
            if isinstance(item, Scanned):
                timestamp_ms = item.store_timestamp_ms
                if timestamp_ms >= self.newest_ms:
                    self.newest_ms = timestamp_ms
                else:
                    self._check_time(item)
                totals.records += 1
                totals.record_bytes += item.size
                totals.log_end = item.physical_offset + item.size
                yield item
            elif isinstance(item, Damage):
                self._tell_damage(item)
            elif isinstance(item, Fence):
                totals.fenced_bytes += item.end - item.start
                totals.log_end = item.end
            else:
                self._tell_tail(item)

    def _check_time(self, item: Scanned) -> None:
        back_ms = self.newest_ms - item.store_timestamp_ms
        if not self._findings.kinds["store time goes back"] or back_ms > _CLOCK_BACK_MS:
            what = (
                f"record at {item.physical_offset} was stored at {when(item.store_timestamp_ms)}, "
                f"one before it at {when(self.newest_ms)}"
            )
            if back_ms <= _CLOCK_BACK_MS:
                self._findings.note("store time goes back", "", item.physical_offset, what)
            else:
                advice = "searches by time miss messages around it; nothing else does"
                self._findings.broken("store time goes back", "", item.physical_offset, what, advice)
        if back_ms > _CLOCK_BACK_MS:  # reported once for each jump, not for all messages that follow
            self.newest_ms = item.store_timestamp_ms

    def _tell_damage(self, item: Damage) -> None:
        self._totals.damaged_bytes += item.end - item.start
        self._totals.log_end = max(self._totals.log_end, item.end)
        if len(self.corrupt_ranges) < 100_000:
            self.corrupt_ranges.append(item)
        at = item.start % self._totals.segment_bytes
        what = f"bytes {item.start} to {item.end} of the log hold no record: {item.why or 'zeros'}"
        self._findings.lost("damaged log", item.path, at, what, _DAMAGED)

    def _tell_tail(self, item: Tail) -> None:
        self.tails.append(item)
        if item.dirty_end > item.start:
            at = item.start % self._totals.segment_bytes
            why = f" ({item.why})" if item.why else ""
            what = (
                f"{item.dirty_end - item.start} bytes after the last record, at {item.start} of the log, are none{why}"
            )
            if self._is_live:
                self._findings.note("torn tail", item.path, at, f"{what}; it may just be being written")
                return
            advice = "a torn write, most likely: the next start cuts it off, and so does `mq store repair`"
            self._findings.broken("torn tail", item.path, at, what, advice)


def check_store(
    disk: IDisk, root: str, given: Given, on_progress: ProgressFunction, *, is_live: bool = False
) -> Report:
    """Check the store at `root`; with `is_live` one that a broker is writing to.

    Raises StoreUnknown if there is none that can be read, and OSError.
    """
    findings = Findings()
    layout = read_layout(disk, root, given, findings)
    small = read_small_files(disk, layout, findings)
    is_open_ended = is_live or not small.is_stopped
    synced_ms = small.checkpoint.safe_ms if small.checkpoint is not None else 0
    open_from_ms = synced_ms if is_open_ended else None
    totals = Totals(segments=len(layout.segments), segment_bytes=layout.segment_bytes, log_first=layout.log_first)
    totals.log_end = layout.log_first
    totals.index_files = len(layout.index_files)
    if not layout.segment_bytes and layout.segments:
        findings.broken(
            "unknown sizes", layout.commit_log, 0, "segments of no common size", "name the settings with -c"
        )
    cache = files_to_read(disk)
    queue_root, ext_root = layout.path("consumequeue"), layout.path("consumequeue_ext")
    files = load_queues(disk, queue_root, cache, layout.queue_file_bytes, findings)
    levels_ms = parse_delay_levels(layout.delay_levels) if layout.delay_levels else []
    ext, bad_ext = load_extensions(disk, ext_root, cache, layout.ext_file_bytes, files.keys(), findings)
    queues = QueueCheck(
        files, ext, lambda name: QueueFiles(cache, layout.queue_file_bytes, "", name=name), layout.log_first,
        levels_ms, small.removed, findings,
    )  # fmt: skip
    queues.expects_named = given.multi_dispatch
    index = _index_check(disk, layout, small.checkpoint, is_open_ended, findings)
    log = _LogCheck(findings, totals, is_live)
    total = sum(min(segment.size, layout.segment_bytes) for segment in layout.segments)
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, total)

    on_progress(0, total)
    compare_queue, compare_index = queues.compare, index.compare if index is not None else _ignore
    try:
        for item in log.records(walk(disk, layout.segments, layout.segment_bytes, passed)):
            compare_queue(item)
            compare_index(item)
        totals.topics, totals.queues, totals.queue_entries = queues.finish(totals.log_end, small.topics, open_from_ms)
        if index is not None:
            totals.index_entries = index.finish(totals.log_end, is_open_ended)
    finally:
        cache.close()
        if index is not None:
            index.close()
    if small.checkpoint is not None:
        path = layout.path("checkpoint")
        check_checkpoint(path, small.checkpoint, log.newest_ms, totals.log_end, small.is_stopped, findings)
        if not is_open_ended:
            check_tally(path, small.checkpoint.tally, queues.tally, findings)
    return Report(
        layout, small, findings, totals, log.newest_ms, log.corrupt_ranges, log.tails, queues.live(),
        queues.has_extra(), bad_ext,
    )  # fmt: skip


def _ignore(item: Scanned) -> None:
    pass


def _index_check(
    disk: IDisk, layout: Layout, checkpoint: Checkpoint | None, is_open_ended: bool, findings: Findings
) -> IndexCheck | None:
    directory = layout.path("index")
    if not layout.index_files:
        if checkpoint is not None and checkpoint.index_ms > 0:
            advice = "`mq store repair` rebuilds the index from the log"
            findings.broken("index missing", directory, 0, "no index file, though there were some", advice)
        else:
            findings.note("no index", directory, 0, "no index: messages cannot be found by their keys")
        return None
    if not layout.slots:
        advice = "name the broker's settings with -c (maxHashSlotNum, maxIndexNum)"
        findings.broken("unknown sizes", directory, 0, "the index files are of an unknown shape", advice)
        return None
    reader = IndexReader(disk, layout.index_files, layout.slots, layout.capacity, findings, is_open_ended)
    return IndexCheck(reader, directory, layout.log_first, findings)
