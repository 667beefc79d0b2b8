"""The broker in memory that applications test with."""

from __future__ import annotations

import asyncio
import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mqbroker.client import (
    BadArgument,
    ClientClosed,
    ConsumeFrom,
    Message,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
    SendFailed,
    aio,
    blocking,
    deferred,
)
from mqbroker.client.testing import InMemoryBroker, RequestKind
from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import ResponseCode

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, rebalance_s=1.0)


@pytest.fixture
def broker() -> Any:
    with InMemoryBroker() as broker:
        yield broker


def bodies(broker: InMemoryBroker, topic: str) -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


def test_what_a_blocking_producer_sends_is_stored(broker: InMemoryBroker) -> None:
    assert broker.messages("T") == []
    with blocking.Producer(broker.name_servers, "pg") as producer:
        results = [producer.send(Message("T", b"%d" % n, keys=str(n))) for n in range(5)]
        producer.send_oneway(Message("T", b"5"))
        assert len({result.msg_id for result in results}) == 5
        while len(bodies(broker, "T")) < 6:
            time.sleep(0)
    assert sorted(bodies(broker, "T")) == [b"%d" % n for n in range(6)]


def test_an_asyncio_consumer_gets_what_is_sent_and_commits(broker: InMemoryBroker) -> None:
    async def main() -> list[bytes]:
        got: asyncio.Queue[bytes] = asyncio.Queue()
        consumer = aio.PushConsumer(
            broker.name_servers, "g", lambda message: got.put_nowait(message.body), options=FROM_FIRST
        )
        await consumer.subscribe("T")
        async with aio.Producer(broker.name_servers, "pg") as producer:
            await producer.send(Message("T", b"before"))
            async with consumer:
                await asyncio.gather(*[producer.send(Message("T", b"%d" % n)) for n in range(100)])
                return [await got.get() for _ in range(101)]

    assert sorted(asyncio.run(main())) == sorted([b"before", *(b"%d" % n for n in range(100))])
    assert sum(broker.committed("g", "T").values()) == 101


@pytest_twisted.ensureDeferred
async def test_a_twisted_consumer_gets_what_is_sent(broker: InMemoryBroker) -> None:
    from twisted.internet import reactor

    got: list[bytes] = []
    all_came: Deferred[None] = Deferred()

    def listener(message: ReceivedMessage) -> None:
        got.append(message.body)
        if len(got) == 20:
            all_came.callback(None)

    producer = deferred.Producer(reactor, broker.name_servers, "pg")
    consumer = deferred.PushConsumer(reactor, broker.name_servers, "g", listener, options=FROM_FIRST)
    await producer.start()
    await producer.send(Message("T", b"0"))
    await consumer.subscribe("T")
    await consumer.start()
    await gatherResults([producer.send(Message("T", b"%d" % n)) for n in range(1, 20)])
    await all_came
    await consumer.close()
    await producer.close()
    assert sorted(got) == sorted(b"%d" % n for n in range(20))


def test_a_retry_comes_when_the_clock_is_set_forward(broker: InMemoryBroker) -> None:
    came: SimpleQueue[ReceivedMessage] = SimpleQueue()

    def listener(message: ReceivedMessage) -> bool:
        came.put(message)
        return message.reconsume_times == 1

    consumer = blocking.PushConsumer(broker.name_servers, "g", listener, options=FROM_FIRST)
    consumer.subscribe("T")
    with blocking.Producer(broker.name_servers, "pg") as producer, consumer:
        producer.send(Message("T", b"x"))
        first = came.get(timeout=30)
        while not broker.messages("SCHEDULE_TOPIC_XXXX"):
            time.sleep(0)
        broker.advance(10)
        second = came.get(timeout=30)
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)


def test_a_delayed_message_waits_for_its_time(broker: InMemoryBroker) -> None:
    with blocking.Producer(broker.name_servers, "pg") as producer:
        producer.send(Message("T", b"later", delay_level=4))
        broker.advance(29)
        assert broker.messages("T") == []
        broker.advance(2)
        assert bodies(broker, "T") == [b"later"]


def test_sends_that_are_refused_or_lost_are_repeated_or_fail(broker: InMemoryBroker) -> None:
    with blocking.Producer(broker.name_servers, "pg") as producer:
        producer.send(Message("T", b"0"))
        broker.refuse(RequestKind.SEND, code=ResponseCode.SYSTEM_BUSY)
        producer.send(Message("T", b"1"))
        broker.cut(RequestKind.SEND)
        producer.send(Message("T", b"2"))
        broker.refuse(RequestKind.SEND, code=ResponseCode.NO_PERMISSION, times=3)
        with pytest.raises((Refused, SendFailed), match="refused by the test"):
            producer.send(Message("T", b"3"))
        broker.store_twice()
        producer.send(Message("T", b"4"))
    assert sorted(bodies(broker, "T")) == [b"0", b"1", b"2", b"4", b"4"]
    ids = [message.msg_id for message in broker.messages("T") if message.body == b"4"]
    assert len(set(ids)) == 1


def test_a_send_that_is_lost_times_out(broker: InMemoryBroker) -> None:
    options = ProducerOptions(send_timeout_s=0.2, retries=0)
    with blocking.Producer(broker.name_servers, "pg", options=options) as producer:
        producer.send(Message("T", b"0"))
        broker.ignore(RequestKind.SEND)
        with pytest.raises(SendFailed):
            producer.send(Message("T", b"1"))


def test_two_brokers_are_apart() -> None:
    with InMemoryBroker() as one, InMemoryBroker() as other:
        assert one.name_servers != other.name_servers
        with blocking.Producer(one.name_servers, "pg") as producer:
            producer.send(Message("T", b"x"))
        assert (bodies(one, "T"), bodies(other, "T")) == ([b"x"], [])


def test_it_is_started_within_50_ms_and_ends_with_its_thread() -> None:
    times = []
    for _ in range(5):
        began = time.process_time()  # on a busy machine it may be started later
        broker = InMemoryBroker()
        broker.start()
        times.append(time.process_time() - began)
        broker.close()
        broker.close()
    assert min(times) < 0.05, times
    assert not [thread for thread in threading.enumerate() if thread.name == "mqbroker-in-memory"]
    with pytest.raises(RuntimeError, match="started only once"):
        broker.start()
    with pytest.raises(MQError, match="within its `with`"):
        broker.messages("T")


def test_clients_of_a_broker_that_has_ended_find_nobody() -> None:
    with InMemoryBroker() as broker:
        producer = blocking.Producer(broker.name_servers, "pg", options=ProducerOptions(send_timeout_s=0.5))
        producer.send(Message("T", b"x"))
    with pytest.raises(MQError):
        producer.send(Message("T", b"y"))
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"z"))


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.refuse("send"),
        lambda broker: broker.ignore(RequestKind.SEND, times=0),
        lambda broker: broker.advance(-1),
        lambda broker: broker.create_topic("T", queues=0),
    ],
)
def test_arguments_that_are_none_are_refused(broker: InMemoryBroker, call: Any) -> None:
    with pytest.raises(BadArgument):
        call(broker)
    with pytest.raises(MQError):
        broker.create_topic("no such name!")
    broker.create_topic("T", queues=7)
    with blocking.PullConsumer(broker.name_servers, "g") as consumer:
        assert len(consumer.queues("T")) == 7
