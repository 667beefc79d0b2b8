from __future__ import annotations

import contextlib
import mmap
import struct
import zlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import MQError
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.compression import UnreadableBody, decompress_body
from mqbroker.wire.properties import decode_properties
from mqbroker.wire.record import (
    BLANK_MAGIC,
    HEAD,
    MAGIC,
    OFFSETS,
    RECORD_BYTES_MIN,
    V6,
    BadRecord,
    RawRecord,
    Record,
    body_crc,
    decode_host,
    decode_raw,
    decode_record,
    decode_records,
    encode_blank,
    encode_host,
    encode_record,
    fields_struct,
    host_flags,
    properties_of,
    property_bytes,
    store_timestamp_at,
)
from tests.commands import decode_frame
from tests.numbers import numbers
from tests.record_page import PAGE, page_with, render
from tests.wire.conftest import GoldenFrame

# MessageDecoder.encode of 4.9.7, which leaves the CRC at 0: born on IPv6 and stored on IPv4; and both on IPv6 with
# 5000 bytes of body deflated.
JAVA_V6_BORN = bytes.fromhex(
    "00000083daa320a70000000000000003fffffffb00000002dfdc1c3500000016fee0e52d00000010000001a1fd91383620010db8000000"
    "0000000000000000010000c966000001a1fd91386bc000020700002a9f00000002000000000000004d0000000568656c6c6f07546f70"
    "6963563600106101e4b8ad024b455953016b31206b32"
)
JAVA_V6_BOTH = bytes.fromhex(
    "000000a6daa320a70000000000000003fffffffb00000002dfdc1c3500000016fee0e52d00000031000001a1fd91383620010db8000000"
    "0000000000000000010000c966000001a1fd91386bfe80000000000000000000000000abcd00002a9f00000002000000000000004d00"
    "00001c785eedc13101000000c2a0de4b6f0a3fa00000000080b701b6314f5807546f706963563600106101e4b8ad024b455953016b31"
    "206b32"
)
V6_BORN = Record(
    topic="TopicV6",
    queue_id=3,
    queue_offset=12345678901,
    physical_offset=98765432109,
    store_size=131,
    flag=-5,
    sys_flag=SysFlag.BORN_HOST_V6,
    born_timestamp=1795255515190,
    born_host=("2001:db8::1", 51558),
    store_timestamp=1795255515243,
    store_host=("192.0.2.7", 10911),
    reconsume_times=2,
    prepared_offset=77,
    body=b"hello",
    body_crc=0,
    properties={"a": "中", "KEYS": "k1 k2"},
)

PLAIN = attrs.evolve(V6_BORN, sys_flag=0, born_host=("127.0.0.1", 1), properties={"k": "v"}, topic="T")
#: Where the parts of PLAIN start: IPv4 hosts, a body of 5, a topic of 1, properties of 3.
BODY_LENGTH_AT, BODY_AT, TOPIC_AT, PROPERTIES_AT, PLAIN_SIZE = 84, 88, 93, 95, 100


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_the_golden_log_is_read_as_java_lists_it(golden_log: bytes, golden_listing: list[dict[str, Any]]) -> None:
    at = 0
    for line in golden_listing:
        record = decode_record(golden_log, at)
        assert record.topic == line["topic"]
        assert record.queue_id == line["queue_id"]
        assert record.queue_offset == line["queue_offset"]
        assert record.physical_offset == line["offset"] == at
        assert record.store_size == line["size"]
        assert record.flag == line["flag"]
        assert record.sys_flag == line["sys_flag"]
        assert record.born_timestamp == line["born_timestamp"]
        assert "{}:{}".format(*record.born_host) == line["born_host"]
        assert record.store_timestamp == line["store_timestamp"]
        assert "{}:{}".format(*record.store_host) == line["store_host"]
        assert record.reconsume_times == line["reconsume_times"]
        assert record.prepared_offset == line["prepared_transaction_offset"]
        assert record.body_crc == line["body_crc"] == body_crc(record.body)
        assert len(record.body) == line["stored_body_length"]
        assert record.properties == line["properties"]
        at += record.store_size
    assert golden_log[at : at + 8] == bytes(8)
    with pytest.raises(BadRecord, match="magic"):
        decode_record(golden_log, at)


