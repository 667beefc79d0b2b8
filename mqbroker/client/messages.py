"""Messages and results: the values that users send, get back and receive. No I/O."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import IntEnum
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast

import attrs

from mqbroker.client.errors import DELAY_LEVEL_MAX, DELAY_LEVELS, BadArgument, BadMessage, UnexpectedResponse, short
from mqbroker.client.names import check_topic, is_text
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, REPLY_TOPIC_POSTFIX, RETRY_PREFIX, Prop, ResponseCode, SysFlag
from mqbroker.wire.compression import UnreadableBody, decompress_body, decompressed_in_vain
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.names import is_lmq
from mqbroker.wire.record import Host, Record, decode_host, decode_record

#: Names that users may not put into `properties`: the system writes or acts on them.
RESERVED_PROPERTIES = frozenset(
    value for name, value in vars(Prop).items() if not name.startswith("_") and isinstance(value, str)
)


#: The MSG_TYPE of replies.
REPLY_TYPE = "reply"

_NAMEABLE = "a tag that a subscription can name: not *, without || or blanks around"
_LEVEL = f"a number from 0, for no delay, to {DELAY_LEVEL_MAX}, or a level's timedelta: nearest_delay_level() finds one"


@lru_cache(1024)
def _check_topic(topic: str) -> None:
    try:
        check_topic(topic)
    except BadArgument as error:
        raise BadMessage(str(error)) from None


#: Bodies of one response are decompressed up to this: more would keep the event loop, and fill the memory.
INFLATED_BYTES_MAX = 16 * 1024 * 1024

_TOO_MUCH = (
    f"the bodies before it in this response decompress to more than {INFLATED_BYTES_MAX >> 20} MiB; "
    "look it up alone, by its offset_msg_id"
)

#: The largest offset of a message that another one can follow.
_OFFSET_MAX = 2**63 - 2

_OFFSET_DIGITS = len(str(_OFFSET_MAX))
_LIGHT = Prop.INNER_MULTI_DISPATCH, Prop.INNER_MULTI_QUEUE_OFFSET

_BYTES_LIKE = (bytes, bytearray, memoryview)


# Invalid values stay as they are here; `_check`, which knows the topic, reports them.
def _to_bytes(body: bytes | bytearray | memoryview | str) -> bytes:
    if type(body) is bytes:
        return body
    given: Any = body
    try:
        return bytes(given) if isinstance(given, _BYTES_LIKE) else given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        return cast(bytes, given)


def _to_level(delay: int | timedelta) -> int:
    return DELAY_LEVELS.index(delay) + 1 if isinstance(delay, timedelta) and delay in DELAY_LEVELS else cast(int, delay)


def _to_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    if type(keys) is tuple:
        return keys
    if isinstance(keys, str):
        return tuple(keys.split())
    return cast(Any, keys) if isinstance(keys, _BYTES_LIKE) or not isinstance(keys, Iterable) else tuple(keys)


def _to_dict(properties: Mapping[str, str]) -> dict[str, str]:
    if type(properties) is dict:
        return properties.copy()
    return dict(properties) if isinstance(cast(Any, properties), Mapping) else cast(Any, properties)


@attrs.frozen
class Message:
    """A message to send. `body` is bytes-like, or text, which becomes UTF-8; `keys` find it in the broker's index.

    `delay_level` 1 to 18 selects one of the broker's delays; a timedelta selects the level that has exactly this delay
    by default. With `wait_stored` false the broker responds before the disk or a slave has the message. `flag` is a
    signed 32-bit number. `unique_key` is created by the send if it is None; set it to recognise repeated sends. Raises
    BadMessage, which names the topic and the invalid field.
    """

    topic: str = attrs.field()
    body: bytes = attrs.field(converter=_to_bytes)
    tags: str | None = attrs.field(default=None, kw_only=True)
    keys: tuple[str, ...] = attrs.field(default=(), converter=_to_keys, kw_only=True)
    properties: Mapping[str, str] = attrs.field(factory=dict, converter=_to_dict, kw_only=True, hash=False)
    delay_level: int = attrs.field(default=0, converter=_to_level, kw_only=True)
    wait_stored: bool = attrs.field(default=True, kw_only=True)
    flag: int = attrs.field(default=0, kw_only=True)
    unique_key: str | None = attrs.field(default=None, kw_only=True)

    #: Names among the system's that `properties` may have.
    _allowed: ClassVar[frozenset[str]] = frozenset()
    #: See SystemMessage.
    if not TYPE_CHECKING:
        preferred: ClassVar[str | None] = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise BadMessage(f"topic must be text, not {short(self.topic)}")
        _check_topic(self.topic)
        if not isinstance(self.body, bytes):
            self._refuse("body", "bytes-like or text that UTF-8 can encode", self.body)
        if self.tags is not None:
            self._check_text("tags", self.tags)
            if self.tags == "*" or "||" in self.tags or self.tags != self.tags.strip():
                self._refuse("tags", _NAMEABLE, self.tags)
        if self.unique_key is not None:
            self._check_text("unique_key", self.unique_key)
        if self.keys or not isinstance(self.keys, tuple):
            self._check_keys()
        if self.properties or not isinstance(self.properties, dict):
            self._check_properties()
        if type(self.delay_level) is not int or not 0 <= self.delay_level <= DELAY_LEVEL_MAX:
            self._refuse("delay_level", _LEVEL, self.delay_level)
        if type(self.wait_stored) is not bool:
            self._refuse("wait_stored", "True or False", self.wait_stored)
        if type(self.flag) is not int or not -(2**31) <= self.flag < 2**31:
            self._refuse("flag", "a signed number of 32 bits", self.flag)

    @classmethod
    def from_received(cls, received: ReceivedMessage, *, topic: str | None = None) -> Message:
        """A copy of a received message, to be sent again, to another `topic` if that is given. It has the body, tags,
        keys, flag and the user's properties, but not the id, the delay and the system's properties. Raises BadMessage,
        also if its body is not decompressed."""
        if received.body_error is not None:
            raise BadMessage(f"message {received.msg_id}: the body cannot be decompressed: {received.body_error}")
        return cls(
            received.topic if topic is None else topic,
            received.body,
            tags=received.tags,
            keys=" ".join(received.keys),  # other producers may separate them differently
            properties=received.user_properties,
            flag=received.flag,
        )

    @classmethod
    def reply_to(cls, request: ReceivedMessage, body: bytes | bytearray | memoryview | str, **fields: Any) -> Message:
        """The reply to a message that was sent with `request()`. Any producer can send it; `fields` are those of
        Message. Raises BadMessage if the message is not a request."""
        found = request.properties
        kept = (Prop.CORRELATION_ID, Prop.MESSAGE_REPLY_TO_CLIENT, Prop.MESSAGE_TTL)
        if Prop.CLUSTER not in found or Prop.CORRELATION_ID not in found or Prop.MESSAGE_REPLY_TO_CLIENT not in found:
            raise BadMessage(
                f"message {request.msg_id} of topic {request.topic} is not a request: there is no one to reply to"
            )
        marks = {Prop.MESSAGE_TYPE: REPLY_TYPE, **{name: found[name] for name in kept if name in found}}
        reply = Message(f"{found[Prop.CLUSTER]}_{REPLY_TOPIC_POSTFIX}", body, **fields)
        return SystemMessage.of(reply, marks, preferred=request.queue.broker_name)

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """This message with `properties` added, which replace those with the same names. Raises BadMessage."""
        Message(self.topic, b"", properties=properties)
        return attrs.evolve(self, properties={**self.properties, **properties})

    def to_light_queues(self, *topics: str) -> Message:
        """This message, which brokers with enableLmq and enableMultiDispatch also put into light queues: `topics`, each
        with the prefix %LMQ%. Raises BadMessage."""
        for topic in topics:
            if not isinstance(cast(Any, topic), str) or not is_lmq(topic):
                self._refuse("each light queue", "text that begins with %LMQ%, without commas and slashes", topic)
        return SystemMessage.of(self, {Prop.INNER_MULTI_DISPATCH: ",".join(dict.fromkeys(topics))})

    def _check_text(self, field: str, value: object) -> None:
        if not isinstance(value, str):
            self._refuse(field, "text", value)
        if "\x01" in value or "\x02" in value:
            self._refuse(field, "text without the characters \\x01 and \\x02, which separate properties", value)
        if not value.isascii() and not is_text(value):
            self._refuse(field, "text that UTF-8 can encode", value)

    def _check_keys(self) -> None:
        if not isinstance(self.keys, tuple):
            self._refuse("keys", "text, or several texts", self.keys)
        for key in self.keys:
            self._check_text("keys", key)
            if not key or len(key.split()) != 1:
                self._refuse("keys", "texts that are not empty and hold no blanks, which separate keys", self.keys)

    def _check_properties(self) -> None:
        if not isinstance(self.properties, dict):
            self._refuse("properties", "a mapping of texts to texts", self.properties)
        for name, value in self.properties.items():
            self._check_text("properties", name)
            if not isinstance(value, str) or not value.isascii() or "\x01" in value or "\x02" in value:
                self._check_text(f"properties[{reprlib.repr(name)}]", value)
            if not name or not value:
                self._refuse("properties", "names and values that are not empty: others are lost", self.properties)
        reserved = RESERVED_PROPERTIES.intersection(self.properties).difference(self._allowed)
        if reserved:
            right = f"without {sorted(reserved)}, the system's own: use the fields of Message"
            self._refuse("properties", right, self.properties)

    def _refuse(self, field: str, right: str, value: object) -> NoReturn:
        raise BadMessage(f"message to topic {self.topic}: {field} must be {right}, not {short(value)}")


_MESSAGE_FIELDS = tuple(field.name for field in attrs.fields(Message))


def _quick_init(init: Callable[..., None], set_fields: Callable[[object, tuple[Any, ...]], None]) -> Any:
    """As `init`, in a third of the time for a message of nothing but a topic and bytes: more than a tenth of a send."""

    @wraps(init)
    def __init__(self: Any, topic: Any, body: Any, **fields: Any) -> None:  # noqa: N807
        if fields or type(topic) is not str or type(body) is not bytes:
            init(self, topic, body, **fields)
        else:
            _check_topic(topic)
            set_fields(self, (topic, body, None, (), {}, 0, True, 0, None))

    return __init__


if compiled is not None:
    Message.__init__ = _quick_init(Message.__init__, compiled.Fields(Message, _MESSAGE_FIELDS))  # type: ignore[method-assign]


@attrs.frozen
class SystemMessage(Message):
    """A message with properties by which brokers and other clients act."""

    #: The broker that a reply goes to if it is up and no queue is chosen.
    preferred: str | None = attrs.field(default=None, kw_only=True)

    _allowed: ClassVar[frozenset[str]] = frozenset(
        {
            Prop.INNER_MULTI_DISPATCH,
            Prop.TRANSACTION_PREPARED,
            Prop.PRODUCER_GROUP,
            Prop.CORRELATION_ID,
            Prop.MESSAGE_REPLY_TO_CLIENT,
            Prop.MESSAGE_TTL,
            Prop.MESSAGE_TYPE,
        }
    )

    @classmethod
    def of(cls, message: Message, properties: Mapping[str, str], *, preferred: str | None = None) -> SystemMessage:
        """The message with `properties` added, which are the system's."""
        fields = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
        fields["properties"] = {**message.properties, **properties}
        return cls(**fields, preferred=preferred)


