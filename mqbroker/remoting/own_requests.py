"""Requests that this end of a connection sent, until they are answered: each ends once, one way or another."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.wire.command import RemotingCommand

_OPAQUE_MASK = 0x7FFFFFFF


class OwnRequests:
    """Those of one connection, by opaque."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._opaque = 0
        self._waiting: dict[int, tuple[Deferred[RemotingCommand], IDelayedCall]] = {}

    def next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def wait(self, opaque: int, timeout_ms: int, too_late: str) -> Deferred[RemotingCommand]:
        """Fires with the answer. Fails with RequestTimedOut, which says `too_late`, or ConnectionClosed."""
        deferred: Deferred[RemotingCommand] = Deferred(partial(self._forget, opaque))
        timeout = self._clock.callLater(timeout_ms / 1000, self._time_out, opaque, too_late)
        self._waiting[opaque] = deferred, timeout
        return deferred

    def settle(self, answer: RemotingCommand) -> bool:
        """False where nothing, or nothing any more, waits for it."""
        found = self._waiting.pop(answer.opaque, None)
        if found is None:
            return False
        deferred, timeout = found
        timeout.cancel()
        deferred.callback(answer)
        return True

    def connection_lost(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for deferred, timeout in waiting.values():
            timeout.cancel()
            if not deferred.called:  # cancelled by one that failed before it
                deferred.errback(ConnectionClosed(why))

    def _time_out(self, opaque: int, too_late: str) -> None:
        deferred, _ = self._waiting.pop(opaque)
        deferred.errback(RequestTimedOut(too_late))

    def _forget(self, opaque: int, deferred: Deferred[Any]) -> None:
        found = self._waiting.pop(opaque, None)
        if found is not None:
            found[1].cancel()
        deferred.errback(CancelledError())
