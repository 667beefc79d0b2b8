"""Ordered start and stop of services: started one after another, stopped in reverse, each when the one before has
finished.

Twisted's MultiService stops all its children at once; here each has stopped before the one it stands on does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


async def stop_in_reverse(stops: list[Callable[[], object]]) -> None:
    """Call the last of `stops`, wait for the Deferred, if any, that it returns, and so on until none is left. One that
    fails is logged, and the rest goes on."""
    while stops:
        stop = stops.pop()
        try:
            await maybeDeferred(stop)
        except Exception:
            log.failure("a step of stopping failed; going on with the next", step=stop)


class OrderedService(Service):
    """`children` in the order they start; each waits for the Deferred, if any, of the one before it."""

    def __init__(self, children: Sequence[IService]) -> None:
        self._children = tuple(children)
        self._stops: list[Callable[[], object]] = []
        self._start: Deferred[None] | None = None
        self._stop: Deferred[None] | None = None

    def startService(self) -> Deferred[None]:
        """Fires when all have started. Where one fails, those before it are stopped, and its failure is passed on."""
        self.running = 1
        self._stop = None
        self._start = Deferred.fromCoroutine(self._start_children())
        return self._start

    def stopService(self) -> Deferred[None]:
        """Fires when all that were started have stopped; one that fails to is logged, and the rest stop all the same.

        During the start, the child that is starting is waited for, and no other is started.
        """
        self.running = 0
        if self._stop is None:
            self._stop = Deferred.fromCoroutine(self._stop_children())
        done: Deferred[None] = Deferred()
        self._stop.chainDeferred(done)
        return done

    async def _start_children(self) -> None:
        try:
            for child in self._children:
                if not self.running:
                    return
                await maybeDeferred(child.startService)
                self._stops.append(child.stopService)
        except Exception:
            self.running = 0
            await stop_in_reverse(self._stops)
            raise

    async def _stop_children(self) -> None:
        start = self._start
        if start is not None and not start.called:
            await _ended(start)
        await stop_in_reverse(self._stops)


def _ended(deferred: Deferred[None]) -> Deferred[None]:
    """Fires when `deferred` has come to its end, well or not, and leaves its result to others."""
    done: Deferred[None] = Deferred()

    def pass_on(result: Failure | None) -> Failure | None:
        done.callback(None)
        return result

    deferred.addBoth(pass_on)
    return done
