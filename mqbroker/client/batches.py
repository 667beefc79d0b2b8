"""Batches: messages of any number, encoded in as few requests as the brokers' limit of their size allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import attrs

from mqbroker.client.errors import BadMessage, BatchFailed
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.options import ProducerOptions
from mqbroker.client.send import Outgoing, check_size, encoded_properties
from mqbroker.errors import MQError
from mqbroker.kernel import compiled
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RETRY_PREFIX, Prop
from mqbroker.wire.properties import encode_properties

#: What a broker stores of a message beside topic, body and properties, at most: both addresses may be IPv6, and its
#: CLUSTER and the batch's WAIT are added to the properties. It is the stored messages together that its limit is for.
RECORD_BYTES = 256
#: In place of an id that is not made yet.
_NO_ID = "0" * 32


@attrs.define(eq=False)
class Part:
    """Messages of a batch that travel in one request. `indexes` are their places among all, `ids` theirs, which they
    get when the request is encoded."""

    messages: list[Message] = attrs.field(factory=list)
    indexes: list[int] = attrs.field(factory=list)
    ids: list[str] = attrs.field(factory=list)
    size: int = 0

    def outgoing(self, next_id: Callable[[], str], now_ms: int) -> Outgoing:
        """Its request's part that all attempts have in common."""
        self.ids = [message.unique_key or next_id() for message in self.messages]
        entries = [
            BatchEntry(message.flag, message.body, encoded_properties(message, msg_id))
            for message, msg_id in zip(self.messages, self.ids, strict=True)
        ]
        return self.outgoing_of(encode_batch(entries), now_ms)

    def outgoing_of(self, body: bytes, now_ms: int) -> Outgoing:
        """As `outgoing`, for a body that is encoded already, with known `ids`."""
        first = self.messages[0]
        wait = {Prop.WAIT_STORE_MSG_OK: "true" if first.wait_stored else "false"}
        return Outgoing(
            topic=first.topic,
            body=body,
            properties=encode_properties(wait).decode(),
            msg_id=",".join(self.ids),
            born_timestamp_ms=now_ms,
            is_batch=True,
        )

    def is_batch(self, options: ProducerOptions) -> bool:
        """Whether it is sent as a batch: one message may have a body that leaves no room for what a batch adds."""
        return self.size <= options.message_bytes_max

    def alone(self, outgoing: Outgoing) -> Outgoing:
        """Its request's part for the one message, as a send has encoded it."""
        self.ids = [outgoing.msg_id]
        return outgoing

    def results(self, result: SendResult) -> Sequence[SendResult]:
        """The result of each message, of that of the request."""
        stored = result.offset_msg_id.split(",")
        offset_ids = stored if len(stored) == len(self.ids) else [""] * len(self.ids)
        if compiled is not None:
            results: Sequence[SendResult] = compiled.BatchResults(self.ids, offset_ids, result, SendResult)
            return results
        return [
            SendResult(
                result.status, msg_id, offset_id, result.queue, result.queue_offset + n, is_traced=result.is_traced
            )
            for n, (msg_id, offset_id) in enumerate(zip(self.ids, offset_ids, strict=True))
        ]


def may_be_in_batch(message: Message) -> bool:
    """Whether brokers take it in a batch: no delayed message, and none of a retry topic."""
    return not message.delay_level and not message.topic.startswith(RETRY_PREFIX)


def parts_of(messages: Sequence[Message], options: ProducerOptions) -> list[Part]:
    """Split the messages into batches of one topic, each within the size limit of a request, in order.

    Raises BadMessage, which names the index of the first message that cannot be in a batch.
    """
    parts: list[Part] = []
    last: dict[tuple[str, bool], Part] = {}
    for index, message in enumerate(messages):
        try:
            if not may_be_in_batch(message):
                raise BadMessage("delayed messages and retry topics cannot be sent in batches")
            check_size(message.topic, len(message.body), options)
            properties = encoded_properties(message, message.unique_key or _NO_ID)
        except BadMessage as error:
            raise BadMessage(f"message {index} of the batch: {error}; no message was sent") from None
        kind = message.topic, message.wait_stored
        size = RECORD_BYTES + len(message.topic) + len(message.body) + len(properties)
        part = last.get(kind)
        if part is None or part.size + size > options.message_bytes_max:
            part = last[kind] = Part()
            parts.append(part)
        part.messages.append(message)
        part.indexes.append(index)
        part.size += size
    return parts


async def send_parts(parts: list[Part], send: Callable[[Part], Awaitable[Sequence[SendResult]]]) -> list[SendResult]:
    """The results of all messages, in their order; `send` sends a part, one after the other.

    Raises what `send` does for the first part, and BatchFailed if it fails later: then the others are not sent.
    """
    results: list[SendResult | MQError | None] = [None] * sum(len(part.indexes) for part in parts)
    for part in parts:
        try:
            sent = await send(part)
        except MQError as error:
            if part is parts[0]:
                raise
            raise BatchFailed([error if result is None else result for result in results]) from error
        for index, result in zip(part.indexes, sent, strict=True):
            results[index] = result
    return cast(list[SendResult], results)
