"""An event loop of asyncio on the clock of servers in memory, and the clients' network on it: time passes only where
the loop would wait."""

from __future__ import annotations

import asyncio
import random
import selectors
from typing import Any

from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.client.connection import Connection
from mqbroker.client.deferred_net import _Factory
from mqbroker.client.net import RequestHandler
from mqbroker.errors import Unreachable
from mqbroker.wire.names import split_address
from tests.client.own_cluster import OwnCluster
from tests.client.world import World

#: Waits of a loop without an end in sight.
_WAITS_MAX = 100_000


class _Selector(selectors.SelectSelector):
    """No file is ever ready: servers do what is due instead."""

    def __init__(self, cluster: OwnCluster) -> None:
        super().__init__()
        self._cluster, self._left = cluster, _WAITS_MAX

    def select(self, timeout: float | None = None) -> list[Any]:
        self._left -= 1
        assert self._left, "the loop waits for what does not come"
        self._cluster.settle()
        if timeout is None or timeout > 0:
            reactor = self._cluster.reactor
            due = min((call.getTime() for call in reactor.getDelayedCalls()), default=reactor.seconds())
            until_due = max(0.0, due - reactor.seconds())
            self._cluster.advance(until_due if timeout is None else min(timeout, until_due))
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs with the servers of `cluster`, which must not be eager: a loop's calls never run inside one another."""

    def __init__(self, cluster: OwnCluster) -> None:
        self._reactor = cluster.reactor
        super().__init__(_Selector(cluster))
        # What is due now is called now: a nanosecond is lost where seconds since 1970 are floats.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return float(self._reactor.seconds())


class SimulatedNet(AioNet):
    """Reaches the servers in memory."""

    def __init__(self, world: World, rng: random.Random, on_request: RequestHandler = decline) -> None:
        super().__init__(on_request, rng)
        self._world = world

    def like(self, on_request: RequestHandler) -> SimulatedNet:
        return SimulatedNet(self._world, self.rng, on_request)

    def now(self) -> float:
        return self._world.clock.seconds()

    async def _connect(self, addr: str) -> Connection:
        attempt = self._world.cluster.network.connector(*split_address(addr)).connect(
            _Factory(self._new_connection(addr))
        )
        try:
            protocol: Any = await attempt.asFuture(self.loop)
        except Exception as error:
            raise Unreachable(f"connect to {addr} failed: {error}") from error
        connection: Connection = protocol.connection
        return connection
