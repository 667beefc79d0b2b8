"""How much of a producer's sends is on its way at once: a bounded number and size, the rest waits in order."""

from __future__ import annotations

from collections import deque

import attrs

from mqbroker.client.net import LiveNet, Signal


@attrs.define(eq=False)
class _Waiter:
    size: int
    signal: Signal
    is_granted: bool = False
    has_left: bool = False


class InFlight:
    """Places for `count_max` sends of `bytes_max` together; one that is larger goes alone.

    First come, first served: nobody overtakes, not even one for whom there is room while a larger one waits.
    """

    def __init__(self, net: LiveNet, count_max: int, bytes_max: int) -> None:
        self._net = net
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[_Waiter] = deque()
        #: Waiters that have their places and did not go on yet: who comes now is to come behind them.
        self._about_to_go = 0
        self._is_granting = False

    async def enter(self, size: int) -> None:
        """Take a place for `size` bytes, to be given back by `leave`; wait for one where there is none."""
        if not self._waiting and not self._about_to_go and self._has_room(size):
            self._take(size)
            return
        waiter = _Waiter(size, self._net.signal())
        self._waiting.append(waiter)
        try:
            await waiter.signal.wait()
        except BaseException:
            # It stays in the line until its turn: thousands may leave at once.
            waiter.has_left = True
            if waiter.is_granted:
                self._about_to_go -= 1
                self.leave(size)
            raise
        self._about_to_go -= 1
        self._grant()

    def leave(self, size: int) -> None:
        """Give a place back."""
        self._count -= 1
        self._bytes -= size
        self._grant()

    def _has_room(self, size: int) -> bool:
        return not self._count or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size

    def _grant(self) -> None:
        # On Twisted a waiter goes on from inside set(), and may come back here: from a loop, not ever deeper.
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._waiting and (self._waiting[0].has_left or self._has_room(self._waiting[0].size)):
                waiter = self._waiting.popleft()
                if not waiter.has_left:
                    self._take(waiter.size)
                    waiter.is_granted = True
                    self._about_to_go += 1
                    waiter.signal.set()
        finally:
            self._is_granting = False