def nearest_delay_level(delay: timedelta) -> int:
    """The delay level, 1 to 18, whose delay comes nearest to `delay` on brokers with the default messageDelayLevel; the
    longer one of two."""
    return 1 + min(range(len(DELAY_LEVELS)), key=lambda n: (abs(DELAY_LEVELS[n] - delay), -n))


#: They recur from message to message.
_host_of = lru_cache(1024)(decode_host)
_queue_of = lru_cache(1024)(MessageQueue)


class _Undecoded:
    """What the compiled module leaves undecoded of a message: its record without the body."""

    __slots__ = ("_broker_name", "_undecoded")


@attrs.frozen
class ReceivedMessage(_Undecoded):
    """A stored message. Times are ms since the epoch; `queue` is the queue that it was read from, `topic` the topic
    that it was sent to.

    The two differ if a message is delivered again through the group's retry topic. `body_error` says why the body was
    not decompressed, so that `body` is as it is stored; otherwise it is None.
    """

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    msg_id: str
    offset_msg_id: str
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: Host
    store_host: Host
    reconsume_times: int
    flag: int
    sys_flag: int
    store_size: int
    body_error: str | None = None

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties without those that the system writes or acts on."""
        return {name: value for name, value in self.properties.items() if name not in RESERVED_PROPERTIES}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for a field that is not set: the compiled module has set `body` and `queue_offset` alone."""
            if name not in ReceivedMessage.__slots__ or name.startswith("_") or compiled is None:
                raise AttributeError(name)
            compiled.fill_message(self, self._undecoded, self._broker_name, _host_of, _queue_of)
            return object.__getattribute__(self, name)

    @classmethod
    def read(
        cls,
        records: bytes,
        broker_name: str,
        queue: MessageQueue | None = None,
        offset: int = 0,
        light_queue: str | None = None,
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage], int | None]:
        """The messages of consecutive records, those of them with a `body_error`, and the offset of the rest if that
        must be pulled again.

        With `queue`, their offsets in it must ascend from `offset` on. Once their bodies have decompressed to more than
        INFLATED_BYTES_MAX, the rest from the next compressed one on is to be pulled again; of messages that are neither
        of a `queue` nor of a `light_queue`, these get a `body_error`. Raises BadRecord at the first bad record,
        UnexpectedResponse at the first message that is not of the queue, or out of order.
        """
        found: list[ReceivedMessage] = []
        unreadable: list[ReceivedMessage] = []
        topic, queue_id = (None, 0) if queue is None else (queue.topic.encode(), queue.queue_id)
        at = inflated = 0
        while True:
            if compiled is not None:
                plain, at = compiled.take_messages(records, at, cls, broker_name, topic, queue_id, offset)
                if plain:
                    found += plain
                    offset = plain[-1].queue_offset + 1
            if at >= len(records):
                return found, unreadable, None
            record = decode_record(records, at)
            is_compressed = record.sys_flag & SysFlag.COMPRESSED
            if queue is not None:
                _check_asked(record, queue, offset)
            is_too_much = bool(is_compressed) and inflated >= INFLATED_BYTES_MAX
            if is_too_much:
                rest = record.queue_offset if queue is not None else _light_offset(record, light_queue)
                if rest is not None:
                    return found, unreadable, rest
            offset = min(record.queue_offset, _OFFSET_MAX) + 1
            message = cls.of_record(record, broker_name, decompresses=not is_too_much)
            found.append(message)
            if message.body_error is not None:
                unreadable.append(message)
                inflated += 0 if is_too_much else decompressed_in_vain(record.body, record.sys_flag)
            elif is_compressed:
                inflated += len(message.body)
            at += record.store_size

    @classmethod
    def of_record(cls, record: Record, broker_name: str, *, decompresses: bool = True) -> ReceivedMessage:
        """The message of a record; its body is as it is stored where it cannot be decompressed, or is not to be."""
        properties = record.properties
        topic = record.topic
        body, body_error = record.body, None
        if record.sys_flag & SysFlag.COMPRESSED:
            try:
                if not decompresses:
                    raise UnreadableBody(_TOO_MUCH)
                body = decompress_body(body, record.sys_flag)
            except UnreadableBody as error:
                body_error = str(error)
        if topic.startswith(RETRY_PREFIX):
            topic = properties.get(Prop.RETRY_TOPIC, topic)
        offset_id = offset_message_id(record.store_host, record.physical_offset)
        return cls(
            topic=topic,
            body=body,
            tags=properties.get(Prop.TAGS),
            keys=tuple(properties.get(Prop.KEYS, "").split(KEY_SEPARATOR)) if Prop.KEYS in properties else (),
            properties=properties,
            queue=MessageQueue(record.topic, broker_name, record.queue_id),
            queue_offset=record.queue_offset,
            commit_log_offset=record.physical_offset,
            msg_id=properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, offset_id),
            offset_msg_id=offset_id,
            born_timestamp_ms=record.born_timestamp,
            store_timestamp_ms=record.store_timestamp,
            born_host=record.born_host,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            flag=record.flag,
            sys_flag=record.sys_flag,
            store_size=record.store_size,
            body_error=body_error,
        )


