"""Draining: wait, up to a time limit, until all accepted requests are answered."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.remoting.limits import Load

log = Logger()


def answered(load: Load, clock: IReactorTime, seconds_max: float) -> Deferred[None]:
    """Fire when `load` has no pending requests, or after `seconds_max`."""
    if not load.requests:
        return succeed(None)
    done: Deferred[None] = Deferred()

    def idle() -> None:
        load.on_idle = None
        timeout.cancel()
        done.callback(None)

    def too_late() -> None:
        load.on_idle = None
        log.warn("requests dropped because they took too long: {n}", n=load.requests)
        done.callback(None)

    load.on_idle = idle
    timeout = clock.callLater(seconds_max, too_late)
    return done
