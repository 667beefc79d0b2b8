"""Corrupt ranges of the log: known to hold no record, never served, and reported in statistics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from mqbroker.store.logscan import Damage

#: Ranges that are remembered. Those beyond are not served either, but found again each time.
RANGES_MAX = 10_000


class CorruptRanges:
    """Disjoint ranges of the log, in order.

    `intact_from`: no range is at or above it. Initially the end of the log when that was opened, so that one comparison
    covers what this process appends.
    """

    def __init__(self, log_end: int) -> None:
        self.intact_from = log_end
        self._log_end = log_end
        self._ranges: list[Damage] = []
        self._starts: list[int] = []
        # Reported, but of bytes that are not in the log any more.
        self._cut_off: list[Damage] = []

    def __iter__(self) -> Iterator[Damage]:
        return iter(sorted(self._ranges + self._cut_off, key=_start))

    def __len__(self) -> int:
        return len(self._ranges) + len(self._cut_off)

    def add(self, damage: Damage) -> bool:
        """Add a range, merged with those it overlaps. False if all of it was known, or there are too many."""
        near = [known for known in self._ranges if known.start < damage.end and known.end > damage.start]
        covered = sum(min(known.end, damage.end) - max(known.start, damage.start) for known in near)
        if covered >= damage.end - damage.start:
            return False
        if len(self) >= RANGES_MAX:
            return False
        if near:
            first = min([damage, *near], key=_start)
            damage = Damage(first.path, first.start, max(damage.end, near[-1].end), first.why)
        kept = [known for known in self._ranges if known not in near]
        kept.insert(bisect_left(kept, damage.start, key=_start), damage)
        self._ranges = kept
        self._starts = [known.start for known in kept]
        self.intact_from = max(self.intact_from, damage.end)
        return True

    def add_at_open(self, damage: Damage) -> bool:
        """As `add`, for a range found when the log was opened: one that starts at the log's new end is reported only,
        as messages are appended there."""
        if damage.start < self._log_end:
            return self.add(damage._replace(end=min(damage.end, self._log_end)))
        if damage in self._cut_off or len(self) >= RANGES_MAX:
            return False
        self._cut_off.append(damage)
        return True

    def covers(self, start: int, end: int) -> bool:
        """Whether any byte of start..end lies in a range."""
        at = bisect_left(self._starts, end) - 1
        return at >= 0 and self._ranges[at].end > start


def _start(damage: Damage) -> int:
    return damage.start