def _light_offset(record: Record, queue: str | None) -> int | None:
    """The offset of a message in a light queue; None if it does not say that."""
    names, offsets = (record.properties.get(name, "").split(",") for name in _LIGHT)
    found = dict(zip(names, offsets, strict=False)).get(queue or "", "")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < _OFFSET_DIGITS else None


def _check_asked(record: Record, queue: MessageQueue, offset: int) -> None:
    if record.topic != queue.topic or record.queue_id != queue.queue_id:
        what = f"a message of queue {record.queue_id} of topic {record.topic}"
        raise UnexpectedResponse(queue, f"the broker sent {what}, which was not asked for")
    if record.queue_offset < offset:
        raise UnexpectedResponse(queue, f"the broker sent offset {record.queue_offset} where {offset} was the next one")


class SendStatus(IntEnum):
    """The broker's result. With any of them the message is in the broker's log."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class SendResult:
    """The result of a send. `msg_id` is the producer's id, `offset_msg_id` the broker's."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    #: False if the broker wants no trace of the message (its setting `traceOn`).
    is_traced: bool = attrs.field(default=True, eq=False, repr=False, kw_only=True)


class PullStatus(IntEnum):
    """Result of a pull. With any of them the next pull starts at `next_offset`."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED

    def __str__(self) -> str:
        return self.name


@attrs.define
class RawPull:
    """An undecoded response to a pull: `body` has consecutive records, as in the commit log.

    `max_offset` is one beyond the last message of the queue; `broker_id` is the broker that the next pull should go to.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes
    broker_id: int = 0


@attrs.frozen
class PullResult:
    """A pull with decoded messages."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[ReceivedMessage, ...]
