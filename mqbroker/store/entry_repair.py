"""Repair of consume queue entries that a reader found lost: zeros in place of a page, impossible values, entries that
do not point to their message, or whose extension unit is missing or another message's. An entry of the last kind gets
its tags code instead.

They are rebuilt from the log between the messages of the nearest correct entries before and behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeue_entry import BLANK_SIZE, ENTRY
from mqbroker.store.consumequeue_ext import is_address
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.logscan import Damage, Scanned, scan, scan_file
from mqbroker.store.multi_dispatch import is_entry_of
from mqbroker.store.worker import IWorker
from mqbroker.wire.record import RECORD_BYTES_MIN

_ALL = 1 << 62
#: How many entries are examined for a correct one, before the log is read from its beginning, or to its end.
_AROUND_MAX = 100_000
#: What is wrong with an entry without a message.
LOST = "no message can be"
Entry = tuple[int, int, int]
Found = tuple[Mapping[int, Entry], Sequence[Damage]]


class LostEntry(Exception):
    """A get begins at a lost entry; the text says what is wrong with it. `is_there`: it points to its message all the
    same."""

    def __init__(self, why: str, *, is_there: bool = False) -> None:
        super().__init__(why)
        self.is_there = is_there


def is_lost(physical_offset: int, size: int, log_end: int) -> bool:
    """Whether an entry is neither of a message nor blank."""
    return size < RECORD_BYTES_MIN or not 0 <= physical_offset <= log_end - size % BLANK_SIZE


class EntryRepair:
    """Repairs one range of a queue at a time.

    :param report: called with corrupt ranges of the log.
    """

    log = Logger()

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        cq_dispatcher: ConsumeQueueDispatcher,
        worker: IWorker,
        report: Callable[[Damage], None],
    ) -> None:
        self._report = report
        self._commit_log = commit_log
        self._queues = queues
        self._cq_dispatcher = cq_dispatcher
        self._worker = worker
        self._running: dict[ConsumeQueue, list[Deferred[bool]]] = {}

    def repair(self, queue: ConsumeQueue, offset: int) -> Deferred[bool]:
        """Repair entry `offset` and the lost ones around it, as far as the log has them. Fires with True; with False if
        other entries of the queue were repaired meanwhile: try again. Fails with OSError."""
        done: Deferred[bool] = Deferred()
        if queue in self._running:
            self._running[queue].append(done)
            return done
        waiting: list[Deferred[bool]] = []
        self._running[queue] = waiting
        found = self._worker.run(partial(self._find, queue, offset, queue.min_offset, queue.max_offset))
        found.addCallback(lambda entries: self._store(queue, entries))

        def ended(result: Failure | None) -> None:
            del self._running[queue]
            done.callback(result or True)
            for each in waiting:
                each.callback(result or False)

        found.addBoth(ended)
        return done

    def _find(self, queue: ConsumeQueue, offset: int, low_min: int, high_max: int) -> Found:
        """The correct values of entry `offset` and those around it that are wrong; and the corrupt ranges of the log
        between the nearest correct ones. For the worker."""
        log = self._commit_log
        low, high = offset, offset + 1
        oldest = low_min
        low_min, high_max = max(low_min, low - _AROUND_MAX), min(high_max, high + _AROUND_MAX)
        while low > low_min and not self._is_right(queue, low - 1):
            low -= 1
        while high < high_max and not self._is_right(queue, high):
            high += 1
        start, end = log.min_offset, log.readable_end
        if low > low_min:
            before, size, _ = queue.entry_from_disk(low - 1)
            start = max(start, before + size)
        if high < high_max:
            end = queue.entry_from_disk(high)[0]
        found, corrupt_ranges = self._scan(queue, start, end)
        entries: dict[int, Entry] = {}
        # Its message is corrupt, or gone from the log; if none is before it, the queue begins behind it.
        blank = start if low > oldest else 0, BLANK_SIZE, 0
        for number in range(low, high):
            known = queue.entry_from_disk(number)
            is_doubtful = number not in found and self._is_right(queue, number) is None
            # The log may be the wrong one of the two, and be restored from a copy.
            entry = known if is_doubtful else found.get(number, blank)
            if entry != known:
                entries[number] = entry
            if not is_doubtful:
                blank = entry[0] + entry[1] % BLANK_SIZE, BLANK_SIZE, 0
        # The blank entries before the first message were lost with it: a start must find them.
        for number in reversed(range(max(queue.first_offset, low - _AROUND_MAX), low if low == oldest else 0)):
            physical_offset, size, _ = queue.entry_from_disk(number)
            if not is_lost(physical_offset, size, log.readable_end):
                break
            entries[number] = 0, BLANK_SIZE, 0
        return entries, corrupt_ranges

    def _is_right(self, queue: ConsumeQueue, number: int) -> bool | None:
        """Whether an entry matches its message; None if it has none to compare with: blank, gone from the log, or
        corrupt in it."""
        physical_offset, size, code = queue.entry_from_disk(number)
        log = self._commit_log
        if is_lost(physical_offset, size, log.readable_end):
            return False
        if size == BLANK_SIZE or not log.min_offset <= physical_offset < log.readable_end:
            return None
        item = scan_file(*log.place(physical_offset), physical_offset)
        if not isinstance(item, Scanned):
            return None
        if item.size != size or not is_entry_of(queue, number, item):
            return False
        if is_address(code) and queue.ext is not None:
            unit = queue.ext.unit(code)
            if unit is None or unit.store_timestamp_ms != item.store_timestamp_ms:
                return False
            code = unit.tags_code
        if item.topic != queue.topic_bytes or queue.is_schedule or is_address(code):
            return True
        return self._cq_dispatcher.place_of(queue, item) == (number, code)

    def _scan(self, queue: ConsumeQueue, start: int, end: int) -> Found:
        found: dict[int, Entry] = {}
        corrupt_ranges: list[Damage] = []
        for run in scan(self._commit_log, start, end, _ALL):
            if isinstance(run, Damage):
                corrupt_ranges.append(run)
                continue
            for row in run.rows:
                place = self._cq_dispatcher.place_of(queue, row)
                if place is not None:
                    found[place[0]] = row[3], row[4], place[1]
        return found, corrupt_ranges

    def _store(self, queue: ConsumeQueue, found: Found) -> None:
        entries, corrupt_ranges = found
        for damage in corrupt_ranges:
            self._report(damage)
        if queue.is_removed or not entries:
            return
        self._queues.dirty[queue] = None
        for number, entry in entries.items():
            if queue.first_offset <= number < queue.max_offset:
                queue.rewrite(number, ENTRY.pack(*entry))
        queue.clear_page_behind()  # the same damage hit the newest entries
        self.log.warn(
            "{directory}: entries {low} to {high} were lost and are rebuilt from the log, {blank} of them without a "
            "message",
            directory=queue.directory, low=min(entries), high=max(entries),
            blank=sum(size == BLANK_SIZE for _, size, _ in entries.values()),
        )  # fmt: skip
