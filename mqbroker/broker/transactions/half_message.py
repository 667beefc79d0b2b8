"""Half messages: their committed message, the check request, and the op message that settles them.

A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. A message of RMQ_SYS_TRANS_OP_HALF_TOPIC, whose body is its
queue offset, settles it: it was committed, rolled back, put back at another offset, or given up. No I/O. Formats are
those of TransactionalMessageBridge and EndTransactionProcessor of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqbroker.broker.stored_copies import origin
from mqbroker.broker.system_topics import NoRealTarget, real_target, real_target_of, schedule_queue, stored_again
from mqbroker.wire.bounded_cache import BoundedCache
from mqbroker.wire.codes import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Prop,
    RequestCode,
    SysFlag,
)
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CheckTransactionStateRequestHeader
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.properties import decode_properties, dispatch_names, reencode_properties
from mqbroker.wire.record import (
    V6,
    NewMessage,
    RawRecord,
    Record,
    body_crc,
    encode_host,
    encode_tail,
    fields_struct,
    record_parts,
)

#: The only queue of half messages, of op messages, and of those that were given up.
QUEUE_ID = 0
_HALF = TRANS_HALF_TOPIC.encode()
_OP = TRANS_OP_HALF_TOPIC.encode()
_GIVEN_UP = TRANS_CHECK_MAX_TIME_TOPIC.encode()
_SCHEDULE = SCHEDULE_TOPIC.encode()
_DELAY = f"{Prop.DELAY_TIME_LEVEL}\x01".encode()
_INNER_OFFSET = f"{Prop.INNER_MULTI_QUEUE_OFFSET}\x01".encode()
#: As the Java broker writes them; it checks only the tag.
_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
OP_TAG = "d"
_HEAD = fields_struct(
    "body_crc", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "born_host",
    "reconsume_times", "body_size",
)  # fmt: skip
_TAIL = encode_tail(TRANS_HALF_TOPIC.encode(), 0)
_TOPIC = _TAIL[:-2]
_GROUP = f"\x02{Prop.PRODUCER_GROUP}\x01".encode()
_REAL_TOPIC = f"\x02{Prop.REAL_TOPIC}\x01".encode()
#: Prefix of the properties with a half message's other queues, and with its offsets in them.
_INNER = b"INNER_MULTI_"
_KEPT_FLAGS = ~SysFlag.TRANSACTION_MASK
_COMMIT = SysFlag.TRANSACTION_COMMIT
_KEPT_BYTES_MAX = 512 * 1024


def committed(record: RawRecord, delay_level_max: int) -> NewMessage:
    """The committed message of a half message. Raises NoRealTarget.

    It keeps all its properties, as in Java: TRAN_MSG tells consumers that its id is the transaction's. The delay of a
    delayed one starts now.
    """
    topic, queue_id = real_target(record.properties)
    properties = record.properties
    if _DELAY in properties or _INNER_OFFSET in properties:
        found = decode_properties(properties)
        found.pop(Prop.INNER_MULTI_QUEUE_OFFSET, None)  # of where it stood while it waited
        level = min(_number(found.get(Prop.DELAY_TIME_LEVEL, "")), delay_level_max)
        if level > 0:
            found[Prop.DELAY_TIME_LEVEL] = str(level)
            topic, queue_id = _SCHEDULE, schedule_queue(level)
        properties = reencode_properties(found)
    sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
    return stored_again(record, topic, queue_id, properties, sys_flag=sys_flag, prepared_offset=record.physical_offset)


def settlement(settled: Iterable[tuple[int, NewMessage | None]], now_ms: int, store_host: bytes) -> list[NewMessage]:
    """The messages that settle half messages at offsets of their queue: for each the message that replaces it, if any,
    followed by the op message. Hot."""
    messages: list[NewMessage] = []
    for offset, message in settled:
        if message is not None:
            messages.append(message)
        messages.append((_OP, QUEUE_ID, 0, 0, now_ms, store_host, 0, 0, b"%d" % offset, _OP_PROPERTIES))
    return messages


def put_back(record: Record, properties: Mapping[str, str]) -> NewMessage:
    """A copy of the half message with other properties; an op message of its own settles the former offset."""
    properties = {name: properties[name] for name in properties if name != Prop.TRANSACTION_PREPARED_QUEUE_OFFSET}
    return _again(record, _HALF, properties)


def check_limit_exceeded(record: Record) -> NewMessage:
    """The half message, for the topic of abandoned ones."""
    return _again(record, _GIVEN_UP, record.properties)


def _again(record: Record, topic: bytes, properties: Mapping[str, str]) -> NewMessage:
    # Without where it stood while it waited.
    kept = {name: properties[name] for name in properties if name != Prop.INNER_MULTI_QUEUE_OFFSET}
    sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK
    former = origin(record.physical_offset)
    return stored_again(record, topic, QUEUE_ID, reencode_properties(kept), sys_flag=sys_flag, prepared_offset=former)


def real_topics(record: Record) -> list[str]:
    """The topics that the half message would be put in."""
    named = dispatch_names(reencode_properties(record.properties))
    return [record.properties.get(Prop.REAL_TOPIC, ""), *[name.decode("utf-8", "replace") for name in named]]


def check_request(record: Record) -> RemotingCommand:
    """The check request about a half message; `record` is its present record. Raises MQError."""
    topic, queue_id = real_target_of(record)
    unique = record.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=offset_message_id(record.store_host, record.physical_offset),
    )
    again = stored_again(
        record, topic, queue_id, reencode_properties(record.properties), prepared_offset=record.prepared_offset
    )
    store_host = encode_host(record.store_host)
    parts, _ = record_parts(again, record.queue_offset, record.physical_offset, record.store_timestamp, store_host)
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, b"".join(parts))


def settled_by(record: Record) -> int:
    """The queue offset of the half message that an op message settles; -1 for other messages."""
    text = record.body[:20]
    if record.properties.get(Prop.TAGS) != OP_TAG or not text.isdigit() or len(text) > 18:
        return -1
    return int(text)


def check_times(record: Record) -> int:
    """Number of checks so far."""
    return _number(record.properties.get(Prop.TRANSACTION_CHECK_TIMES, ""))


def immunity_ms(record: Record) -> int | None:
    """Time after its birth without checks, ms; None if not given."""
    text = record.properties.get(Prop.CHECK_IMMUNITY_TIME_IN_SECONDS)
    return _number(text) * 1000 if text and text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0


class PlainHalfMessages:
    """Caches the properties of recent half messages from their producer group on: most clients put varying properties
    before it."""

    def __init__(self) -> None:
        #: The properties from PGROUP on -> group, topic and queue.
        self._endings: BoundedCache[bytes, tuple[str, bytes, int]] = BoundedCache(_KEPT_BYTES_MAX)

    def committed(self, record: bytes, offset: int, physical_offset: int, group: str) -> NewMessage:
        """The committed message of a half message, from its whole stored record. Hot.

        Raises ValueError if it needs the general path: it is unusual, or does not match the request.
        """
        crc, flag, queue_offset, place, sys_flag, born_timestamp, born_host, reconsume_times, body_bytes = (
            _HEAD.unpack_from(record)
        )
        body_end = _HEAD.size + body_bytes
        body = record[_HEAD.size : body_end]
        if (
            queue_offset != offset
            or place != physical_offset
            or sys_flag & V6
            or not record.startswith(_TOPIC, body_end)
            or body_crc(body) != crc
        ):
            raise ValueError
        properties = record[body_end + len(_TAIL) :]
        # Of two properties of one name the later counts; and searching from the end takes a third of the time.
        find = properties.rfind
        at = find(_GROUP)
        ending = properties[at:]
        named, topic, queue_id = self._endings.get(ending) or self._parse_ending(ending)
        if named != group or find(_DELAY, 0, at) >= 0 or find(_INNER, 0, at) >= 0:
            raise ValueError
        return (
            topic, queue_id, flag, sys_flag & _KEPT_FLAGS | _COMMIT, born_timestamp,
            born_host, reconsume_times, physical_offset, body, properties,
        )  # fmt: skip

    def _parse_ending(self, ending: bytes) -> tuple[str, bytes, int]:
        """Parse the properties from PGROUP on. Raises ValueError."""
        end = ending.find(b"\x02", len(_GROUP))
        real_at = ending.rfind(_REAL_TOPIC)
        if not ending.startswith(_GROUP) or end < 0 or real_at < 0 or _DELAY in ending or _INNER in ending:
            raise ValueError
        try:
            topic, queue_id = real_target(ending[real_at:])
        except NoRealTarget as error:
            raise ValueError from error
        found = ending[len(_GROUP) : end].decode(), topic, queue_id
        self._endings.keep(ending, found, len(ending))
        return found
