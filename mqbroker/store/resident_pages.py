"""Resident pages: which of the newest messages, and of their consume queue entries, are in memory (mincore).

What this process stored is there as long as the system is not short of memory; then its pages may go once they are
synced, and touching one that the disk cannot read would end the process. To ask for each message whether it is there
would cost as much as to find it: a stretch that was there when it was looked at counts as there for a moment, what was
stored since is there anyway. Must never wait for the disk, nor know what is read.
"""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY_BYTES

#: How long what was in memory when it was looked at counts as that, seconds: a stretch of the log, to which many pulls
#: go, and entries of a queue, to which few do. A look takes 3 us.
LOG_MOMENT_S = 0.05
MOMENT_S = 0.5
_STRETCH_BITS = 20
_STRETCH_BYTES = 1 << _STRETCH_BITS
#: What is looked at of a queue at a time, entries.
_ENTRIES = 65536 // ENTRY_BYTES
_STRETCHES_MAX = 4096
_QUEUES_MAX = 10_000


class ResidentPages:
    """Caches the results of mincore for a moment.

    :param now: seconds.
    """

    def __init__(self, log: CommitLog, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        # Number of a stretch of the log -> until when it counts as in memory; negative where not all of it is.
        self._stretches: dict[int, float] = {}
        # From which entry on, up to which, and until when.
        self._entries: dict[ConsumeQueue, tuple[int, int, float]] = {}

    def has_log(self, start: int, end: int, *, anew: bool = False) -> bool:
        """Whether bytes are in memory; of the log at all, where nobody looked there a moment ago, or it is looked at
        `anew`. Hot."""
        now = self._now()
        first = start >> _STRETCH_BITS
        if not anew and first == (end - 1) >> _STRETCH_BITS and self._stretches.get(first, 0.0) > now:
            return True
        if not self._log.min_offset <= start < end <= self._log.readable_end:
            return False
        if anew:
            return self._is_resident(start, end)
        stretches = self._stretches
        for number in range(first, ((end - 1) >> _STRETCH_BITS) + 1):
            until = stretches.get(number, 0.0)
            if until <= now and (-until > now or not self._look(number, now)):
                return self._is_resident(start, end)
        return True

    def _look(self, number: int, now: float) -> bool:
        start = max(number << _STRETCH_BITS, self._log.min_offset)
        is_there = self._is_resident(start, min((number + 1) << _STRETCH_BITS, self._log.readable_end))
        if len(self._stretches) >= _STRETCHES_MAX:
            self._stretches.clear()
        self._stretches[number] = now + LOG_MOMENT_S if is_there else -(now + LOG_MOMENT_S)
        return is_there

    def _is_resident(self, start: int, end: int) -> bool:
        while start < end:
            file, at = self._log.place(start)
            size = min(end - start, file.size - at)
            if not file.is_resident(at, size):
                return False
            start += size
        return True

    def has_entries(self, queue: ConsumeQueue, offset: int, count: int, *, anew: bool = False) -> bool:
        """As `has_log`, of entries of a queue, all of which are between min and max and in one file. Hot."""
        now = self._now()
        low, high, until = self._entries.get(queue, (0, 0, 0.0))
        if not anew and low <= offset and offset + count <= high and now < until:
            return True
        file, at, available = queue.place(offset)
        wanted, count = count, max(count, min(available, _ENTRIES))
        if not file.is_resident(at, count * ENTRY_BYTES):
            return count > wanted and file.is_resident(at, wanted * ENTRY_BYTES)
        if len(self._entries) >= _QUEUES_MAX:
            self._entries.clear()
        # What comes is stored behind the newest.
        high = offset + count if offset + count < queue.max_offset else 1 << 63
        self._entries[queue] = offset, high, now + MOMENT_S
        return True
