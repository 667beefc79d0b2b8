"""The decoder by columns against the one record by record, and what it refuses."""

import contextlib
import zlib
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mqbroker.spark import decode  # noqa: E402
from mqbroker.spark import rows as rows_module  # noqa: E402
from mqbroker.spark.decode import decode_chunk  # noqa: E402
from mqbroker.spark.decode_plain import plain_batch  # noqa: E402
from mqbroker.spark.errors import DataLoss  # noqa: E402
from mqbroker.spark.reading import Chunk  # noqa: E402
from mqbroker.spark.schema import COLUMNS  # noqa: E402
from mqbroker.wire.bodies import MessageQueue  # noqa: E402
from mqbroker.wire.codes import SysFlag  # noqa: E402
from mqbroker.wire.record import BadRecord, Record, decode_records, encode_record  # noqa: E402
from tests.numbers import numbers  # noqa: E402
from tests.spark.fake_log import record  # noqa: E402

QUEUE = MessageQueue("orders", "broker-a", 3)

ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
NAMES = tuple(column.name for column in COLUMNS)
SCHEMA = pa.schema([pa.field(column.name, ARROW[column.type]) for column in COLUMNS])

hosts = st.sampled_from([("127.0.0.1", 10911), ("10.1.2.3", 65535), ("::1", 1), ("fe80::12:ffff", 40000)])
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "PGROUP", "n"]) | texts
values = texts | st.sampled_from(["3", "-1", "a b", " a  b ", "x" * 200])
times = numbers(0, 2**42) | numbers(-(2**63), 2**63 - 1)


@st.composite
def records(draw: st.DrawFn, offset: int) -> Record:
    body = draw(st.binary(max_size=40))
    packed = draw(st.booleans())
    spoilt = draw(st.sampled_from([b"", b"", b"", b"no zlib"]))
    return record(
        QUEUE,
        offset,
        spoilt + zlib.compress(body) if packed else body,
        sys_flag=(SysFlag.COMPRESSED if packed else 0) | draw(st.sampled_from([0, 2, 8])),
        flag=draw(numbers(-(2**31), 2**31 - 1)),
        physical_offset=draw(numbers(0, 2**60)),
        born_timestamp=draw(times),
        store_timestamp=draw(times),
        born_host=draw(hosts),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 16)),
        prepared_offset=draw(numbers(0, 2**60)),
        properties=draw(st.dictionaries(names, values, max_size=6)),
    )


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    start = draw(numbers(0, 2**40))
    count = draw(st.integers(1, 12))
    data = [encode_record(draw(records(start + n))) for n in range(count)]
    return Chunk(QUEUE, start, start + count, b"".join(data))


def chunk_of(*found: bytes, start: int = 0) -> Chunk:
    return Chunk(QUEUE, start, start + len(found), b"".join(found))


def with_properties(raw: bytes, offset: int = 0) -> bytes:
    """A record whose property bytes are `raw`."""
    data = bytearray(encode_record(record(QUEUE, offset, properties={})))
    data[-2:] = len(raw).to_bytes(2, "big") + raw
    data[:4] = len(data).to_bytes(4, "big")
    return bytes(data)


def decoded(chunk: Chunk, columns: tuple[str, ...] = NAMES) -> list[Any]:
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    batches = list(decode_chunk(chunk, columns, schema))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return batches


