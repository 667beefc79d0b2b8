"""Settings of sockets and intervals: what they come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from mqbroker.config import ClientSettings
from tests.broker.bench import Bench
from tests.broker.service.running import Reactor, Running


@pytest.mark.parametrize("seconds", [0.05, 7])
def test_progress_of_delayed_messages_is_kept_as_often_as_is_set(
    make_bench: Callable[..., Bench], seconds: float
) -> None:
    bench = make_bench(store={"flush_delay_offset_interval_ms": int(seconds * 1000)})
    assert (seconds, bench.parts.delay.persist) in bench.parts.periodic()


class Silent:
    """A network on which nobody answers an attempt to connect."""

    def __init__(self) -> None:
        self.attempts = self.given_up = 0

    def connector(self, host: str, port: int) -> Silent:
        return self

    def connect(self, factory: object) -> Deferred[object]:
        self.attempts += 1
        return Deferred(self._cancelled)

    def _cancelled(self, attempt: Deferred[object]) -> None:
        self.given_up += 1

    def pump(self) -> None:
        """Nothing comes."""


def test_connections_to_name_servers_are_given_up_when_that_is_set(tmp_path: Path) -> None:
    reactor, network = Reactor(), Silent()
    running = Running(reactor, network, tmp_path, client=ClientSettings(connect_timeout_ms=1250)).start()
    assert (network.attempts, network.given_up) == (1, 0)
    reactor.pump([0.05] * 24)
    assert network.given_up == 0
    reactor.pump([0.01] * 6)
    assert network.given_up == 1
    running.stop()
