"""Sends of a Twisted producer that are encoded together: what becomes of them, cancelled or lost ones too."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from mqbroker.client import BadMessage, ClientClosed, Message, ProducerOptions, SendFailed
from mqbroker.client.broker_requests import decline
from mqbroker.client.connection import _UNREAD_S_MAX, Connection
from mqbroker.client.deferred import Producer
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.faults import Passage
from tests.client.own_cluster import NAME_SERVER
from tests.client.world import World

SEND = RequestCode.SEND_MESSAGE_V2
A = "10.0.0.2:10911"
Q = MessageQueue("T", "a", 0)


class Sender:
    """A producer that has sent one message, in a world of one queue."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.producer = Producer(
            world.cluster.reactor,
            NAME_SERVER,
            "pg",
            options=ProducerOptions(**options),
            connector=world.cluster.network.connector,
        )
        self.producer.start()
        world.cluster.settle()
        self.found: list[Any] = []
        self.send(b"first")
        world.cluster.settle()
        assert self.found.pop().queue_offset == 0

    def send(self, body: bytes, **fields: Any) -> Deferred[Any]:
        return self.producer.send(Message("T", body, **fields)).addBoth(self.found.append)

    @property
    def connection(self) -> Connection:
        return self.producer._core._net._lines.connections[A]  # type: ignore[attr-defined]

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.world.faults.asked(SEND)[1:]]

    def check_idle(self) -> None:
        in_flight = self.producer._core.sends._in_flight
        assert in_flight is not None
        assert (in_flight._count, in_flight._bytes) == (0, 0)
        assert (len(self.connection._responses), self.connection._sent) == (0, {})


@pytest.fixture
def sender(one_queue: World) -> Iterator[Sender]:
    sender = Sender(one_queue)
    yield sender
    sender.check_idle()
    closed: list[Any] = []
    sender.producer.close().addBoth(closed.append)
    one_queue.cluster.settle()
    assert closed == [None]


