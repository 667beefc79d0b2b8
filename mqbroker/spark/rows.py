"""Vectorised parsing of thousands of records of a chunk of the commit log: the places of their parts, and their
properties.

Runs in Spark's Python workers; knows nothing of PySpark, nor of the wanted columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqbroker.kernel import compiled
from mqbroker.spark.reading import Chunk
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.compression import UnreadableBody
from mqbroker.wire.record import MAGIC, OFFSETS, V6, BadRecord, numpy_fields

_COUNT_ROOM = 1 << 20

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
#: A decompressed body, or why there is none.
Inflated = bytes | UnreadableBody

#: The fields before the body, with IPv4 hosts; and those of them that follow the hosts.
_HEAD = np.dtype(numpy_fields("size", "body_size"))
_TAIL = np.dtype(numpy_fields("reconsume_times", "body_size"))
_LONG = np.dtype(">i8")


class UndecodableProperties(Exception):
    """Properties that are not UTF-8: only the record by record decoder replaces invalid bytes."""


class Rows:
    """Records of a chunk: the places of their parts, and their fixed fields. `inflated` has the bodies of compressed
    records by row, or why one cannot be decompressed."""

    def __init__(self, chunk: Chunk, starts: Ints, inflated: Mapping[int, Inflated] | None = None) -> None:
        self.chunk = chunk
        self.at = starts
        self.inflated = inflated or {}
        self.has_checked_bodies = False
        self.bytes: Bytes = np.frombuffer(chunk.records, np.uint8)
        self.head = gather(self.bytes, self.at, _HEAD)
        if not (self.head["magic"] == MAGIC).all():
            raise BadRecord(f"magic is not {MAGIC:#x} in every record")
        self.end = self.at + self.head["size"]
        self.any_v6 = bool((self.head["sys_flag"] & V6).any())
        if self.any_v6:
            _, store_end = self.host_places("store_host")
            _check(store_end + _TAIL.itemsize + 3 <= self.end)
            self.tail = gather(self.bytes, store_end, _TAIL)
            self.body_at = store_end + _TAIL.itemsize
        else:
            self.tail = self.head
            self.body_at = self.at + _HEAD.itemsize
            _check(self.body_at + 3 <= self.end)
        self.body_end = self.body_at + self.tail["body_size"]
        _check((self.body_end >= self.body_at) & (self.body_end + 3 <= self.end))
        topic_bytes = self.bytes[self.body_end]
        topic_end = self.body_end + 1 + topic_bytes
        _check(topic_end + 2 <= self.end)
        self.properties_at = topic_end + 2
        #: The topic of each record, as rows of bytes; None if they differ in length.
        self.topics: Bytes | None = None
        first = int(topic_bytes[0]) if len(topic_bytes) else 0
        if (topic_bytes == first).all():
            # Together with the two bytes behind it, so that places all over the chunk are visited once.
            found = windows(self.bytes, self.body_end + 1, first + 2)
            self.topics, length = found[:, :first], found[:, first].astype(np.int64) << 8 | found[:, first + 1]
        else:
            length = self.bytes[topic_end].astype(np.int64) << 8 | self.bytes[topic_end + 1]
        _check(self.properties_at + length == self.end)

    def __len__(self) -> int:
        return len(self.at)

    def cut(self, first: int, end: int, inflated: Mapping[int, Inflated]) -> Rows:
        """The rows from `first` up to `end`; `inflated` is by this object's row numbers."""
        return Rows(self.chunk, self.at[first:end], {n - first: body for n, body in inflated.items()})

    def are_of(self, topic: str) -> bool:
        """Whether every record has `topic`."""
        if not len(self):  # as after a filter that nothing matches
            return True
        name = np.frombuffer(topic.encode(), np.uint8)
        return self.topics is not None and self.topics.shape[1] == len(name) and bool((self.topics == name).all())

    def host_places(self, name: str) -> tuple[Ints, Ints]:
        """Where "born_host" or "store_host" begins in each record, and where it ends."""
        sys_flag = self.head["sys_flag"]
        born_at = self.at + OFFSETS["born_host"]
        born_end = born_at + np.where(sys_flag & SysFlag.BORN_HOST_V6, 20, 8)
        if name == "born_host":
            return born_at, born_end
        store_at = born_end + _LONG.itemsize
        return store_at, store_at + np.where(sys_flag & SysFlag.STORE_HOST_V6, 20, 8)

    def store_times(self) -> Ints:
        """In ms."""
        found: Ints = self.head["store_timestamp"]
        if self.any_v6:
            _, born_end = self.host_places("born_host")
            found = gather(self.bytes, born_end, _LONG)
        return found.astype(np.int64)

    def data(self) -> bytes:
        """The bytes of these records."""
        return b"".join(self.chunk.records[at:end] for at, end in zip(self.at.tolist(), self.end.tolist(), strict=True))

    def raw_body(self, n: int) -> bytes:
        """The body of row `n` as it is stored."""
        return self.chunk.records[int(self.body_at[n]) : int(self.body_end[n])]

    @cached_property
    def pairs(self) -> PropertyPairs:
        return read_pairs(self)


