"""OpenTelemetry and counters as observers, on each API."""

from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from mqbroker.client import (
    Counters,
    Forbidden,
    Message,
    ProducerOptions,
    PushOptions,
    Refused,
    Send,
    SendObserver,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.test_contract import FROM_FIRST

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqbroker.client.telemetry import OpenTelemetry

ON_EACH_BROKER = True


@pytest.fixture
def spans() -> Any:
    exporter = InMemorySpanExporter()
    exporter.provider = TracerProvider()
    exporter.provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def named(spans: Any, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_a_listener_is_the_child_of_the_send_and_of_who_sent(face: Any, spans: Any) -> None:
    observer = OpenTelemetry(spans.provider)
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> bool:
        got.put((message, trace.get_current_span().get_span_context()))
        return message.body != b"fail"

    options: Any = attrs.evolve(FROM_FIRST, observers=(observer,))
    member = face.make("PushConsumer", "g", listener, options=options)
    member.subscribe("T")
    with member, face.make("Producer", "pg", options=ProducerOptions(observers=(observer,))) as producer:
        tracer = trace.get_tracer("test", tracer_provider=spans.provider)
        with tracer.start_as_current_span("order") as outer:
            sent = producer.send(Message("T", b"x", keys=["k"], tags="t"))
        message, current = face.get(got)
        producer.send(Message("T", b"fail"))
        face.get(got)
        while len(named(spans, "process T")) < 2:
            face.turn()
    (send, _), (process, failed) = named(spans, "send T"), named(spans, "process T")
    assert send.parent.span_id == outer.get_span_context().span_id
    assert process.parent.span_id == send.context.span_id
    assert process.context == current
    assert {span.context.trace_id for span in (send, process)} == {outer.get_span_context().trace_id}
    assert message.user_properties["traceparent"].split("-")[1:3] == [
        f"{send.context.trace_id:032x}",
        f"{send.context.span_id:016x}",
    ]
    assert send.attributes["messaging.message.id"] == process.attributes["messaging.message.id"] == sent.msg_id
    assert process.attributes["messaging.consumer.group.name"] == "g"
    assert process.attributes["messaging.rocketmq.message.tag"] == "t"
    assert (process.status.is_ok, failed.status.is_ok) == (True, False)
    assert not trace.get_current_span().get_span_context().is_valid


def taken(member: Any, face: Any) -> Any:
    return next(member) if hasattr(member, "__next__") else face.wait(lambda: face.awaitable(anext(member)))


def test_a_send_that_fails_and_a_batch_and_an_iteration(face: Any, cluster: Any, spans: Any) -> None:
    observer = OpenTelemetry(spans.provider)
    options: Any = attrs.evolve(FROM_FIRST, observers=(observer,))
    member = face.make("PushConsumer", "g", options=options)
    member.subscribe("T")
    with member, face.make("Producer", "pg", options=ProducerOptions(observers=(observer,))) as producer:
        producer.send_batch([Message("T", b"1"), Message("T", b"2")], key="k")
        for _ in range(2):
            message = taken(member._client, face)
            assert not trace.get_current_span().get_span_context().is_valid
            message.ack()
        while len(named(spans, "process T")) < 2:
            face.turn()
        cluster.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = (ResponseCode.MESSAGE_ILLEGAL, "no")
        with pytest.raises(Refused):
            producer.send(Message("T", b"x"))
    batch, failed = named(spans, "send T")
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert failed.attributes["error.type"] == "Refused"
    assert not failed.status.is_ok
    assert all(span.parent.span_id == batch.context.span_id for span in named(spans, "process T"))


class Never(SendObserver):
    def before_send(self, send: Send) -> None:
        raise Forbidden("never")


def test_counters_count_what_is_sent_and_consumed(face: Any, cluster: Any) -> None:
    counters = Counters()
    got: SimpleQueue[Any] = SimpleQueue()

    def listener(message: Any) -> bool:
        got.put(message)
        return message.body != b"1"

    options = PushOptions(consume_from=FROM_FIRST.consume_from, observers=(counters,))
    member = face.make("PushConsumer", "g", listener, options=options)
    member.subscribe("T")
    with member, face.make("Producer", "pg", options=ProducerOptions(observers=(counters,))) as producer:
        producer.send_batch([Message("T", b"%d" % n) for n in range(3)], key="k")
        producer.send(Message("T", b"x"))
        producer.send_oneway(Message("T", b"x"))
        for _ in range(5):
            face.get(got)
        while counters.consumed + counters.retried < 5:
            face.turn()
        cluster.faults.refuse[None, RequestCode.SEND_MESSAGE_V2] = (ResponseCode.MESSAGE_ILLEGAL, "no")
        with pytest.raises(Refused):
            producer.send(Message("T", b"x"))
    both: Any = [counters, OpenTelemetry(TracerProvider()), Never()]
    with face.make("Producer", "p2", options=ProducerOptions(observers=both)) as producer, pytest.raises(Forbidden):
        producer.send(Message("T", b"x"))
    assert (counters.sent, counters.failed, counters.waiting) == (5, 2, 0)
    assert (counters.consumed, counters.retried, counters.consuming) == (4, 1, 0)
