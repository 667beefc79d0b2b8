"""The trace of sends and of consumption, as Java's clients write it, for `mqadmin queryMsgTraceById` and consoles."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import attrs

from mqbroker.client.listeners import ConsumeResult, Throttle
from mqbroker.client.messages import Message, ReceivedMessage, SendResult, SendStatus
from mqbroker.client.names import bare
from mqbroker.client.net import Net, every
from mqbroker.client.observers import ConsumeObserver, Consumption, Send, SendKind, SendObserver
from mqbroker.errors import MQError
from mqbroker.wire.codes import DEFAULT_TRACE_REGION_ID, KEY_SEPARATOR, Prop

log = logging.getLogger(__name__)

#: Interval of sending traces, seconds; number of traces that are sent at once, in one message; maximum number of such
#: messages in flight; maximum number of waiting traces, above which new ones are dropped.
_FLUSH_S = 0.5
_TOGETHER_MAX = 400
_IN_FLIGHT_MAX = 4
_WAITING_MAX = 10_000
#: A message's keys are part of its properties, which have 32,767 bytes at most.
_KEYS_BYTES_MAX = 16_000

#: The ordinals of Java's MessageType and ConsumeReturnType.
_NORMAL, _HALF, _COMMIT, _DELAYED = 0, 1, 2, 3
_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
#: Java's text for missing values; its decoder fails if a line ends in an empty field.
_NONE = "null"
#: Looked up once: attributes of an enumeration are slow.
_TRANSACTION, _STORED = SendKind.TRANSACTION, SendStatus.SEND_OK


@attrs.define(eq=False)
class _Batch:
    """The traces that one message takes. In lists of texts: the garbage collector would visit a tuple for each."""

    texts: list[str] = attrs.field(factory=list)
    #: The keys by which each of them is found, separated by blanks.
    keys: list[str] = attrs.field(factory=list)
    keys_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.texts) >= _TOGETHER_MAX or self.keys_bytes >= _KEYS_BYTES_MAX


class Tracer(SendObserver, ConsumeObserver):
    """Writes the traces of one client to `topic`; `send` sends a message that is not traced itself."""

    def __init__(self, net: Net, topic: str, send: Callable[[Message], Awaitable[object]]) -> None:
        self._net = net
        self._rng: random.Random = net.rng
        self._topic = topic
        self._send = send
        #: Held while the batches change: listeners may be called on other threads.
        self._gate = threading.Lock()
        self._waiting: deque[_Batch] = deque()
        #: Number of traces in these.
        self._count = 0
        #: Set when there are enough for a message; and whether it was set since the last flush.
        self._enough = net.signal()
        self._are_enough = False
        #: Held while traces are sent: a flush at the close waits for one that is under way.
        self._flushing = net.lock()
        #: The batches of messages that are being sent.
        self._under_way: list[_Batch] = []
        self._dropped = 0
        self._told = Throttle(net.steady)

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            return  # as in Java: nothing is known of it by an id
        group, took_ms, is_half = bare(send.group), int(send.took_s * 1000), send.kind is _TRANSACTION
        for message, result in zip(send.messages, outcome, strict=False):
            if not result.is_traced:
                continue
            kind = _HALF if is_half else _DELAYED if message.delay_level else _NORMAL
            is_stored = "true" if result.status is _STORED else "false"
            keys = KEY_SEPARATOR.join(message.keys)
            text = (
                f"Pub\x01{send.began_ms}\x01{DEFAULT_TRACE_REGION_ID}\x01{group}\x01{bare(message.topic)}"
                f"\x01{result.msg_id}\x01{message.tags or _NONE}\x01{keys or _NONE}\x01{send.addr}"
                f"\x01{len(message.body)}\x01{took_ms}\x01{kind}\x01{result.offset_msg_id}\x01{is_stored}\x02"
            )
            self._put(text, f"{result.msg_id} {keys}")

    def ended(self, group: str, topic: str, msg_id: str, addr: str, state: str, *, is_from_check: bool) -> None:
        """The transaction of a message has ended; `state` is Java's name for that."""
        start = "EndTransaction", self._now_ms(), DEFAULT_TRACE_REGION_ID, bare(group), bare(topic), msg_id, "", ""
        self._add(msg_id, (), *start, addr, _COMMIT, msg_id, state, _flag(is_from_check))

    def before_consume(self, consumption: Consumption) -> None:
        request_id = consumption.context[self] = f"{self._rng.getrandbits(128):032X}"
        for message in _traced(consumption.messages):
            region = message.properties.get(Prop.MSG_REGION, DEFAULT_TRACE_REGION_ID)
            start = "SubBefore", self._now_ms(), region, bare(consumption.group), request_id
            self._add(message.msg_id, message.keys, *start, message.msg_id, message.reconsume_times, _keys(message))

    def after_consume(self, consumption: Consumption, outcome: ConsumeResult | BaseException) -> None:
        code = _SUCCESS if outcome is ConsumeResult.SUCCESS else _FAILED
        code = _EXCEPTION if isinstance(outcome, BaseException) else code
        took_ms = int(consumption.took_s * 1000 / max(1, len(consumption.messages)))
        end = code, self._now_ms(), bare(consumption.group)
        for message in _traced(consumption.messages):
            start = "SubAfter", consumption.context[self], message.msg_id, took_ms, _flag(code == _SUCCESS)
            self._add(message.msg_id, message.keys, *start, _keys(message), *end)

    async def run(self) -> None:
        """Send traces until the client closes."""

        async def flush_soon() -> None:
            await self._enough.wait(_FLUSH_S)
            await self.flush()

        await every(self._net, 0.0, flush_soon)

    async def flush(self) -> None:
        """Send the waiting traces, after those under way. Failures are logged; their traces are lost."""
        async with self._flushing:
            self._are_enough = False
            while self._waiting:
                with self._gate:
                    while self._waiting and len(self._under_way) < _IN_FLIGHT_MAX:
                        self._under_way.append(self._waiting.popleft())
                        self._count -= len(self._under_way[-1].texts)
                try:
                    outcomes = await self._net.all_of([self._send_together(batch) for batch in self._under_way])
                finally:  # some are left if this was cancelled, as at a close, which flushes again
                    with self._gate:
                        while self._under_way:
                            self._waiting.appendleft(self._under_way.pop())
                            self._count += len(self._waiting[0].texts)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome

    def unsent(self) -> str:
        """The traces that are lost if no flush completes."""
        count = self._count + sum([len(batch.texts) for batch in self._under_way])
        return f"{count} trace{'' if count == 1 else 's'}, which are lost,"

    async def _send_together(self, batch: _Batch) -> None:
        keys = dict.fromkeys(KEY_SEPARATOR.join(batch.keys).split())
        try:
            await self._send(Message(self._topic, "".join(batch.texts), keys=tuple(keys)))
        except MQError as error:
            self._dropped += len(batch.texts)
            log.debug("%d traces were not sent: %s", len(batch.texts), error)
            if (more := self._told.more()) is not None:
                log.warning("%d traces lost so far: %s%s", self._dropped, error, more)
        self._under_way.remove(batch)

    def _add(self, msg_id: str, keys: Iterable[str], *fields: object) -> None:
        self._put("\x01".join(map(str, fields)) + "\x02", KEY_SEPARATOR.join((msg_id, *keys)))

    def _put(self, text: str, keys: str) -> None:
        with self._gate:
            is_kept = self._count < _WAITING_MAX
            if is_kept:
                if not self._waiting or self._waiting[-1].is_full:
                    self._waiting.append(_Batch())
                batch = self._waiting[-1]
                batch.texts.append(text)
                batch.keys.append(keys)
                batch.keys_bytes += len(keys) + 1
                self._count += 1
        if not is_kept:
            self._dropped += 1
            if self._dropped % _WAITING_MAX == 1:
                log.warning("%d traces lost so far: they are produced faster than brokers store them", self._dropped)
        elif self._count >= _TOGETHER_MAX and not self._are_enough:
            self._are_enough = True
            self._net.call_from_thread(self._enough.set)

    def _now_ms(self) -> int:
        return int(self._net.now() * 1000)


def _traced(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """The messages that brokers want traced."""
    return [message for message in messages if message.properties.get(Prop.TRACE_SWITCH) != "false"]


def _keys(message: Message | ReceivedMessage) -> str:
    return KEY_SEPARATOR.join(message.keys) if message.keys else _NONE


def _flag(value: bool) -> str:
    return "true" if value else "false"
