import asyncio

import pytest

from mqbroker.client import ClientClosed, Message, MessageQueue, PullOptions, PushOptions, SendFailed
from mqbroker.client.aio import Producer, PullConsumer, PushConsumer
from mqbroker.client.options import ConsumeFrom, ProducerOptions
from mqbroker.errors import ConnectionClosed, RequestTimedOut, Unreachable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command

Q = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def topic(server):
    server.cluster.add_topic("T", queues=1)
    server.cluster.add_topic("%RETRY%g", queues=1)
    return server


def test_sends_at_once_share_one_connection(topic):
    async def main():
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
    assert len(topic.cluster.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
    assert len(topic.cluster.asked(RequestCode.HEART_BEAT)) == 1


def test_pulls_and_offsets(topic):
    topic.cluster.store(Q, b"0")

    async def main():
        async with PullConsumer(topic.addr, "cg") as consumer:
            assert (await consumer.pull(Q, 0)).messages[0].body == b"0"
            assert (await consumer.fetch_raw(Q, 0)).next_offset == 1
            assert [r.next_offset for r in await consumer.fetch_many([(Q, 0, 1)] * 3)] == [1, 1, 1]
            await consumer.commit(Q, 1)
            bounds = await consumer.min_offset(Q), await consumer.max_offset(Q), await consumer.offset_by_time(Q, 0)
            assert bounds == (0, 1, 7)
            assert await consumer.bounds([Q]) == [(0, 1)]
            return await consumer.committed(Q), await consumer.queues("T")

    assert asyncio.run(main()) == (1, [Q])


def test_what_goes_wrong_has_its_type(topic, silent):
    async def main():
        async with PullConsumer(topic.addr, "cg") as consumer:
            await consumer.queues("T")
            topic.before_answer = lambda request, connection: connection.shutdown(2)
            with pytest.raises(ConnectionClosed):
                await consumer.pull(Q, 0)
        topic.before_answer = lambda request, connection: silent if request.code == 310 else None
        async with Producer(topic.addr, "pg", options=ProducerOptions(send_timeout_ms=100)) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(Message("T", b"x"), queue=Q)
            assert isinstance(failed.value.__cause__, RequestTimedOut)
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"x"))
        async with PullConsumer("127.0.0.1:1", "cg") as consumer:
            with pytest.raises(Exception, match=Unreachable.__name__):
                await consumer.queues("T")

    asyncio.run(main())


def test_a_push_consumer_with_a_coroutine_and_a_notice_from_the_broker(topic):
    for n in range(20):
        topic.cluster.store(Q, b"%d" % n)
    got = []

    async def main():
        done = asyncio.Event()

        async def listener(message):
            await asyncio.sleep(0)
            got.append(message.body)
            if len(got) == 20:
                done.set()

        options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_ms=0)
        async with PushConsumer(topic.addr, "g", listener, options=options) as consumer:
            await consumer.subscribe("T")
            await asyncio.wait_for(done.wait(), 10)
            topic.cluster.members["g"].insert(0, "0")
            notice = RemotingCommand(40, {"consumerGroup": "g"}, flag=ONEWAY_FLAG)
            topic.connections[0].sendall(encode_command(notice))
            while Q in consumer.assigned:  # noqa: ASYNC110 - a consumer tells nobody of its queues
                await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(got) == sorted(b"%d" % n for n in range(20))
    assert topic.cluster.offsets["g", Q] == 20
    assert topic.cluster.members["g"] == ["0"]


def test_a_connection_from_which_nothing_came_in_time_is_replaced(topic, silent):
    topic.cluster.store(Q)

    async def main():
        options = PullOptions(pull_timeout_ms=100)
        async with PullConsumer(topic.addr, "cg", options=options) as consumer:
            await consumer.queues("T")
            topic.before_answer = lambda request, connection: silent if request.code == PULL else None
            with pytest.raises(RequestTimedOut):
                await consumer.pull(Q, 0)
            topic.before_answer = lambda request, connection: None
            assert (await consumer.pull(Q, 0)).next_offset == 1

    asyncio.run(main())
    assert len(topic.connections) == 2
