"""From pieces of the commit log to Arrow record batches, column by column over thousands of records at once.

Only the columns asked for are made. A record's parts stand one after another in ascending order, so a column of bytes
is a view of the whole chunk whose every other element is the gap between two records; Arrow copies the wanted ones out.
What is rare - compressed bodies, IPv6 hosts - is done record by record, and a chunk with property bytes that are not
UTF-8 is left to `decode_plain`. Runs in Spark's Python workers; knows nothing of PySpark.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqbroker.spark.decode_plain import TIME_MS_MAX, delay_level, host_text, plain_batch, split_keys
from mqbroker.spark.errors import DataLoss, Loss
from mqbroker.spark.pulling import Chunk
from mqbroker.wire.codes import Prop, SysFlag
from mqbroker.wire.record import (
    BORN_HOST_OFFSET,
    MAGIC,
    RECORD_BYTES_MIN,
    BadRecord,
    decode_host,
    decode_records,
    inflate_body,
)

#: A batch is cut where the bodies that were inflated for it exceed this.
INFLATED_BATCH_BYTES = 64 * 1024 * 1024
_COUNT_ROOM = 1 << 20

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Size to born timestamp, and reconsume times to body length, as the record has them.
_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born", ">i8"),
    ]
)
_TAIL = np.dtype([("reconsume", ">i4"), ("prepared", ">i8"), ("body_bytes", ">i4")])
_LONG = np.dtype(">i8")
_HOST = np.dtype([("address", ">u4"), ("port", ">u4")])
_HEX = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint8).reshape(256, 2)
_size = struct.Struct(">i").unpack_from


class _NotPlain(Exception):
    """Properties that are not UTF-8: only the record by record decoder replaces what is wrong in them."""


def decode_chunk(chunk: Chunk, columns: Sequence[str], schema: Any) -> Iterator[Any]:
    """Yield record batches of `schema` that hold the `columns`, named as in `schema.COLUMNS`, of all records.

    Raises DataLoss where the records are not those of the chunk's offsets, BadRecord where one is damaged.
    """
    starts = record_starts(chunk.records)
    rows = Rows(chunk, starts)
    _check_dense(chunk, rows)
    for part in _parts(rows) if "body" in columns else (rows,):
        try:
            arrays = [_COLUMNS[name](part, field.type) for name, field in zip(columns, schema, strict=True)]
        except _NotPlain:
            queue = chunk.queue
            yield plain_batch(decode_records(part.data()), queue.topic, queue.broker_name, columns, schema)
            continue
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_starts(data: bytes) -> list[int]:
    """Where each record starts. Raises BadRecord where the sizes do not add up."""
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
    return starts


def _check_dense(chunk: Chunk, rows: Rows) -> None:
    wanted = np.arange(chunk.start, chunk.end, dtype=np.int64)
    offsets = rows.head["queue_offset"]
    if len(offsets) != len(wanted) or not (offsets == wanted).all():
        same = offsets[: len(wanted)] == wanted[: len(offsets)]
        at = chunk.start + (int(np.argmin(same)) if not same.all() else len(same))
        details = f"asked for {chunk.start} to {chunk.end}, {len(offsets)} messages came, and not that of {at}"
        raise DataLoss(Loss.NOT_DENSE, chunk.queue, details)
    if not (rows.head["queue_id"] == chunk.queue.queue_id).all() or not rows.are_of(chunk.queue.topic):
        raise DataLoss(Loss.NOT_DENSE, chunk.queue, "there are messages of another queue in the answer")


def _parts(rows: Rows) -> Iterator[Rows]:
    """`rows`, cut where too much would be inflated for one batch."""
    packed = np.flatnonzero(rows.head["sys_flag"] & SysFlag.COMPRESSED)
    first, total = 0, 0
    bodies: dict[int, bytes] = {}
    for n in packed.tolist():
        body = inflate_body(rows.raw_body(n), int(rows.head["sys_flag"][n]))
        if total + len(body) > INFLATED_BATCH_BYTES and n > first:
            yield rows.cut(first, n, bodies)
            first, total, bodies = n, 0, {}
        bodies[n] = body
        total += len(body)
    yield rows.cut(first, len(rows.starts), bodies) if first or bodies else rows


class Rows:
    """Records of a chunk: where their parts are, and their fixed fields. `inflated` has bodies by row."""

    def __init__(self, chunk: Chunk, starts: list[int], inflated: dict[int, bytes] | None = None) -> None:
        self.chunk = chunk
        self.starts = starts
        self.inflated = inflated or {}
        self.bytes: Bytes = np.frombuffer(chunk.records, np.uint8)
        self.at: Ints = np.array(starts, np.int64)
        self.head = _gather(self.bytes, self.at, _HEAD)
        if not (self.head["magic"] == MAGIC).all():
            raise BadRecord(f"magic is not {MAGIC:#x} in every record")
        sys_flag = self.head["sys_flag"]
        born_bytes = np.where(sys_flag & SysFlag.BORN_HOST_V6, 20, 8)
        self.store_bytes = np.where(sys_flag & SysFlag.STORE_HOST_V6, 20, 8)
        self.any_v6 = bool((sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)).any())
        self.end = self.at + self.head["size"]
        self.born_at = self.at + BORN_HOST_OFFSET
        self.store_time_at = self.born_at + born_bytes
        self.store_at = self.store_time_at + 8
        tail_at = self.store_at + self.store_bytes
        self.body_at = tail_at + _TAIL.itemsize
        _check(self.body_at + 3 <= self.end)
        self.tail = _gather(self.bytes, tail_at, _TAIL)
        self.body_end = self.body_at + self.tail["body_bytes"]
        _check((self.body_end >= self.body_at) & (self.body_end + 3 <= self.end))
        self.topic_at = self.body_end + 1
        topic_end = self.topic_at + self.bytes[self.body_end]
        _check(topic_end + 2 <= self.end)
        self.properties_at = topic_end + 2
        length = self.bytes[topic_end].astype(np.int64) << 8 | self.bytes[topic_end + 1]
        _check(self.properties_at + length == self.end)

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, first: int, end: int, inflated: dict[int, bytes]) -> Rows:
        """The rows from `first` up to `end`; `inflated` is by this object's row numbers."""
        return Rows(self.chunk, self.starts[first:end], {n - first: body for n, body in inflated.items()})

    def are_of(self, topic: str) -> bool:
        """True where every record names `topic`."""
        name = np.frombuffer(topic.encode(), np.uint8)
        if not (self.bytes[self.body_end] == len(name)).all():
            return False
        return bool((self.bytes[self.topic_at[:, None] + np.arange(len(name))] == name).all())

    def data(self) -> bytes:
        """The bytes of these records."""
        return self.chunk.records[self.starts[0] : int(self.end[-1])]

    def raw_body(self, n: int) -> bytes:
        """The body of row `n` as it is stored."""
        return self.chunk.records[int(self.body_at[n]) : int(self.body_end[n])]

    @cached_property
    def pairs(self) -> Pairs:
        return read_pairs(self)


