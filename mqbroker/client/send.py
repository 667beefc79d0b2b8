"""Encoding of sends and decoding of their responses, and the bound of sends in flight. No I/O."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence

import attrs

from mqbroker.client.errors import BadArgument, BadMessage, short
from mqbroker.client.messages import REPLY_TYPE, Message, SendResult, SendStatus, SystemMessage
from mqbroker.client.names import bare_queue, check_queue
from mqbroker.client.net import Net, Signal
from mqbroker.client.options import ProducerOptions
from mqbroker.errors import Refused, RequestTimedOut
from mqbroker.kernel import Slots
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, Prop, RequestCode, SysFlag
from mqbroker.wire.command import FRAME_BYTES_MAX, RemotingCommand
from mqbroker.wire.compression import compress_body
from mqbroker.wire.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader, decode_header
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, encode_properties

#: Codes of responses of brokers that have the message.
STATUSES = frozenset(status.value for status in SendStatus)


#: Chooses the queue of a message among those the topic has, in their order.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

#: Chooses the queue of a send with `queue`, `key` or `selector`.
Choose = Callable[[Sequence[MessageQueue]], MessageQueue]

#: Approximate bytes of a request beside body and properties.
_FIELDS_BYTES = 512


@attrs.frozen
class Outgoing:
    """The part of a send request that is common to all attempts."""

    topic: str
    body: bytes
    properties: str
    msg_id: str
    born_timestamp_ms: int
    sys_flag: int = 0
    flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    #: The broker that it goes to if that is up.
    preferred: str | None = None

    @property
    def exceeds_frames(self) -> bool:
        """Whether its requests exceed the default limit of servers' frames."""
        return len(self.body) + len(self.properties) + _FIELDS_BYTES > FRAME_BYTES_MAX