def rows(chunk: Chunk, columns: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    # Times beyond what Python's datetime holds are compared as numbers.
    return [row for batch in decoded(chunk, columns) for row in plain_values(batch)]


def plain_values(batch: Any) -> list[dict[str, Any]]:
    arrays = [a.cast(pa.int64()) if pa.types.is_timestamp(a.type) else a for a in batch.columns]
    found: list[dict[str, Any]] = pa.RecordBatch.from_arrays(arrays, batch.schema.names).to_pylist()
    return found


def expected(chunk: Chunk) -> list[dict[str, Any]]:
    return plain_values(plain_batch(decode_records(chunk.records), QUEUE.topic, QUEUE.broker_name, NAMES, SCHEMA))


@given(chunks())
def test_by_columns_is_as_record_by_record(chunk: Chunk) -> None:
    assert rows(chunk) == expected(chunk)


@given(st.lists(st.binary(max_size=30) | st.text("ab\x01\x02é", max_size=20).map(str.encode), min_size=1, max_size=6))
@example([b"TAGS\x01a\x02KEYS\x01k\x02"])
@example([b"TAGS\x01a\x02n\x01c\x02TAGS\x01b\x02", b"TAGS\x01d\x02WAIT\x01e\x02WAIT\x01f\x02WAIT\x01g"])
@example([b"\x02\x01\x02a\x01\x02\x01b", b"", b"a\x01b\x01c"])
@example([b"TAGS\x01\xff\x02n\x01b"])
@example([b"a\x01b\x02c\x01d", b"c\x01e\x02a\x01f\x02a\x01g"])
def test_odd_property_bytes_are_read_alike(raws: list[bytes]) -> None:
    chunk = chunk_of(*(with_properties(raw, n) for n, raw in enumerate(raws)))
    assert rows(chunk) == expected(chunk)
    with pytest.MonkeyPatch.context() as patch:
        # As where there are many names.
        patch.setattr(rows_module, "_COUNT_ROOM", 0)
        assert rows(chunk) == expected(chunk)


@given(chunks(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_only_the_columns_asked_for_are_made_in_their_order(chunk: Chunk, columns: list[str]) -> None:
    assert rows(chunk, tuple(columns)) == [{name: row[name] for name in columns} for row in expected(chunk)]


@given(chunks(), st.data())
def test_damage_is_found_where_record_by_record_finds_it(chunk: Chunk, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(chunk.records) - 1))
    damaged = bytearray(chunk.records)
    damaged[at] ^= data.draw(numbers(1, 255))
    damaged_chunk = Chunk(QUEUE, chunk.start, chunk.end, bytes(damaged))
    try:
        wanted = expected(damaged_chunk)
    except BadRecord:
        with pytest.raises((BadRecord, DataLoss)):
            rows(damaged_chunk)
        return
    # What another offset, queue or topic makes of it only this decoder sees.
    with contextlib.suppress(DataLoss):
        assert rows(damaged_chunk) == wanted


@given(chunks(), st.data())
def test_bytes_cut_short_are_refused(chunk: Chunk, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(chunk.records) - 1))
    with pytest.raises((BadRecord, DataLoss)):
        decoded(Chunk(QUEUE, chunk.start, chunk.end, chunk.records[:size]))


def test_what_a_row_looks_like() -> None:
    found = record(
        QUEUE,
        7,
        zlib.compress(b"paid"),
        sys_flag=SysFlag.COMPRESSED,
        born_host=("::1", 5),
        properties={"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "U7", "DELAY": "3", "PGROUP": "g"},
    )
    (batch,) = decoded(chunk_of(encode_record(found), start=7))
    row = batch.to_pylist()[0]
    assert {name: row[name] for name in ("topic", "brokerName", "queueId", "queueOffset")} == {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 7,
    }
    assert row["body"] == b"paid"
    assert row["keys"] == ["k1", "k2"]
    assert (row["tags"], row["uniqKey"], row["delayTimeLevel"], row["producerGroup"]) == ("a", "U7", 3, "g")
    assert (row["bornHost"], row["storeHost"]) == ("[::1]:5", "127.0.0.1:10911")
    assert row["msgId"] == "7F00000100002A9F0000000000001B58"
    assert row["storeTimestamp"].isoformat() == "2023-11-14T22:13:20.008000+00:00"
    assert dict(row["properties"]) == found.properties


def test_a_compressed_empty_body_is_empty() -> None:
    data = encode_record(record(QUEUE, 0, zlib.compress(b""), sys_flag=SysFlag.COMPRESSED))
    assert rows(chunk_of(data))[0]["body"] == b""


@pytest.mark.parametrize(
    ("body", "sys_flag", "why"),
    [
        (b"garbage", 0x301, "not valid zlib"),
        (zlib.compress(bytes(70 * 2**20)), 1, "more than 67108864 bytes"),
        (b"x", 0x401, "type 4, which is not known"),
    ],
    ids=["garbage", "zeros", "unknown"],
)
def test_a_body_that_cannot_be_decompressed_is_null_and_says_why(body: bytes, sys_flag: int, why: str) -> None:
    data = [
        encode_record(record(QUEUE, n, body if n == 1 else b"good", sys_flag=sys_flag if n == 1 else 0))
        for n in range(3)
    ]
    chunk = chunk_of(*data)
    assert rows(chunk) == expected(chunk)
    columns = ("body", "storedBody", "bodyError")
    bad = rows(chunk, columns)[1]
    assert (bad["body"], bad["storedBody"]) == (None, body)
    assert why in bad["bodyError"]
    assert [rows(chunk, columns)[n] for n in (0, 2)] == [{"body": b"good", "storedBody": None, "bodyError": None}] * 2
    for column in columns:
        assert [row[column] for row in rows(chunk, (column,))] == [row[column] for row in rows(chunk)]


def test_an_lz4_body_is_decompressed() -> None:
    frame = pytest.importorskip("lz4.frame")
    data = encode_record(record(QUEUE, 0, frame.compress(b"abc" * 99), sys_flag=0x101))
    assert rows(chunk_of(data), ("body", "bodyError")) == [{"body": b"abc" * 99, "bodyError": None}]


def test_batches_are_cut_where_bodies_inflate_to_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "INFLATED_BATCH_BYTES", 2500)
    packed = zlib.compress(b"x" * 1000)
    data = [
        encode_record(record(QUEUE, n, packed if n % 2 else b"plain", sys_flag=SysFlag.COMPRESSED if n % 2 else 0))
        for n in range(11)
    ]
    batches = decoded(chunk_of(*data))
    assert [batch.num_rows for batch in batches] == [5, 4, 2]
    bodies = [row["body"] for batch in batches for row in batch.to_pylist()]
    assert bodies == [b"x" * 1000 if n % 2 else b"plain" for n in range(11)]


def test_a_body_that_alone_inflates_to_too_much_has_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "INFLATED_BATCH_BYTES", 999)
    for count in (1, 2, 3):
        packed = zlib.compress(b"x" * 1000)
        data = [encode_record(record(QUEUE, n, packed, sys_flag=SysFlag.COMPRESSED)) for n in range(count)]
        assert [batch.num_rows for batch in decoded(chunk_of(*data))] == [1] * count


