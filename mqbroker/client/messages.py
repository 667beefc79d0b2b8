"""The values users touch: what is sent, what comes back, what is received. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum

import attrs

from mqbroker.client.errors import BadMessage
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, RETRY_PREFIX, Prop, ResponseCode
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.names import check_topic
from mqbroker.wire.properties import encode_properties
from mqbroker.wire.record import Host, Record, record_body

#: Names that users may not put into `properties`: the system writes or acts on them.
RESERVED_PROPERTIES = frozenset(
    value for name, value in vars(Prop).items() if not name.startswith("_") and isinstance(value, str)
)


def _to_bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def _to_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(keys.split()) if isinstance(keys, str) else tuple(keys)


def _to_dict(properties: Mapping[str, str]) -> dict[str, str]:
    return dict(properties)


@attrs.frozen
class Message:
    """A message to send. `body` text becomes UTF-8; `keys` find it in the broker's index.

    `delay_level` 1 to 18 names one of the broker's delays. `wait_stored` false lets the broker answer before the disk
    or a slave has the message. `unique_key` is made on sending where it is None; set it to tell repeated sends of one
    thing apart from others. Raises BadMessage or Refused where a name or property cannot be sent.
    """

    topic: str = attrs.field()
    body: bytes = attrs.field(converter=_to_bytes)
    tags: str | None = attrs.field(default=None, kw_only=True)
    keys: tuple[str, ...] = attrs.field(default=(), converter=_to_keys, kw_only=True)
    properties: Mapping[str, str] = attrs.field(factory=dict, converter=_to_dict, kw_only=True)
    delay_level: int = attrs.field(default=0, kw_only=True)
    wait_stored: bool = attrs.field(default=True, kw_only=True)
    flag: int = attrs.field(default=0, kw_only=True)
    unique_key: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_topic(self.topic)
        reserved = RESERVED_PROPERTIES.intersection(self.properties)
        if reserved:
            raise BadMessage(f"properties {sorted(reserved)} are the system's own; use the fields of Message")
        if any(not key or len(key.split()) != 1 for key in self.keys):
            raise BadMessage(f"keys {list(self.keys)}: a key must not be empty or hold blanks, they separate keys")
        if self.properties:
            encode_properties(self.properties)


@attrs.frozen
class ReceivedMessage:
    """A stored message. Times are ms since the epoch; `queue` is where it was read, `topic` what it was sent to.

    The two differ for a message that comes again through the group's retry topic.
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

    @classmethod
    def of_record(cls, record: Record, broker_name: str) -> ReceivedMessage:
        """Raises BadRecord where the body does not inflate."""
        properties = record.properties
        topic = record.topic
        if topic.startswith(RETRY_PREFIX):
            topic = properties.get(Prop.RETRY_TOPIC, topic)
        offset_id = offset_message_id(record.store_host, record.physical_offset)
        return cls(
            topic=topic,
            body=record_body(record),
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
        )


class SendStatus(IntEnum):
    """How far the broker got. Whatever it says, the message is in the broker's log."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class SendResult:
    """`msg_id` is the producer's id, `offset_msg_id` the broker's; for a batch both hold ids joined by commas."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int


class ConsumeResult(Enum):
    """What a listener may return; None and True are SUCCESS, False and any exception are RETRY."""

    SUCCESS = "success"
    RETRY = "retry"


class PullStatus(IntEnum):
    """What a pull found. Whatever it says, `next_offset` is where to go on."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class RawPull:
    """An answer to a pull as it came: `body` is records one after another, as in the commit log.

    `max_offset` is one beyond the last message of the queue; `broker_id` is whom the broker wants asked next.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes
    broker_id: int = 0


@attrs.frozen
class PullResult:
    """A pull with its messages read."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[ReceivedMessage, ...]
