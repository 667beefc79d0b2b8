"""From Arrow columns to the bodies of send requests, column by column and without an object for each message.

A row becomes the bytes that `client/send.py` makes of the same Message. All rows of a piece are encoded into one Arrow
array, whose data are the bodies of batches one after another once the rows are in the order of their queues. Runs in
Spark's Python workers; no I/O, and no import of PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqbroker.client.errors import DELAY_LEVEL_MAX
from mqbroker.client.messages import RESERVED_PROPERTIES
from mqbroker.client.options import ProducerOptions
from mqbroker.client.send import Outgoing
from mqbroker.errors import MQError
from mqbroker.spark.errors import BadRow
from mqbroker.spark.sink_options import SinkColumns, why_not_topic
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, Prop
from mqbroker.wire.compression import compress_body
from mqbroker.wire.ids import UniqIdSource
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, encode_properties

#: Rows, or bytes of bodies, of a record batch that are encoded together.
PIECE_ROWS = 16_384
PIECE_BYTES = 16 * 1024 * 1024

_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_HEAD_BYTES = _HEAD.itemsize
#: Bytes of an entry beside body and properties.
_FIXED_BYTES = _HEAD_BYTES + 2
#: In the form of a batch's own properties.
_WAIT = encode_properties({Prop.WAIT_STORE_MSG_OK: "true"})
_BATCH_PROPERTIES = _WAIT.decode()
_BINARY = pa.binary()
_NOTHING = pa.scalar(b"", _BINARY)
_NULL = pa.scalar(None, _BINARY)
_SEPARATORS = (1, 2)
_SEPARATED = "holds \\x01 or \\x02, which separate properties"
#: ASCII characters at which str.split() splits; others are searched for in text that is not ASCII.
_BLANKS = (9, 10, 11, 12, 13, 28, 29, 30, 31, 32)
#: Four hexadecimal digits for each number of 16 bits.
_HEX = np.frombuffer(np.arange(1 << 16, dtype=">u2").tobytes().hex().upper().encode(), np.uint32)

#: The compression of the client's own sends.
_CLIENT = ProducerOptions()


class Ids(Protocol):
    """Makes the unique keys of rows."""

    def of(self, first: int, count: int) -> Any:
        """An array of bytes, count x length of a key, for the rows from number `first` on."""


class FreshIds:
    """Ids as a client makes them."""

    def __init__(self, source: UniqIdSource) -> None:
        self._source = source

    def of(self, first: int, count: int) -> Any:
        prefix, number = self._source.reserve(count)
        return _keys(prefix.encode(), np.arange(number, number + count) & 0xFFFF)


class RowIds:
    """Ids that are the same whenever the same partition of the same write is written.

    They have the form of a client's: 80 bits that stand for write and partition, and the row's number in 48 bits, of
    which the upper 32 stand where a client's id has a time.
    """

    def __init__(self, write_id: str, partition: int) -> None:
        self._prefix = _digest(10, write_id.encode(), str(partition).encode()).hex().upper().encode()

    def of(self, first: int, count: int) -> Any:
        # Rows with the same upper digits differ in the last four only.
        limits = [first, *range((first | 0xFFFF) + 1, first + count, 1 << 16), first + count]
        parts = [
            _keys(self._prefix + f"{low >> 16:08X}".encode(), np.arange(low, high) & 0xFFFF)
            for low, high in pairwise(limits)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _keys(prefix: bytes, numbers: Any) -> Any:
    """Keys: `prefix`, whose length is a multiple of 4, followed by the four digits of each number."""
    keys = np.empty((len(numbers), len(prefix) // 4 + 1), np.uint32)
    keys[:, :-1] = np.frombuffer(prefix, np.uint32)
    keys[:, -1] = _HEX[numbers]
    return keys.view(np.uint8)


def _digest(size: int, *parts: bytes | None) -> bytes:
    """A digest of texts that depends on where each of them ends."""
    digest = blake2b(digest_size=size)
    for part in parts:
        digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "big") + part)
    return digest.digest()


@attrs.frozen
class Packed:
    """A send: a batch for one queue, or one message. `queue` is None if any will do. `rows` are the numbers of the
    rows in the task, `key_texts` returns their unique keys."""

    outgoing: Outgoing
    queue: MessageQueue | None
    rows: Any
    _keys: Any

    def key_texts(self) -> list[str]:
        """The unique keys."""
        return [key.decode() for key in self._keys.to_pylist()]


@attrs.frozen
class Encoded:
    """Rows of a piece, encoded: `entries` as in a batch. `lanes` numbers their pairs of topic and queue in `targets`;
    `flags` and `sys_flags` are those of the messages, and `is_alone` says which may be in no batch."""

    rows: Any
    entries: Any
    keys: Any
    lanes: Any
    targets: Sequence[tuple[str, MessageQueue | None]]
    flags: Any
    sys_flags: Any
    is_alone: Any

    def take(self, which: Any) -> Encoded:
        """The rows of these indices, in their order."""
        index = pa.array(which)
        return attrs.evolve(
            self,
            rows=self.rows[which],
            entries=self.entries.take(index),
            keys=self.keys.take(index),
            lanes=self.lanes[which],
            flags=self.flags[which],
            sys_flags=self.sys_flags[which],
            is_alone=self.is_alone[which],
        )

    def key_texts(self) -> list[str]:
        """The unique keys."""
        return [key.decode() for key in self.keys.to_pylist()]


@attrs.frozen
class Packer:
    """Packs the rows of one task. `queues` returns those of a topic, `now_ms` the time of day."""

    columns: SinkColumns
    topic: str | None
    batch_bytes: int
    partition: int
    write_id: str
    ids: Ids
    queues: Callable[[str], Sequence[MessageQueue]]
    now_ms: Callable[[], int]
    message_bytes_max: int = _CLIENT.message_bytes_max
    compress_over_bytes: int = _CLIENT.compress_over_bytes
    compress_level: int = _CLIENT.compress_level

    def pieces(self, batch: Any, first: int) -> Iterator[Encoded]:
        """Encode a record batch whose first row has the number `first`, piece by piece. Raises BadRow."""
        ends = np.cumsum(_lengths(batch.column(self.columns.places["body"])))
        at = 0
        while at < batch.num_rows:
            before = ends[at - 1] if at else 0
            end = int(np.searchsorted(ends, before + PIECE_BYTES, "right"))
            end = min(max(end, at + 1), at + PIECE_ROWS, batch.num_rows)
            yield _Piece(self, batch.slice(at, end - at), first + at).encode()
            at = end

    def cut(self, encoded: Encoded) -> list[Packed]:
        """The sends of encoded rows. Those of one queue are in the order of the rows, and the queues take turns."""
        if not len(encoded.rows):
            return []
        ordered = np.array([queue is not None for _, queue in encoded.targets])[encoded.lanes]
        # Compressed bodies have their own batches. Where order does not count they are put together.
        apart = np.where(ordered, 0, encoded.sys_flags)
        if (apart != apart[0]).any() or (encoded.lanes != encoded.lanes[0]).any():
            encoded = encoded.take(np.lexsort((apart, encoded.lanes)))
        lanes, sys_flags, is_alone = encoded.lanes, encoded.sys_flags, encoded.is_alone
        breaks = (lanes[1:] != lanes[:-1]) | (sys_flags[1:] != sys_flags[:-1]) | is_alone[1:] | is_alone[:-1]
        limits = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(lanes)]
        offsets = _offsets(encoded.entries)
        data = memoryview(encoded.entries.buffers()[2])
        now_ms = self.now_ms()
        sends: list[tuple[int, Packed]] = []
        turns: dict[int, int] = {}
        for start, limit in pairwise(limits):
            at = start
            while at < limit:
                end = int(np.searchsorted(offsets, offsets[at] + self.batch_bytes, "right")) - 1
                end = min(max(end, at + 1), limit)
                lane = int(lanes[at])
                turns[lane] = turn = turns.get(lane, -1) + 1
                sends.append((turn, self._packed(encoded, at, end, bytes(data[offsets[at] : offsets[end]]), now_ms)))
                at = end
        if len(turns) > 1:
            sends.sort(key=lambda send: send[0])
        return [packed for _, packed in sends]

    def _packed(self, encoded: Encoded, at: int, end: int, entries: bytes, now_ms: int) -> Packed:
        topic, queue = encoded.targets[int(encoded.lanes[at])]
        sys_flag = int(encoded.sys_flags[at])
        if encoded.is_alone[at]:
            body_end = _HEAD_BYTES + int.from_bytes(entries[_HEAD_BYTES - 4 : _HEAD_BYTES], "big")
            body, properties = entries[_HEAD_BYTES:body_end], entries[body_end + 2 :].decode()
            outgoing = Outgoing(topic, body, properties, "", now_ms, sys_flag, int(encoded.flags[at]))
        else:
            outgoing = Outgoing(topic, entries, _BATCH_PROPERTIES, "", now_ms, sys_flag, is_batch=True)
        return Packed(outgoing, queue, encoded.rows[at:end], encoded.keys.slice(at, end - at))


class _Piece:
    """Some rows, checked and encoded."""

    def __init__(self, packer: Packer, batch: Any, first: int) -> None:
        self._packer = packer
        self._batch = batch
        self._first = first
        self._places = packer.columns.places

    def encode(self) -> Encoded:
        packer, count = self._packer, self._batch.num_rows
        lanes, targets = self._lanes()
        body, sys_flags = self._body()
        keys = self._unique_keys()
        levels = self._ints("delayTimeLevel", 0, DELAY_LEVEL_MAX)
        flags = self._ints("flag", -(2**31), 2**31 - 1)
        properties = self._properties(keys, levels)
        body_bytes, properties_bytes = _lengths(body), _lengths(properties)
        self._refuse_first(
            properties_bytes > PROPERTIES_BYTES_MAX,
            "properties",
            lambda n: (
                f"properties, with tags and keys, are {properties_bytes[n]} bytes, the limit is {PROPERTIES_BYTES_MAX}"
            ),
        )
        heads = np.zeros(count, _HEAD)
        heads["size"] = sizes = _FIXED_BYTES + body_bytes + properties_bytes
        heads["flag"] = flags
        heads["body"] = body_bytes
        entries = _joined(_fixed(heads), body, _fixed(properties_bytes.astype(">i2")), properties)
        return Encoded(
            rows=np.arange(self._first, self._first + count),
            entries=entries,
            keys=keys,
            lanes=lanes,
            targets=targets,
            flags=flags,
            sys_flags=sys_flags,
            is_alone=(levels > 0) | (sizes > packer.batch_bytes),
        )

    def _body(self) -> tuple[Any, Any]:
        """The bodies as they are sent, and their flags."""
        packer = self._packer
        body = self._column("body")
        self._refuse_null(body, "body", "is null, and a message needs a body; filter by body IS NOT NULL")
        sizes = _lengths(body)
        self._refuse_first(sizes == 0, "body", lambda n: "is empty, which brokers refuse")
        limit = packer.message_bytes_max
        self._refuse_first(
            sizes > limit,
            "body",
            lambda n: f"is {sizes[n]} bytes, the limit is {limit} (maxMessageSize in the broker)",
        )
        body = _cells(body)
        flags = np.zeros(len(sizes), np.int64)
        is_long = sizes >= packer.compress_over_bytes
        if is_long.any():
            bodies = body.to_pylist()
            for n in np.flatnonzero(is_long):
                bodies[n], flags[n] = compress_body(bodies[n], packer.compress_level)
            body = pa.array(bodies, _BINARY)
        return body, flags

    def _lanes(self) -> tuple[Any, list[tuple[str, MessageQueue | None]]]:
        """For each row the number of its target, and the targets."""
        count = self._batch.num_rows
        topics, topic_of = self._topics()
        queue_of = self._chosen_queues(topics, topic_of)
        if queue_of is None:
            return topic_of, [(topic, None) for topic in topics]
        # Of each topic a lane for rows without a queue, then one for each of its queues.
        starts = np.zeros(len(topics), np.int64)
        targets: list[tuple[str, MessageQueue | None]] = []
        for number, topic in enumerate(topics):
            starts[number] = len(targets)
            targets += [(topic, None), *((topic, queue) for queue in self._packer.queues(topic))]
        assert len(queue_of) == count
        return starts[topic_of] + 1 + queue_of, targets

    def _topics(self) -> tuple[list[str], Any]:
        count, packer = self._batch.num_rows, self._packer
        if packer.topic is not None:
            return [packer.topic], np.zeros(count, np.int64)
        column = self._column("topic")
        self._refuse_null(column, "topic", "is null, and there is no option topic")
        self._check_text(column, "topic", ())
        encoded = column.dictionary_encode()
        topics, topic_of = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
        for number, topic in enumerate(topics):
            why = why_not_topic(topic)
            if why:
                raise self._bad(int(np.argmax(topic_of == number)), "topic", why)
        return topics, topic_of

    def _chosen_queues(self, topics: list[str], topic_of: Any) -> Any:
        """The number of each row's queue among those of its topic; -1 without, and None if none has."""
        named = self._named_queues(topics, topic_of)
        if "shardingKey" not in self._places:
            return named
        column = self._column("shardingKey")
        hashes = np.zeros(len(column), np.int64)
        is_given = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_integer(column.type):
            numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
            # Of Integer and Long: equal where the number has 32 bits and is not negative.
            hashes = numbers if column.type != pa.int64() else (numbers ^ ((numbers >> 32) & 0xFFFFFFFF))
            hashes = hashes.astype(np.int32).astype(np.int64)
        else:
            self._check_text(column, "shardingKey", ())
            encoded = column.dictionary_encode()
            of_key = np.array([_hash_of(key) for key in encoded.dictionary.to_pylist()] or [0], np.int64)
            hashes = of_key[pc.fill_null(encoded.indices, 0).to_numpy()]
        counts = np.array([max(1, len(self._packer.queues(topic))) for topic in topics])
        chosen = np.where(is_given, np.abs(hashes) % counts[topic_of], -1)
        if named is None:
            return chosen
        self._refuse_first(
            is_given & (named >= 0), "shardingKey", lambda n: "and brokerName name two queues; leave one of them null"
        )
        return np.where(named >= 0, named, chosen)

    def _named_queues(self, topics: list[str], topic_of: Any) -> Any:
        if "queueId" not in self._places:
            return None
        names, numbers = self._column("brokerName"), self._column("queueId")
        self._check_text(names, "brokerName", ())
        has_name, has_number = (each.is_valid().to_numpy(zero_copy_only=False) for each in (names, numbers))
        for missing, column in ((has_number & ~has_name, "brokerName"), (has_name & ~has_number, "queueId")):
            self._refuse_first(missing, column, lambda n: "is null, and the other of brokerName and queueId is not")
        places = [{(q.broker_name, q.queue_id): n for n, q in enumerate(self._packer.queues(t))} for t in topics]
        found = np.full(len(names), -1, np.int64)
        for n, (name, number) in enumerate(zip(names.to_pylist(), numbers.to_pylist(), strict=True)):
            if name is not None:
                place = places[topic_of[n]].get((name, number))
                if place is None:
                    topic = topics[topic_of[n]]
                    raise self._bad(n, "queueId", f"topic {topic} has no queue {number} on {name} that can be written")
                found[n] = place
        return found

    def _unique_keys(self) -> Any:
        packer, count = self._packer, self._batch.num_rows
        if packer.columns.ids:
            columns = [_id_texts(self._batch.column(place)) for place in packer.columns.ids]
            write_id = packer.write_id.encode()
            # Where a client's id has a time it has that of the month's beginning.
            found = (_digest(12, write_id, *texts).hex().upper() for texts in zip(*columns, strict=True))
            made = pa.array([(key[:20] + "00000000" + key[20:]).encode() for key in found], _BINARY)
        else:
            keys = packer.ids.of(self._first, count)
            made = _fixed(keys.reshape(-1), keys.shape[1])
        if "uniqKey" not in self._places:
            return made
        column = self._column("uniqKey")
        self._check_text(column, "uniqKey", _SEPARATORS, _SEPARATED)
        return pc.coalesce(_not_empty(_cells(column)), made)

    def _properties(self, unique_keys: Any, levels: Any) -> Any:
        """As `wire_properties` and `encode_properties` make them."""
        parts = [self._own_properties(), _named(Prop.KEYS, self._keys())]
        parts += [_named(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, unique_keys), pa.scalar(_WAIT, _BINARY)]
        if levels.any():
            texts = pa.array([str(level).encode() if level else None for level in levels.tolist()], _BINARY)
            parts.append(_named(Prop.DELAY_TIME_LEVEL, texts))
        parts.append(_named(Prop.TAGS, self._tags()))
        return pc.binary_join_element_wise(
            *[part for part in parts if part is not None], pa.scalar(b"\2", _BINARY), null_handling="skip"
        )

    def _tags(self) -> Any:
        column = self._optional("tags")
        if column is None:
            return None
        self._check_text(column, "tags", _SEPARATORS, _SEPARATED)
        cells = _not_empty(_cells(column))
        for n in _holding(cells, (*_BLANKS, *b"|*"), or_not_ascii=True):
            tag = cells[n].as_py().decode()
            if tag == "*" or "||" in tag or tag != tag.strip():
                why = (
                    f"{tag[:80]!r} is not a tag that a subscription can name: it must not be *, have || or start or "
                    "end with blanks"
                )
                raise self._bad(n, "tags", why)
        return cells

    def _keys(self) -> Any:
        column = self._optional("keys")
        if column is None:
            return None
        name = "key" if self._packer.columns.is_key else "keys"
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            texts, limits = column.flatten(), _limits(column)
            self._check_text(texts, name, _SEPARATORS, _SEPARATED, limits)
            self._refuse_null(texts, name, "has a null among them", limits)
            cells = _cells(texts)
            self._refuse_first(_lengths(cells) == 0, name, lambda n: "has an empty one among them", limits)
            self._refuse_blanks(cells, name, limits)
            return _not_empty(pc.binary_join(_list(limits, cells), KEY_SEPARATOR.encode()))
        self._check_text(column, name, _SEPARATORS, _SEPARATED)
        cells = _not_empty(_cells(column))
        if self._packer.columns.is_key:
            self._refuse_blanks(cells, name)
            return cells
        blank = _holding(cells, _BLANKS, or_not_ascii=True)
        if blank:
            texts = cells.to_pylist()
            for n in blank:
                texts[n] = KEY_SEPARATOR.join(texts[n].decode().split()).encode()
            cells = _not_empty(pa.array(texts, _BINARY))
        return cells

    def _refuse_blanks(self, cells: Any, name: str, limits: Any = None) -> None:
        for n in _holding(cells, _BLANKS, or_not_ascii=True):
            text = cells[n].as_py().decode()
            if len(text.split()) != 1:
                why = f"{text[:80]!r} holds blanks, which separate keys: use replace() on it"
                raise self._bad(_row_of(n, limits), name, why)

    def _own_properties(self) -> Any:
        column = self._optional("properties")
        if column is None:
            return None
        limits = _limits(column)
        if pa.types.is_map(column.type):
            offsets = column.offsets
            start, end = offsets[0].as_py(), offsets[-1].as_py()
            names, values = column.keys[start:end], column.items[start:end]
        else:
            entries = column.flatten()
            names, values = entries.field(0), entries.field(1)
        if not len(names):
            return None
        for texts in (names, values):
            self._check_text(texts, "properties", _SEPARATORS, _SEPARATED, limits)
            cells = _cells(texts)
            is_lost = (_lengths(cells) == 0) | ~texts.is_valid().to_numpy(zero_copy_only=False)
            self._refuse_first(
                is_lost, "properties", lambda n: "has a name or value that is empty or null, and would be lost", limits
            )
        names, values = _cells(names), _cells(values)
        reserved = pc.is_in(names, value_set=_RESERVED).to_numpy(zero_copy_only=False)
        self._refuse_first(
            reserved,
            "properties",
            lambda n: (
                f"{names[n].as_py().decode()} is the system's own; use the columns, or leave it out with "
                "map_filter(properties, (k, v) -> k NOT IN (...))"
            ),
            limits,
        )
        pairs = pc.binary_join_element_wise(names, values, pa.scalar(b"\1", _BINARY))
        return _not_empty(pc.binary_join(_list(limits, pairs), b"\2"))

    def _column(self, name: str) -> Any:
        return self._batch.column(self._places[name])

    def _optional(self, name: str) -> Any:
        """A column; None if it is not there, or all null."""
        if name not in self._places or self._column(name).null_count == self._batch.num_rows:
            return None
        return self._column(name)

    def _ints(self, name: str, least: int, most: int) -> Any:
        column = self._optional(name)
        if column is None:
            return np.zeros(self._batch.num_rows, np.int64)
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        self._refuse_first(
            (numbers < least) | (numbers > most), name, lambda n: f"{numbers[n]} is not from {least} to {most}"
        )
        return numbers

    def _check_text(self, texts: Any, column: str, without: tuple[int, ...], why: str = "", limits: Any = None) -> None:
        """Refuse the first text that is not UTF-8, or holds one of these bytes."""
        if _is_large(texts):
            sizes = _lengths(texts)
            too_long = "is {} bytes, the limit is " + str(PROPERTIES_BYTES_MAX)
            self._refuse_first(sizes > PROPERTIES_BYTES_MAX, column, lambda n: too_long.format(sizes[n]), limits)
            texts = _small(texts)
        if without:
            for n in _holding(_cells(texts), without):
                raise self._bad(_row_of(n, limits), column, why)
        try:
            texts.cast(pa.string()).validate(full=True)
        except pa.ArrowInvalid:
            for n, data in enumerate(_cells(texts).to_pylist()):
                try:
                    (data or b"").decode()
                except UnicodeDecodeError:
                    raise self._bad(_row_of(n, limits), column, "is not UTF-8") from None
            raise

    def _refuse_null(self, cells: Any, column: str, why: str, limits: Any = None) -> None:
        if cells.null_count:
            self._refuse_first(~cells.is_valid().to_numpy(zero_copy_only=False), column, lambda n: why, limits)

    def _refuse_first(self, is_bad: Any, column: str, why: Callable[[int], str], limits: Any = None) -> None:
        """Refuse the first cell that is bad; with `limits` the cells are those of lists, of each row some."""
        if is_bad.any():
            n = int(np.argmax(is_bad))
            raise self._bad(_row_of(n, limits), column, why(n))

    def _bad(self, n: int, column: str, why: str) -> MQError:
        return BadRow(self._packer.partition, self._first + n, column, why)