def repeats_a_name(record: bytes) -> bool:
    """True for a message of a batch: Java appends the batch's properties to its own, and both may hold WAIT."""
    body_end = BODY_AT + int.from_bytes(record[BODY_LENGTH_AT:BODY_AT], "big")
    properties = record[body_end + 1 + record[body_end] + 2 :]
    names = [pair.split(b"\x01")[0] for pair in properties.split(b"\x02")]
    return len(set(names)) < len(names)


def test_the_golden_log_is_written_back_byte_for_byte(golden_log: bytes, golden_listing: list[dict[str, Any]]) -> None:
    end = golden_listing[-1]["offset"] + golden_listing[-1]["size"]
    records = decode_records(golden_log[:end])
    assert len(records) == len(golden_listing) == 343
    repeating = 0
    for record in records:
        stored = golden_log[record.physical_offset : record.physical_offset + record.store_size]
        written = encode_record(record)
        if repeats_a_name(stored):
            repeating += 1
            assert decode_record(written) == attrs.evolve(record, store_size=len(written))
        else:
            assert written == stored
    assert repeating == 100


def test_golden_answers_carry_whole_records(golden_frames: list[GoldenFrame]) -> None:
    found = 0
    for frame in golden_frames:
        command = decode_frame(frame.data)
        if command.is_response and command.code == 0 and frame.code in (11, 12, 33):
            records = decode_records(command.body)
            assert b"".join(map(encode_record, records)) == command.body
            found += len(records)
    assert found > 10


def test_a_record_of_java_with_an_ipv6_host() -> None:
    record = decode_record(JAVA_V6_BORN, check_crc=False)
    assert record == V6_BORN
    with_crc = changed(JAVA_V6_BORN, 8, struct.pack(">I", body_crc(b"hello")))
    assert encode_record(record) == with_crc
    assert decode_record(with_crc).body == b"hello"


def test_a_compressed_record_of_java_with_two_ipv6_hosts() -> None:
    record = decode_record(JAVA_V6_BOTH, check_crc=False)
    assert record.sys_flag == SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED
    assert record.store_host == ("fe80::abcd", 10911)
    assert decompress_body(record.body, record.sys_flag) == b"z" * 5000
    assert encode_record(record)[12:] == JAVA_V6_BOTH[12:]


def test_the_layout_of_the_head() -> None:
    assert (MAGIC, BLANK_MAGIC) == (0xDAA320A7, 0xCBD43194)
    data = encode_record(PLAIN)
    assert len(data) == PLAIN_SIZE
    for name, form, wanted in [
        ("size", ">I", PLAIN_SIZE),
        ("magic", ">I", MAGIC),
        ("body_crc", ">I", body_crc(b"hello")),
        ("queue_id", ">i", 3),
        ("flag", ">i", -5),
        ("queue_offset", ">q", 12345678901),
        ("physical_offset", ">q", 98765432109),
        ("sys_flag", ">i", 0),
        ("born_timestamp", ">q", 1795255515190),
        ("born_host", ">I", 0x7F000001),
        ("store_timestamp", ">q", 1795255515243),
        ("store_host", ">I", 0xC0000207),
        ("reconsume_times", ">i", 2),
        ("prepared_offset", ">q", 77),
        ("body_size", ">i", 5),
    ]:
        assert struct.unpack_from(form, data, OFFSETS[name]) == (wanted,)
        assert fields_struct(name).unpack_from(data)[0] in (wanted, data[OFFSETS[name] : OFFSETS[name] + 8])
    assert fields_struct("queue_id", "body_size").unpack_from(data) == (3, 5)
    assert OFFSETS["body_size"] == BODY_LENGTH_AT
    assert HEAD.size == BODY_AT
    empty = attrs.evolve(PLAIN, topic="", body=b"", properties={})
    assert len(encode_record(empty)) == RECORD_BYTES_MIN == 91


