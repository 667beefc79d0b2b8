"""Our producer and consumers, by each face, on the Java name server and broker, and in groups with Java members."""

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from mqbroker.client import (
    ConsumeFrom,
    Message,
    ProducerOptions,
    PullStatus,
    PushOptions,
    ReceivedMessage,
    RetryLater,
    SendStatus,
    aio,
    blocking,
    deferred,
)
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import PATIENCE_S, eventually
from tests.interop.traffic import (
    assert_dense,
    assigned,
    bodies,
    consumer,
    ours,
    produce,
    pull,
    stop_consumer,
    wait_assigned,
    wait_committed,
)

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST)
LARGE = b"a large body that shrinks well. " * 1000


class Inbox:
    """A listener that keeps what it got, for any thread to wait for."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = threading.Condition()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[ReceivedMessage]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, PATIENCE_S), len(self.messages)
            return list(self.messages)


def hashes(sent: list[bytes]) -> Counter[str]:
    return Counter(hashlib.sha256(body).hexdigest() for body in sent)


def hashes_of(messages: list[ReceivedMessage]) -> Counter[str]:
    return hashes([message.body for message in messages])


@pytest.fixture
def queues4(shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str) -> str:
    """The topic, created with four queues."""
    shared_fleet.peer("createtopic", java_namesrv, topic=topic, broker=java_broker.addr, queues=4).finish()
    return topic


def test_every_way_of_sending_is_read_by_java(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    sent: list[bytes] = []

    def message(body: bytes, **fields: Any) -> Message:
        sent.append(body)
        return Message(queues4, body, **fields)

    with blocking.Producer(java_namesrv.addr, "ours") as producer:
        first = producer.send(message(b"one", tags="T", keys=["k1", "k2"], properties={"umlaut": "\u00e4\u4e2d"}))
        assert first.status is SendStatus.SEND_OK
        queue = producer.queues(queues4)[3]
        assert producer.send(message(b"to a queue"), queue=queue).queue == queue
        placed = {producer.send(message(b"by key %d" % i), key="same").queue for i in range(5)}
        assert len(placed) == 1
        producer.send(message(LARGE))
        producer.send_oneway(message(b"oneway"))
        futures = [producer.send_async(message(b"async %d" % i)) for i in range(20)]
        assert {future.result(PATIENCE_S).status for future in futures} == {SendStatus.SEND_OK}
        producer.send_batch([message(b"batch %d" % i, tags="T") for i in range(10)])

    found = pull(shared_fleet, java_namesrv, queues4, count=len(sent))
    assert bodies(found) == hashes(sent)
    assert_dense(found)
    by_body = {event["sha256"]: event for event in found}
    one = by_body[hashlib.sha256(b"one").hexdigest()]
    assert (one["tags"], one["keys"], one["msgId"]) == ("T", "k1 k2", first.msg_id)
    assert one["properties"]["umlaut"] == "\u00e4\u4e2d"
    assert by_body[hashlib.sha256(LARGE).hexdigest()]["sysFlag"] & 1
    assert len(pull(shared_fleet, java_namesrv, queues4, tags="T")) == 11


def test_automatic_batches_are_read_by_java_as_single_messages(
    shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str
) -> None:
    sent = [b"together %d" % n for n in range(500)]
    options = ProducerOptions(linger_s=0.01)
    with blocking.Producer(java_namesrv.addr, "ours", options=options) as producer:
        producer.send(Message(queues4, b"first"))
        futures = [producer.send_async(Message(queues4, body, tags="T", keys=body.decode())) for body in sent]
        results = [future.result(PATIENCE_S) for future in futures]
    found = {event["msgId"]: event for event in pull(shared_fleet, java_namesrv, queues4, count=501)}
    for body, result in zip(sent, results, strict=True):
        event = found[result.msg_id]
        assert event["sha256"] == hashlib.sha256(body).hexdigest()
        assert (event["queueId"], event["queueOffset"]) == (result.queue.queue_id, result.queue_offset)
        assert event["keys"] == body.decode()
        assert int(result.offset_msg_id[16:], 16) == event["physicalOffset"]


def test_a_topic_that_nobody_created(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, topic: str
) -> None:
    with blocking.Producer(java_namesrv.addr, "ours") as producer:
        producer.send(Message(topic, b"first"))
    assert bodies(pull(shared_fleet, java_namesrv, topic, count=1)) == hashes([b"first"])


def test_the_pull_consumer_reads_what_java_sent(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, java_namesrv, queues4, count=100, tags="A,B", keys=True)
    sent += produce(shared_fleet, java_namesrv, queues4, prefix="batch", mode="batch", count=40)
    sent += produce(shared_fleet, java_namesrv, queues4, prefix="large", count=3, size=100_000)
    with blocking.PullConsumer(java_namesrv.addr, "ours-pull") as reader:
        found: list[ReceivedMessage] = []
        with_tag = 0
        for queue in reader.queues(queues4):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            assert offset == 0
            while offset < end:
                result = reader.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
            assert reader.pull(queue, end).status is PullStatus.NO_NEW_MESSAGE
            with_tag += sum(len(reader.pull(queue, at, tags="B").messages) for at in range(0, end, 32))
            reader.commit(queue, end)
            eventually("the offset is committed", lambda q=queue, e=end: reader.committed(q) == e)  # type: ignore[misc]
    assert hashes_of(found) == bodies(sent)
    positions = {(m.queue.queue_id, m.queue_offset): m for m in found}
    for event in sent[:100]:
        message = positions[event["queueId"], event["queueOffset"]]
        assert (message.msg_id, message.offset_msg_id) == (event["msgId"], event["offsetMsgId"])
        assert message.keys == (f"message-{event['index']}",)
    assert with_tag >= 50


def test_blocking_push_resumes_where_it_was(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    def consume(count: int) -> list[ReceivedMessage]:
        inbox = Inbox()
        member = blocking.PushConsumer(java_namesrv.addr, "ours-resume", inbox, options=FROM_FIRST)
        member.subscribe(queues4)
        with member:
            inbox.wait(count)
        return inbox.messages

    sent = produce(shared_fleet, java_namesrv, queues4, count=30)
    assert hashes_of(consume(30)) == bodies(sent)
    later = produce(shared_fleet, java_namesrv, queues4, prefix="later", count=10)
    assert hashes_of(consume(10)) == bodies(later)


def test_a_message_refused_by_the_listener_comes_again(
    shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str
) -> None:
    sent = produce(shared_fleet, java_namesrv, queues4, count=4)
    inbox, refused = Inbox(), list[str]()

    def listener(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0 and message.queue_offset == 0 and not refused:
            refused.append(message.msg_id)
            raise RetryLater(1)
        inbox(message)

    member = blocking.PushConsumer(java_namesrv.addr, "ours-refuse", listener, options=FROM_FIRST)
    member.subscribe(queues4)
    with member:
        messages = inbox.wait(4)
    assert hashes_of(messages) == bodies(sent)
    [again] = [message for message in messages if message.reconsume_times == 1]
    assert again.topic == queues4
    assert refused == [again.msg_id]


def test_one_group_of_ours_and_java_shares_the_queues(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, queues4: str
) -> None:
    group = f"{queues4}-group"
    theirs = consumer(shared_fleet, java_namesrv, queues4, group, persist_ms=100)
    wait_assigned(theirs, queues=4)
    inbox = Inbox()
    member = blocking.PushConsumer(java_namesrv.addr, group, inbox, options=FROM_FIRST)
    member.subscribe(queues4)
    with member:
        wait_assigned(theirs, queues=2, patience_s=15)
        eventually("two queues are ours", lambda: len(ours(member, queues4)) == 2, patience_s=15)
        assert assigned(theirs).isdisjoint(ours(member, queues4))
        sent = produce(shared_fleet, java_namesrv, queues4, count=40)
        theirs.wait_events("message", 20)
        inbox.wait(20)
        wait_committed(java_broker, group, queues4, queues=4, count=40)
        found_by_theirs = stop_consumer(theirs)
        eventually("all queues are ours", lambda: len(ours(member, queues4)) == 4, patience_s=15)
        later = produce(shared_fleet, java_namesrv, queues4, prefix="later", count=8)
        inbox.wait(28)
    assert hashes_of(inbox.messages) + bodies(found_by_theirs) == bodies(sent) + bodies(later)


def test_asyncio_face(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    inbox = Inbox()

    async def main() -> None:
        async with aio.Producer(java_namesrv.addr, "ours-aio") as producer:
            await asyncio.gather(*(producer.send(Message(queues4, b"%d" % i)) for i in range(50)))
        member = aio.PushConsumer(java_namesrv.addr, "ours-aio", inbox, options=FROM_FIRST)
        await member.subscribe(queues4)
        async with member:
            await asyncio.to_thread(inbox.wait, 50)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    sent = [b"%d" % i for i in range(50)]
    assert hashes_of(inbox.messages) == hashes(sent) == bodies(pull(shared_fleet, java_namesrv, queues4, count=50))


@pytest_twisted.inlineCallbacks
def test_deferred_face(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> Generator[Deferred[Any], Any, None]:
    done: Deferred[None] = Deferred()
    found: list[ReceivedMessage] = []

    def listener(message: ReceivedMessage) -> None:
        found.append(message)
        if len(found) == 50:
            done.callback(None)

    producer = deferred.Producer(reactor, java_namesrv.addr, "ours-deferred")
    yield producer.start()
    for i in range(50):
        yield producer.send(Message(queues4, b"%d" % i))
    yield producer.close()
    member = deferred.PushConsumer(reactor, java_namesrv.addr, "ours-deferred", listener, options=FROM_FIRST)
    yield member.subscribe(queues4)
    yield member.start()
    yield done.addTimeout(PATIENCE_S, reactor)
    yield member.close()
    assert hashes_of(found) == hashes([b"%d" % i for i in range(50)])


def test_our_producer_turns_to_the_other_broker(fleet: Fleet, topic: str) -> None:
    namesrv = fleet.namesrv("java")
    brokers = [fleet.broker("java", namesrv) for _ in range(2)]
    for broker in brokers:
        fleet.peer("createtopic", namesrv, topic=topic, broker=broker.addr, queues=2).finish()
    with blocking.Producer(namesrv.addr, "ours-retry") as producer:
        before = {producer.send(Message(topic, b"before")).queue.broker_name for _ in range(8)}
        assert before == {broker.name for broker in brokers}
        brokers[0].process.kill()
        after = {producer.send(Message(topic, b"after")).queue.broker_name for _ in range(8)}
        assert after == {brokers[1].name}