_RESERVED = pa.array([name.encode() for name in sorted(RESERVED_PROPERTIES)], _BINARY)

_hash_of: Callable[[str | None], int] = lru_cache(4096)(lambda key: 0 if key is None else java_hash(key))


def _cells(column: Any) -> Any:
    """A column of texts or bytes as bytes."""
    return column if column.type == _BINARY else _small(column).cast(_BINARY)


def _is_large(column: Any) -> bool:
    """Whether a column may have more than 2 GiB, as with spark.sql.execution.arrow.useLargeVarTypes."""
    return bool(pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type))


def _small(column: Any) -> Any:
    """A copy of a large column: Arrow cannot convert a part to bytes that begins far into a larger column."""
    return column.take(pa.array(np.arange(len(column)))) if _is_large(column) else column


def _offsets(cells: Any) -> Any:
    return np.frombuffer(cells.buffers()[1], np.int32)[cells.offset : cells.offset + len(cells) + 1]


def _lengths(cells: Any) -> Any:
    """Bytes of each cell; a null has none."""
    return pc.fill_null(pc.binary_length(cells), 0).to_numpy().astype(np.int64)


def _not_empty(cells: Any) -> Any:
    """The cells, with null for empty ones."""
    lengths = pc.binary_length(cells)
    if not pc.any(pc.equal(lengths, 0)).as_py():
        return cells
    return pc.if_else(pc.greater(lengths, 0), cells, _NULL)


