"""Requests that wait for replies, on each face: Java's RequestReply API."""

from __future__ import annotations

import asyncio
import zlib
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    BadMessage,
    ConsumeFrom,
    Message,
    MessageQueue,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
)
from mqbroker.client.replies import Replies
from mqbroker.errors import ConnectionClosed, RequestTimedOut
from mqbroker.kernel import compiled
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.loopback import Loopback

ON_EACH_BROKER = True

Q = MessageQueue("T", "a", 0)
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def responder(face: Any, producer: Any, body_of: Any) -> Any:
    """A member that replies with `body_of` the request, or not where that is None."""

    def reply(message: ReceivedMessage) -> Any:
        body = body_of(message)
        return None if body is None else producer._client.send(Message.reply_to(message, body, tags="r", keys=["k"]))

    async def awaited(message: ReceivedMessage) -> None:
        found = reply(message)
        if found is not None:
            await found

    def plain(message: ReceivedMessage) -> None:
        reply(message)

    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0)
    is_blocking = face.module.__name__ == "mqbroker.client.blocking"
    member = face.make("PushConsumer", "g", plain if is_blocking else awaited, options=options)
    member.subscribe("T")
    return member


def test_a_request_gets_its_reply(face: Any, cluster: Loopback, producer: Any) -> None:
    cluster.add_topic("T")
    with responder(face, producer, lambda message: message.body.upper()):
        for body in (b"one", b"two", b"x" * 10_000):
            reply = producer.request(Message("T", body, tags="t"), timeout_s=10)
            assert isinstance(reply, ReceivedMessage)
            assert (reply.body, reply.tags, reply.keys) == (body.upper(), "r", ("k",))
            assert reply.topic == "DefaultCluster_REPLY_TOPIC"
            assert reply.msg_id
        assert producer.request(Message("T", b"key"), key="k", timeout_s=10).body == b"KEY"
        assert producer.request(Message("T", b"queue"), queue=Q, timeout_s=10).body == b"QUEUE"
    assert len(cluster.faults.asked(REPLY)) == 5


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_requests_and_replies_are_plain_sends(
    face: Any, cluster: Loopback, producer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("T")
    with responder(face, producer, lambda message: message.body.upper()):
        producer.request(Message("T", b"first"), timeout_s=10)
        monkeypatch.setattr("mqbroker.client.single_sends.prepare", None)  # of the general path
        assert producer.request(Message("T", b"x", tags="t"), timeout_s=10).body == b"X"
    assert len(cluster.faults.asked(REPLY)) == 2


def test_a_reply_is_known_by_its_correlation_id() -> None:
    net: Any = SimpleNamespace(rng=Random(1), signal=object)
    replies, others = Replies(net, ProducerOptions()), Replies(net, ProducerOptions())
    _, correlation_id = replies.expect(Message("T", b"x"), "client", 1.0)
    others.expect(Message("T", b"x"), "client", 1.0)
    for properties in (f"CORRELATION_ID\1{correlation_id}\2", f"a\1b\2CORRELATION_ID\1{correlation_id}"):
        reply = RemotingCommand(PUSH, {"properties": properties})
        assert (replies.expects(reply), others.expects(reply)) == (True, False)
    for fields in ({}, {"properties": f"MY_CORRELATION_ID\1{correlation_id}\2"}):
        assert not replies.expects(RemotingCommand(PUSH, fields))


def test_without_a_reply_it_says_so_in_time(face: Any, cluster: Loopback, producer: Any) -> None:
    if face.module.__name__ == "mqbroker.client.deferred":
        pytest.skip("its clock is the servers'")
    cluster.add_topic("T")
    with pytest.raises(RequestTimedOut, match=r"no reply to the request .* to topic T in 1 s: it may be acted on"):
        producer.request(Message("T", b"x"), timeout_s=1.0)
    assert inside(producer)._replies._expected == {}


def inside(producer: Any) -> Any:
    """The core of a producer."""
    client = producer._client
    return client._parts()[1]._core if hasattr(client, "_parts") else client._core


def test_what_is_no_request_is_refused(face: Any, producer: Any) -> None:
    for wrong in (0, -1, "1s", None):
        with pytest.raises(BadArgument, match="timeout_s"):
            producer.request(Message("T", b"x"), timeout_s=wrong)
    with pytest.raises(BadMessage, match="a Message is sent"):
        producer.request("x")
    with pytest.raises(BadMessage, match="the body is empty"):
        producer.request(Message("T", b""))
    assert inside(producer)._replies._expected == {}
    assert (inside(producer)._replies._in_flight._count, inside(producer)._replies._in_flight._bytes) == (0, 0)


def test_a_message_that_is_no_request_has_no_reply(producer: Any, consumer: Any) -> None:
    producer.send(Message("T", b"x"), queue=Q)
    (message,) = consumer.pull(Q, 0).messages
    with pytest.raises(BadMessage, match=r"is not a request: there is no one to reply to"):
        Message.reply_to(message, b"y")


def test_a_reply_that_nobody_waits_for_fails_its_send(face: Any, cluster: Loopback, consumer: Any) -> None:
    """So that the answering side knows: its broker has found no such client."""
    with face.make("Producer", "pg", options=ProducerOptions(retries=0)) as producer:
        producer.send(Message("T", b"x"), queue=Q)
        (message,) = consumer.pull(Q, 0).messages
        marks = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "gone"}
        message.properties.update(marks)
        with pytest.raises(Exception, match=r"channel of <gone> not found"):
            producer.send(Message.reply_to(message, b"y"))


