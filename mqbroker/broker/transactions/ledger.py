"""Which half messages are settled: one byte for each from the first on that is not, and what settled which.

Offsets in, offsets out. Must never know of messages, stores or clocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

#: How far beyond the first half message that is not settled one may be: what is kept of them is bounded by it.
SPAN_MAX = 64 * 1024 * 1024
#: Of how many half messages that were put back it is known where they are now.
MOVES_MAX = 100_000
_TRIM_MIN = 64 * 1024


class Ledger:
    """`progress`: all half messages below are settled. `op_progress`: entries below settle none at or above it."""

    def __init__(self, progress: int, op_progress: int) -> None:
        self.progress = progress
        #: A byte for each half message from `_base` on, 1 where it is settled.
        self._settled = bytearray()
        self._base = progress
        #: Of each entry from `_op_base` on the half message that it settles; those before `_op_at` are done with.
        self._ops = array("q")
        self._op_base = op_progress
        self._op_at = 0
        self._moves: dict[int, int] = {}

    @property
    def op_progress(self) -> int:
        return self._op_base + self._op_at

    @property
    def next_op(self) -> int:
        """The offset of the entry that follows."""
        return self._op_base + len(self._ops)

    def is_settled(self, offset: int) -> bool:
        at = offset - self._base
        return at < 0 or (at < len(self._settled) and self._settled[at] == 1)

    def is_open(self, offset: int) -> bool:
        """Whether a half message at `offset` can be settled. Hot."""
        at = offset - self._base
        settled = self._settled
        return at >= 0 and (at >= len(settled) or not settled[at]) and offset < self.progress + SPAN_MAX

    def is_possible(self, offset: int) -> bool:
        """Whether a half message at `offset` can be kept account of."""
        return 0 <= offset < self.progress + SPAN_MAX

    def settle(self, offset: int, op_offset: int) -> None:
        """Take note of the entry at `op_offset`, which settles the half message at `offset`."""
        if op_offset < self.next_op:
            return
        # Entries between that are not known say nothing.
        self._ops.extend([-1] * (op_offset - self.next_op))
        self._ops.append(offset if self.is_possible(offset) else -1)
        self._set(offset, offset + 1)

    def settle_all(self, offsets: Sequence[int], op_offset: int) -> None:
        """As `settle`, for entries one after another, of which the first is at `op_offset`. Hot."""
        base = self._base
        high = max(offsets)
        if op_offset != self.next_op or min(offsets) < base or not self.is_possible(high):
            for number, offset in enumerate(offsets):
                self.settle(offset, op_offset + number)
            return
        self._ops.extend(offsets)
        settled = self._settled
        settled.extend(bytes(max(0, high + 1 - base - len(settled))))
        for offset in offsets:
            settled[offset - base] = 1
        self._pass_settled()
        self._pass_ops()

    def forget(self, start: int, end: int) -> None:
        """Half messages at start..end are not there any more: they count as settled."""
        self._set(max(start, self._base), min(end, self.progress + SPAN_MAX))

    def next_open(self, offset: int) -> int:
        """The first half message at or after `offset` that is not settled."""
        at = max(0, offset - self._base)
        if at >= len(self._settled):
            return self._base + at
        found = self._settled.find(0, at)
        return self._base + (found if found >= 0 else len(self._settled))

    def move(self, offset: int, to: int) -> None:
        """A half message was put back: it is at `to` now."""
        if len(self._moves) >= MOVES_MAX:
            del self._moves[next(iter(self._moves))]
        self._moves[offset] = to

    def where(self, offset: int) -> int:
        """Where the half message is now that was at `offset`."""
        while (moved := self._moves.get(offset)) is not None:
            offset = moved
        return offset

    def _set(self, start: int, end: int) -> None:
        if self._base <= start < end and self.is_possible(end - 1):
            settled = self._settled
            settled.extend(bytes(max(0, end - self._base - len(settled))))
            settled[start - self._base : end - self._base] = b"\x01" * (end - start)
            self._pass_settled()
        self._pass_ops()

    def _pass_settled(self) -> None:
        self.progress = self.next_open(self.progress)
        if self.progress - self._base >= _TRIM_MIN:
            del self._settled[: self.progress - self._base]
            self._base = self.progress

    def _pass_ops(self) -> None:
        ops, at, progress = self._ops, self._op_at, self.progress
        while at < len(ops) and ops[at] < progress:
            at += 1
        if at >= _TRIM_MIN:
            del ops[:at]
            self._op_base += at
            at = 0
        self._op_at = at