def _check(holds: npt.NDArray[np.bool_]) -> None:
    if not holds.all():
        raise BadRecord(f"the parts of record {int(np.argmin(holds))} of the answer do not fill its size")


def _gather(data: Bytes, at: Ints, dtype: Any) -> Any:
    """The fields of `dtype` at each of the places `at`."""
    return data[at[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]


def _slices(data: Any, starts: Ints, ends: Ints, kind: Any) -> Any:
    """An Arrow array of the bytes from `starts` to `ends`, which ascend and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    view = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return view.take(pa.array(np.arange(0, 2 * count, 2)))


# --- properties


class Pairs:
    """Property names and values of all rows, and the row of each pair.

    Where a row has a name twice its last value counts: Java's brokers write some properties of a batch again.
    """

    def __init__(self, row: Ints, names: Any, values: Any, count: int) -> None:
        self.row = row
        self.names = names
        self.values = values
        self._count = count
        encoded = names.dictionary_encode()
        self._codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self._code_of = {name: n for n, name in enumerate(encoded.dictionary.to_pylist())}
        marks = row * max(1, len(self._code_of)) + self._codes
        if _any_twice(marks, count * len(self._code_of)):
            self._drop_repeated(marks)

    def _drop_repeated(self, marks: Ints) -> None:
        """Keep the first of the pairs with one mark, with the value of the last."""
        order = np.argsort(marks, kind="stable")
        differs = np.diff(marks[order]) != 0
        first, last = order[np.append(True, differs)], order[np.append(differs, True)]
        in_place = np.argsort(first)
        first, last = first[in_place], last[in_place]
        self.row = self.row[first]
        self.names = self.names.take(pa.array(first))
        self.values = self.values.take(pa.array(last))
        self._codes = self._codes[first]

    def offsets(self) -> Any:
        """Where the pairs of each row start, and where the last ends."""
        ends = np.cumsum(np.bincount(self.row, minlength=self._count))
        return pa.array(np.concatenate(([0], ends)).astype(np.int32))

    def rows_with(self, name: str) -> tuple[Ints, Any]:
        """The rows that have property `name`, and its values there."""
        found = np.flatnonzero(self._codes == self._code_of.get(name, -1))
        return self.row[found], self.values.take(pa.array(found))

    def column(self, name: str) -> Any:
        """The values of property `name`, null where a row has none."""
        if name not in self._code_of:
            return pa.nulls(self._count, pa.string())
        found = np.flatnonzero(self._codes == self._code_of[name])
        indices = np.full(self._count, -1, np.int64)
        indices[self.row[found]] = found
        return self.values.take(pa.array(indices, mask=indices < 0))


def _any_twice(marks: Ints, room: int) -> bool:
    """True where a number below `room` is there twice. Counting beats sorting where there is little room."""
    if room <= _COUNT_ROOM:
        return bool(np.bincount(marks).max(initial=0) > 1)
    return len(np.unique(marks)) < len(marks)


def read_pairs(rows: Rows) -> Pairs:
    """Find all pairs: `\\x02` ends one, the first `\\x01` in it divides it. Raises _NotPlain on odd bytes."""
    packed = _slices(rows.chunk.records, rows.properties_at, rows.end, pa.binary())
    _, offsets_buffer, data_buffer = packed.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(rows) + 1).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8, int(offsets[-1])) if data_buffer else np.empty(0, np.uint8)
    breaks = np.flatnonzero(data == 2)
    dividers = np.append(np.flatnonzero(data == 1), len(data))
    starts = np.sort(np.concatenate((offsets[:-1], breaks + 1)))
    ends = np.sort(np.concatenate((breaks, offsets[1:])))
    per_row = 1 + np.diff(np.searchsorted(breaks, offsets))
    row = np.repeat(np.arange(len(rows)), per_row)
    divider = dividers[np.searchsorted(dividers[:-1], starts)]
    whole = (divider > starts) & (divider + 1 < ends)
    starts, divider, ends, row = starts[whole], divider[whole], ends[whole], row[whole]
    names = _slices(data, starts, divider, pa.string())
    values = _slices(data, divider + 1, ends, pa.string())
    try:
        names.validate(full=True)
        values.validate(full=True)
    except pa.ArrowInvalid:
        raise _NotPlain from None
    return Pairs(row, names, values, len(rows))


# --- columns: (rows, Arrow type) -> Arrow array


def _head_column(field: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: pa.array(rows.head[field].astype(np.int64), kind)


def _tail_column(field: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: pa.array(rows.tail[field].astype(np.int64), kind)


def _property_column(name: str) -> Callable[[Rows, Any], Any]:
    return lambda rows, kind: rows.pairs.column(name).cast(kind)


def _crc(rows: Rows, kind: Any) -> Any:
    return pa.array((rows.head["crc"] & 0x7FFFFFFF).astype(np.int64), kind)


def _times(ms: Ints, kind: Any) -> Any:
    return pa.array(np.clip(ms.astype(np.int64), -TIME_MS_MAX, TIME_MS_MAX) * 1000).cast(kind)


def _store_time(rows: Rows, kind: Any) -> Any:
    return _times(_gather(rows.bytes, rows.store_time_at, _LONG), kind)


def _message_id(rows: Rows, kind: Any) -> Any:
    if rows.any_v6:
        parts = zip(rows.store_at.tolist(), rows.store_bytes.tolist(), rows.starts, strict=True)
        data = rows.chunk.records
        return pa.array([(data[s : s + n] + data[at + 28 : at + 36]).hex().upper() for s, n, at in parts], kind)
    raw = np.empty((len(rows), 16), np.uint8)
    raw[:, :8] = rows.bytes[rows.store_at[:, None] + np.arange(8)]
    raw[:, 8:] = rows.bytes[rows.at[:, None] + np.arange(28, 36)]
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * 32
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(_HEX[raw])])


def _hosts(rows: Rows, at: Ints, kind: Any) -> Any:
    if rows.any_v6:
        # The next field follows the born host at once; the store host has its own length.
        lengths = rows.store_bytes if at is rows.store_at else rows.store_time_at - rows.born_at
        data, known = rows.chunk.records, _HostTexts()
        return pa.array([known[data[s : s + n]] for s, n in zip(at.tolist(), lengths.tolist(), strict=True)], kind)
    raw = rows.bytes[at[:, None] + np.arange(8)].view(">u8")[:, 0].astype(np.uint64)
    distinct, inverse = np.unique(raw, return_inverse=True)
    texts = [host_text(decode_host(int(host).to_bytes(8, "big"))) for host in distinct.tolist()]
    return pa.array(texts, kind).take(pa.array(inverse.reshape(-1)))


class _HostTexts(dict[bytes, str]):
    def __missing__(self, raw: bytes) -> str:
        text = self[raw] = host_text(decode_host(raw))
        return text


def _body(rows: Rows, kind: Any) -> Any:
    _check_crcs(rows)
    if not rows.inflated:
        return _slices(rows.chunk.records, rows.body_at, rows.body_end, kind)
    return pa.array([rows.inflated[n] if n in rows.inflated else rows.raw_body(n) for n in range(len(rows))], kind)


def _check_crcs(rows: Rows) -> None:
    view = memoryview(rows.chunk.records)
    spans = zip(rows.body_at.tolist(), rows.body_end.tolist(), rows.head["crc"].tolist(), strict=True)
    for n, (start, end, crc) in enumerate(spans):
        if zlib.crc32(view[start:end]) & 0x7FFFFFFF != crc and end > start:
            raise BadRecord(f"the body at queue offset {int(rows.head['queue_offset'][n])} does not have its CRC")


def _keys(rows: Rows, kind: Any) -> Any:
    found: list[list[str] | None] = [None] * len(rows)
    having, values = rows.pairs.rows_with(Prop.KEYS)
    for n, value in zip(having.tolist(), values.to_pylist(), strict=True):
        found[n] = split_keys(value)
    return pa.array(found, kind)


def _properties(rows: Rows, kind: Any) -> Any:
    pairs = rows.pairs
    return pa.MapArray.from_arrays(pairs.offsets(), pairs.names, pairs.values, type=kind)


def _delay_level(rows: Rows, kind: Any) -> Any:
    having, values = rows.pairs.rows_with(Prop.DELAY_TIME_LEVEL)
    found: list[int | None] = [None] * len(rows)
    for n, value in zip(having.tolist(), values.to_pylist(), strict=True):
        found[n] = delay_level(value)
    return pa.array(found, kind)


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
    "bornTimestamp": lambda rows, kind: _times(rows.head["born"], kind),
    "storeTimestamp": _store_time,
    "bornHost": lambda rows, kind: _hosts(rows, rows.born_at, kind),
    "storeHost": lambda rows, kind: _hosts(rows, rows.store_at, kind),
    "flag": _head_column("flag"),
    "sysFlag": _head_column("sys_flag"),
    "reconsumeTimes": _tail_column("reconsume"),
    "bodyCrc": _crc,
    "storeSize": _head_column("size"),
    "preparedTransactionOffset": _tail_column("prepared"),
    "delayTimeLevel": _delay_level,
    "producerGroup": _property_column(Prop.PRODUCER_GROUP),
}
