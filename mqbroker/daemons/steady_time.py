"""The time of day as timers need it: it may run ahead or slow down, and never stands still or goes back.

Twisted's reactor takes its time from the system's clock. Where that is set back, every timer waits as much longer,
that of the flush which bounds what a power cut may take as well.
"""

from __future__ import annotations

from collections.abc import Callable

#: After it was set back, time runs so much slower until the system's clock has come up with it.
SLOWED_BY = 0.02
#: How often the system's clock is looked at: it is read several times in each turn of the reactor.
LOOK_SECONDS = 0.01


class SteadyTime:
    """Call it for the seconds since 1970.

    :param wall: the system's clock, seconds since 1970, which may jump.
    :param monotonic: seconds since any moment, which does not.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._last = monotonic()
        self._ahead = wall() - self._last
        self._fresh_until = self._last

    def __call__(self) -> float:
        now = self._monotonic()
        if now >= self._fresh_until:
            self._look(now)
        return now + self._ahead

    def _look(self, now: float) -> None:
        ahead = self._wall() - now
        if ahead < self._ahead:
            ahead = max(ahead, self._ahead - SLOWED_BY * (now - self._last))
        self._ahead = ahead
        self._last = now
        self._fresh_until = now + LOOK_SECONDS
