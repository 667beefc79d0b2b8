"""The trace of sends and of consumption, in the format of Java's clients; and namespaces."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    ConsumeFrom,
    LitePullOptions,
    Message,
    MessageQueue,
    ProducerOptions,
    PushOptions,
    Send,
    SendKind,
    SendResult,
    SendStatus,
    TransactionState,
)
from mqbroker.client.aio_net import AioNet
from mqbroker.client.names import bare, within
from mqbroker.client.net import decline
from mqbroker.client.trace import Tracer
from mqbroker.wire.codes import RequestCode
from tests.client.loopback import Loopback

Q = MessageQueue("T", "a", 0)
TRACE = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def traced(cluster: Loopback) -> Loopback:
    cluster.add_topic("T")
    cluster.add_topic(TRACE, queues=1)
    return cluster


def traces(cluster: Loopback) -> list[list[str]]:
    """The fields of each entry."""
    records = cluster.stored(MessageQueue(TRACE, "a", 0))
    return [entry.split("\x01") for record in records for entry in record.body.decode().split("\x02") if entry]


def keys(cluster: Loopback) -> set[str]:
    records = cluster.stored(MessageQueue(TRACE, "a", 0))
    return {key for record in records for key in record.properties["KEYS"].split()}


def test_sends_leave_a_trace(face: Any, traced: Loopback) -> None:
    with face.make("Producer", "pg", options=ProducerOptions(trace_topic=TRACE)) as producer:
        one = producer.send(Message("T", b"123", tags="t", keys=["k1", "k2"]), queue=Q)
        late = producer.send(Message("T", b"x", delay_level=3))
        batch = producer.send_batch([Message("T", b"4"), Message("T", b"5")])
        producer.send_oneway(Message("T", b"untraced: it has no result"))
    found = {fields[5]: fields for fields in traces(traced)}
    assert set(found) == {one.msg_id, late.msg_id, *(each.msg_id for each in batch)}
    assert keys(traced) == {*found, "k1", "k2"}
    fields = found[one.msg_id]
    assert fields[0] == "Pub"
    assert int(fields[1]) > 0
    assert fields[2:5] == ["DefaultRegion", "pg", "T"]
    assert fields[6:10] == ["t", "k1 k2", fields[8], "3"]
    assert fields[8].endswith(traced.addresses["a"].rpartition(":")[2])
    assert fields[11:] == ["0", one.offset_msg_id, "true"]
    assert (found[late.msg_id][6:8], found[late.msg_id][11]) == (["null", "null"], "3")


def test_the_ends_of_transactions_leave_a_trace(face: Any, traced: Loopback) -> None:
    options = ProducerOptions(trace_topic=TRACE)
    with face.make("TransactionProducer", "tx", lambda message: None, options=options) as producer:
        sent = producer.send_in_transaction(Message("T", b"x"), lambda message: TransactionState.COMMIT).sent
    half, end = traces(traced)
    assert (half[0], half[5], half[11]) == ("Pub", sent.msg_id, "1")
    assert (end[0], end[3:6], end[9:]) == (
        "EndTransaction",
        ["tx", "T", sent.msg_id],
        ["2", sent.msg_id, "COMMIT_MESSAGE", "false"],
    )


def test_consumption_leaves_a_trace(face: Any, traced: Loopback, producer: Any) -> None:
    good = producer.send(Message("T", b"good", keys=["k"]), queue=Q)
    bad = producer.send(Message("T", b"bad"), queue=Q)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> Any:
        got.put(message)
        return message.body == b"good"

    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, concurrency=1, trace_topic=TRACE)
    member = face.make("PushConsumer", "g", listener, options=options)
    member.subscribe("T")
    with member:
        for _ in range(2):
            face.get(got)
    found = traces(traced)
    befores = {fields[5]: fields for fields in found if fields[0] == "SubBefore"}
    afters = {fields[2]: fields for fields in found if fields[0] == "SubAfter"}
    assert set(befores) == set(afters) == {good.msg_id, bad.msg_id}
    for msg_id, is_good in ((good.msg_id, True), (bad.msg_id, False)):
        before, after = befores[msg_id], afters[msg_id]
        assert before[2:4] == ["DefaultRegion", "g"]
        assert before[4] == after[1]
        assert before[6:] == ["0", "k" if is_good else "null"]
        assert after[4:7] == ["true" if is_good else "false", "k" if is_good else "null", "0" if is_good else "4"]
        assert after[8] == "g"


def test_the_trace_of_polled_messages_is_that_of_listeners(face: Any, traced: Loopback, producer: Any) -> None:
    sent = [producer.send(Message("T", b"%d" % n), queue=Q) for n in range(2)]
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST, trace_topic=TRACE)
    with face.make("LitePullConsumer", "g", options=options) as reader:
        reader.assign([Q])
        found = 0
        while found < 2:
            found += len(reader.poll(max_count=2 - found))
        assert reader.poll(timeout_s=0) == []  # those before count as consumed
    ended = [fields for fields in traces(traced) if fields[0] == "SubAfter"]
    assert [fields[2] for fields in ended] == [each.msg_id for each in sent]
    assert [fields[4] for fields in ended] == ["true", "true"]


def test_traces_that_cannot_be_stored_harm_nothing(
    face: Any, cluster: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add_topic("T")
    cluster.create_no_topics()
    with face.make("Producer", "pg", options=ProducerOptions(trace_topic="none")) as producer:
        for _ in range(3):
            producer.send(Message("T", b"x"))
    assert [record.getMessage()[:30] for record in caplog.records if record.name.endswith(".trace")] == [
        "3 traces lost so far: No route"
    ]
    caplog.clear()


def test_messages_that_the_broker_wants_no_trace_of_leave_none(face: Any, traced: Loopback) -> None:
    traced.parts().live.change({"traceOn": "false"})
    with face.make("Producer", "pg", options=ProducerOptions(trace_topic=TRACE)) as producer:
        assert not producer.send(Message("T", b"x"), queue=Q).is_traced
        producer.send_batch([Message("T", b"4"), Message("T", b"5")])
    assert traces(traced) == []


class AsyncioNet(AioNet):
    """Its time stands still."""

    def __init__(self) -> None:
        super().__init__(decline, Random(1))

    def steady(self) -> float:
        return 0.0


def sent_trace(tracer: Tracer) -> None:
    send = Send("g", "c", SendKind.SEND, [Message("T", b"x")], 1)
    tracer.after_send(send, [SendResult(SendStatus.SEND_OK, "id", "offset", Q, 0)])


def test_traces_under_way_at_a_close_are_sent_and_counted_until_then() -> None:
    async def run(*, cancels: bool) -> list[Message]:
        sent: list[Message] = []
        stored = asyncio.Event()

        async def send(message: Message) -> None:
            await stored.wait()
            sent.append(message)

        tracer = Tracer(AsyncioNet(), TRACE, send)
        sent_trace(tracer)
        periodic = asyncio.create_task(tracer.flush())
        await asyncio.sleep(0)
        sent_trace(tracer)
        assert tracer.unsent() == "2 traces, which are lost,"
        if cancels:
            periodic.cancel()
            await asyncio.wait([periodic])
        closing = asyncio.create_task(tracer.flush())
        await asyncio.sleep(0)
        assert tracer.unsent() == "2 traces, which are lost,"
        stored.set()
        await closing
        assert tracer.unsent() == "0 traces, which are lost,"
        return sent

    for cancels in (False, True):
        sent = asyncio.run(run(cancels=cancels))
        assert b"".join(message.body for message in sent).count(b"Pub") == 2


def test_traces_leave_before_their_time_when_there_are_enough_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A send of traces takes as long as 1000 others, and all together are more than may wait."""
    monkeypatch.setattr("mqbroker.client.trace._FLUSH_S", 3600.0)

    async def run() -> list[Message]:
        sent: list[Message] = []
        under_way: list[asyncio.Event] = []

        async def send(message: Message) -> None:
            stored = asyncio.Event()
            under_way.append(stored)
            await stored.wait()
            sent.append(message)

        tracer = Tracer(AsyncioNet(), TRACE, send)
        running = asyncio.create_task(tracer.run())
        for number in range(1, 40_001):
            sent_trace(tracer)
            if not number % 100:
                for _ in range(5):
                    await asyncio.sleep(0)
            if not number % 1000:
                assert under_way, "none left"
                assert len(under_way) <= 4
                while under_way:
                    under_way.pop().set()
        running.cancel()
        await asyncio.wait([running])
        for stored in under_way:
            stored.set()
        closing = asyncio.create_task(tracer.flush())
        while not closing.done():
            await asyncio.sleep(0)
            while under_way:
                under_way.pop().set()
        return sent

    sent = asyncio.run(run())
    assert b"".join(message.body for message in sent).count(b"Pub") == 40_000
    assert len(sent) > 40
    assert not caplog.records


