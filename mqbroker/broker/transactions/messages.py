"""The messages of a transaction: what a half message becomes, and what is stored beside it. Values in, values out.

Formats are those of TransactionalMessageBridge and EndTransactionProcessor of 4.9.7. It must never know of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mqbroker.broker.system_topics import real_target, real_target_of, stored_again
from mqbroker.store.commitlog import NewMessage
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
from mqbroker.wire.properties import decode_properties, reencode_properties
from mqbroker.wire.record import RawRecord, Record, encode_record

#: The one queue of half messages, of what settles them, and of those that were given up.
QUEUE_ID = 0
_HALF = TRANS_HALF_TOPIC.encode()
_OP = TRANS_OP_HALF_TOPIC.encode()
_GIVEN_UP = TRANS_CHECK_MAX_TIME_TOPIC.encode()
_SCHEDULE = SCHEDULE_TOPIC.encode()
_DELAY = f"{Prop.DELAY_TIME_LEVEL}\x01".encode()
_INNER_OFFSET = f"{Prop.INNER_MULTI_QUEUE_OFFSET}\x01".encode()
#: As the Java broker writes them; it looks at the tag alone.
_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
OP_TAG = "d"


def committed(record: RawRecord, delay_level_max: int) -> NewMessage:
    """The message that a half message becomes. Raises NoRealTarget.

    It keeps all its properties, as in Java: by TRAN_MSG consumers know the id of the transaction. A delayed one waits
    its time from now on.
    """
    topic, queue_id = real_target(record.properties)
    properties = record.properties
    if _DELAY in properties or _INNER_OFFSET in properties:
        found = decode_properties(properties)
        found.pop(Prop.INNER_MULTI_QUEUE_OFFSET, None)  # of where it stood while it waited
        level = min(_number(found.get(Prop.DELAY_TIME_LEVEL, "")), delay_level_max)
        if level > 0:
            found[Prop.DELAY_TIME_LEVEL] = str(level)
            topic, queue_id = _SCHEDULE, level - 1
        properties = reencode_properties(found)
    sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
    return stored_again(record, topic, queue_id, properties, sys_flag=sys_flag, prepared_offset=record.physical_offset)


def settling(settled: Iterable[tuple[int, NewMessage | None]], now_ms: int, store_host: bytes) -> list[NewMessage]:
    """What is stored where half messages at offsets of their queue are settled: for each the message that takes its
    place, if any, and after it the entry that says so. Hot."""
    messages: list[NewMessage] = []
    for offset, message in settled:
        if message is not None:
            messages.append(message)
        messages.append((_OP, QUEUE_ID, 0, 0, now_ms, store_host, 0, 0, b"%d" % offset, _OP_PROPERTIES))
    return messages


def put_back(record: Record, properties: Mapping[str, str]) -> NewMessage:
    """The half message once more, with other properties; where it was before is settled by an entry of its own."""
    properties = {name: properties[name] for name in properties if name != Prop.TRANSACTION_PREPARED_QUEUE_OFFSET}
    return _again(record, _HALF, properties)


def given_up(record: Record) -> NewMessage:
    """The half message, for the topic of those that nobody settled."""
    return _again(record, _GIVEN_UP, record.properties)


def _again(record: Record, topic: bytes, properties: Mapping[str, str]) -> NewMessage:
    if Prop.INNER_MULTI_QUEUE_OFFSET in properties:  # of where it stood while it waited
        properties = {name: properties[name] for name in properties if name != Prop.INNER_MULTI_QUEUE_OFFSET}
    sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK
    return stored_again(record, topic, QUEUE_ID, reencode_properties(properties), sys_flag=sys_flag)


def check_request(record: Record) -> RemotingCommand:
    """The question what became of a half message: `record` is it as it is stored now. Raises MQError."""
    topic, queue_id = real_target_of(record)
    unique = record.properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=offset_message_id(record.store_host, record.physical_offset),
    )
    body = encode_record(attrs.evolve(record, topic=topic.decode(), queue_id=queue_id))
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body)


def settled_by(record: Record) -> int:
    """The queue offset of the half message that an entry settles; -1 where it is no such entry."""
    text = record.body[:20]
    if record.properties.get(Prop.TAGS) != OP_TAG or not text.isdigit() or len(text) > 18:
        return -1
    return int(text)


def check_times(record: Record) -> int:
    """How often its producer was asked."""
    return _number(record.properties.get(Prop.TRANSACTION_CHECK_TIMES, ""))


def immunity_ms(record: Record) -> int | None:
    """How long after its birth nobody is to ask about it; None where it does not say."""
    text = record.properties.get(Prop.CHECK_IMMUNITY_TIME_IN_SECONDS)
    return _number(text) * 1000 if text and text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0