def test_the_docs_draw_the_record_as_the_layout_has_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(render(), page), "write it anew: python -m tests.record_page"


def test_hosts_of_other_lengths_have_no_flags() -> None:
    assert host_flags(bytes(8), bytes(20)) == SysFlag.STORE_HOST_V6
    for hosts in [(b"", bytes(8)), (bytes(8), bytes(21))]:
        with pytest.raises(ValueError, match="hosts of"):
            host_flags(*hosts)


def test_the_store_timestamp_whatever_the_hosts() -> None:
    for data in (encode_record(PLAIN), JAVA_V6_BORN, JAVA_V6_BOTH):
        assert store_timestamp_at(memoryview(b"x" + data), 1) == 1795255515243


def test_a_blank() -> None:
    assert encode_blank(100) == struct.pack(">II", 100, BLANK_MAGIC)
    with pytest.raises(BadRecord):
        decode_record(encode_blank(100) + bytes(92))


def test_host_flags_follow_the_hosts() -> None:
    lying = attrs.evolve(PLAIN, sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.TRANSACTION_COMMIT)
    assert decode_record(encode_record(lying)).sys_flag == SysFlag.TRANSACTION_COMMIT
    lying = attrs.evolve(PLAIN, sys_flag=0, store_host=("::1", 1))
    assert decode_record(encode_record(lying)).sys_flag == SysFlag.STORE_HOST_V6


def test_records_from_a_memoryview_at_an_offset() -> None:
    data = b"xyz" + encode_record(PLAIN) + b"tail"
    wanted = attrs.evolve(PLAIN, store_size=PLAIN_SIZE, body_crc=body_crc(b"hello"))
    assert decode_record(memoryview(data), 3) == wanted
    assert decode_records(memoryview(data)[3:-4]) == [wanted]
    assert type(wanted.body) is bytes
    assert decode_records(b"") == []


BAD = {
    "size 0": (0, struct.pack(">I", 0)),
    "size below the smallest": (0, struct.pack(">I", RECORD_BYTES_MIN - 1)),
    "size one too small": (0, struct.pack(">I", PLAIN_SIZE - 1)),
    "size one too large": (0, struct.pack(">I", PLAIN_SIZE + 1)),
    "size of 2 GiB": (0, struct.pack(">I", 2**31 - 1)),
    "negative size": (0, struct.pack(">i", -1)),
    "other magic": (4, struct.pack(">I", MAGIC + 1)),
    "blank magic": (4, struct.pack(">I", BLANK_MAGIC)),
    "other CRC": (8, struct.pack(">I", body_crc(b"hello") ^ 1)),
    "CRC with its sign": (8, struct.pack(">I", body_crc(b"hello") | 0x80000000)),
    "IPv6 flag on an IPv4 host": (36, struct.pack(">i", SysFlag.BORN_HOST_V6)),
    "both IPv6 flags": (36, struct.pack(">i", SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)),
    "negative body length": (BODY_LENGTH_AT, struct.pack(">i", -1)),
    "most negative body length": (BODY_LENGTH_AT, struct.pack(">i", -(2**31))),
    "body one shorter": (BODY_LENGTH_AT, struct.pack(">i", 4)),
    "body one longer": (BODY_LENGTH_AT, struct.pack(">i", 6)),
    "body to the end": (BODY_LENGTH_AT, struct.pack(">i", PLAIN_SIZE - BODY_AT)),
    "body to before the end": (BODY_LENGTH_AT, struct.pack(">i", PLAIN_SIZE - BODY_AT - 1)),
    "body over the end": (BODY_LENGTH_AT, struct.pack(">i", PLAIN_SIZE - BODY_AT + 1)),
    "body of 2 GiB": (BODY_LENGTH_AT, struct.pack(">i", 2**31 - 1)),
    "a flipped bit in the body": (BODY_AT, b"i"),
    "topic of 0": (TOPIC_AT, b"\0"),
    "topic to the end": (TOPIC_AT, b"\x06"),
    "topic to before the end": (TOPIC_AT, b"\x05"),
    "topic over the end": (TOPIC_AT, b"\xff"),
    "topic not UTF-8": (TOPIC_AT + 1, b"\xff"),
    "properties one shorter": (PROPERTIES_AT, b"\0\x02"),
    "properties one longer": (PROPERTIES_AT, b"\0\x04"),
    "properties of 65535": (PROPERTIES_AT, b"\xff\xff"),
}


