"""The server's factory: who is let in, who is closed, and who hears of it."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.server import WATCH_SECONDS, ConnectionEvent, IdleWatch
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.remoting.link import raw_link, serve
from tests.remoting.logs import Logged

ECHO, LATER = 10, 11


@pytest.fixture
def table() -> HandlerTable:
    table = HandlerTable()
    table.register(ECHO, lambda request, connection: RemotingCommand.response(request, body=request.body))
    return table


def request(code: int = ECHO, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(code, body=body, opaque=1))


def advance(clock: Clock, seconds: float) -> None:
    """Let time pass as a reactor does: not over a timer at once."""
    while seconds > 0:
        clock.advance(min(1.0, seconds))
        seconds -= 1.0


def test_an_idle_connection_is_closed(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    advance(clock, 119)
    link.pump()
    assert not peer.lost
    advance(clock, 1 + WATCH_SECONDS)
    link.pump()
    assert peer.lost
    assert not factory.connections
    assert "closing 10.0.0.2:40000: no traffic for 120 s" in logged.lines


def test_a_connection_that_cannot_be_closed_does_not_keep_others_open(clock: Clock, logged: Logged) -> None:
    class Overdue:
        remote_addr, closed, why = "10.0.0.2:40000", False, ""

        def __init__(self, *, fails: bool) -> None:
            self.fails = fails

        def overdue(self, now: float) -> str:
            return "no traffic for 120 s"

        def close(self, why: str) -> None:
            if self.fails:
                raise MemoryError
            self.closed, self.why = True, why

    connections: Any = [Overdue(fails=True), Overdue(fails=False)]
    watch = IdleWatch(connections, SteadyClock(clock, clock.seconds))
    watch.start()
    for number in (1, 2):
        clock.advance(WATCH_SECONDS)
        assert connections[-1].why == "no traffic for 120 s"
        assert len(logged.failures) == number
        connections.append(Overdue(fails=False))
    watch.stop()


@pytest.mark.parametrize("direction", ["in", "out"])
def test_traffic_either_way_keeps_a_connection(clock: Clock, table: HandlerTable, direction: str) -> None:
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    (connection,) = factory.connections
    for _ in range(4):
        advance(clock, 100)
        if direction == "in":
            peer.transport.write(request())
        else:
            connection.invoke_oneway(RemotingCommand(ECHO))
        link.pump()
    assert not peer.lost


def test_a_frame_that_never_ends_is_closed_however_it_trickles(
    clock: Clock, table: HandlerTable, logged: Logged
) -> None:
    peer, link = raw_link(serve(clock, table))
    data = request(body=bytes(1000))
    for i in range(30 + int(WATCH_SECONDS)):
        peer.transport.write(data[i : i + 1])
        link.pump()
        advance(clock, 1)
    link.pump()
    assert peer.lost
    assert "closing 10.0.0.2:40000: a frame was incomplete after 30 s" in logged.lines


def test_a_frame_is_timed_from_its_own_beginning(clock: Clock, table: HandlerTable) -> None:
    """A stream whose reads always end in the middle of a frame is a busy one, not a slow one."""
    peer, link = raw_link(serve(clock, table))
    stream = request(body=bytes(100)) * 50
    for at in range(0, len(stream), 150):
        peer.transport.write(stream[at : at + 150])
        link.pump()
        advance(clock, 5)
    assert not peer.lost
    assert len(peer.answers) >= 49


def test_a_frame_is_not_timed_while_we_do_not_read(clock: Clock, table: HandlerTable) -> None:
    held: list[Any] = []
    table.register(LATER, lambda request, connection: held.append(Deferred()) or held[-1])
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    peer.transport.write(request(LATER) + request()[:20])
    link.pump()
    peer.transport.write(request()[20:])
    advance(clock, 60)
    link.pump()
    assert not peer.lost
    held[0].callback(None)
    advance(clock, 20)
    link.pump()
    assert len(peer.answers) == 1
    assert not peer.lost


def test_a_peer_that_never_reads_its_answers_is_closed(clock: Clock, table: HandlerTable) -> None:
    peer, link = raw_link(serve(clock, table))
    link.ends[0].reading = False
    peer.transport.write(request(body=bytes(100_000)) * 10)
    link.pump()
    advance(clock, 120 + WATCH_SECONDS)
    link.pump()
    assert peer.lost


def test_too_many_connections_are_refused_until_one_goes(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(connections_max=2))
    peers = [raw_link(factory) for _ in range(4)]
    for _, link in peers:
        link.pump()
    assert [peer.lost for peer, _ in peers] == [False, False, True, True]
    assert [line for line in logged.lines if "connections" in line] == ["2 connections are open: no more are taken"]
    peers[0][0].transport.write(request(body=b"still served"))
    peers[0][1].pump()
    assert peers[0][0].answers[0].body == b"still served"
    peers[0][1].cut()
    late, late_link = raw_link(factory)
    late_link.pump()
    assert not late.lost


def test_a_refused_connection_is_served_nothing(clock: Clock, table: HandlerTable) -> None:
    seen = []
    table.register(LATER, lambda request, connection: seen.append(request))
    factory = serve(clock, table, Limits(connections_max=0))
    peer, link = raw_link(factory)
    peer.transport.write(request(LATER))
    link.pump()
    assert peer.lost
    assert seen == []


def test_events_tell_each_beginning_and_end_once(clock: Clock, table: HandlerTable) -> None:
    events = []
    factory = serve(clock, table, Limits(connections_max=2), lambda *event: events.append(event))
    links = [raw_link(factory)[1] for _ in range(3)]
    for link in links:
        link.pump()
    first, second = (link.protocols[1] for link in links[:2])
    assert events == [(ConnectionEvent.CONNECT, first), (ConnectionEvent.CONNECT, second)]
    links[1].cut()
    assert events[2:] == [(ConnectionEvent.CLOSE, second)]


def test_close_all(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    links = [raw_link(factory) for _ in range(3)]
    factory.close_all("the test is over")
    for peer, link in links:
        link.pump()
        assert peer.lost
    assert not factory.connections


def test_a_stopped_factory_leaves_no_timer(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    factory.doStop()
    assert clock.getDelayedCalls() == []


def test_buffers_are_bounded_by_the_frame_limit(clock: Clock, table: HandlerTable) -> None:
    """What a peer can make us keep: less than one frame."""
    factory = serve(clock, table, Limits(frame_bytes_max=10_000))
    peer, link = raw_link(factory)
    (connection,) = factory.connections
    peer.transport.write(request(body=bytes(9_000))[:-1])
    link.pump(100)
    assert connection._decoder.pending_bytes <= 10_004