def errors(found: list[Any]) -> list[BaseException | None]:
    return [each.value if isinstance(each, Failure) else None for each in found]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_sends_of_one_turn_are_encoded_together_and_leave_in_order(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
    runs: list[int] = []
    send_run = Connection.send_run

    def noting(connection: Connection, messages: Any, *rest: Any) -> int:
        runs.append(len(messages))
        return send_run(connection, messages, *rest)

    monkeypatch.setattr(Connection, "send_run", noting)
    for n in range(70):
        sender.send(b"%d" % n, tags="t", keys="k")
    sender.world.cluster.settle()
    assert runs == [32, 32, 6]
    assert [result.queue_offset for result in sender.found] == list(range(1, 71))
    assert len({result.msg_id for result in sender.found}) == 70
    assert sender.bodies == [b"%d" % n for n in range(70)]


def test_a_send_fires_in_a_turn_of_its_own(sender: Sender) -> None:
    """What a caller does when it gets a result runs neither within the send nor within the read of the response."""
    order: list[str] = []
    sender.send(b"1").addCallback(lambda _: order.append("result"))
    order.append("sent")
    sender.world.cluster.settle()
    assert order == ["sent", "result"]


def test_none_goes_before_one_that_is_not_plain(sender: Sender) -> None:
    for n in range(4):
        sender.send(b"%d" % n, tags="é" if n == 1 else None)
    sender.producer.send(Message("T", b"4"), key="k").addBoth(sender.found.append)
    sender.world.cluster.settle()
    assert sorted(result.queue_offset for result in sender.found) == [1, 2, 3, 4, 5]
    assert sender.bodies.index(b"0") < sender.bodies.index(b"1")


@pytest.mark.parametrize("in_flight_max", [1, 2, 1000])
def test_those_that_wait_for_a_place_go_on_in_order(one_queue: World, in_flight_max: int) -> None:
    sender = Sender(one_queue, sends_in_flight_max=in_flight_max)
    for n in range(200):
        sender.send(b"%d" % n)
    one_queue.cluster.settle()
    assert [result.queue_offset for result in sender.found] == list(range(1, 201))
    assert sender.bodies == [b"%d" % n for n in range(200)]
    sender.check_idle()


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_what_is_cancelled_gives_its_place_back(sender: Sender) -> None:
    before = sender.send(b"never")
    before.cancel()
    held: list[Passage] = []
    sender.world.faults.refuse[None, SEND] = held.append
    after = sender.send(b"sent")
    sender.world.cluster.settle()
    after.cancel()
    assert [type(error) for error in errors(sender.found)] == [CancelledError, CancelledError]
    sender.world.faults.refuse.clear()
    held[0].pass_on()
    sender.send(b"next")
    sender.world.cluster.settle()
    assert sender.found[-1].status == 0
    assert [each.body for each in sender.world.cluster.stored(Q)] == [b"first", b"sent", b"next"]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_what_is_cancelled_when_it_is_to_be_sent_otherwise_gives_its_place_back(sender: Sender) -> None:
    sends = [sender.send(b"x", tags="é") for _ in range(2)]
    plain: Any = sender.producer._core.sends._plain
    plain.flush()
    sends[0].cancel()
    sender.world.cluster.settle()
    assert [type(error) for error in errors(sender.found)] == [CancelledError, type(None)]
    assert len(sender.bodies) == 1


def test_what_is_cancelled_while_it_is_sent_otherwise_is_not_sent_again(sender: Sender) -> None:
    sender.world.faults.refuse[None, SEND] = lambda passage: passage.answer(
        passage.request.response(passage.request, ResponseCode.SYSTEM_BUSY, "busy")
    )
    cancelled = sender.send(b"x")
    sender.world.cluster.settle()
    assert sender.found == [], "it waits to be sent again"
    cancelled.cancel()
    assert [type(error) for error in errors(sender.found)] == [CancelledError]
    before = len(sender.bodies)
    sender.world.clock.pump([0.1] * 40)
    assert (len(sender.bodies), len(sender.found)) == (before, 1)


def test_what_is_no_message_fails_as_any_other_send(sender: Sender) -> None:
    wrong: Any = "text"
    sender.producer.send(wrong).addBoth(sender.found.append)
    sender.producer.send(message=Message("T", b"x")).addBoth(sender.found.append)
    sender.world.cluster.settle()
    assert [type(error) for error in errors(sender.found)] == [BadMessage, type(None)]
    with pytest.raises(TypeError):
        sender.producer.send()  # type: ignore[call-arg]


def test_a_lost_connection_is_made_again(sender: Sender) -> None:
    sender.world.faults.refuse[None, SEND] = lambda passage: (sender.world.faults.refuse.clear(), passage.cut())
    for n in range(3):
        sender.send(b"%d" % n)
    sender.world.clock.pump([0.1] * 20)
    assert errors(sender.found) == [None] * 3
    assert set(sender.bodies) == {b"0", b"1", b"2"}


def test_a_refused_attempt_counts_as_the_first(sender: Sender) -> None:
    answers = [(ResponseCode.SYSTEM_BUSY, "busy")] * 3

    def meet(passage: Passage) -> None:
        if answers:
            passage.answer(passage.request.response(passage.request, *answers.pop()))
        else:
            passage.pass_on()

    sender.world.faults.refuse[None, SEND] = meet
    for n in range(3):
        sender.send(b"%d" % n)
    sender.world.clock.pump([0.1] * 20)
    assert errors(sender.found) == [None] * 3
    assert sorted(sender.bodies) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    sent = {(request.body, request.ext_fields["i"]) for request in sender.world.faults.asked(SEND)[1:]}
    assert len(sent) == 3  # the same id each time


def test_who_gets_no_answer_has_failed_in_time(one_queue: World, silent: object) -> None:
    sender = Sender(one_queue, send_timeout_s=1)
    one_queue.faults.refuse[None, SEND] = silent
    for n in range(3):
        sender.send(b"%d" % n)
    one_queue.clock.pump([0.04] * 30)  # a loop that were later would count as blocked
    assert len(sender.found) == 3
    for failure in errors(sender.found):
        assert isinstance(failure, SendFailed)
        assert isinstance(failure.attempts[0][2], RequestTimedOut)
    sender.check_idle()


def test_a_broker_that_reads_nothing_stops_the_sends_and_is_left(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    connection = sender.connection
    connection.pause_writing()
    sender.send(b"1")
    sender.world.cluster.settle()
    assert sender.bodies == []
    sender.world.clock.advance(_UNREAD_S_MAX - 0.01)
    assert connection.is_open
    sender.world.clock.pump([0.02, *[0.1] * 20])
    assert f"the peer has read nothing for {_UNREAD_S_MAX:g} s" in caplog.text
    assert connection.is_lost
    assert len(sender.found) == 1
    sender.send(b"2")
    sender.world.cluster.settle()
    assert sender.found[1].status == 0
    assert sender.connection is not connection


class Attempts:
    """Makes endpoints that connect when the test says so."""

    def __init__(self) -> None:
        self.made: list[Deferred[Any]] = []

    def __call__(self, host: str, port: int) -> Any:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        self.made.append(Deferred())
        return self.made[-1]


def test_those_that_wait_for_a_connection_share_one_attempt_and_its_failure(world: World) -> None:
    attempts, found = Attempts(), list[Any]()
    net = DeferredNet(world.clock, decline, Random(1), connector=attempts)
    ask = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    waiting = [world.run(net.invoke(A, ask, 2000)).addBoth(found.append) for _ in range(50)]
    waiting[7].cancel()
    assert (len(attempts.made), len(found)) == (1, 1)
    attempts.made[0].errback(ConnectionRefusedError("refused"))
    world.cluster.settle()
    assert [str(error) for error in errors(found[1:])] == [f"connect to {A} failed: refused"] * 49
    for late_s in (1.98, 0.04):
        world.run(net.invoke(A, ask, 2000)).addBoth(found.append)
        world.clock.advance(late_s)
    assert len(attempts.made) == 2
    assert [type(error) for error in errors(found[50:])] == [RequestTimedOut]
    world.run(net.close())
    assert [type(error) for error in errors(found[51:])] == [ConnectionClosed]
    world.run(net.invoke(A, ask, 2000)).addBoth(found.append)
    assert isinstance(found[-1].value, ConnectionClosed)
    assert not world.clock.getDelayedCalls()


def test_what_a_connector_raises_is_why_a_peer_is_unreachable(world: World) -> None:
    def connector(host: str, port: int) -> Any:
        raise ValueError("no such network")

    net, found = DeferredNet(world.clock, decline, Random(1), connector=connector), list[Any]()
    world.run(net.invoke(A, RemotingCommand(RequestCode.HEART_BEAT), 1000)).addBoth(found.append)
    assert [str(error) for error in errors(found)] == [f"connect to {A} failed: no such network"]
    world.run(net.close())


def test_a_closed_producer_sends_what_was_taken_and_no_more(one_queue: World) -> None:
    sender = Sender(one_queue)
    sender.send(b"in time")
    sender.producer.close()
    late: list[Any] = []
    sender.producer.send(Message("T", b"late")).addErrback(late.append)
    assert late[0].type is ClientClosed
    one_queue.cluster.settle()
    assert sender.bodies == [b"in time"]
    assert len(sender.found) == 1
