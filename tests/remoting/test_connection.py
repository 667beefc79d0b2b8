"""One connection, both ends of it ours: asking, and who is at the other end."""

import struct
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits
from mqbroker.wire.command import JSON, RESPONSE_FLAG, ROCKETMQ, RemotingCommand
from tests.remoting.link import Link, NoOwner, Peer, protocol_link, raw_link, result, serve, waiting
from tests.remoting.requests import BATCH, ECHO, LATER, echo, request


def test_a_connection_is_what_handlers_expect(clock: Clock, table: HandlerTable) -> None:
    near, _ = protocol_link(clock, serve(clock, table))
    assert verifyObject(IConnection, near)
    assert near.remote_addr == "10.0.0.1:10911"
    assert near.remote_host == bytes([10, 0, 0, 1]) + struct.pack(">i", 10911)
    assert cast(Any, near.transport).no_delay


@pytest.mark.parametrize("chunk", [1, 3, 7, 1 << 30])
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_request_is_answered(clock: Clock, table: HandlerTable, chunk: int, serialize_type: int) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    asked = [
        near.invoke(RemotingCommand(ECHO, body=str(i).encode(), serialize_type=serialize_type), 1000) for i in range(5)
    ]
    link.pump(chunk)
    answers = [result(deferred) for deferred in asked]
    assert [answer.body for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
    assert {answer.serialize_type for answer in answers} == {serialize_type}
    assert all(answer.is_response for answer in answers)
    assert clock.getDelayedCalls()[1:] == []  # only the server's watch is left


def test_either_end_may_ask(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock)
    _, link = protocol_link(clock, factory, table)
    (far,) = factory.connections
    asked = far.invoke(RemotingCommand(ECHO, body=b"from the server"), 1000)
    link.pump()
    assert result(asked).body == b"from the server"


def test_answers_are_told_apart_in_any_order(clock: Clock) -> None:
    table, held = HandlerTable(), list[Any]()

    def hold(request: RemotingCommand, connection: IConnection) -> Deferred[Any]:
        held.append((request, Deferred()))
        return held[-1][1]

    table.register(LATER, hold)
    near, link = protocol_link(clock, serve(clock, table))
    asked = [near.invoke(RemotingCommand(LATER, body=bytes([i])), 1000) for i in range(3)]
    link.pump()
    for came, deferred in reversed(held):
        deferred.callback(echo(came, None))
        link.pump()
    assert [result(deferred).body for deferred in asked] == [b"\0", b"\1", b"\2"]


def test_no_answer_in_time(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    asked = near.invoke(RemotingCommand(ECHO), 1500)
    clock.advance(1.4)
    assert not asked.called
    clock.advance(0.1)
    error = result(asked)
    assert isinstance(error, RequestTimedOut)
    assert "1500 ms" in str(error)
    assert "10.0.0.1:10911" in str(error)
    link.paused = False
    link.pump()  # the late answer is nobody's
    assert not near.closed
    again = near.invoke(RemotingCommand(ECHO, body=b"x"), 1500)
    link.pump()
    assert result(again).body == b"x"


def test_a_cancelled_request_is_forgotten(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    asked = near.invoke(RemotingCommand(ECHO), 1000)
    asked.cancel()
    assert isinstance(result(asked), CancelledError)
    link.pump()
    clock.advance(2)
    assert not near.closed


def test_a_lost_connection_fails_each_waiting_request_once(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    failures = []
    for i in range(4):
        near.invoke(RemotingCommand(ECHO), 1000).addErrback(lambda failure, i: failures.append((i, failure.value)), i)
    gone = []
    near.notify_closed(lambda: gone.append("gone"))
    link.cut()
    assert [i for i, _ in failures] == [0, 1, 2, 3]
    assert {type(error) for _, error in failures} == {ConnectionClosed}
    assert "10.0.0.1:10911" in str(failures[0][1])
    assert gone == ["gone"]
    clock.advance(2)  # no time-out of theirs is left to fire
    assert len(failures) == 4


def test_a_request_made_by_a_failing_one_fails_too(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    link.paused = True
    again = []
    near.invoke(RemotingCommand(ECHO), 1000).addErrback(lambda _: again.append(near.invoke(RemotingCommand(ECHO), 5)))
    link.cut()
    assert isinstance(result(again[0]), ConnectionClosed)


def test_a_failing_request_may_cancel_another(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    near, link = protocol_link(clock, factory)
    link.paused = True
    asked = [near.invoke(RemotingCommand(ECHO), 1000) for _ in range(3)]
    asked[0].addErrback(lambda _: asked[1].cancel())
    link.cut()
    assert isinstance(result(asked[1]), CancelledError)
    assert isinstance(result(asked[2]), ConnectionClosed)
    assert not factory.connections


def test_a_closed_connection_takes_nothing(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    link.cut()
    assert isinstance(result(near.invoke(RemotingCommand(ECHO), 1000)), ConnectionClosed)
    near.invoke_oneway(RemotingCommand(ECHO))
    near.send(RemotingCommand(ECHO))
    near.write(b"x")
    near.close("again")
    gone = []
    near.notify_closed(lambda: gone.append("at once"))
    assert gone == ["at once"]


def test_a_request_that_cannot_be_encoded_leaves_nothing_behind(clock: Clock, table: HandlerTable) -> None:
    near, _ = protocol_link(clock, serve(clock, table))
    before = len(clock.getDelayedCalls())
    with pytest.raises(Exception, match="UTF-8"):
        near.invoke(RemotingCommand(ECHO, {"topic": "\ud800"}), 1000)
    assert len(clock.getDelayedCalls()) == before


def test_oneway_gets_no_answer(clock: Clock) -> None:
    table, seen = HandlerTable(), []
    table.register(ECHO, lambda request, connection: seen.append(request) or echo(request, connection))
    table.register(LATER, lambda request, connection: seen.append(request) or succeed(echo(request, connection)))
    near, link = protocol_link(clock, serve(clock, table))
    near.invoke_oneway(RemotingCommand(ECHO))
    near.invoke_oneway(RemotingCommand(LATER))
    near.invoke_oneway(RemotingCommand(77))
    link.pump()
    assert [command.code for command in seen] == [ECHO, LATER]
    assert all(command.is_oneway for command in seen)
    assert link.ends[1].written == b""


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_answer_to_nothing_is_ignored(clock: Clock, table: HandlerTable, serialize_type: int) -> None:
    peer, link = raw_link(serve(clock, table))
    peer.transport.write(request(0, 12345, flag=RESPONSE_FLAG, serialize_type=serialize_type))
    peer.transport.write(request(ECHO, 5, b"on we go", serialize_type=serialize_type))
    link.pump()
    assert [(answer.opaque, answer.body) for answer in peer.answers] == [(5, b"on we go")]


def test_an_answer_is_never_taken_for_a_request(clock: Clock) -> None:
    """Also where its code is one that has a batch handler."""
    table, seen = HandlerTable(), []
    table.register_batch(BATCH, lambda requests, connection: seen.append(requests) or b"")
    peer, link = raw_link(serve(clock, table))
    for serialize_type in (JSON, ROCKETMQ):
        peer.transport.write(request(BATCH, 1, flag=RESPONSE_FLAG, serialize_type=serialize_type, x="y"))
    link.pump()
    assert seen == []
    assert not peer.lost


# --- who is there


class Address:
    def __init__(self, host: str | None = None, port: int = 0) -> None:
        if host is not None:
            self.host, self.port = host, port


@pytest.mark.parametrize(
    ("address", "text", "host"),
    [
        (Address("::ffff:10.1.2.3", 5), "10.1.2.3:5", bytes([10, 1, 2, 3, 0, 0, 0, 5])),
        (Address("::1", 5), "[::1]:5", bytes(15) + b"\1" + bytes([0, 0, 0, 5])),
        (Address("fe80::1%eth0", 5), "[fe80::1%eth0]:5", bytes([0, 0, 0, 0, 0, 0, 0, 5])),
        (Address(), "local", bytes([127, 0, 0, 1, 0, 0, 0, 0])),
    ],
    ids=["mapped", "v6", "scoped", "unix"],
)
def test_how_a_peer_is_called(clock: Clock, table: HandlerTable, address: Address, text: str, host: bytes) -> None:
    protocol = RemotingProtocol(table, clock, Limits(), NoOwner())
    Link(Peer(), protocol, near_address=address)
    assert (protocol.remote_addr, protocol.remote_host) == (text, host)


def test_waiting_is_told_apart(clock: Clock, table: HandlerTable) -> None:
    near, link = protocol_link(clock, serve(clock, table))
    asked = near.invoke(RemotingCommand(ECHO), 1000)
    assert result(asked) is waiting
    link.pump()