def test_names_with_a_namespace_are_those_of_java() -> None:
    pairs = [
        ("T", "ns%T"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
    ]
    for plain, wrapped in pairs:
        assert within("ns", plain) == within("ns", wrapped) == wrapped
        assert bare(wrapped) == bare(wrapped, "ns") == plain
        assert bare(wrapped, "other") == wrapped
        assert within("", plain) == bare(plain) == plain
    for system in ("TBW102", TRACE, "CID_RMQ_SYS_x", "rmq_sys_x", "TOOLS_CONSUMER", "C_REPLY_TOPIC", "%LMQ%a"):
        assert within("ns", system) == system
    for wrong in ("a%b", "a b", 5, None):
        with pytest.raises(BadArgument, match="namespace must be text"):
            ProducerOptions(namespace=wrong)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="namespace must be text"):
            PushOptions(namespace=wrong)  # type: ignore[arg-type]


def test_namespaces_keep_systems_apart_and_are_not_seen(face: Any, cluster: Loopback) -> None:
    got: SimpleQueue[Any] = SimpleQueue()
    options = PushOptions(consume_from=ConsumeFrom.FIRST, takeover_pause_s=0.0, namespace="one")
    with (
        face.make("Producer", "pg", options=ProducerOptions(namespace="one")) as one,
        face.make("Producer", "pg", options=ProducerOptions(namespace="two")) as two,
    ):
        sent = one.send(Message("T", b"one"), queue=Q)
        batch = one.send_batch([Message("T", b"batch")], queue=Q)
        one.send_oneway(Message("T", b"oneway"), queue=Q)
        assert sent.queue == batch[0].queue == Q
        assert {queue.topic for queue in one.queues("T")} == {"T"}
        two.send(Message("T", b"two"), queue=Q)
        member = face.make("PushConsumer", "g", got.put, options=options)
        member.subscribe("T")
        with member:
            messages = [face.get(got) for _ in range(3)]
            assert {queue.topic for queue in member.assigned} == {"T", "%RETRY%g"}
    assert {(message.topic, message.body) for message in messages} == {("T", b) for b in (b"one", b"batch", b"oneway")}
    assert [record.body for record in cluster.stored(MessageQueue("two%T", "a", 0))] == [b"two"]
    assert cluster.parts().offsets.by_queue("one%g", "one%T")[0] == 3
    assert cluster.faults.asked(RequestCode.SEND_MESSAGE_V2)[0].ext_fields["a"] == "one%pg"
