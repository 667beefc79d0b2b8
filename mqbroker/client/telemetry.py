"""Traces of OpenTelemetry: a span for each send and each call of a listener, which is the child of the send's.

Needs the extra `opentelemetry`. Names and attributes are those of OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.observers import ConsumeObserver, Consumption, Send, SendObserver

__all__ = ["OpenTelemetry"]


class OpenTelemetry(SendObserver, ConsumeObserver):
    """An observer for producers and push consumers. The context travels in the properties of messages, as `traceparent`
    and whatever else the global propagator writes.

    Within a listener its span is the current one, so that the spans of its sends are children. A listener that gets
    several messages has a span with links to each send.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        """By default the global provider makes the spans."""
        self._tracer = trace.get_tracer("mqbroker.client", tracer_provider=tracer_provider)

    def before_send(self, send: Send) -> None:
        attributes = {**_about(send.messages, send.client_id, "send", "send"), "messaging.rocketmq.group": send.group}
        topic = send.messages[0].topic
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        send.context[self] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        carrier = {name: value for name, value in carrier.items() if value}  # an empty property would be lost
        send.messages = [each.with_properties(carrier) for each in send.messages]

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        span = send.context[self]
        if isinstance(outcome, BaseException):
            _failed(span, outcome)
        elif len(outcome) == 1:
            span.set_attribute("messaging.message.id", outcome[0].msg_id)
        span.end()

    def before_consume(self, consumption: Consumption) -> None:
        messages = consumption.messages
        found = [propagate.extract({**each.properties}) for each in messages]
        is_one = len(messages) == 1
        links = [] if is_one else [trace.Link(trace.get_current_span(each).get_span_context()) for each in found]
        attributes = _about(messages, consumption.client_id, "process", "process")
        attributes["messaging.consumer.group.name"] = consumption.group
        if is_one:
            attributes["messaging.message.id"] = messages[0].msg_id
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            context=found[0] if is_one else context.Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        # What a program takes by iteration is settled anywhere: nothing is current until then.
        token = None if consumption.is_handed_out else context.attach(trace.set_span_in_context(span))
        consumption.context[self] = span, token

    def after_consume(self, consumption: Consumption, outcome: ConsumeResult | BaseException) -> None:
        span, token = consumption.context[self]
        if token is not None:
            context.detach(token)
        if isinstance(outcome, BaseException):
            _failed(span, outcome)
        elif outcome is not ConsumeResult.SUCCESS:
            span.set_status(Status(StatusCode.ERROR, "the messages come again"))
        span.end()


def _about(messages: Any, client_id: str, name: str, kind: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": messages[0].topic,
        "messaging.client.id": client_id,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if len(messages) > 1:
        about["messaging.batch.message_count"] = len(messages)
    else:
        message: Message = messages[0]
        about["messaging.message.body.size"] = len(message.body)
        if message.keys:
            about["messaging.rocketmq.message.keys"] = list(message.keys)
        if message.tags:
            about["messaging.rocketmq.message.tag"] = message.tags
    return about


def _failed(span: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
