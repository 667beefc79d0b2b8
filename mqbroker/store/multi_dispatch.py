"""Multi-dispatch: messages that are also in the queues named by their property INNER_MULTI_DISPATCH.

Names are joined by commas. Each queue assigns an offset; the record keeps these, in the order of the names, in
INNER_MULTI_QUEUE_OFFSET, from which dispatch makes the entries, so that the log can rebuild them. Half messages and
rolled back ones are in none of the queues: the committed message is. A name that begins with %LMQ% means queue 0 of
that name (if enableLmq is on), any other the queue with the message's own id. Source: MultiDispatch and ConsumeQueue of
4.9.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mqbroker.errors import LmqQueuesExceeded, MessageRefused, MultiDispatchRefused
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.logscan import Scanned
from mqbroker.wire.codes import NO_SEND_TOPICS, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, Prop, SysFlag
from mqbroker.wire.names import LMQ_PREFIX
from mqbroker.wire.properties import (
    DISPATCH_MARK,
    PROPERTIES_BYTES_MAX,
    decode_properties,
    dispatch_names,
    find_property,
    reencode_properties,
)
from mqbroker.wire.record import NewMessage

_OFFSETS_MARK = b"INNER_MULTI_QUEUE_OFFSET\x01"
_LMQ_BYTES = LMQ_PREFIX.encode()
_REFUSED_NAMES = frozenset(name.encode() for name in NO_SEND_TOPICS)
_WAITING_TOPICS = frozenset((TRANS_HALF_TOPIC.encode(), TRANS_CHECK_MAX_TIME_TOPIC.encode()))
_OFFSET_DIGITS_MAX = 19


def stands_in(queue: ConsumeQueue, offset: int, properties: bytes, queue_id: int) -> bool:
    """Whether a stored message with `queue_id` has `offset` in `queue` by its properties."""
    is_light = not queue.queue_id and queue.topic_bytes.startswith(_LMQ_BYTES)
    if queue.queue_id != queue_id and not is_light:
        return False
    names = find_property(properties, DISPATCH_MARK).split(b",")
    offsets = find_property(properties, _OFFSETS_MARK).split(b",")
    return (queue.topic_bytes, b"%d" % offset) in zip(names, offsets, strict=False)


def is_entry_of(queue: ConsumeQueue, offset: int, item: Scanned) -> bool:
    """Whether this message belongs at `offset` of `queue`."""
    own = item.topic, item.queue_id, item.queue_offset
    return own == (queue.topic_bytes, queue.queue_id, offset) or stands_in(
        queue, offset, item.properties, item.queue_id
    )


@attrs.frozen
class MultiQueues:
    """Resolves the queues that messages name.

    :param lmq_queues_max: messages create no more %LMQ% queues than that.
    """

    queues: ConsumeQueues
    enable_lmq: bool
    lmq_queues_max: int

    def names_of(self, properties: bytes, queue_id: int) -> list[tuple[bytes, int]]:
        """Topic and queue id of each named queue; empty without the property."""
        return [
            (name, 0 if self.enable_lmq and name.startswith(_LMQ_BYTES) else queue_id)
            for name in dispatch_names(properties)
        ]

    def targets(self, properties: bytes, queue_id: int) -> list[ConsumeQueue]:
        """The named queues of a new message. Raises LmqQueuesExceeded; MultiDispatchRefused on a bad name."""
        names = self.names_of(properties, queue_id)
        if self.enable_lmq:
            new = {name for name in names if name[0].startswith(_LMQ_BYTES) and name not in self.queues.by_bytes}
            if new and self.queues.lmq_count + len(new) > self.lmq_queues_max:
                raise LmqQueuesExceeded(f"{self.queues.lmq_count} %LMQ% queues, {len(new)} more are too many")
        try:
            for name, _ in names:
                if name in _REFUSED_NAMES:
                    raise ValueError(f"{name!r} is not a queue of messages")
                self.queues.check(name, queue_id)
            return [self.queues.open(*name) for name in names]
        except ValueError as error:
            raise MultiDispatchRefused(f"INNER_MULTI_DISPATCH: {error}") from error

    def entered(self, properties: bytes, queue_id: int) -> list[tuple[ConsumeQueue, int]]:
        """The named queues of a stored message, with its offset in each; invalid ones are left out.

        Raises ValueError if names and offsets do not match."""
        names = self.names_of(properties, queue_id)
        text = find_property(properties, _OFFSETS_MARK)
        if not names or not text.strip():
            return []
        offsets = text.rstrip(b",").split(b",")
        if len(offsets) != len(names):
            raise ValueError(f"{len(names)} names and {len(offsets)} offsets")
        if not all(offset.isdigit() and len(offset) <= _OFFSET_DIGITS_MAX for offset in offsets):
            raise ValueError(f"offsets {text[:80]!r}")
        return [(self.queues.open(*name), int(offset)) for name, offset in zip(names, offsets, strict=True)]


class MultiAppender:
    """Appends messages to the log, with their offsets in the queues that they name."""

    def __init__(self, log: CommitLog, queues: MultiQueues) -> None:
        self._log = log
        self._queues = queues

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """As CommitLog.append. Also raises MessageRefused, with nothing stored, if a message names invalid queues."""
        for message in messages:
            if DISPATCH_MARK in message[9]:
                return self._append_marked(messages)
        return self._log.append(messages)

    def _append_marked(self, messages: Sequence[NewMessage]) -> list[Appended]:
        appended: list[Appended] = []
        parts = self._parts(messages)
        with self._log.reserved([message for part in parts for message in part.messages]):
            for part in parts:
                appended += self._log.append(part.messages)
                for queue, next_offset in part.given.items():
                    queue.number_from(next_offset)
        return appended

    def _parts(self, messages: Sequence[NewMessage]) -> list[_Part]:
        """The messages with their offsets, in parts: the log assigns the offsets of a part itself, so none of its
        messages may be in a queue that an earlier one of the part named."""
        parts = [_Part()]
        following: dict[ConsumeQueue, int] = {}
        for message in messages:
            part = parts[-1]
            try:
                own = self._queues.queues.open(message[0], message[1])
            except ValueError as error:
                raise MessageRefused(str(error)) from error
            if own in part.given:
                part = _Part()
                parts.append(part)
            targets = self._queues.targets(message[9], message[1]) if DISPATCH_MARK in message[9] else []
            offsets = [following.get(queue, queue.next_offset) for queue in targets]
            stored = _with_offsets(message, offsets) if targets else message
            if message[0] in _WAITING_TOPICS:
                targets, offsets, stored = [], [], _without_offsets(message)
            part.messages.append(stored)
            if message[3] & SysFlag.TRANSACTION_PREPARED:  # the log does not count these either
                continue
            following[own] = following.get(own, own.next_offset) + 1
            for queue, offset in zip(targets, offsets, strict=True):
                following[queue] = offset + 1
                if queue is not own:
                    part.given[queue] = offset + 1
        return parts


@attrs.define
class _Part:
    """Messages that the log can append at once, and the next offsets of the queues that they name."""

    messages: list[NewMessage] = attrs.field(factory=list)
    given: dict[ConsumeQueue, int] = attrs.field(factory=dict)


def _with_offsets(message: NewMessage, offsets: Sequence[int]) -> NewMessage:
    """The message with its offsets in the queues that it names."""
    properties = _without_offsets(message)[9]
    if not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties += _OFFSETS_MARK + ",".join(map(str, offsets)).encode()
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise MultiDispatchRefused(f"properties of {len(properties)} bytes with the offsets of INNER_MULTI_DISPATCH")
    return (*message[:9], properties)


def _without_offsets(message: NewMessage) -> NewMessage:
    """The message without offsets of its sender, or of the message that it is a copy of."""
    properties = message[9]
    if _OFFSETS_MARK not in properties:
        return message
    found = decode_properties(properties)
    found.pop(Prop.INNER_MULTI_QUEUE_OFFSET, None)
    return (*message[:9], reencode_properties(found))