def wire_properties(message: Message, unique_key: str) -> dict[str, str]:
    """The user's and the system's properties, as on the wire."""
    properties = dict(message.properties)
    if message.keys:
        properties[Prop.KEYS] = KEY_SEPARATOR.join(message.keys)
    properties[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique_key
    properties[Prop.WAIT_STORE_MSG_OK] = "true" if message.wait_stored else "false"
    if message.delay_level > 0:
        properties[Prop.DELAY_TIME_LEVEL] = str(message.delay_level)
    if message.tags:
        properties[Prop.TAGS] = message.tags
    return properties


def prepare(
    message: Message,
    options: ProducerOptions,
    next_id: Callable[[], str],
    now_ms: int,
    compressed: tuple[bytes, int] | None = None,
) -> Outgoing:
    """Encode one message; `compressed` is what `compress_body` made of its body already. Raises BadMessage if the body
    is empty or too large."""
    check_size(message.topic, len(message.body), options)
    msg_id = message.unique_key or next_id()
    body, sys_flag = message.body, 0
    if len(body) >= options.compress_over_bytes:
        body, sys_flag = compressed or compress_body(body, options.compress_level)
    if Prop.TRANSACTION_PREPARED in message.properties:
        sys_flag |= SysFlag.TRANSACTION_PREPARED
    return Outgoing(
        topic=message.topic,
        body=body,
        properties=encoded_properties(message, msg_id).decode(),
        msg_id=msg_id,
        born_timestamp_ms=now_ms,
        sys_flag=sys_flag,
        flag=message.flag,
        is_reply=message.properties.get(Prop.MESSAGE_TYPE) == REPLY_TYPE,
        preferred=message.preferred if isinstance(message, SystemMessage) else None,
    )


def check_size(topic: str, body_bytes: int, options: ProducerOptions) -> None:
    """Raises BadMessage where brokers would refuse a body for its size."""
    if not body_bytes:
        raise BadMessage(f"message to topic {topic}: the body is empty, which brokers refuse")
    if body_bytes > options.message_bytes_max:
        raise BadMessage(
            f"message to topic {topic}: the body is {body_bytes} bytes, the limit is {options.message_bytes_max}"
            " (message_bytes_max here, maxMessageSize in the broker)"
        )


def encoded_properties(message: Message, unique_key: str) -> bytes:
    """The properties of `wire_properties`, encoded. Raises BadMessage if they are too long."""
    data = encode_properties(wire_properties(message, unique_key))
    if len(data) > PROPERTIES_BYTES_MAX:
        raise BadMessage(
            f"message to topic {message.topic}: properties, with tags and keys, are {len(data)} bytes, the limit is"
            f" {PROPERTIES_BYTES_MAX}"
        )
    return data


def send_request(outgoing: Outgoing, queue: MessageQueue, group: str, options: ProducerOptions) -> RemotingCommand:
    """The request of one attempt to send `outgoing` to `queue`."""
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=outgoing.topic,
        default_topic=options.create_topic_key,
        default_topic_queue_nums=options.default_topic_queues,
        queue_id=queue.queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=outgoing.born_timestamp_ms,
        flag=outgoing.flag,
        properties=outgoing.properties,
        reconsume_times=0,
        unit_mode=options.unit_mode,
        batch=outgoing.is_batch,
        bname=queue.broker_name,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if outgoing.is_batch else RequestCode.SEND_MESSAGE_V2
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if outgoing.is_reply else code
    return RemotingCommand.request(code, header, outgoing.body)


def read_send_answer(outgoing: Outgoing, queue: MessageQueue, answer: RemotingCommand) -> SendResult:
    """Raises Refused if the broker did not store the message."""
    if answer.code not in STATUSES:
        raise Refused(answer.code, answer.remark or "")
    header = decode_header(SendMessageResponseHeader, answer.ext_fields)
    return SendResult(
        status=SendStatus(answer.code),
        msg_id=outgoing.msg_id,
        offset_msg_id=header.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        queue_offset=header.queue_offset,
        is_traced=answer.ext_fields.get(Prop.TRACE_SWITCH) != "false",
    )


def queue_for_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key: the same as long as the number of queues is; as Java's SelectMessageQueueByHash."""
    return queues[abs(java_hash(key)) % len(queues)]


def checked(message: object) -> Message:
    """The message. Raises BadMessage for anything but a message."""
    if not isinstance(message, Message):
        raise BadMessage(f"a Message is sent, not {short(message)}: Message(topic, body)")
    return message


def chooser(
    message: Message, queue: MessageQueue | None, key: str | None, selector: Selector | None, namespace: str = ""
) -> Choose | None:
    """The caller's choice of the queue; None for the rotation. A selector gets them without `namespace`. Raises
    BadArgument."""
    if queue is not None:
        check_queue(queue, message.topic)
        return lambda queues: queue
    if key is not None:
        if not isinstance(key, str):
            raise BadArgument("key", "text", key)
        return lambda queues: queue_for_key(queues, key)
    if selector is None:
        return None
    if not callable(selector):
        raise BadArgument("selector", "a function that takes the topic's queues and the message", selector)

    def choose(queues: Sequence[MessageQueue]) -> MessageQueue:
        chosen = selector([bare_queue(namespace, each) for each in queues] if namespace else queues, message)
        if not isinstance(chosen, MessageQueue):
            raise BadArgument("what the selector returns", "one of the queues that it was given", chosen)
        return chosen

    return choose


class Rotation:
    """Round robin over the queues of a topic, from a random start."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: dict[str, int] = {}

    def turn_after(self, topic: str) -> int:
        """The next turn, without taking it."""
        return self._turns.get(topic, -1) + 1

    def turns(self, topic: str, queues: int, count: int) -> int:
        """Take `count` turns and return the first: each is a queue's number plus a multiple of the number of queues."""
        first = self._turns[topic] + 1 if topic in self._turns else self._rng.randrange(queues)
        self._turns[topic] = first + count - 1
        return first

    def next(
        self, topic: str, queues: Sequence[MessageQueue], tried: Collection[str] = (), avoided: Collection[str] = ()
    ) -> MessageQueue:
        """The next queue that is on a broker that was not `tried`, and is not `avoided` if there is such a one; simply
        the next if all were tried."""
        turn = self.turns(topic, len(queues), 1)
        for skipped in ({*tried, *avoided}, tried) if avoided else (tried,):
            for step in range(len(queues)):
                queue = queues[(turn + step) % len(queues)]
                if queue.broker_name not in skipped:
                    self._turns[topic] = turn + step
                    return queue
        return queues[turn % len(queues)]


@attrs.define(eq=False)
class _Waiter:
    size: int
    signal: Signal
    has_place: bool = False
    has_left: bool = False


class SendsInFlight(Slots):
    """Bounds the sends in flight to `count_max` and `bytes_max`; a larger one goes alone.

    First come, first served: a send that would fit does not overtake a larger one that waits. Without a wait,
    `acquired` takes a slot, to be returned by `release`.
    """

    def __init__(self, net: Net, count_max: int, bytes_max: int) -> None:
        self._net = net
        self._waiting: deque[_Waiter] = deque()
        super().__init__(count_max, bytes_max, self._waiting)
        self._is_granting = False

    async def acquire(self, size: int, timeout_s: float | None = None) -> None:
        """As `acquired`, but waits. Raises RequestTimedOut if there is no room in time."""
        if self.acquired(size):
            return
        waiter = _Waiter(size, self._net.signal())
        self._waiting.append(waiter)
        try:
            if not await waiter.signal.wait(timeout_s):
                raise RequestTimedOut(
                    f"{self._count} sends were under way for all of the {timeout_s:g} s that this one had"
                )
        except BaseException:
            # A cancelled waiter stays in the queue until its turn: thousands may be cancelled at once.
            waiter.has_left = True
            if waiter.has_place:
                self._granted -= 1
                self.release(size)
            raise
        self._granted -= 1
        self._grant()

    def release(self, size: int, count: int = 1) -> None:
        """Return a slot, or several of `size` together."""
        self._count -= count
        self._bytes -= size
        self._grant()

    def _grant(self) -> None:
        # On Twisted a waiter resumes inside set(), and may call this again: a loop avoids deep recursion.
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._waiting and (self._waiting[0].has_left or self._occupied(self._waiting[0].size)):
                waiter = self._waiting.popleft()
                if not waiter.has_left:
                    waiter.has_place = True
                    self._granted += 1
                    waiter.signal.set()
        finally:
            self._is_granting = False


class Slot:
    """A slot among the sends in flight, which ends with the block."""

    __slots__ = ("_in_flight", "_size")

    def __init__(self, in_flight: SendsInFlight, size: int) -> None:
        self._in_flight = in_flight
        self._size = size

    def __enter__(self) -> None:
        pass

    def __exit__(self, *ignored: object) -> None:
        self._in_flight.release(self._size)