def test_a_body_that_fails_its_crc_is_refused() -> None:
    data = encode_record(record(QUEUE, 0, b"good"))
    with pytest.raises(BadRecord, match="CRC"):
        decoded(chunk_of(data.replace(b"good", b"evil")), ("body",))


@pytest.mark.parametrize(
    ("found", "missing"),
    [([0, 1, 3], 2), ([0, 1], 2), ([1, 2, 3], 0), ([0, 1, 2, 3], 3), ([0, 0, 1], 1)],
)
def test_offsets_that_are_not_those_asked_for_are_a_loss(found: list[int], missing: int) -> None:
    data = b"".join(encode_record(record(QUEUE, n)) for n in found)
    with pytest.raises(DataLoss, match=rf"asked for 0 to 3, {len(found)} messages came, and not that of {missing}"):
        decoded(Chunk(QUEUE, 0, 3, data))


def test_the_crc_of_an_empty_body_is_whatever_it_is() -> None:
    data = bytearray(encode_record(record(QUEUE, 0, b"")))
    data[8:12] = b"\xff" * 4
    chunk = chunk_of(bytes(data))
    assert rows(chunk) == expected(chunk)
    assert rows(chunk)[0]["bodyCrc"] == 0x7FFFFFFF


@pytest.mark.parametrize(
    ("at", "bits"), [(4, 1), (-1, 1), (-9, 0xFF), (39, 0x30)], ids=["magic", "properties", "topic", "hosts"]
)
def test_a_magic_or_a_length_that_is_not_right_is_refused(at: int, bits: int) -> None:
    data = bytearray(encode_record(record(QUEUE, 0, b"", properties={})))
    data[at] ^= bits
    with pytest.raises(BadRecord):
        decoded(chunk_of(bytes(data)))


@pytest.mark.parametrize(
    "other",
    [
        MessageQueue("orders", "a", 4),
        MessageQueue("border", "a", 3),
        MessageQueue("o", "a", 3),
        MessageQueue("orders2", "a", 3),
    ],
)
def test_messages_of_another_queue_are_a_loss(other: MessageQueue) -> None:
    with pytest.raises(DataLoss, match="another queue"):
        decoded(chunk_of(encode_record(record(other, 0))))
