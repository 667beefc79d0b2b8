"""How much one connection may have in flight, before it is read no further."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.errors import MQError
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits
from mqbroker.wire.command import RemotingCommand
from tests.remoting.link import raw_link, serve
from tests.remoting.requests import BATCH, ECHO, LATER, echo, request


def later_table() -> tuple[HandlerTable, list[Any]]:
    table, held = HandlerTable(), list[Any]()

    def hold(
        request: RemotingCommand | list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection
    ) -> Deferred[Any]:
        held.append(Deferred())
        return held[-1]

    table.register(LATER, hold)
    table.register_batch(BATCH, hold)
    return table, held


def test_as_many_requests_as_allowed_in_flight_pause_reading(clock: Clock) -> None:
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=3)))
    for opaque in range(5):
        peer.transport.write(request(LATER, opaque))
        link.pump()
    assert len(held) == 3
    assert not link.ends[1].reading
    held[0].callback(RemotingCommand(0))
    link.pump()
    clock.advance(0)
    assert len(held) == 4
    assert not link.ends[1].reading
    for deferred in held[1:]:
        deferred.callback(RemotingCommand(0))
    link.pump()
    clock.advance(0)
    assert len(held) == 5
    held[4].callback(RemotingCommand(0))
    link.pump()
    assert link.ends[1].reading
    assert len(held) == 5
    assert len(peer.answers) == 5


def test_a_batch_counts_for_each_of_its_requests(clock: Clock) -> None:
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=3)))
    peer.transport.write(request(BATCH, 1, x="") * 2)
    link.pump()
    assert link.ends[1].reading
    peer.transport.write(request(BATCH, 1, x=""))
    link.pump()
    assert not link.ends[1].reading
    held[0].callback(b"")
    assert link.ends[1].reading
    held[1].errback(MQError("no"))
    assert len(peer.answers) == 0
    link.pump()
    assert len(peer.answers) == 1


def test_unread_answers_pause_reading(clock: Clock, table: HandlerTable) -> None:
    peer, link = raw_link(serve(clock, table))
    link.ends[0].reading = False  # the peer writes, and never reads
    for _ in range(20):
        peer.transport.write(request(ECHO, 1, bytes(10_000)))
        link.pump()
    assert not link.ends[1].reading
    assert len(link.ends[1].outbox) < 100_000
    assert len(link.ends[0].outbox) > 100_000
    link.ends[0].reading = True
    while not link.ends[1].reading:
        link.pump()
        clock.advance(0)
    link.pump()
    assert len(peer.answers) == 20


def test_both_reasons_to_pause_must_be_gone(clock: Clock) -> None:
    table, held = later_table()
    table.register(ECHO, echo)
    peer, link = raw_link(factory := serve(clock, table, Limits(requests_in_flight_max=1)))
    link.ends[0].reading = False
    peer.transport.write(request(LATER, 2))
    link.pump()
    assert not link.ends[1].reading
    (connection,) = factory.connections
    connection.write(bytes(70_000))
    held[0].callback(None)
    assert not link.ends[1].reading
    link.ends[0].reading = True
    link.pump()
    assert link.ends[1].reading


def test_of_one_read_no_more_is_taken_than_may_be_in_flight(clock: Clock) -> None:
    table, held = later_table()
    peer, link = raw_link(factory := serve(clock, table, Limits(requests_in_flight_max=3)))
    peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(8)))
    link.pump()
    assert len(held) == 3
    assert factory.load.kept_bytes > 0
    for count in (6, 8):
        assert not link.ends[1].reading
        for deferred in held[-3:]:
            deferred.callback(RemotingCommand(0))
        clock.advance(0)
        assert len(held) == count
    assert link.ends[1].reading
    assert factory.load.kept_bytes == 0
    assert factory.load.requests == 2


def test_an_end_while_paused_is_quiet(clock: Clock) -> None:
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    peer.transport.write(request(LATER, 1))
    link.pump()
    link.cut()
    held[0].callback(RemotingCommand(0))  # resuming a transport that is gone would raise
