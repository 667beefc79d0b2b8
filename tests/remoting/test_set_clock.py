"""A clock that is set: no connection is idle, late or silent because the time of day jumps; what is late, is."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.errors import MQError, RequestTimedOut
from mqbroker.remoting.client import RemotingClient
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.response_table import ResponseTable, Timeout
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.remoting.link import Link, Network, NoOwner, Peer, raw_link


class Jumping:
    """A clock whose time of day can be set, and the seconds that have really passed."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.advance(1_700_000_000)
        self.passed = 5.0

    def steady(self) -> float:
        return self.passed

    def pass_(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.passed += step
            self.clock.advance(step)

    def jump(self, seconds: float) -> None:
        """Set it forward: what waits for the time of day is called."""
        self.clock.advance(seconds)


@pytest.fixture
def time() -> Jumping:
    return Jumping()


@pytest.fixture
def server(time: Jumping) -> Any:
    factory = RemotingServerFactory(HandlerTable(), time.clock, Limits(), steady=time.steady)
    factory.doStart()
    yield factory
    factory.doStop()


def open_ones(server: RemotingServerFactory) -> int:
    return sum(not connection.closed for connection in server.connections)


def test_a_clock_set_forward_closes_no_connection_of_a_server(server: RemotingServerFactory, time: Jumping) -> None:
    quiet, whole, part = (raw_link(server) for _ in range(3))
    whole[0].transport.write(encode_command(RemotingCommand(1)))
    part[0].transport.write(encode_command(RemotingCommand(1))[:10])
    for link in (quiet, whole, part):
        link[1].pump()
    for _ in range(3):
        time.jump(3600)
        time.pass_(2)
    assert open_ones(server) == 3


@pytest.mark.parametrize("jump", [0, 3600, 50, 119])
def test_what_is_idle_is_closed_when_it_has_been_for_its_time(
    server: RemotingServerFactory, time: Jumping, jump: float
) -> None:
    peer, link = raw_link(server)
    for _ in range(2):  # the second time is as the first
        time.pass_(60)
        peer.transport.write(encode_command(RemotingCommand(1)))
        link.pump()
        time.jump(jump)
    # A jump counts for no more than passed between two checks, which are made every five seconds.
    time.pass_(114)
    assert open_ones(server) == 1
    time.pass_(11)
    assert open_ones(server) == 0


def test_a_frame_that_is_not_whole_is_closed_in_its_time_whatever_the_clock_says(
    server: RemotingServerFactory, time: Jumping
) -> None:
    peer, link = raw_link(server)
    peer.transport.write(encode_command(RemotingCommand(1))[:10])
    link.pump()
    time.jump(3600)
    time.pass_(Limits().frame_seconds_max - 2)
    assert open_ones(server) == 1
    time.pass_(4)
    assert open_ones(server) == 0


def test_a_request_is_late_by_the_time_that_has_passed(time: Jumping) -> None:
    network = Network()
    client = RemotingClient(time.clock, connector=network.connector, steady=time.steady)
    peer = Peer()

    class Silent:
        def buildProtocol(self, addr: object) -> Any:
            return peer

    network.servers["10.0.0.1:1"] = Silent()
    outcome: list[Any] = []
    client.invoke_sync("10.0.0.1:1", RemotingCommand(1), 3000).addBoth(outcome.append)
    network.pump()
    time.jump(3600)
    time.pass_(2.5, 0.5)
    assert outcome == []
    assert not peer.lost
    time.pass_(1.5, 0.5)
    assert outcome[0].check(RequestTimedOut)


def test_a_timer_that_fires_early_is_set_again(time: Jumping) -> None:
    over: list[float] = []
    timeout = Timeout(time.steady, time.clock.callLater, 10.0, lambda: over.append(time.passed))
    for _ in range(2):
        time.jump(3600)
        assert (over, timeout.is_over) == ([], False)
    time.pass_(10)
    assert over == [15.0]


def test_a_response_table_whose_timer_fires_early_times_nothing_out(time: Jumping) -> None:
    silent: list[int] = []
    outcomes: list[RemotingCommand | MQError] = []
    table = ResponseTable("peer", time.steady, time.clock.callLater, lambda: silent.append(1))
    for seconds_ms in (5000, 9000):
        opaque = table.next_opaque()
        table.written([table.add(opaque, RemotingCommand(1), seconds_ms, outcomes.append)])
    time.jump(3600)
    assert (outcomes, silent) == ([], [])
    time.pass_(5)
    assert len(outcomes) == 1
    time.jump(3600)
    time.pass_(4)
    assert len(outcomes) == 2


def test_a_peer_that_reads_nothing_is_closed_in_its_time(time: Jumping) -> None:
    protocol = RemotingProtocol(HandlerTable(), time.clock, Limits(), NoOwner(), steady=time.steady)
    Link(Peer(), protocol)
    protocol.pauseProducing()
    time.jump(3600)
    assert protocol.overdue(time.passed) is None
    time.passed += 120
    assert protocol.overdue(time.passed) == "it did not read its answers for 120 s"


def test_frames_that_come_in_parts_again_and_again_are_late_by_their_own_time_each(
    server: RemotingServerFactory, time: Jumping
) -> None:
    peer, link = raw_link(server)
    frame = encode_command(RemotingCommand(1))
    for ending in (b"", frame[:10], b""):  # the last part of one frame may bring the first of the next
        peer.transport.write(frame[:10])
        link.pump()
        time.pass_(Limits().frame_seconds_max - 6)
        peer.transport.write(frame[10:] + ending)
        link.pump()
        if ending:
            time.pass_(Limits().frame_seconds_max - 6)
            peer.transport.write(frame[10:])
            link.pump()
        time.pass_(Limits().frame_seconds_max + 10)  # in which there is no frame to wait for
        assert open_ones(server) == 1
    peer.transport.write(frame[:10])
    link.pump()
    time.pass_(Limits().frame_seconds_max - 6)
    assert open_ones(server) == 1
    time.pass_(12)
    assert open_ones(server) == 0
