"""Decoder of the same columns record by record: for chunks that the fast decoder rejects, and as its reference in
tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from mqbroker.client.messages import RESERVED_PROPERTIES
from mqbroker.spark.schema import PROPERTY_PREFIX
from mqbroker.wire.codes import Prop
from mqbroker.wire.compression import UnreadableBody, decompress_body
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.names import join_address
from mqbroker.wire.properties import split_keys
from mqbroker.wire.record import Host, Record

#: Times come from producers; larger ones are clamped to this, as microseconds must fit into 64 bits.
TIME_MS_MAX = 2**63 // 1000 - 1

#: Kafka's number for times that the broker sets.
LOG_APPEND_TIME = 1

_level = re.compile(r"-?[0-9]{1,9}").fullmatch


def host_text(host: Host) -> str:
    """A host as "ip:port", an IPv6 address in brackets."""
    return join_address(*host)


def delay_level(text: str) -> int | None:
    """The number in a DELAY property, None if it is invalid."""
    return int(text) if _level(text) else None


def plain_batch(
    records: Sequence[Record],
    topic: str,
    broker_name: str,
    columns: Sequence[str],
    schema: Any,
    number: int = 0,
) -> Any:
    """A record batch of `schema` with `columns` of `records`, all of one queue, which has the `number`."""
    constants = {"topic": topic, "brokerName": broker_name, "partition": number}
    arrays = [
        pa.array([constants[name] if name in constants else _value(name)(record) for record in records], field.type)
        for name, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(ms: int) -> int:
    return max(-TIME_MS_MAX, min(TIME_MS_MAX, ms)) * 1000


def _property(name: str) -> Callable[[Record], str | None]:
    return lambda record: record.properties.get(name)


def _keys(record: Record) -> list[str] | None:
    return split_keys(record.properties[Prop.KEYS]) if Prop.KEYS in record.properties else None


def _body(record: Record) -> tuple[bytes | None, str | None]:
    """The body, or why it cannot be decompressed."""
    try:
        return decompress_body(record.body, record.sys_flag), None
    except UnreadableBody as error:
        return None, str(error)


def _key(record: Record) -> bytes | None:
    return record.properties[Prop.KEYS].encode() if Prop.KEYS in record.properties else None


def _headers(record: Record) -> list[dict[str, Any]]:
    of_user = ((name, value) for name, value in record.properties.items() if name not in RESERVED_PROPERTIES)
    return [{"key": name, "value": value.encode()} for name, value in of_user]


def _value(name: str) -> Callable[[Record], Any]:
    return _VALUES.get(name) or _property(name.removeprefix(PROPERTY_PREFIX))


_VALUES: dict[str, Callable[[Record], Any]] = {
    "queueId": lambda record: record.queue_id,
    "queueOffset": lambda record: record.queue_offset,
    "commitLogOffset": lambda record: record.physical_offset,
    "msgId": lambda record: offset_message_id(record.store_host, record.physical_offset),
    "uniqKey": _property(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
    "tags": _property(Prop.TAGS),
    "keys": _keys,
    "body": lambda record: _body(record)[0],
    "properties": lambda record: list(record.properties.items()),
    "bornTimestamp": lambda record: _microseconds(record.born_timestamp),
    "storeTimestamp": lambda record: _microseconds(record.store_timestamp),
    "bornHost": lambda record: host_text(record.born_host),
    "storeHost": lambda record: host_text(record.store_host),
    "flag": lambda record: record.flag,
    "sysFlag": lambda record: record.sys_flag,
    "reconsumeTimes": lambda record: record.reconsume_times,
    "bodyCrc": lambda record: record.body_crc & 0x7FFFFFFF,
    "storeSize": lambda record: record.store_size,
    "preparedTransactionOffset": lambda record: record.prepared_offset,
    "delayTimeLevel": lambda record: delay_level(record.properties.get(Prop.DELAY_TIME_LEVEL, "")),
    "producerGroup": _property(Prop.PRODUCER_GROUP),
    "bodyError": lambda record: _body(record)[1],
    "key": _key,
    "value": lambda record: _body(record)[0],
    "offset": lambda record: record.queue_offset,
    "timestamp": lambda record: _microseconds(record.store_timestamp),
    "timestampType": lambda record: LOG_APPEND_TIME,
    "headers": _headers,
    "storedBody": lambda record: None if _body(record)[1] is None else record.body,
}