def _check(holds: npt.NDArray[np.bool_]) -> None:
    if not holds.all():
        raise BadRecord(f"the parts of record {int(np.argmin(holds))} of the answer do not fill its size")


def gather(data: Bytes, at: Ints, dtype: Any) -> Any:
    """The fields of `dtype` at each of the places `at`. Raises IndexError where they are not within `data`."""
    return _copied(data, at, dtype.itemsize).view(dtype)


def windows(data: Bytes, at: Ints, size: int) -> Bytes:
    """The `size` bytes at each of the places `at`, as rows. Raises IndexError where they are not within `data`."""
    found: Bytes = _copied(data, at, size).view(np.uint8).reshape(len(at), size)
    return found


def _copied(data: Bytes, at: Ints, size: int) -> Any:
    # An opaque element begins at each byte: it is copied whole, without a table of the places of its bytes.
    return np.ndarray((max(0, len(data) - size + 1),), f"V{size}", data, strides=(1,))[at]


def slices(data: Any, starts: Ints, ends: Ints, kind: Any) -> Any:
    """An Arrow array of the bytes from `starts` to `ends`, which ascend and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    view = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return view.take(pa.array(np.arange(0, 2 * count, 2)))


def places_of(having: Ints, count: int) -> Any:
    """For each of `count` rows its index among those `having` something; null for other rows."""
    places = np.full(count, -1, np.int64)
    places[having] = np.arange(len(having))
    return pa.array(places, mask=places < 0)


def lists_of(values: Any, having: Ints, count: int, kind: Any) -> Any:
    """For each of `count` rows a list of its value; null for rows that are not in `having`."""
    counts = np.zeros(count + 1, np.int32)
    counts[having + 1] = 1
    mask = None if len(having) == count else pa.array(counts[1:] == 0)
    return pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), values, type=kind, mask=mask)


class PropertyPairs:
    """Property names and values of all rows, and the row of each pair.

    If a row has a name twice, the last value counts: Java's brokers write some properties of a batch again.

    :param codes: of each pair the place of its name in `distinct`.
    """

    def __init__(
        self, row: Ints, codes: Ints, distinct: list[str], values: Any, count: int, *, has_repeated: bool
    ) -> None:
        self.row = row
        self.values = values
        self._count = count
        self._codes = codes
        self._distinct = distinct
        self._code_of = {name: n for n, name in enumerate(distinct)}
        if has_repeated:
            self._drop_repeated(row * max(1, len(distinct)) + codes)

    @property
    def names(self) -> Any:
        texts = pa.array(self._distinct, pa.string())
        each, rest = divmod(len(self._codes), max(1, self._count))
        if rest or not each or (self._codes.reshape(-1, each) != self._codes[:each]).any():
            return texts.take(pa.array(self._codes))
        # All rows have the same names, as messages of one program do.
        first = texts.take(pa.array(self._codes[:each]))
        size = sum(len(name.encode()) for name in first.to_pylist())
        ends = np.frombuffer(first.buffers()[1], np.int32, each + 1)[1:]
        offsets = np.zeros(len(self._codes) + 1, np.int32)
        offsets[1:] = (np.arange(self._count, dtype=np.int32)[:, None] * size + ends).reshape(-1)
        data = first.buffers()[2].to_pybytes()[:size] * self._count
        return pa.StringArray.from_buffers(len(self._codes), pa.py_buffer(offsets), pa.py_buffer(data))

    def _drop_repeated(self, marks: Ints) -> None:
        """Of the pairs with one mark, keep the first with the value of the last."""
        order = np.argsort(marks, kind="stable")
        differs = np.diff(marks[order]) != 0
        first, last = order[np.append(True, differs)], order[np.append(differs, True)]
        in_place = np.argsort(first)
        first, last = first[in_place], last[in_place]
        self.row = self.row[first]
        self.values = self.values.take(pa.array(last))
        self._codes = self._codes[first]

    def offsets(self) -> Any:
        """Start of the pairs of each row, and the end of the last."""
        ends = np.cumsum(np.bincount(self.row, minlength=self._count))
        return pa.array(np.concatenate(([0], ends)).astype(np.int32))

    def rows_with(self, name: str) -> tuple[Ints, Any]:
        """The rows with property `name`, and its values."""
        found = np.flatnonzero(self._codes == self._code_of.get(name, -1))
        return self.row[found], self.values.take(pa.array(found))

    def column(self, name: str) -> Any:
        """The values of property `name`, null for rows without it."""
        if name not in self._code_of:
            return pa.nulls(self._count, pa.string())
        found = np.flatnonzero(self._codes == self._code_of[name])
        if len(found) == self._count:  # no row has it twice
            return self.values.take(pa.array(found))
        indices = np.full(self._count, -1, np.int64)
        indices[self.row[found]] = found
        return self.values.take(pa.array(indices, mask=indices < 0))


def _any_twice(marks: Ints, room: int) -> bool:
    """Whether a number below `room` occurs twice. Counting is faster than sorting if `room` is small."""
    if room <= _COUNT_ROOM:
        return bool(np.bincount(marks).max(initial=0) > 1)
    return len(np.unique(marks)) < len(marks)


def read_pairs(rows: Rows) -> PropertyPairs:
    """Find all pairs: `\\x02` ends one, the first `\\x01` in it divides it.

    Raises UndecodableProperties where bytes are no UTF-8.
    """
    found = None if compiled is None else compiled.read_pairs(rows.chunk.records, rows.properties_at, rows.end)
    return _read_pairs_in_python(rows) if found is None else _pairs_of(found, len(rows))


def _pairs_of(found: tuple[bytes, bytes, bytes, bytes, list[bytes], bool], count: int) -> PropertyPairs:
    row, codes, value_ends, data, names, has_repeated = found
    ends = np.frombuffer(value_ends, np.int32)
    offsets = np.concatenate((np.zeros(1, np.int32), ends))
    values = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(data))
    rows, numbers = (np.frombuffer(each, np.int32).astype(np.int64) for each in (row, codes))
    return PropertyPairs(rows, numbers, [name.decode() for name in names], values, count, has_repeated=has_repeated)


def _read_pairs_in_python(rows: Rows) -> PropertyPairs:
    """As `read_pairs`."""
    packed = slices(rows.chunk.records, rows.properties_at, rows.end, pa.binary())
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
    names = slices(data, starts, divider, pa.string())
    values = slices(data, divider + 1, ends, pa.string())
    try:
        names.validate(full=True)
        values.validate(full=True)
    except pa.ArrowInvalid:
        raise UndecodableProperties from None
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    distinct = encoded.dictionary.to_pylist()
    has_repeated = _any_twice(row * max(1, len(distinct)) + codes, len(rows) * len(distinct))
    return PropertyPairs(row, codes, distinct, values, len(rows), has_repeated=has_repeated)
