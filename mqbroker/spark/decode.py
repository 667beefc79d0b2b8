"""From pieces of the commit log to Arrow record batches, column by column over thousands of records at once.

Only the columns asked for are made. A record's parts stand one after another in ascending order, so a column of bytes
is a view of the whole chunk whose every other element is the gap between two records; Arrow copies the wanted ones out.
Rare cases - compressed bodies, IPv6 hosts - are decoded record by record, and a chunk with property bytes that are not
UTF-8 by `decode_plain`. Runs in Spark's Python workers; knows nothing of PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqbroker.client.messages import RESERVED_PROPERTIES
from mqbroker.client.names import within
from mqbroker.kernel import compiled
from mqbroker.spark.decode_plain import LOG_APPEND_TIME, TIME_MS_MAX, delay_level, host_text, plain_batch
from mqbroker.spark.errors import DataLoss, Loss
from mqbroker.spark.reading import Chunk
from mqbroker.spark.rows import (
    Inflated,
    Ints,
    Rows,
    UndecodableProperties,
    lists_of,
    places_of,
    slices,
)
from mqbroker.spark.schema import PROPERTY_PREFIX
from mqbroker.wire.codes import KEY_SEPARATOR, Prop, SysFlag
from mqbroker.wire.compression import UnreadableBody, decompress_body
from mqbroker.wire.properties import split_keys
from mqbroker.wire.record import (
    OFFSETS,
    RECORD_BYTES_MIN,
    BadRecord,
    body_crc,
    decode_host,
    decode_records,
    fields_struct,
)

#: A batch is cut where the bodies that were inflated for it exceed this.
INFLATED_BATCH_BYTES = 64 * 1024 * 1024

_BODY_COLUMNS = {"body", "bodyError", "storedBody", "value"}


#: Two digits for each byte.
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)
_size = fields_struct("size").unpack_from
_OFFSET_AT = OFFSETS["physical_offset"]


def decode_chunk(chunk: Chunk, columns: Sequence[str], schema: Any, namespace: str = "") -> Iterator[Any]:
    """Yield record batches of `schema` that hold the `columns`, named as in `schema.COLUMNS`, of all records.

    `namespace` is that of the stored topics; the chunk's queue is without.

    Raises DataLoss if the records are not those of the chunk's offsets, BadRecord if one is corrupt.
    """
    starts = record_starts(chunk.records)
    rows = Rows(chunk, starts)
    if chunk.tags is None:
        _check_dense(chunk, rows)
    _check_queue(chunk, rows, within(namespace, chunk.queue.topic))
    if chunk.tags is not None:
        rows = _matching(chunk, rows, chunk.tags)
        if not len(rows):
            return
    for part in (rows,) if _BODY_COLUMNS.isdisjoint(columns) else _parts(rows):
        try:
            arrays = [_column(name)(part, field.type) for name, field in zip(columns, schema, strict=True)]
        except UndecodableProperties:
            queue = chunk.queue
            records = decode_records(part.data())
            yield plain_batch(records, queue.topic, queue.broker_name, columns, schema, chunk.number)
            continue
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_starts(data: bytes) -> Ints:
    """The start of each record. Raises BadRecord if the sizes do not add up."""
    found = None if compiled is None else compiled.record_starts(data)
    if found is not None:
        return np.frombuffer(found, np.int64)
    starts = []
    at = 0
    end = len(data) - RECORD_BYTES_MIN
    while at <= end:
        starts.append(at)
        size = _size(data, at)[0]
        if size < RECORD_BYTES_MIN:
            raise BadRecord(f"size {size} of the record at {at}")
        at += size
    if at != len(data):
        raise BadRecord(f"the last record ends at {at}, with {len(data)} bytes at hand")
    return np.array(starts, np.int64)


def _check_dense(chunk: Chunk, rows: Rows) -> None:
    wanted = np.arange(chunk.start, chunk.end, dtype=np.int64)
    offsets = rows.head["queue_offset"]
    if len(offsets) != len(wanted) or not (offsets == wanted).all():
        same = offsets[: len(wanted)] == wanted[: len(offsets)]
        at = chunk.start + (int(np.argmin(same)) if not same.all() else len(same))
        details = f"asked for {chunk.start} to {chunk.end}, {len(offsets)} messages came, and not that of {at}"
        raise DataLoss(Loss.NOT_DENSE, chunk.queue, details)


def _check_queue(chunk: Chunk, rows: Rows, stored_topic: str) -> None:
    if not (rows.head["queue_id"] == chunk.queue.queue_id).all() or not rows.are_of(stored_topic):
        raise DataLoss(Loss.NOT_DENSE, chunk.queue, "the response has messages of another queue")


def _matching(chunk: Chunk, rows: Rows, tags: frozenset[str]) -> Rows:
    """The rows with one of the `tags`, which brokers compare by their hashes; all of them without tags."""
    offsets = rows.head["queue_offset"].astype(np.int64)
    if (np.diff(offsets, prepend=chunk.start - 1, append=chunk.end) <= 0).any():
        raise DataLoss(Loss.NOT_DENSE, chunk.queue, f"asked for {chunk.start} to {chunk.end}, received other offsets")
    if not tags or not len(rows):
        return rows
    try:
        values = rows.pairs.column(Prop.TAGS)
    except UndecodableProperties:
        values = pa.array([record.properties.get(Prop.TAGS) for record in decode_records(rows.data())], pa.string())
    keeps = pc.is_in(values, pa.array(sorted(tags))).to_numpy(zero_copy_only=False)
    return rows if keeps.all() else Rows(chunk, rows.at[keeps])


def _parts(rows: Rows) -> Iterator[Rows]:
    """`rows`, cut where too much would be inflated for one batch."""
    packed = np.flatnonzero(rows.head["sys_flag"] & SysFlag.COMPRESSED)
    first, total = 0, 0
    bodies: dict[int, Inflated] = {}
    for n in packed.tolist():
        body: Inflated
        try:
            body = decompress_body(rows.raw_body(n), int(rows.head["sys_flag"][n]))
        except UnreadableBody as error:
            bodies[n] = error
            continue
        if total + len(body) > INFLATED_BATCH_BYTES and n > first:
            yield rows.cut(first, n, bodies)
            first, total, bodies = n, 0, {}
        bodies[n] = body
        total += len(body)
    yield rows.cut(first, len(rows), bodies) if first or bodies else rows


# --- columns: (rows, Arrow type) -> Arrow array


def _head_column(field: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: pa.array(rows.head[field].astype(np.int64), kind)


def _tail_column(field: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: pa.array(rows.tail[field].astype(np.int64), kind)


def _property_column(name: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: rows.pairs.column(name).cast(kind)


def _crc(rows: Rows, kind: Any) -> Any:
    return pa.array((rows.head["body_crc"] & 0x7FFFFFFF).astype(np.int64), kind)


def _times(ms: Ints, kind: Any) -> Any:
    return pa.array(np.clip(ms.astype(np.int64), -TIME_MS_MAX, TIME_MS_MAX) * 1000).cast(kind)


def _store_time(rows: Rows, kind: Any) -> Any:
    return _times(rows.store_times(), kind)


def _message_id(rows: Rows, kind: Any) -> Any:
    if rows.any_v6:
        starts, ends = rows.host_places("store_host")
        parts = zip(starts.tolist(), ends.tolist(), rows.at.tolist(), strict=True)
        data = rows.chunk.records
        return pa.array(
            [(data[s:e] + data[at + _OFFSET_AT : at + _OFFSET_AT + 8]).hex().upper() for s, e, at in parts], kind
        )
    raw = np.empty((len(rows), 2), ">u8")
    raw[:, 0] = rows.head["store_host"]
    raw[:, 1] = rows.head["physical_offset"]
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * 32
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(_HEX[raw.view(np.uint8)])])


def _host_column(name: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: _hosts(rows, name, kind)


def _hosts(rows: Rows, name: str, kind: Any) -> Any:
    if rows.any_v6:
        starts, ends = rows.host_places(name)
        data, text_of = rows.chunk.records, cache(_host_text)
        return pa.array([text_of(data[s:e]) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)], kind)
    raw = rows.head[name].astype(np.uint64)
    if len(raw) and (raw == raw[0]).all():  # as of one broker, or of one producer
        return pa.repeat(pa.scalar(_host_text(int(raw[0]).to_bytes(8, "big")), kind), len(rows))
    distinct, inverse = np.unique(raw, return_inverse=True)
    texts = [_host_text(int(host).to_bytes(8, "big")) for host in distinct.tolist()]
    return pa.array(texts, kind).take(pa.array(inverse.reshape(-1)))


def _host_text(raw: bytes) -> str:
    return host_text(decode_host(raw))


def _body(rows: Rows, kind: Any) -> Any:
    _check_crcs(rows)
    inflated = rows.inflated
    if not inflated:
        return slices(rows.chunk.records, rows.body_at, rows.body_end, kind)
    bodies = [inflated[n] if n in inflated else rows.raw_body(n) for n in range(len(rows))]
    return pa.array([None if isinstance(body, UnreadableBody) else body for body in bodies], kind)


def _unreadable_column(value: Callable[[Rows, int, UnreadableBody], Any]) -> Callable[[Rows, Any], Any]:
    """A column of the rows whose bodies cannot be decompressed, null in the others."""

    def column(rows: Rows, kind: Any) -> Any:
        _check_crcs(rows)
        found = {n: value(rows, n, body) for n, body in rows.inflated.items() if isinstance(body, UnreadableBody)}
        return pa.array([found.get(n) for n in range(len(rows))], kind) if found else pa.nulls(len(rows), kind)

    return column


def _check_crcs(rows: Rows) -> None:
    if rows.has_checked_bodies:
        return
    data, crcs = rows.chunk.records, rows.head["body_crc"].astype(np.int64)
    if compiled is not None:
        wrong = compiled.wrong_body(data, rows.body_at, rows.body_end, crcs)
    else:
        spans = enumerate(zip(rows.body_at.tolist(), rows.body_end.tolist(), crcs.tolist(), strict=True))
        wrong = next((n for n, (start, end, crc) in spans if body_crc(data[start:end]) != crc and end > start), -1)
    if wrong >= 0:
        raise BadRecord(f"the body at queue offset {int(rows.head['queue_offset'][wrong])} does not have its CRC")
    rows.has_checked_bodies = True


def _keys(rows: Rows, kind: Any) -> Any:
    having, values = rows.pairs.rows_with(Prop.KEYS)
    if KEY_SEPARATOR.encode() not in values.buffers()[2].to_pybytes():  # one key each
        return lists_of(values, having, len(rows), kind)
    split = pc.split_pattern(values, KEY_SEPARATOR)
    if pc.any(pc.equal(split.flatten(), "")).as_py():  # there may be several separators in a row
        split = pa.array([split_keys(value) for value in values.to_pylist()], split.type)
    return split.take(places_of(having, len(rows))).cast(kind)


def _properties(rows: Rows, kind: Any) -> Any:
    pairs = rows.pairs
    return pa.MapArray.from_arrays(pairs.offsets(), pairs.names, pairs.values, type=kind)


def _headers(rows: Rows, kind: Any) -> Any:
    pairs = rows.pairs
    of_user = pc.invert(pc.is_in(pairs.names, pa.array(sorted(RESERVED_PROPERTIES))))
    counts = np.bincount(pairs.row[of_user.to_numpy(zero_copy_only=False)], minlength=len(rows))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    parts = [pairs.names.filter(of_user), pairs.values.filter(of_user).cast(pa.binary())]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, fields=list(kind.value_type)), type=kind)


def _delay_level(rows: Rows, kind: Any) -> Any:
    having, values = rows.pairs.rows_with(Prop.DELAY_TIME_LEVEL)
    levels = pa.array([delay_level(value) for value in values.to_pylist()], kind)
    return levels.take(places_of(having, len(rows)))


def _column(name: str) -> Callable[[Rows, Any], Any]:
    return _COLUMNS.get(name) or _property_column(name.removeprefix(PROPERTY_PREFIX))


_COLUMNS: dict[str, Callable[[Rows, Any], Any]] = {
    "topic": lambda rows, kind: pa.repeat(pa.scalar(rows.chunk.queue.topic, kind), len(rows)),
    "brokerName": lambda rows, kind: pa.repeat(pa.scalar(rows.chunk.queue.broker_name, kind), len(rows)),
    "queueId": _head_column("queue_id"),
    "queueOffset": _head_column("queue_offset"),
    "commitLogOffset": _head_column("physical_offset"),
    "msgId": _message_id,
    "uniqKey": _property_column(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
    "tags": _property_column(Prop.TAGS),
    "keys": _keys,
    "body": _body,
    "properties": _properties,
    "bornTimestamp": lambda rows, kind: _times(rows.head["born_timestamp"], kind),
    "storeTimestamp": _store_time,
    "bornHost": _host_column("born_host"),
    "storeHost": _host_column("store_host"),
    "flag": _head_column("flag"),
    "sysFlag": _head_column("sys_flag"),
    "reconsumeTimes": _tail_column("reconsume_times"),
    "bodyCrc": _crc,
    "storeSize": _head_column("size"),
    "preparedTransactionOffset": _tail_column("prepared_offset"),
    "delayTimeLevel": _delay_level,
    "producerGroup": _property_column(Prop.PRODUCER_GROUP),
    "bodyError": _unreadable_column(lambda rows, n, error: str(error)),
    "storedBody": _unreadable_column(lambda rows, n, error: rows.raw_body(n)),
    # Those of Spark's Kafka source.
    "key": _property_column(Prop.KEYS),
    "value": _body,
    "partition": lambda rows, kind: pa.repeat(pa.scalar(rows.chunk.number, kind), len(rows)),
    "offset": _head_column("queue_offset"),
    "timestamp": _store_time,
    "timestampType": lambda rows, kind: pa.repeat(pa.scalar(LOG_APPEND_TIME, kind), len(rows)),
    "headers": _headers,
}
