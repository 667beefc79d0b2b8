"""Workers: run functions that wait for the disk away from the reactor's thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from zope.interface import Interface, implementer

T = TypeVar("T")


class IWorker(Interface):
    """Runs functions away from the reactor's thread."""

    def run(function: Callable[[], Any]) -> Deferred[Any]:
        """Run `function`; the Deferred fires on the reactor's thread with its result or failure, or fails at once where
        it cannot be run, as without another thread: never raises."""


@implementer(IWorker)
class ThreadWorker:
    """Runs on a thread pool.

    :param defer_to_pool: `twisted.internet.threads.deferToThreadPool`, passed in as its module imports the reactor.
    :param reactor: where results are delivered.
    """

    def __init__(
        self,
        defer_to_pool: Callable[[Any, ThreadPool, Callable[[], Any]], Deferred[Any]],
        reactor: object,
        pool: ThreadPool,
    ) -> None:
        self._defer_to_pool = defer_to_pool
        self._reactor = reactor
        self._pool = pool

    def run(self, function: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(self._defer_to_pool, self._reactor, self._pool, function)


@implementer(IWorker)
class SerialWorker:
    """Runs one function after another, on a thread that does nothing else.

    For frequent work such as syncs: the way to a pool's thread and back takes twice the time, and all threads of a pool
    may be busy with long work.

    :param call_from_thread: `reactor.callFromThread`: runs a function on the reactor's thread.
    """

    def __init__(self, call_from_thread: Callable[..., object]) -> None:
        self._call_from_thread = call_from_thread
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()

    def serve(self) -> None:
        """The thread's main function, until `stop`."""
        while (job := self._jobs.get()) is not None:
            function, result = job
            try:
                value = function()
            except BaseException:
                self._call_from_thread(result.errback, Failure())  # type: ignore[no-untyped-call]
            else:
                self._call_from_thread(result.callback, value)

    def run(self, function: Callable[[], T]) -> Deferred[T]:
        result: Deferred[T] = Deferred()
        self._jobs.put((function, result))
        return result

    def stop(self) -> None:
        """End the thread when its queue is empty; nothing more may be submitted."""
        self._jobs.put(None)


@implementer(IWorker)
class InlineWorker:
    """Runs functions at once in the caller's thread: for tools without a reactor, and tests."""

    def run(self, function: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(function)
