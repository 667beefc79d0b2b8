"""The broker in memory that applications test with."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
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
    ClientTls,
    ConsumeFrom,
    Credentials,
    Message,
    MessageQueue,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
    SendFailed,
    Sql,
    aio,
    blocking,
    deferred,
)
from mqbroker.client.testing import InMemoryBroker, RequestKind
from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.names import split_address
from tests.sources import ROOT

COMMITTING = PushOptions(consume_from=ConsumeFrom.FIRST, rebalance_s=1.0, commit_s=0.05)
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
        broker.advance(20)
        assert broker.messages("T") == []
        broker.advance(11)
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


def test_a_blocking_test_waits_for_messages_and_for_a_group(broker: InMemoryBroker) -> None:
    with blocking.Producer(broker.name_servers, "pg") as producer:
        for n in range(3):
            producer.send_async(Message("T", b"%d" % n))
        broker.wait_for_messages("T", 3)
        assert len(bodies(broker, "T")) == 3
    consumer = blocking.PushConsumer(broker.name_servers, "g", lambda message: None, options=COMMITTING)
    consumer.subscribe("T")
    with consumer:
        broker.wait_until_consumed("g", "T")
        assert sum(broker.committed("g", "T").values()) == 3


def test_a_wait_that_is_over_says_what_was_seen(broker: InMemoryBroker) -> None:
    with pytest.raises(TimeoutError, match=r"^after 0 s T has 0 of 2 messages$"):
        broker.wait_for_messages("T", 2, timeout_s=0)
    with pytest.raises(TimeoutError, match=r"^after 0\.01 s group g has not consumed all: T has no messages$"):
        broker.wait_until_consumed("g", "T", timeout_s=0.01)
    broker.create_topic("T", queues=1)
    with blocking.Producer(broker.name_servers, "pg") as producer:
        producer.send(Message("T", b"x"))
    verdicts: SimpleQueue[bool] = SimpleQueue()
    consumer = blocking.PushConsumer(broker.name_servers, "g", lambda message: verdicts.get(), options=COMMITTING)
    consumer.subscribe("T")
    with consumer:
        with pytest.raises(TimeoutError, match=r"not consumed all: queue 0 of T is committed up to 0 of 1$"):
            broker.wait_until_consumed("g", "T", timeout_s=0)
        verdicts.put(False)
        broker.wait_for_messages("SCHEDULE_TOPIC_XXXX", 1)
        with pytest.raises(TimeoutError, match=r"not consumed all: 1 wait for their retry"):
            broker.wait_until_consumed("g", "T", timeout_s=0)
        broker.advance(10)
        verdicts.put(True)
        broker.wait_until_consumed("g", "T")
        assert broker.committed("g", "%RETRY%g") == {MessageQueue("%RETRY%g", "in-memory", 0): 1}


def test_an_asyncio_test_waits_while_its_loop_runs(broker: InMemoryBroker) -> None:
    async def main() -> None:
        consumer = aio.PushConsumer(broker.name_servers, "g", lambda message: None, options=COMMITTING)
        await consumer.subscribe("T")
        async with aio.Producer(broker.name_servers, "pg") as producer, consumer:
            await producer.send(Message("T", b"x"))
            await broker.aio.wait_for_messages("T", 1)
            await broker.aio.wait_until_consumed("g", "T")
        with pytest.raises(TimeoutError, match="T has 1 of 2 messages"):
            await broker.aio.wait_for_messages("T", 2, timeout_s=0.01)

    asyncio.run(main())


@pytest_twisted.ensureDeferred
async def test_a_twisted_test_waits_while_its_reactor_runs(broker: InMemoryBroker) -> None:
    from twisted.internet import reactor

    producer = deferred.Producer(reactor, broker.name_servers, "pg")
    consumer = deferred.PushConsumer(reactor, broker.name_servers, "g", lambda message: None, options=COMMITTING)
    await producer.start()
    await producer.send(Message("T", b"x"))
    await consumer.subscribe("T")
    await consumer.start()
    await broker.deferred.wait_for_messages("T", 1)
    await broker.deferred.wait_until_consumed("g", "T")
    await consumer.close()
    await producer.close()
    with pytest.raises(TimeoutError, match="T has 1 of 2 messages"):
        await broker.deferred.wait_for_messages("T", 2, timeout_s=0.01)


def test_consumers_may_filter_by_sql(broker: InMemoryBroker) -> None:
    came: SimpleQueue[ReceivedMessage] = SimpleQueue()
    with blocking.Producer(broker.name_servers, "pg") as producer:
        for price in ("5", "50"):
            producer.send(Message("T", price.encode(), properties={"price": price}))
    consumer = blocking.PushConsumer(broker.name_servers, "g", came.put, options=COMMITTING)
    consumer.subscribe("T", Sql("price > 10"))
    with consumer:
        assert came.get(timeout=30).body == b"50"
        broker.wait_until_consumed("g", "T")
    assert came.empty()


def _is_unreachable(broker: InMemoryBroker, send: Any) -> None:
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(split_address(broker.name_servers), 1)


def _encrypts_nothing(broker: InMemoryBroker, send: Any) -> None:
    assert len(send(tls=ClientTls())) == 4


def _knows_no_accounts(broker: InMemoryBroker, send: Any) -> None:
    assert len(send(credentials=Credentials("nobody", "no secret"))) == 4


def _is_one(broker: InMemoryBroker, send: Any) -> None:
    assert {queue.broker_name for queue in send()} == {"in-memory"}


def _ends_for_good(broker: InMemoryBroker, send: Any) -> None:
    with pytest.raises(RuntimeError):
        broker.start()


def _leaves_clocks_of_clients(broker: InMemoryBroker, send: Any) -> None:
    with blocking.Producer(
        broker.name_servers, "pg", options=ProducerOptions(send_timeout_s=0.2, retries=0)
    ) as producer:
        producer.send(Message("T", b"x"))
        broker.ignore(RequestKind.SEND)
        began = time.monotonic()
        result = producer.send_async(Message("T", b"x"))
        broker.advance(1000)
        with pytest.raises(SendFailed):
            result.result(30)
        assert time.monotonic() - began > 0.19


#: What the broker in memory cannot do, as the page says, and how it shows.
LIMITS = {
    "Be reached from another process, or from a fork": _is_unreachable,
    "Encrypt connections": _encrypts_nothing,
    "Check accounts and permissions": _knows_no_accounts,
    "Act as several brokers, as a slave or as a group": _is_one,
    "Be restarted with its messages": _ends_for_good,
    "Move the clocks of clients": _leaves_clocks_of_clients,
}


@pytest.mark.parametrize("limit", LIMITS)
def test_it_cannot_do_what_is_listed(broker: InMemoryBroker, limit: str) -> None:
    def send(**options: Any) -> list[MessageQueue]:
        with blocking.Producer(broker.name_servers, "pg", options=ProducerOptions(**options)) as producer:
            producer.send(Message("T", b"x"))
            return producer.queues("T")

    LIMITS[limit](broker, send)


def test_the_page_lists_what_it_cannot_do() -> None:
    page = ROOT / "docs" / "howto" / "test-a-service.rst"
    if page.exists():
        rows = re.findall(r"^   \* - (.+?)\n     - ", page.read_text(), re.MULTILINE | re.DOTALL)
        assert [" ".join(row.split()) for row in rows] == ["It cannot", *LIMITS]


_NOTHING_IS_OPENED = """
import sys
from mqbroker.client.testing import InMemoryBroker
opened = []
def hook(event, arguments):
    if event.startswith("socket.") or event == "open":
        opened.append((event, arguments))
sys.addaudithook(hook)
with InMemoryBroker() as broker:
    broker.create_topic("T")
    broker.messages("T")
print(opened, "twisted.internet.reactor" in sys.modules)
"""


def test_it_opens_no_socket_and_no_file_and_installs_no_reactor() -> None:
    out = subprocess.run([sys.executable, "-c", _NOTHING_IS_OPENED], capture_output=True, text=True, check=True)
    assert out.stdout == "[] False\n"


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