def _fixed(values: Any, width: int | None = None) -> Any:
    """Cells of the bytes of an array's values, or of `width` of them."""
    width = values.itemsize if width is None else width
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), values.nbytes // width, [None, buffer]).cast(_BINARY)


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _named(name: str, values: Any) -> Any:
    """`name \\x01 value`; null where there is no value."""
    return None if values is None else _joined(pa.scalar(f"{name}\1".encode(), _BINARY), values)


def _limits(column: Any) -> Any:
    """Where the elements of each list begin among all of them, and where the last one ends."""
    lengths = pc.fill_null(pc.list_value_length(column), 0) if not pa.types.is_map(column.type) else None
    if lengths is None:
        offsets = column.offsets.to_numpy()
        return offsets - offsets[0]
    return np.concatenate([[0], np.cumsum(lengths.to_numpy())])


def _list(limits: Any, elements: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(limits, pa.int32()), elements)


def _row_of(n: int, limits: Any) -> int:
    return n if limits is None else int(np.searchsorted(limits, n, "right")) - 1


@lru_cache(64)
def _table_of(wanted: tuple[int, ...], or_not_ascii: bool) -> Any:
    table = np.zeros(256, bool)
    table[list(wanted)] = True
    if or_not_ascii:
        table[128:] = True
    return table


def _holding(cells: Any, wanted: tuple[int, ...], *, or_not_ascii: bool = False) -> list[int]:
    """The cells that hold one of these bytes, in ascending order."""
    data = cells.buffers()[2]
    if data is None or not len(cells):
        return []
    offsets = _offsets(cells)
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    hits = np.flatnonzero(_table_of(wanted, or_not_ascii)[used])
    if not len(hits):
        return []
    found = np.unique(np.searchsorted(offsets, hits + offsets[0], "right") - 1)
    valid = cells.is_valid().to_numpy(zero_copy_only=False)
    return [int(n) for n in found if valid[n]]


def _id_texts(column: Any) -> list[bytes | None]:
    """The values of a column as bytes that tell them apart."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return list(column.to_pylist())
    if pa.types.is_large_string(column.type):
        return list(column.cast(pa.large_binary()).to_pylist())
    return list(column.cast(pa.string()).cast(_BINARY).to_pylist())