def test_replies_are_answered_and_garbage_harms_nothing(face: Any, cluster: Loopback, producer: Any) -> None:
    producer.send(Message("T", b"x"))
    fields = {
        "producerGroup": "g",
        "topic": "R",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "bornHost": "host/1.2.3.4:5",
        "storeHost": "?",
        "storeTimestamp": "1",
        "properties": "CORRELATION_ID\x01unknown\x02",
    }
    bomb = zlib.compress(bytes(70 * 1024 * 1024), 9)
    requests = [
        RemotingCommand(PUSH, fields, b"reply"),
        RemotingCommand(PUSH, {}, b""),
        RemotingCommand(PUSH, {**fields, "sysFlag": "1"}, b"garbage"),
        RemotingCommand(PUSH, {**fields, "sysFlag": "1"}, bomb),
        RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, {}, b""),
    ]
    answers: SimpleQueue[RemotingCommand] = cluster.ask_client(requests)
    codes = {(answer := face.get(answers)).opaque: answer.code for _ in requests}
    assert codes == {
        1000: ResponseCode.SUCCESS,
        1001: ResponseCode.SYSTEM_ERROR,
        1002: ResponseCode.SYSTEM_ERROR,
        1003: ResponseCode.SYSTEM_ERROR,
        1004: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }


def test_a_producer_that_is_closed_ends_its_requests(server: Loopback) -> None:
    from mqbroker.client.aio import Producer

    async def main() -> None:
        server.add_topic("T")
        producer = Producer(server.addr, "pg")
        await producer.start()
        requests = [asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_s=60)) for _ in range(3)]
        while len(producer._core._replies._expected) < 3 or producer._core.sends._in_flight._count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        requests[0].cancel()
        await producer.close()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, ConnectionClosed, ConnectionClosed]
        assert producer._core._replies._expected == {}
        assert producer._core._replies._in_flight._count == 0

    asyncio.run(main())


def test_requests_in_flight_are_bounded(server: Loopback) -> None:
    from mqbroker.client.aio import Producer

    async def main() -> None:
        server.add_topic("T")
        async with Producer(server.addr, "pg", options=ProducerOptions(requests_in_flight_max=2)) as producer:
            requests = [producer.request(Message("T", b"x"), timeout_s=0.3) for _ in range(5)]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            assert all(isinstance(outcome, RequestTimedOut) for outcome in outcomes)
        assert len(server.faults.asked(RequestCode.SEND_MESSAGE_V2)) == 2

    asyncio.run(main())
