"""Sends of an asyncio producer that are encoded together: what is not plain, or fails, ends as on the general path."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import attrs
import pytest

from mqbroker.client import (
    ClientClosed,
    Forbidden,
    Message,
    ProducerOptions,
    Send,
    SendFailed,
    SendObserver,
    SendResult,
)
from mqbroker.client.aio import Producer
from mqbroker.client.attempts import Attempts
from mqbroker.client.connection import Connection, Line
from mqbroker.client.messages import SystemMessage
from mqbroker.client.plain_sends import PlainSends
from mqbroker.client.routes import Route
from mqbroker.client.send import queue_for_key
from mqbroker.errors import MQError, Refused, RequestTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.signature import Credentials
from tests.client.faults import Passage
from tests.client.loopback import Loopback

SEND = RequestCode.SEND_MESSAGE_V2
OPTIONS = ProducerOptions()


@pytest.fixture
def topic(server: Loopback) -> Loopback:
    server.add_topic("T", queues=1)
    return server


def with_producer(server: Loopback, use: Callable[[Producer], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """What `use` returns for a producer that has sent one message."""

    async def main() -> Any:
        async with Producer(server.addr, "pg", options=ProducerOptions(**options)) as producer:
            await producer.send(
                Message("T", b"first"), timeout_s=60
            )  # options may allow less than a busy machine needs
            found = await use(producer)
            in_flight = producer._core.sends._in_flight
            assert in_flight is not None
            assert (in_flight._count, in_flight._bytes) == (0, 0)
            connection = producer._net._lines.connections[server.broker_addr]
            assert (len(connection._responses), connection._sent) == (0, {})
            return found

    return asyncio.run(main())


def bodies(server: Loopback) -> list[bytes]:
    return [request.body for request in server.faults.asked(SEND)[1:]]


def be_busy_at_first(server: Loopback) -> None:
    """Refuse the next three sends."""

    def once(passage: Passage) -> None:
        if len(server.faults.asked(SEND)) > 4:
            passage.pass_on()
        else:
            passage.answer(passage.request.response(passage.request, ResponseCode.SYSTEM_BUSY, "busy"))

    server.faults.refuse[None, SEND] = once


async def all_of(*sends: Any) -> list[Any]:
    return await asyncio.gather(*sends, return_exceptions=True)


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_many_sends_of_one_turn_leave_while_others_are_encoded(topic: Loopback) -> None:
    async def use(producer: Producer) -> list[int]:
        [connection] = [each for addr, each in producer._net._lines.connections.items() if addr != topic.addr]
        sizes: list[int] = []
        transport: Any = connection._transport
        write = transport.write
        connection._transport = SimpleNamespace(
            write=lambda data: (sizes.append(data.count(b"BODY")), write(data)),
            is_closing=transport.is_closing, close=transport.close, abort=transport.abort,
        )  # fmt: skip
        results = await all_of(*(producer.send(Message("T", b"%03d" % n + b"BODY" + b"x" * 200)) for n in range(100)))
        assert [result.queue_offset for result in results] == [*range(1, 101)]
        return sizes

    assert with_producer(topic, use) == [32, 32, 32, 4, 0]  # at last its farewell
    assert [int(body[:3]) for body in bodies(topic)] == [*range(100)]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
@pytest.mark.parametrize("in_flight_max", [2, 1000])
def test_plain_sends_are_not_encoded_one_by_one(
    topic: Loopback, monkeypatch: pytest.MonkeyPatch, in_flight_max: int
) -> None:
    async def use(producer: Producer) -> Any:
        monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        return await all_of(*(producer.send(Message("T", b"%d" % n, tags="t", keys="k")) for n in range(20)))

    found = with_producer(topic, use, sends_in_flight_max=in_flight_max)
    assert [result.queue_offset for result in found] == list(range(1, 21))
    assert len({result.msg_id for result in found}) == 20
    assert bodies(topic) == [b"%d" % n for n in range(20)]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_sends_whose_queue_is_chosen_are_encoded_together_too(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add_topic("T", queues=4)
    queues = [MessageQueue("T", "a", n) for n in range(4)]
    by_key = {key: queue_for_key(queues, key) for key in ("a", "b", "c", "d", "e")}

    async def use(producer: Producer) -> Any:
        monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        keyed = [producer.send(Message("T", b"%d" % n), key="abcde"[n % 5]) for n in range(40)]
        given = producer.send(Message("T", b"given"), queue=queues[3])
        picked = producer.send(Message("T", b"picked"), selector=lambda queues, message: queues[len(message.body) % 4])
        free = [producer.send(Message("T", b"free")) for _ in range(4)]
        return await all_of(*keyed, given, picked, *free)

    found = with_producer(server, use)
    assert [result.queue for result in found[:40]] == [by_key["abcde"[n % 5]] for n in range(40)]
    assert [result.queue for result in found[40:42]] == [queues[3], queues[2]]
    assert {result.queue for result in found[42:]} == set(queues), "the others take turns as if they were alone"
    for key, queue in by_key.items():
        sent = [n for n in range(40) if "abcde"[n % 5] == key]
        offsets = [found[n].queue_offset for n in sent]
        assert offsets == sorted(offsets), f"{key} has lost its order in {queue}"


def test_a_choice_that_is_none_fails_its_own_send(topic: Loopback) -> None:
    def fail(queues: Any, message: Any) -> Any:
        raise ZeroDivisionError("nothing to choose from")

    async def use(producer: Producer) -> Any:
        before = producer.send(Message("T", b"before"), key="k")
        failing = producer.send(Message("T", b"never"), selector=fail)
        elsewhere = producer.send(Message("T", b"elsewhere"), queue=MessageQueue("T", "away", 7))
        return await all_of(before, failing, elsewhere, producer.send(Message("T", b"after"), key="k"))

    before, failing, elsewhere, after = with_producer(topic, use, send_timeout_s=0.5)
    assert isinstance(failing, ZeroDivisionError)
    assert isinstance(elsewhere, MQError)
    assert after.queue_offset == before.queue_offset + 1


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_a_chosen_queue_is_tried_again_where_it_refused(server: Loopback) -> None:
    server.add_topic("T", queues=4)

    async def use(producer: Producer) -> Any:
        be_busy_at_first(server)
        return await all_of(*(producer.send(Message("T", b"%d" % n), key="k") for n in range(3)))

    found = with_producer(server, use)
    assert len({result.queue for result in found}) == 1
    assert len(bodies(server)) == 6


@pytest.mark.parametrize(
    ("tags", "options"), [("é", {}), ("t", {"credentials": Credentials("key", "secret")})], ids=["é", "signed"]
)
def test_sends_that_are_not_plain_go_to_all_queues_in_turn(
    server: Loopback, tags: str, options: dict[str, Any]
) -> None:
    server.add_topic("T", queues=4)

    async def use(producer: Producer) -> Any:
        return [await producer.send(Message("T", b"x", tags=tags)) for _ in range(8)]

    queues = [result.queue for result in with_producer(server, use, **options)]
    assert set(queues[:4]) == {MessageQueue("T", "a", n) for n in range(4)}
    assert queues[:4] == queues[4:]


def test_the_queue_of_a_send_that_is_not_plain_is_chosen_once(server: Loopback) -> None:
    server.add_topic("T", queues=4)
    asked = itertools.count()

    async def use(producer: Producer) -> Any:
        selector = lambda queues, message: queues[next(asked) % 4]  # noqa: E731
        return [await producer.send(Message("T", b"x", tags="é"), selector=selector) for _ in range(4)]

    assert [result.queue.queue_id for result in with_producer(server, use)] == [0, 1, 2, 3]


def test_none_goes_before_one_that_is_not_plain(topic: Loopback) -> None:
    messages = [Message("T", b"0"), Message("T", b"1", tags="é"), Message("T", b"2"), Message("T", b"3" * 20)]
    messages += [Message("T", b"4"), Message("T", b"5")]

    async def use(producer: Producer) -> Any:
        first = [producer.send(message) for message in messages[:-1]]
        return await all_of(*first, producer.send(messages[-1], key="k"))

    found = with_producer(topic, use, compress_over_bytes=20)
    assert [result.queue_offset for result in found[:3]] == [1, found[1].queue_offset, found[1].queue_offset + 1]
    assert sorted(result.queue_offset for result in found) == [1, 2, 3, 4, 5, 6]


def test_a_refused_attempt_counts_as_the_first(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        be_busy_at_first(topic)
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(3)))

    found = with_producer(topic, use)
    assert sorted(bodies(topic)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    sent = {(request.body, request.ext_fields["i"]) for request in topic.faults.asked(SEND)[1:]}
    assert len(sent) == 3  # the same id each time
    assert all(any(result.msg_id in properties for _, properties in sent) for result in found)

    async def use_again(producer: Producer) -> Any:
        topic.faults.refuse[None, SEND] = (ResponseCode.MESSAGE_ILLEGAL, "no")
        return await all_of(producer.send(Message("T", b"x")))

    topic.faults.refuse.clear()
    (refused,) = with_producer(topic, use_again)
    assert isinstance(refused, Refused)


def test_who_gets_no_answer_has_failed_in_time(topic: Loopback, silent: object) -> None:
    async def use(producer: Producer) -> Any:
        topic.faults.refuse[None, SEND] = silent
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(3)))

    for failure in with_producer(topic, use, send_timeout_s=1):
        assert isinstance(failure, SendFailed)
        assert isinstance(failure.attempts[0][2], RequestTimedOut)
    assert bodies(topic) == [b"0", b"1", b"2"]


def test_a_lost_connection_is_made_again(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        topic.faults.refuse[None, SEND] = lambda passage: (topic.faults.refuse.clear(), passage.cut())
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(3)))

    found = with_producer(topic, use)
    assert len({result.msg_id for result in found}) == 3
    assert set(bodies(topic)) == {b"0", b"1", b"2"}


def test_what_is_cancelled_gives_its_place_back(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        before = asyncio.create_task(producer.send(Message("T", b"never")))
        await asyncio.sleep(0)
        before.cancel()
        await asyncio.sleep(0)
        held: list[Passage] = []
        came = asyncio.Event()
        loop = asyncio.get_running_loop()
        topic.faults.refuse[None, SEND] = lambda passage: (held.append(passage), loop.call_soon_threadsafe(came.set))
        after = asyncio.create_task(producer.send(Message("T", b"sent")))
        await came.wait()
        after.cancel()
        topic.faults.refuse.clear()
        with topic.lock:
            held[0].pass_on()
            topic.settle()
        found = await all_of(before, after)
        return found, await producer.send(Message("T", b"next"))

    (before, after), result = with_producer(topic, use)
    assert isinstance(before, asyncio.CancelledError)
    assert isinstance(after, asyncio.CancelledError)
    assert result.status == 0
    assert bodies(topic)[-2:] == [b"sent", b"next"]
    assert compiled is None or len(bodies(topic)) == 2


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_what_is_cancelled_when_it_is_to_be_sent_otherwise_gives_its_place_back(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        sends = [asyncio.create_task(producer.send(Message("T", b"x", tags="é"))) for _ in range(2)]
        await asyncio.sleep(0)
        producer._core.sends._plain.flush()
        sends[0].cancel()
        return await all_of(*sends)

    cancelled, sent = with_producer(topic, use)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert sent.status == 0


def test_a_send_that_begins_while_the_producer_closes_fails(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        taken, late = (producer.send(Message("T", text)) for text in (b"in time", b"late"))
        sending = asyncio.create_task(taken)
        await asyncio.sleep(0)
        return await all_of(producer.close(), late, sending)

    _, late, sent = with_producer(topic, use)
    assert isinstance(late, ClientClosed)
    assert not isinstance(sent, ClientClosed)
    assert bodies(topic) == [b"in time"]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_a_message_that_was_changed_behind_its_checks_fails_alone(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        changed = Message("T", b"x", keys="k", properties={"a": "b"})
        changed.properties[""] = "c"  # type: ignore[index]
        spoilt = Message("T", b"y")
        object.__setattr__(spoilt, "flag", 2**40)
        return await all_of(*(producer.send(message) for message in (changed, spoilt, Message("T", b"z"))))

    changed, spoilt, sent = with_producer(topic, use)
    assert isinstance(changed, MQError)
    assert "32-bit" in str(spoilt)
    assert sent.status == 0


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_an_answer_to_what_was_not_asked_stands_for_no_message(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        topic.faults.refuse[None, SEND] = answer_another
        return await producer.send(Message("T", b"x"))

    def answer_another(passage: Passage) -> None:
        topic.faults.refuse.clear()
        request = attrs.evolve(passage.request, opaque=passage.request.opaque - 1)  # the run's own
        fields = {"msgId": "0A", "queueId": "0", "queueOffset": "99"}
        response = attrs.evolve(RemotingCommand.response(request), ext_fields=fields)
        passage.connection.write(encode_command(response))

    assert with_producer(topic, use).queue_offset == 1
    assert bodies(topic) == [b"x", b"x"]


class FakeConnection:
    """Takes runs, and answers nothing."""

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.sent: list[tuple[MessageQueue, bytes, bytes]] = []

    def send_run(self, messages: Any, places: Any, *rest: Any) -> int:
        self.sent += [(*place, message.body) for message, place in zip(messages, places, strict=True)]
        return len(messages)


def test_each_message_goes_to_the_master_of_its_queue() -> None:
    by_name = sent_by_broker([Message("T", b"%02d" % n) for n in range(20)])
    for name, sent in by_name.items():
        assert {queue.broker_name for queue, _, _ in sent} == {name}
        assert [body for _, _, body in sent] == sorted(body for _, _, body in sent)
    counts = Counter(queue for sent in by_name.values() for queue, _, _ in sent)
    assert set(counts.values()) == {5}
    assert len(counts) == 4


def test_replies_go_to_the_broker_of_the_request_under_their_own_code() -> None:
    reply = SystemMessage.of(Message("T", b"reply"), {"MSG_TYPE": "reply"}, preferred="b")
    by_name = sent_by_broker([Message("T", b"0"), reply, reply, Message("T", b"1"), reply, reply])
    codes = [head[:11] for _, head, body in by_name["a"] + by_name["b"] if body != b"reply"]
    assert codes == [b'{"code":310'] * 2
    replies = [(queue, head[:11]) for queue, head, body in by_name["b"] if body == b"reply"]
    assert [head for _, head in replies] == [b'{"code":325'] * 4
    assert {queue for queue, _ in replies} == {MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)}


def sent_by_broker(messages: list[Message]) -> dict[str, list[tuple[MessageQueue, bytes, bytes]]]:
    """What PlainSends send of them to brokers a and b, which have two queues each."""
    queues = tuple(MessageQueue("T", name, n) for name in ("a", "b") for n in range(2))
    route = Route("T", queues, (), {"a": {0: "10.0.0.2:1"}, "b": {0: "10.0.0.3:1"}})
    connections = {addr: FakeConnection(addr) for addr in ("10.0.0.2:1", "10.0.0.3:1")}
    net: Any = SimpleNamespace(free_connection=connections.get, now=lambda: 1.0)
    parts: Any = SimpleNamespace(
        known=lambda topic, create: route,
        is_due=lambda addr: False,
        next_ids=SimpleNamespace(reserve=lambda n: ("", n)),
        release=None,
    )

    async def main() -> None:
        net.loop = asyncio.get_running_loop()
        net.rng, net.steady = Random(1), lambda: 0.0
        sends = PlainSends(net, parts, Attempts(net, parts, parts, "g", OPTIONS), parts)
        for message in messages:
            sends.take(message)
        sends.flush()

    asyncio.run(main())
    return {"a": connections["10.0.0.2:1"].sent, "b": connections["10.0.0.3:1"].sent}


def test_each_send_has_the_time_that_is_given_for_it(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        held: list[Passage] = []

        def hold(passage: Passage) -> None:
            if passage.request.body == b"answered":
                passage.pass_on()
            elif passage.request.body == b"long":
                held.append(passage)

        topic.faults.refuse[None, SEND] = hold
        short = asyncio.create_task(producer.send(Message("T", b"short"), timeout_s=0.2))
        long = asyncio.create_task(producer.send(Message("T", b"long"), timeout_s=60))
        await asyncio.create_task(producer.send(Message("T", b"answered")))
        (failed,) = await all_of(short)
        assert not long.done()
        with topic.lock:
            held[0].pass_on()
            topic.settle()
        return failed, await long

    failed, sent = with_producer(topic, use, send_timeout_s=20)
    assert isinstance(failed, SendFailed)
    assert isinstance(failed.attempts[0][2], RequestTimedOut)
    assert sent.status == 0
    assert bodies(topic) == [b"short", b"long", b"answered"]


class Sees(SendObserver):
    """Notes what is sent and what comes of it; makes letters capital ones, and forbids a message."""

    def __init__(self) -> None:
        self.before: list[bytes] = []
        self.after: list[tuple[bytes, Any]] = []

    def before_send(self, send: Send) -> None:
        (message,) = send.messages
        self.before.append(message.body)
        if message.body == b"forbidden":
            raise Forbidden("as the test wants")
        send.messages = [attrs.evolve(message, body=message.body.upper())]

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        self.after.append((send.messages[0].body, outcome))


def test_observed_sends_keep_their_order_and_are_as_observers_want_them(
    topic: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(producer: Producer) -> Any:
        if compiled is not None:
            monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        keys = ["k" if n % 3 else None for n in range(40)]
        return await all_of(*(producer.send(Message("T", b"a%02d" % n), key=keys[n]) for n in range(40)))

    sees = Sees()
    found = with_producer(topic, use, observers=[sees])
    assert [result.queue_offset for result in found] == list(range(1, 41))
    assert bodies(topic) == [b"A%02d" % n for n in range(40)]
    assert sees.before[1:] == [b"a%02d" % n for n in range(40)]
    assert sees.after[1:] == [(b"A%02d" % n, [found[n]]) for n in range(40)]


def test_a_plain_send_that_is_repeated_is_observed_once(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        be_busy_at_first(topic)
        return await all_of(*(producer.send(Message("T", b"%d" % n)) for n in range(3)))

    sees = Sees()
    found = with_producer(topic, use, observers=[sees])
    assert sorted(bodies(topic)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert sees.before == [b"first", b"0", b"1", b"2"]
    assert sorted(sees.after[1:]) == [(b"%d" % n, [found[n]]) for n in range(3)]


def test_a_send_that_an_observer_forbids_takes_no_place(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        forbidden = await all_of(*(producer.send(Message("T", b"forbidden")) for _ in range(3)))
        return *forbidden, await producer.send(Message("T", b"next"))

    first, last = Sees(), Sees()
    first.before_send = lambda send: None
    *forbidden, sent = with_producer(topic, use, observers=[first, last], sends_in_flight_max=1)
    assert all(isinstance(each, Forbidden) for each in forbidden)
    assert sent.queue_offset == 1
    assert bodies(topic) == [b"NEXT"]
    assert first.after[1:] == [*((b"forbidden", each) for each in forbidden), (b"NEXT", [sent])]
    assert last.after[1:] == [(b"NEXT", [sent])]


def test_an_observer_sees_that_a_plain_send_is_cancelled(topic: Loopback) -> None:
    async def use(producer: Producer) -> Any:
        held: list[Passage] = []
        came = asyncio.Event()
        loop = asyncio.get_running_loop()
        topic.faults.refuse[None, SEND] = lambda passage: (held.append(passage), loop.call_soon_threadsafe(came.set))
        sending = asyncio.create_task(producer.send(Message("T", b"sent")))
        await came.wait()
        sending.cancel()
        topic.faults.refuse.clear()
        with topic.lock:
            held[0].pass_on()
            topic.settle()
        await all_of(sending)
        return await producer.send(Message("T", b"next"))

    sees = Sees()
    result = with_producer(topic, use, observers=[sees])
    (sent, cancelled), following = sees.after[1:]
    assert (sent, type(cancelled)) == (b"SENT", asyncio.CancelledError)
    assert following == (b"NEXT", [result])


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_traces_are_plain_sends(topic: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.add_topic("traces", queues=1)

    async def use(producer: Producer) -> None:
        tracer: Any = producer._core._tracer
        await tracer.flush()  # which gets the route
        monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        await producer.send(Message("T", b"x"))
        await tracer.flush()

    with_producer(topic, use, trace_topic="traces")
    stored = [record.body for record in topic.stored(MessageQueue("traces", "a", 0))]
    assert [body[:4] for body in stored] == [b"Pub\1", b"Pub\1"]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_what_a_broker_asks_and_other_responses_may_stand_before_plain_ones() -> None:
    stored = {"msgId": "0A", "queueId": "0"}
    asked: list[RemotingCommand] = []
    ended: list[Any] = []
    answered: list[Any] = []

    async def main() -> None:
        connection = Connection(
            "a:1",
            asyncio.get_running_loop(),
            Line(),
            lambda command, _: asked.append(command),
            lambda *a, **k: MQError(),
        )
        transport: Any = SimpleNamespace(write=len, is_closing=lambda: False, close=lambda: None)
        connection.opened(transport)
        owner: Any = Mock(sends_ended=lambda sends: ended.extend(result for _, result in sends))
        place = MessageQueue("T", "a", 0), b'{"code":310,"extFields":{"a":"g"'
        assert connection.send_run([Message("T", b"x")] * 3, [place] * 3, [None] * 3, 1.0, 9000, "id", 1, owner) == 3
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
        opaque = connection.post(command, 9000, answered.append, lambda opaque: b"")
        first, *plain = connection._sent
        responses = [
            RemotingCommand(0, {**stored, "queueOffset": "0"}, opaque=first, flag=1),
            RemotingCommand(0, {"any": "é"}, opaque=opaque, flag=1),
            RemotingCommand(0, {**stored, "queueOffset": "1"}, opaque=plain[0], flag=1),
            RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {"some": "field"}, opaque=7),
            RemotingCommand(0, {**stored, "queueOffset": "2"}, opaque=plain[1], flag=1),
        ]
        data = b"".join(map(encode_command, responses))
        for part in (data[:5], data[5:-9], data[-9:]):
            connection.data_received(part)
        connection.close()

    asyncio.run(main())
    assert [each.queue_offset for each in ended] == [0, 1, 2]
    assert [each.ext_fields for each in (*answered, *asked)] == [{"any": "é"}, {"some": "field"}]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_half_messages_are_not_plain(topic: Loopback) -> None:
    marks = {"TRAN_MSG": "true"}, {"CORRELATION_ID": "1"}

    async def use(producer: Producer) -> Any:
        suits: Any = producer._core.sends._plain.suits
        return [suits(SystemMessage.of(Message("T", b"x"), properties)) for properties in marks]

    assert with_producer(topic, use) == [False, True], "a half message has a flag of its own"
