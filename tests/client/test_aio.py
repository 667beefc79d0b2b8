import asyncio
import os
import random
from typing import Any

import pytest

from mqbroker.client import ClientClosed, Message, MessageQueue, PullOptions, PushOptions, SendFailed
from mqbroker.client.aio import Producer, PullConsumer, PushConsumer
from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.client.errors import NameServerUnreachable, OtherLoop
from mqbroker.client.identity import Identity
from mqbroker.client.loop_net import UNANSWERED_MAX
from mqbroker.client.options import ConsumeFrom, ProducerOptions
from mqbroker.errors import ConnectionClosed, RequestTimedOut, Unreachable
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, GetConsumerStatusBody
from mqbroker.wire.bodies import HeartbeatData
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import encode_record
from tests.client.faults import Passage
from tests.client.loopback import Loopback

Q = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def topic(server: Loopback) -> Any:
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    return server


def test_sends_at_once_share_one_connection(topic: Loopback) -> None:
    async def main() -> Any:
        async with Producer(topic.addr, "pg") as producer:
            results = await asyncio.gather(*(producer.send(Message("T", b"%d" % n)) for n in range(100)))
            await producer.send_batch([Message("T", b"a"), Message("T", b"b")])
            await producer.send_oneway(Message("T", b"c"))
            return results, await producer.queues("T")

    results, queues = asyncio.run(main())
    assert len({r.msg_id for r in results}) == 100
    assert sorted(r.queue_offset for r in results) == list(range(100))
    assert queues == [Q]
    assert len(topic.connections) == 1
    asked = [request.ext_fields["topic"] for request in topic.faults.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    assert asked == ["TBW102", "T"]
    assert len(topic.faults.asked(RequestCode.HEART_BEAT)) == 1


def test_what_goes_wrong_has_its_type(topic: Loopback, silent: object) -> None:
    async def main() -> None:
        async with PullConsumer(topic.addr, "cg") as consumer:
            await consumer.queues("T")
            topic.faults.refuse[None, None] = Passage.cut
            with pytest.raises(ConnectionClosed):
                await consumer.pull(Q, 0)
        topic.faults.refuse = {(None, RequestCode.SEND_MESSAGE_V2): silent}
        async with Producer(topic.addr, "pg", options=ProducerOptions(send_timeout_s=1)) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(Message("T", b"x"), queue=Q)
            assert isinstance(failed.value.__cause__, RequestTimedOut)
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"x"))
        with pytest.raises(NameServerUnreachable, match=Unreachable.__name__):
            await PullConsumer("127.0.0.1:1", "cg").queues("T")

    asyncio.run(main())


def gathering(count: Any) -> Any:
    """A listener, the bodies that it got, and what is set once they are so many."""
    got = []
    done = asyncio.Event()

    async def listener(message: Any) -> None:
        await asyncio.sleep(0)
        got.append(message.body)
        if len(got) == count:
            done.set()

    return listener, got, done


def test_a_connection_from_which_nothing_came_in_time_is_replaced(topic: Loopback, silent: object) -> None:
    topic.store(Q)

    async def main() -> None:
        options = PullOptions(pull_timeout_s=1)  # for the second pull, too, on a machine that does more
        async with PullConsumer(topic.addr, "cg", options=options) as consumer:
            await consumer.queues("T")
            topic.faults.refuse[None, PULL] = silent
            with pytest.raises(RequestTimedOut):
                await consumer.pull(Q, 0)
            topic.faults.refuse.clear()
            assert (await consumer.pull(Q, 0)).next_offset == 1

    asyncio.run(main())
    assert len(topic.connections) == 2


def ask(code: Any, body: Any = b"", **fields: Any) -> Any:
    return RemotingCommand(code, {"consumerGroup": "g", "group": "g", "topic": "T", "clientId": "c", **fields}, body)


async def taken(answers: Any, count: Any) -> Any:
    found = [await asyncio.to_thread(answers.get, timeout=10) for _ in range(count)]
    return sorted(found, key=lambda answer: answer.opaque)


def test_a_broker_may_ask_a_push_consumer(topic: Loopback) -> None:
    for n in range(3):
        topic.store(Q, b"%d" % n)
    listener, got, done = gathering(3)

    async def main() -> None:
        options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0)
        consumer = PushConsumer(topic.addr, "g", listener, options=options)
        await consumer.subscribe("T")
        async with consumer:
            await asyncio.wait_for(done.wait(), 10)
            answers = topic.ask_client(
                [
                    ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true"),
                    ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT),
                    ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, encode_record(topic.stored(Q)[1]), brokerName="a"),
                    ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, b"nonsense"),
                    ask(39),
                ]
            )
            info, status, directly, bad, unknown = await taken(answers, 5)
        assert "test_aio.py" in ConsumerRunningInfo.from_json(info.body).jstack
        assert Q in GetConsumerStatusBody.from_json(status.body).message_queue_table
        assert ConsumeMessageDirectlyResult.from_json(directly.body).consume_result == "CR_SUCCESS"
        assert (bad.code, unknown.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    asyncio.run(main())
    assert got == [b"0", b"1", b"2", b"1"]
    assert topic.offsets["g", Q] == 3


def test_a_broker_that_asks_without_an_end_is_heard_only_so_often(server: Loopback) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def answer(request: Any) -> Any:
            await gate.wait()
            return RemotingCommand.response(request)

        net = AioNet(answer, random.Random(1))
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=HeartbeatData("me").to_json())
        await net.invoke(server.broker_addr, heartbeat, 5000)
        answers = server.ask_client([ask(307)] * (UNANSWERED_MAX + 20))
        # What is answered comes behind what was asked before it.
        await net.invoke(server.broker_addr, heartbeat, 5000)
        gate.set()
        found = await taken(answers, UNANSWERED_MAX)
        assert [found[0].opaque, found[-1].opaque] == [1000, 1000 + UNANSWERED_MAX - 1]
        again = server.ask_client([ask(307)])
        assert (await taken(again, 1))[0].opaque == 1000
        await net.close()
        assert answers.empty()

    asyncio.run(main())


