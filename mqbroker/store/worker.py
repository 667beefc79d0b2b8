"""Where work that waits for the disk is done. Must never know what the work is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.threadpool import ThreadPool
from zope.interface import Interface, implementer

T = TypeVar("T")


class IWorker(Interface):
    """Runs functions away from the reactor's thread."""

    def run(function: Callable[[], Any]) -> Deferred[Any]:
        """Return a Deferred, fired on the reactor's thread, of what `function` returns or raises."""


@implementer(IWorker)
class ThreadWorker:
    """Runs on a thread pool.

    :param defer_to_pool: `twisted.internet.threads.deferToThreadPool`, given in since it reaches for the reactor.
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
        return self._defer_to_pool(self._reactor, self._pool, function)


@implementer(IWorker)
class InlineWorker:
    """Runs at once, in the caller's thread: for tools that have no reactor, and tests."""

    def run(self, function: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(function)
