"""Resident pages: which of the newest messages, and of their consume queue entries, are in memory (mincore).

Pages that this process wrote stay resident unless the system is short of memory; then they may be evicted once they are
synced, and touching one that the disk cannot read would kill the process. A check for each message would cost as much
as finding it: the result for a range is cached for a moment, and later writes are resident anyway. Never waits for the
disk.
"""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY_BYTES

#: How long a range that was resident counts as that, seconds: of the log, which many pulls read, and of a queue's
#: entries, which few do. A check takes 3 us.
LOG_MOMENT_S = 0.05
MOMENT_S = 0.5
_STRETCH_BITS = 20
#: Entries of a queue that are checked at once.
_ENTRIES = 65536 // ENTRY_BYTES
_STRETCHES_AT_ONCE = 4
_STRETCHES_MAX = 4096
_QUEUES_MAX = 10_000


class ResidentPages:
    """Caches the results of mincore for a moment.

    :param now: seconds.
    """

    def __init__(self, log: CommitLog, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        # Number of a range of the log -> until when it counts as resident; negative if not all of it is.
        self._stretches: dict[int, float] = {}
        # First entry, last entry, and until when they count as resident.
        self._entries: dict[ConsumeQueue, tuple[int, int, float]] = {}

    def has_log(self, start: int, end: int, *, anew: bool = False) -> bool:
        """Whether bytes of the log are resident; cached for a moment unless `anew`. Hot."""
        now = self._now()
        first = start >> _STRETCH_BITS
        if not anew and first == (end - 1) >> _STRETCH_BITS and self._stretches.get(first, 0.0) > now:
            return True
        if not self._log.min_offset <= start < end <= self._log.readable_end:
            return False
        if anew:
            return self._is_resident(start, end)
        for number in range(first, ((end - 1) >> _STRETCH_BITS) + 1):
            if self._resident_until(number, now) <= now:
                return self._is_resident(start, end)
        return True

    def log_range(self, offset: int) -> tuple[int, int, float] | None:
        """The resident range around `offset` in its segment, and until when it counts as resident; None if nothing is
        resident there, or the offset is outside the log."""
        if not self._log.min_offset <= offset < self._log.readable_end:
            return None
        now, first = self._now(), offset >> _STRETCH_BITS
        file, at = self._log.place(offset)
        low, end = max(first << _STRETCH_BITS, offset - at), min(offset - at + file.size, self._log.readable_end)
        high, all_until = low, now + LOG_MOMENT_S
        for number in range(first, min(first + _STRETCHES_AT_ONCE, ((end - 1) >> _STRETCH_BITS) + 1)):
            until = self._resident_until(number, now)
            if until <= now:
                break
            high, all_until = min((number + 1) << _STRETCH_BITS, end), min(all_until, until)
        return (low, high, all_until) if high > low else None

    def _resident_until(self, number: int, now: float) -> float:
        """Until when a stretch of the log counts as resident; not after `now` if not all of it is."""
        until = self._stretches.get(number, 0.0)
        if abs(until) > now:
            return until
        start = max(number << _STRETCH_BITS, self._log.min_offset)
        is_there = self._is_resident(start, min((number + 1) << _STRETCH_BITS, self._log.readable_end))
        if len(self._stretches) >= _STRETCHES_MAX:
            self._stretches.clear()
        until = self._stretches[number] = now + LOG_MOMENT_S if is_there else -(now + LOG_MOMENT_S)
        return until

    def _is_resident(self, start: int, end: int) -> bool:
        while start < end:
            file, at = self._log.place(start)
            size = min(end - start, file.size - at)
            if not file.is_resident(at, size):
                return False
            start += size
        return True

    def entries_end(self, queue: ConsumeQueue) -> tuple[int, float]:
        """Behind which entry those end that `has_entries` has found, and until when they count as resident."""
        _, high, until = self._entries.get(queue, (0, 0, 0.0))
        return high, until

    def has_entries(self, queue: ConsumeQueue, offset: int, count: int, *, anew: bool = False) -> bool:
        """As `has_log`, for entries of a queue, all between min and max and in one file. Hot."""
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
        # Later entries are written behind the newest.
        high = offset + count if offset + count < queue.max_offset else 1 << 63
        self._entries[queue] = offset, high, now + MOMENT_S
        return True
