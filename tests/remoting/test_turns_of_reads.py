"""Which of many connections are read in a turn of the reactor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from mqbroker.kernel import compiled
from mqbroker.remoting.fair_scheduler import ALL_AT_ONCE_S, AT_ONCE_S
from mqbroker.remoting.shared_reads import READS_MAX
from tests.remoting.link import Link, Peer, serve
from tests.remoting.read_together import Connections, EndingReactor

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections(EndingReactor())
    yield made
    made.close()


def test_who_had_his_time_is_not_read_and_loses_nothing(connections: Connections) -> None:
    made = connections.make(2 * READS_MAX)
    late, lone = made[:-1], made[-1]
    for kept in made:
        kept.peer.send(b"data")

    def spend(reads: Sequence[bytes]) -> list[int]:
        connections.late = late
        return [len(data) for data in reads]

    connections.take = spend
    connections.turn()
    assert connections.protocols == [late[:READS_MAX], [lone]]
    connections.late = []
    connections.turn()
    assert [len(each) for each in connections.protocols] == [READS_MAX, 1, READS_MAX - 1]
    assert {id(kept) for each in connections.protocols for kept in each} == {id(kept) for kept in made}


def test_time_is_counted_by_address_until_the_reactor_turns() -> None:
    clock = Clock()
    factory = serve(clock)
    hosts = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    links = [
        Link(Peer(), factory.buildProtocol(None), near_address=IPv4Address("TCP", host, 1 + number))
        for number, host in enumerate(hosts)
    ]
    made: Any = [link.protocols[1] for link in links]
    assert factory.in_time(made) == [True, True, True]
    factory.scheduler.spent(made[0].from_address, AT_ONCE_S)
    assert factory.in_time(made) == [False, False, True]
    clock.advance(0)
    assert factory.in_time(made) == [True, True, True]
    for connection in made:
        factory.scheduler.spent(connection.from_address, 0.6 * AT_ONCE_S)
    assert factory.in_time(made) == [False, False, True]
    inside_tls: Any = [Mock(wrappedProtocol=connection, spec=["wrappedProtocol"]) for connection in made]
    assert factory.in_time(inside_tls) == [False, False, True]
    factory.scheduler.spent(made[2].from_address, ALL_AT_ONCE_S)
    assert factory.in_time(made) == [False, False, False]
    factory.doStop()
