"""How much one connection may have in flight, before it is read no further."""

from twisted.internet.defer import Deferred

from mqbroker.errors import MQError
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.wire.command import RemotingCommand
from tests.remoting.link import raw_link, serve
from tests.remoting.requests import BATCH, ECHO, LATER, echo, request


def later_table():
    table, held = HandlerTable(), []

    def hold(request, connection):
        held.append(Deferred())
        return held[-1]

    table.register(LATER, hold)
    table.register_batch(BATCH, hold)
    return table, held


def test_as_many_requests_as_allowed_in_flight_pause_reading(clock):
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=3)))
    for opaque in range(5):
        peer.transport.write(request(LATER, opaque))
        link.pump()
    assert len(held) == 3
    assert not link.ends[1].reading
    held[0].callback(RemotingCommand(0))
    link.pump()
    assert len(held) >= 4
    for deferred in held[1:]:
        deferred.callback(RemotingCommand(0))
    link.pump()
    for deferred in held:
        if not deferred.called:
            deferred.callback(RemotingCommand(0))
    link.pump()
    assert link.ends[1].reading
    assert len(held) == 5
    assert len(peer.answers) == 5


def test_a_batch_counts_for_each_of_its_requests(clock):
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


def test_unread_answers_pause_reading(clock, table):
    peer, link = raw_link(serve(clock, table))
    link.ends[0].reading = False  # the peer writes, and never reads
    for _ in range(20):
        peer.transport.write(request(ECHO, 1, bytes(10_000)))
        link.pump()
    assert not link.ends[1].reading
    assert len(link.ends[1].outbox) < 100_000
    assert len(link.ends[0].outbox) > 100_000
    link.ends[0].reading = True
    link.pump()
    assert link.ends[1].reading
    assert len(peer.answers) == 20


def test_both_reasons_to_pause_must_be_gone(clock):
    table, held = later_table()
    table.register(ECHO, echo)
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    link.ends[0].reading = False
    peer.transport.write(request(ECHO, 1, bytes(70_000)) + request(LATER, 2))
    link.pump()
    assert not link.ends[1].reading
    held[0].callback(None)
    assert not link.ends[1].reading
    link.ends[0].reading = True
    link.pump()
    assert link.ends[1].reading


def test_an_end_while_paused_is_quiet(clock):
    table, held = later_table()
    peer, link = raw_link(serve(clock, table, Limits(requests_in_flight_max=1)))
    peer.transport.write(request(LATER, 1))
    link.pump()
    link.cut()
    held[0].callback(RemotingCommand(0))  # resuming a transport that is gone would raise
