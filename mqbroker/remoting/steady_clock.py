"""A clock for idle times and heartbeats: nothing is closed or expires because the time of day is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer


@implementer(IReactorTime)
class SteadyClock:
    """A reactor's timers with seconds of a clock that is never set. A timer may fire early: its callback checks the
    time.

    :param steady: those seconds; None means the reactor's, which follow the time of day.
    """

    def __init__(self, reactor: Any, steady: Callable[[], float] | None = None) -> None:
        clock = cast(IReactorTime, reactor)
        self.seconds: Callable[[], float] = steady or clock.seconds
        #: The reactor: a LoopingCall, which counts by seconds, must have one clock for both.
        self.timers = clock

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object) -> IDelayedCall:
        return self.timers.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> Any:
        return self.timers.getDelayedCalls()
