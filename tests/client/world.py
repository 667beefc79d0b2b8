"""Cores of clients on our own servers in memory, on one clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from mqbroker.client.broker_requests import decline
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.identity import Identity
from tests.client.own_cluster import OwnCluster

T = TypeVar("T")


class ClientClock:
    """The clock of the servers, with the calls that clients have made on it, and a time of day that may be another."""

    def __init__(self, cluster: OwnCluster) -> None:
        self._cluster = cluster
        self._calls: WeakSet[IDelayedCall] = WeakSet()
        #: How many seconds the clients' clock was set forward.
        self.set_forward = 0.0

    def seconds(self) -> float:
        return float(self._cluster.reactor.seconds()) + self.set_forward

    def callLater(self, delay: float, call: Callable[..., Any], *args: Any, **kw: Any) -> IDelayedCall:
        made = self._cluster.reactor.callLater(delay, call, *args, **kw)
        self._calls.add(made)
        return made

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return [call for call in self._calls if call.active()]

    def advance(self, seconds: float) -> None:
        self._cluster.advance(seconds)

    def pump(self, steps: Iterable[float]) -> None:
        for seconds in steps:
            self._cluster.advance(seconds)


class FixedIdentity(Identity):
    """A client id that a test chooses, and message ids that are counted."""

    def __init__(self, client_id: str = "me", next_id: Callable[[], str] | None = None) -> None:
        super().__init__((), random.Random(1), lambda: 0.0)
        numbers = itertools.count()
        self.client_id, self._next = client_id, next_id or (lambda: f"U{next(numbers)}")

    def take(self) -> None:
        pass

    @property
    def next_ids(self) -> Any:
        return self._next


class World:
    def __init__(self, cluster: OwnCluster) -> None:
        self.cluster = cluster
        self.clock = ClientClock(cluster)
        self.faults = cluster.faults

    def net(self, seed: int = 1) -> DeferredNet:
        return DeferredNet(
            self.clock,
            decline,
            random.Random(seed),
            connector=self.cluster.network.connector,
            steady=self.cluster.reactor.seconds,
        )

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Deferred[Any]:
        """Start a coroutine; the Deferred of its result."""
        started: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        self.cluster.settle()
        return started

    def result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that needs no time to pass."""
        found: list[Any] = []
        self.run(coroutine).addBoth(found.append)
        assert found, "the coroutine waits for something"
        if isinstance(found[0], Failure):
            found[0].raiseException()
        result: T = found[0]
        return result
