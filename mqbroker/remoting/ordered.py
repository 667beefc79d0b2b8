"""Services that start one after another and stop in reverse. Must never know what they serve.

Twisted's MultiService stops all its children at once; here each has stopped before the one it stands on does.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


class OrderedService(Service):
    """`children` in the order they start; each waits for the Deferred, if any, of the one before it."""

    def __init__(self, children: Sequence[IService]) -> None:
        self._children = tuple(children)
        self._started: list[IService] = []
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
                self._started.append(child)
        except Exception:
            self.running = 0
            await self._stop_started()
            raise

    async def _stop_children(self) -> None:
        start = self._start
        if start is not None and not start.called:
            await _ended(start)
        await self._stop_started()

    async def _stop_started(self) -> None:
        while self._started:
            child = self._started.pop()
            try:
                await maybeDeferred(child.stopService)
            except Exception:
                log.failure("{child} did not stop cleanly", Failure(), child=child)  # type: ignore[no-untyped-call]


def _ended(deferred: Deferred[None]) -> Deferred[None]:
    """Fires when `deferred` has come to its end, well or not, and leaves its result to others."""
    done: Deferred[None] = Deferred()

    def pass_on(result: Failure | None) -> Failure | None:
        done.callback(None)
        return result

    deferred.addBoth(pass_on)
    return done