@pytest.mark.parametrize(("at", "new"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("behind", [b"", bytes(500), None], ids=["alone", "before zeros", "before another"])
def test_a_damaged_record_is_refused(at: int, new: bytes, behind: bytes | None) -> None:
    data = changed(encode_record(PLAIN), at, new)
    with pytest.raises(BadRecord):
        decode_record(data + (encode_record(PLAIN) if behind is None else behind))


def test_a_body_length_that_leads_back_is_refused() -> None:
    # Topic and properties would be read from the prepared offset: an empty topic and 17 bytes to the end.
    data = encode_record(attrs.evolve(PLAIN, prepared_offset=(PLAIN_SIZE - 83) << 8))
    with pytest.raises(BadRecord, match="body of -8 bytes"):
        decode_record(changed(data, BODY_LENGTH_AT, struct.pack(">i", -8)))


def test_every_truncation_is_refused() -> None:
    for whole in (encode_record(PLAIN), encode_record(V6_BORN)):
        for length in range(len(whole)):
            with pytest.raises(BadRecord):
                decode_record(whole[:length])
            if length:
                with pytest.raises(BadRecord):
                    decode_records(whole + whole[:length])


def test_every_record_size_around_its_parts_is_refused() -> None:
    whole = encode_record(PLAIN)
    for length in range(RECORD_BYTES_MIN, PLAIN_SIZE):
        with pytest.raises(BadRecord):
            decode_record(changed(whole, 0, struct.pack(">I", length))[:length], check_crc=False)


def test_without_the_crc_check_a_damaged_body_passes() -> None:
    data = changed(encode_record(PLAIN), BODY_AT, b"i")
    assert decode_record(data, check_crc=False).body == b"iello"
    with pytest.raises(BadRecord, match="CRC"):
        decode_record(data)
    with pytest.raises(BadRecord, match="CRC"):
        decode_records(data)
    assert decode_records(data, check_crc=False)[0].body == b"iello"


def test_the_crc_loses_its_sign_bit() -> None:
    signed = next(body for body in (b"%d" % n for n in range(100)) if zlib.crc32(body) >> 31)
    assert body_crc(signed) == zlib.crc32(signed) - 2**31


def test_the_longest_topic_and_properties() -> None:
    longest = attrs.evolve(PLAIN, topic="t" * 127, properties={"k": "v" * (32767 - 2)})
    assert decode_record(encode_record(longest)).properties == longest.properties
    for too_long in (attrs.evolve(PLAIN, topic="t" * 128), attrs.evolve(PLAIN, properties={"k": "v" * (32768 - 2)})):
        with pytest.raises(MQError, match="at most"):
            encode_record(too_long)
    with pytest.raises(MQError):
        encode_record(attrs.evolve(PLAIN, topic="中" * 43))


def test_properties_with_separators_are_refused() -> None:
    with pytest.raises(MQError):
        encode_record(attrs.evolve(PLAIN, properties={"a": "b\x02c"}))


@pytest.mark.parametrize(
    ("host", "data"),
    [
        (("127.0.0.1", 10911), "7f000001" + "00002a9f"),
        (("255.255.255.255", 2**32 - 1), "ffffffff" + "ffffffff"),
        (("::", 0), "00" * 16 + "00000000"),
        (("2001:db8::1", 10911), "20010db8000000000000000000000001" + "00002a9f"),
        (("::ffff:192.0.2.7", 1), "00000000000000000000ffffc0000207" + "00000001"),
    ],
)
def test_hosts(host: tuple[str, int], data: str) -> None:
    assert encode_host(host).hex() == data
    assert decode_host(bytes.fromhex(data)) == host


@pytest.mark.parametrize(
    "host",
    [
        ("", 1),
        ("localhost", 1),
        ("1.2.3", 1),
        ("1.2.3.256", 1),
        ("1.2.3.4 ", 1),
        ("1.2.3.4\0", 1),
        ("1::2::3", 1),
        (":", 1),
        ("::1\0", 1),
        ("\ud800", 1),
        ("中:", 1),
        ("1.2.3.4", -1),
        ("::1", 2**32),
    ],
)
def test_what_is_no_host_is_refused(host: tuple[str, int]) -> None:
    with pytest.raises(MQError, match="not an IP address and port"):
        encode_host(host)


ports = numbers(0, 2**32 - 1)
hosts = st.tuples(st.ip_addresses().map(lambda address: address.compressed), ports).map(
    lambda host: decode_host(encode_host(host))
)
int32s = numbers(-(2**31), 2**31 - 1)
int64s = numbers(-(2**63), 2**63 - 1)
words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=10)
records = st.builds(
    Record,
    topic=st.text(max_size=31),
    queue_id=int32s,
    queue_offset=int64s,
    physical_offset=int64s,
    store_size=st.just(0),
    flag=int32s,
    sys_flag=int32s,
    born_timestamp=int64s,
    born_host=hosts,
    store_timestamp=int64s,
    store_host=hosts,
    reconsume_times=int32s,
    prepared_offset=int64s,
    body=st.binary(max_size=50),
    body_crc=st.just(0),
    properties=st.dictionaries(words, words, max_size=5),
)


@given(st.lists(records, max_size=4))
def test_any_records_survive(batch: list[Record]) -> None:
    pieces = [encode_record(record) for record in batch]
    decoded = decode_records(b"".join(pieces))
    for record, piece, back in zip(batch, pieces, decoded, strict=True):
        flags = record.sys_flag & ~V6
        flags |= SysFlag.BORN_HOST_V6 if ":" in record.born_host[0] else 0
        flags |= SysFlag.STORE_HOST_V6 if ":" in record.store_host[0] else 0
        assert back == attrs.evolve(
            record, store_size=len(piece), sys_flag=flags, body_crc=zlib.crc32(record.body) & 0x7FFFFFFF
        )
        assert encode_record(back) == piece


def decodes_or_is_refused(data: bytes) -> None:
    for check_crc in (True, False):
        try:
            record = decode_record(data, check_crc=check_crc)
        except BadRecord:
            continue
        assert RECORD_BYTES_MIN <= record.store_size <= len(data)
        with contextlib.suppress(UnreadableBody):
            decompress_body(record.body, record.sys_flag)
        with contextlib.suppress(BadRecord):
            decode_records(data, check_crc=check_crc)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_nothing_but_bad_record(data: bytes, with_head: bool) -> None:
    if with_head:
        data = struct.pack(">II", RECORD_BYTES_MIN + len(data) % 40, MAGIC) + bytes(20) + data
    decodes_or_is_refused(data)


SEEDS = [encode_record(PLAIN), JAVA_V6_BORN, JAVA_V6_BOTH, encode_record(PLAIN) * 2]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(numbers(0, 300), numbers(0, 255)), min_size=1, max_size=4))
def test_mutated_records_raise_nothing_but_bad_record(seed: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(seed)
    for at, byte in changes:
        data[at % len(data)] = byte
    decodes_or_is_refused(bytes(data))


@pytest.mark.parametrize("seed", SEEDS[:3], ids=["IPv4", "IPv6 born", "IPv6 both"])
def test_each_byte_of_a_record_may_be_anything(seed: bytes) -> None:
    for at in range(len(seed)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF, seed[at] ^ 1, (seed[at] + 1) & 0xFF, (seed[at] - 1) & 0xFF):
            decodes_or_is_refused(changed(seed, at, bytes([byte])))


@pytest.mark.parametrize("host", [("10.0.0.1", 1), ("::1", 1)])
@pytest.mark.parametrize("other", [("10.0.0.1", 1), ("::1", 1)])
def test_property_bytes_of_a_whole_record(
    golden_log: bytes, golden_listing: list[dict[str, Any]], host: tuple[str, int], other: tuple[str, int]
) -> None:
    record = decode_record(golden_log, golden_listing[0]["offset"])
    data = encode_record(attrs.evolve(record, born_host=host, store_host=other, properties={"a": "1", "b": "2"}))
    assert property_bytes(memoryview(b"xx" + data + b"xx"), 2, len(data)) == b"a\x011\x02b\x012"


def test_property_bytes_of_many_records(golden_log: bytes, golden_listing: list[dict[str, Any]]) -> None:
    records = [golden_log[row["offset"] : row["offset"] + row["size"]] for row in golden_listing]
    records += [JAVA_V6_BORN, JAVA_V6_BOTH, b"\xff" * 100, b"\x7f" * 200, b"", b"x" * 40]
    offsets = [sum(map(len, records[:i])) for i in range(len(records))]
    with mmap.mmap(-1, 300 + offsets[-1]) as buffer:
        buffer[200 : 200 + offsets[-1] + 40] = b"".join(records)
        found = properties_of(buffer, 1000, [1200 + offset for offset in offsets], list(map(len, records)))
        view = memoryview(bytes(buffer))
    assert found == [
        property_bytes(view, 200 + offset, len(data)) for offset, data in zip(offsets, records, strict=True)
    ]
    assert found[0]


def test_property_bytes_of_what_is_no_record() -> None:
    assert property_bytes(memoryview(b"\xff" * 60), 0, 60) == b""
    assert property_bytes(memoryview(b"\x7f" * 200), 0, 200) == b""
    assert property_bytes(memoryview(b""), 0, 0) == b""


def raw_or_none(data: bytearray, offset: int = 0) -> RawRecord | None:
    try:
        return decode_raw(memoryview(data), offset)
    except BadRecord:
        return None


@pytest.mark.parametrize("born", [("10.0.0.1", 1), ("fe80::1", 2)])
@pytest.mark.parametrize("store", [("10.0.0.9", 3), ("::1", 4)])
@pytest.mark.parametrize("body", [b"", b"x" * 300])
def test_a_raw_record_is_the_record(born: tuple[str, int], store: tuple[str, int], body: bytes) -> None:
    record = attrs.evolve(PLAIN, born_host=born, store_host=store, body=body)
    data = b"before" + encode_record(record) + b"after"
    found, raw = decode_record(data, 6), decode_raw(memoryview(data), 6)
    assert raw.size == found.store_size == len(data) - 11
    assert raw.born_host == encode_host(born)
    assert decode_properties(raw.properties) == found.properties
    names = ["queue_offset", "physical_offset", "flag", "sys_flag", "born_timestamp", "store_timestamp",
             "reconsume_times", "body"]  # fmt: skip
    assert [getattr(raw, name) for name in names] == [getattr(found, name) for name in names]


@given(numbers(0, 10_000), numbers(0, 255), numbers(0, 400))
def test_a_raw_record_that_is_broken_is_refused_as_the_record_is(at: int, byte: int, length: int) -> None:
    """But where bytes are wrong that it does not look at."""
    whole = encode_record(attrs.evolve(PLAIN, body=b"some body"))
    data = bytearray(whole)
    data[at % len(data)] = byte
    del data[length:]
    raw = raw_or_none(data)
    try:
        record = decode_record(bytes(data))
    except BadRecord:
        record = None
    if record is not None:
        assert raw is not None
        assert (raw.size, raw.body) == (record.store_size, record.body)
    elif raw is not None:
        assert (raw.size, raw.body) == (len(whole), b"some body")
