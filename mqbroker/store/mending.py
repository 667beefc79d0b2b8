"""Building entries of a consume queue again that a reader found lost: zeros where a page was, or what cannot be one.

The log between the messages of the entries before and behind has them. Must never know who reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import BLANK_SIZE, ENTRY, ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.entering import Entering
from mqbroker.store.logscan import Damage, scan
from mqbroker.store.worker import IWorker
from mqbroker.wire.record import RECORD_BYTES_MIN

_ALL = 1 << 62
Entry = tuple[int, int, int]


class LostEntry(Exception):
    """A get begins at an entry that is lost."""


def is_lost(physical_offset: int, size: int, log_end: int) -> bool:
    """Whether no message and no blank entry says so."""
    return size < RECORD_BYTES_MIN or not 0 <= physical_offset <= log_end - size % BLANK_SIZE


class Mender:
    """Mends one range of a queue at a time."""

    log = Logger()

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueues, entering: Entering, worker: IWorker) -> None:
        self._commit_log = commit_log
        self._queues = queues
        self._entering = entering
        self._worker = worker
        self._running: dict[ConsumeQueue, list[Deferred[None]]] = {}

    def mend(self, queue: ConsumeQueue, offset: int) -> Deferred[None]:
        """Fires when entry `offset`, and the lost ones around it, are there again. Fails with OSError."""
        done: Deferred[None] = Deferred()
        if queue in self._running:
            self._running[queue].append(done)
            return done
        waiting = self._running[queue] = [done]
        found = self._worker.run(partial(self._find, queue, offset, queue.min_offset, queue.max_offset))
        found.addCallback(lambda entries: self._store(queue, entries))

        def ended(result: object) -> None:
            del self._running[queue]
            for each in waiting:
                each.callback(result)  # type: ignore[arg-type]

        found.addBoth(ended)
        return done

    def mend_now(self, queue: ConsumeQueue, offset: int) -> None:
        """As `mend`, for who may wait where it stands. Raises OSError."""
        self._store(queue, self._find(queue, offset, queue.min_offset, queue.max_offset))

    def _find(self, queue: ConsumeQueue, offset: int, low_min: int, high_max: int) -> dict[int, Entry]:
        """The lost entries around `offset`, in their order, as they should be. For the worker."""
        log = self._commit_log
        end_of_log = log.readable_end
        low, high = offset, offset + 1
        while low > low_min and is_lost(*queue.entry_from_disk(low - 1)[:2], end_of_log):
            low -= 1
        while high < high_max and is_lost(*queue.entry_from_disk(high)[:2], end_of_log):
            high += 1
        start, end = log.min_offset, end_of_log
        if low > low_min:
            before, size, _ = queue.entry_from_disk(low - 1)
            start = max(start, before + size % BLANK_SIZE)
        if high < high_max:
            end = queue.entry_from_disk(high)[0]
        found = self._scan(queue, start, end)
        entries: dict[int, Entry] = {}
        blank = start, BLANK_SIZE, 0  # its message is damaged, or gone from the log
        for number in range(low, high):
            entry = entries[number] = found.get(number, blank)
            blank = entry[0] + entry[1] % BLANK_SIZE, BLANK_SIZE, 0
        return entries

    def _scan(self, queue: ConsumeQueue, start: int, end: int) -> dict[int, Entry]:
        found: dict[int, Entry] = {}
        for run in scan(self._commit_log, start, end, _ALL):
            if isinstance(run, Damage):
                continue
            for row in run.rows:
                place = self._entering.place_of(queue, row)
                if place is not None:
                    found[place[0]] = row[3], row[4], place[1]
        return found

    def _store(self, queue: ConsumeQueue, entries: Mapping[int, Entry]) -> None:
        if queue.is_removed:
            return
        self._queues.dirty[queue] = None
        for number, entry in entries.items():
            if queue.first_offset <= number < queue.max_offset:
                queue.rewrite(number, ENTRY.pack(*entry))
        self.log.warn(
            "{directory}: entries {low} to {high} were lost and are built again from the log, {blank} of them without "
            "a message",
            directory=queue.directory, low=min(entries), high=max(entries),
            blank=sum(size == BLANK_SIZE for _, size, _ in entries.values()),
        )  # fmt: skip