def test_who_waits_for_a_connection_when_its_client_closes_is_told(server: Loopback) -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        ask = RemotingCommand.request(RequestCode.HEART_BEAT, body=HeartbeatData("me").to_json())
        waiting = asyncio.create_task(net.invoke(server.broker_addr, ask, 60_000))
        await asyncio.sleep(0)  # the attempt has not begun
        await net.close()
        with pytest.raises(ConnectionClosed, match="the client is closed"):
            await asyncio.wait_for(waiting, 10)

    asyncio.run(main())


def test_a_client_may_be_closed_twice_at_once(server: Loopback) -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        await net.invoke(server.broker_addr, ask(RequestCode.GET_ALL_TOPIC_CONFIG), 5000)
        (connection,) = net.connections.values()
        ends = [asyncio.create_task(connection.ended(1.0)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(net.close(), net.close(), *ends), 10)

    asyncio.run(main())


def test_a_name_that_none_can_have_is_unreachable() -> None:
    async def main() -> None:
        net = AioNet(decline, random.Random(1))
        with pytest.raises(Unreachable, match=f"connect to {'x' * 70}.y:1 failed: "):
            await net.invoke("x" * 70 + ".y:1", RemotingCommand(RequestCode.HEART_BEAT), 1000)
        await net.close()

    asyncio.run(main())


def test_answers_wait_for_a_broker_that_does_not_read(server: Loopback) -> None:
    async def main() -> None:
        async def answer(request: Any) -> Any:
            return RemotingCommand.response(request)

        net = AioNet(answer, random.Random(1))
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=HeartbeatData("me").to_json())
        await net.invoke(server.broker_addr, heartbeat, 5000)
        (connection,) = net.connections.values()
        connection.pause_writing()
        answers = server.ask_client([ask(307)])
        while not connection.unanswered:  # noqa: ASYNC110 - nobody tells that bytes came
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert connection.unanswered == 1
        connection.resume_writing()
        assert [answer.opaque for answer in await taken(answers, 1)] == [1000]
        assert connection.unanswered == 0
        await net.close()

    asyncio.run(main())


def test_a_consumer_that_pulls_refuses_over_its_connection(topic: Loopback) -> None:
    async def main() -> None:
        async with PullConsumer(topic.addr, "g") as consumer:
            await consumer.min_offset(Q)
            (answer,) = await taken(topic.ask_client([ask(RequestCode.CONSUME_MESSAGE_DIRECTLY)]), 1)
            assert (answer.code, "<g> has neither" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)

    asyncio.run(main())


# --- identity, start and loops


def test_a_client_that_forks_start_has_an_identity_of_its_own_in_each() -> None:
    identity = Identity(["127.0.0.1:9876"], random.Random(1), lambda: 1_700_000_000.0)

    def taken() -> tuple[str, str]:
        identity.take()
        return identity.client_id, identity.next_ids()

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, " ".join(taken()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        theirs = pipe.read().split()
    ours = taken()
    assert len({ours[0], theirs[0]}) == len({ours[1][:24], theirs[1][:24]}) == 2


def test_a_producer_is_started_once_and_not_while_it_is_closed(topic: Loopback) -> None:
    async def main() -> None:
        async with Producer(topic.addr, "pg") as producer:
            with pytest.raises(ClientClosed, match="started only once"):
                await producer.start()
        for client in (Producer(topic.addr, "pg"), PullConsumer(topic.addr, "cg"), pusher(topic)):
            starting = asyncio.ensure_future(client.start())
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises((ClientClosed, NameServerUnreachable, ConnectionClosed, asyncio.CancelledError)):
                await starting
            with pytest.raises(ClientClosed):
                await client.start()

    asyncio.run(main())


def pusher(topic: Loopback) -> PushConsumer:
    consumer = PushConsumer(topic.addr, "g", lambda message: None)
    consumer.subscribe("T")
    return consumer


def test_a_client_on_another_loop_says_what_to_do(topic: Loopback) -> None:
    producer, consumer = Producer(topic.addr, "pg"), PullConsumer(topic.addr, "cg")

    async def begin() -> None:
        await producer.start()
        await producer.send(Message("T", b"0"))
        await consumer.min_offset(Q)

    async def go_on() -> list[str]:
        calls = [
            lambda: producer.send(Message("T", b"1")),
            lambda: producer.send(Message("T", b"1"), key="k"),
            lambda: producer.send(Message("T", b"1"), queue=Q, timeout_s=1),
            lambda: producer.send_batch([Message("T", b"1")], queue=Q),
            lambda: producer.send_oneway(Message("T", b"1")),
            lambda: consumer.min_offset(Q),
        ]
        said = []
        for call in calls:
            with pytest.raises(OtherLoop) as error:
                await call()
            said.append(str(error.value))
        return said

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    said = asyncio.run(go_on())
    assert all(text.startswith("this client belongs to another event loop. Create and start it in") for text in said)
    loop.run_until_complete(producer.close())
    loop.run_until_complete(consumer.close())
    loop.close()
    assert len(topic.stored(Q)) == 1
    assert "an event loop that has ended" in str(OtherLoop(is_closed=True))
