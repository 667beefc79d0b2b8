"""Ordered start and stop of services: started one after another, stopped in reverse, each when the one before has
finished.

Twisted's MultiService stops all children at once; here each stops before the one it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


async def stop_in_reverse(stops: list[Callable[[], object]]) -> None:
    """Pop and call `stops` from last to first, awaiting each Deferred returned. A failure is logged and the rest are
    still called."""
    while stops:
        stop = stops.pop()
        try:
            await maybeDeferred(stop)
        except Exception:
            log.failure("a step of stopping failed; continuing with the next", step=stop)


class OrderedService(Service):
    """Starts `children` in order; each waits for the Deferred, if any, of the one before it."""

    def __init__(self, children: Sequence[IService]) -> None:
        self._children = tuple(children)
        self._stops: list[Callable[[], object]] = []
        self._start: Deferred[None] | None = None
        self._stop: Deferred[None] | None = None

    def startService(self) -> Deferred[None]:
        """Fire when all have started. If one fails, those started before it are stopped and the failure propagates."""
        self.running = 1
        self._stop = None
        self._start = Deferred.fromCoroutine(self._start_children())
        return self._start

    def stopService(self) -> Deferred[None]:
        """Fire when all started children have stopped; a failure to stop is logged and the rest are still stopped.

        If called during startup, it waits for the child being started and starts no others.
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
    """Fire when `deferred` fires, with a result or a failure, and pass that on unchanged."""
    done: Deferred[None] = Deferred()

    def pass_on(result: Failure | None) -> Failure | None:
        done.callback(None)
        return result

    deferred.addBoth(pass_on)
    return done
