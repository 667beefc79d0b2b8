"""The commit log record, which pull responses carry too: its layout as data, its reader and its writers.

`HEAD_FIELDS` and `TAIL_LENGTHS` are the layout; Structs, numpy dtypes and the drawing in
docs/reference/formats.rst are derived from them. All numbers are big-endian. Source: CommitLog and MessageDecoder of
4.9.7. No file access here.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct, calcsize
from struct import error as struct_error
from typing import Any, NamedTuple

import attrs

from mqbroker.errors import MQError
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties

MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
MAGIC_BYTES = MAGIC.to_bytes(4, "big")


class Field(NamedTuple):
    """A field of the record: its name, its Struct code, and its meaning."""

    name: str
    code: str
    what: str


#: The fields before the body, with IPv4 hosts. A host is an address and a port of four bytes.
HEAD_FIELDS = (
    Field("size", "I", "of the whole record, in bytes"),
    Field("magic", "I", "daa320a7"),
    Field("body_crc", "I", "CRC32 of the body without its highest bit"),
    Field("queue_id", "i", "of the queue, among those of its topic"),
    Field("flag", "i", "the producer's"),
    Field("queue_offset", "q", "the message's number in its queue; 0 of a half message"),
    Field("physical_offset", "q", "where the record starts in the log"),
    Field("sys_flag", "i", "compression, transaction, and which hosts are IPv6"),
    Field("born_timestamp", "q", "when it was sent, in ms"),
    Field("born_host", "8s", "20 bytes where it is IPv6"),
    Field("store_timestamp", "q", "when it was stored, in ms"),
    Field("store_host", "8s", "20 bytes where it is IPv6"),
    Field("reconsume_times", "i", "how often a consumer sent it back"),
    Field(
        "prepared_offset",
        "q",
        "of the committed half message; -1 - n for a delayed or half message stored again",
    ),
    Field("body_size", "i", "the body follows"),
)
#: The length fields behind the body, each followed by that many bytes.
TAIL_LENGTHS = (
    Field("topic_size", "B", "the topic follows"),
    Field("properties_size", "H", "the properties follow, up to the end"),
)
#: The sys flag bits that make a host longer, and their fields.
V6_FIELDS = {SysFlag.BORN_HOST_V6: "born_host", SysFlag.STORE_HOST_V6: "store_host"}
V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
#: Layout of a host by its length in bytes.
_HOSTS = {8: Struct(">4sI"), 20: Struct(">16sI")}

#: Offset of each field of the head, with IPv4 hosts.
OFFSETS = dict(
    zip(
        [field.name for field in HEAD_FIELDS],
        accumulate([calcsize(f">{field.code}") for field in HEAD_FIELDS], initial=0),
        strict=False,
    )
)


def _head_struct(v6: int) -> Struct:
    longer = {name for flag, name in V6_FIELDS.items() if v6 & flag}
    return Struct(">" + "".join("20s" if field.name in longer else field.code for field in HEAD_FIELDS))


def fields_struct(*names: str) -> Struct:
    """A Struct of some fields, in their order, of a record with IPv4 hosts."""
    codes = [field.code if field.name in names else f"{calcsize('>' + field.code)}x" for field in HEAD_FIELDS]
    last = [field.name for field in HEAD_FIELDS].index(names[-1])
    return Struct(">" + "".join(codes[: last + 1]))


def numpy_fields(first: str, last: str) -> list[tuple[str, str]]:
    """The fields from `first` to `last` for numpy.dtype, with IPv4 hosts as numbers of 8 bytes."""
    names = list(OFFSETS)
    codes = {"I": ">u4", "i": ">i4", "q": ">i8", "8s": ">u8"}
    return [(field.name, codes[field.code]) for field in HEAD_FIELDS[names.index(first) : names.index(last) + 1]]


#: The heads by the sys flag's bits of V6.
HEADS = {v6: _head_struct(v6) for v6 in (0, SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, V6)}
HEAD = HEADS[0]
SIZE_AND_MAGIC = fields_struct("size", "magic")
#: A record of an empty body, topic and properties, with IPv4 hosts.
RECORD_BYTES_MIN = HEAD.size + sum(calcsize(f">{field.code}") for field in TAIL_LENGTHS)
#: The filler at the end of a segment: its size and magic.
BLANK_BYTES_MIN = SIZE_AND_MAGIC.size

#: The longest topic: Java reads its length as a signed byte.
TOPIC_BYTES_MAX = 127

_BODY_OFFSET = HEAD.size
_TAIL_BYTES_MIN = RECORD_BYTES_MIN - HEAD.size
_SYS_FLAG_AND_BODY_SIZE = fields_struct("sys_flag", "body_size")
_SYS_FLAG_AND_STORE_TIME = fields_struct("sys_flag", "store_timestamp")

Host = tuple[str, int]


class BadRecord(MQError):
    """Bytes that are not a whole, valid record."""


def encode_host(host: Host) -> bytes:
    """Return 8 bytes for an IPv4 host, 20 for an IPv6 one. Raises MQError if it is neither."""
    address, port = host
    family, size = (socket.AF_INET6, 20) if ":" in address else (socket.AF_INET, 8)
    try:
        return _HOSTS[size].pack(socket.inet_pton(family, address), port)
    except (OSError, ValueError, struct_error) as error:
        raise MQError(f"{address!r}:{port} is not an IP address and port: {error}") from error


def decode_host(data: bytes) -> Host:
    """The inverse of `encode_host`, of 8 or 20 bytes."""
    family, size = (socket.AF_INET, 8) if len(data) == 8 else (socket.AF_INET6, 20)
    address, port = _HOSTS[size].unpack(data)
    return socket.inet_ntop(family, address), port


#: By the lengths of the hosts.
_HOST_FLAGS = {
    (8, 8): 0,
    (20, 8): SysFlag.BORN_HOST_V6,
    (8, 20): SysFlag.STORE_HOST_V6,
    (20, 20): SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6,
}


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The sys flag bits for the lengths of the hosts. Raises ValueError on any other length."""
    lengths = len(born_host), len(store_host)
    if lengths not in _HOST_FLAGS:
        raise ValueError(f"hosts of {lengths} bytes")
    return _HOST_FLAGS[lengths]


def body_crc(body: bytes | memoryview) -> int:
    """The CRC32 of a record's body: Java clears its sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


# Reading


class RawRecord(NamedTuple):
    """One stored message, undecoded: the fields of the head, then body, topic and properties."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_size: int
    body: bytes
    topic: bytes
    properties: bytes


def decode_raw(
    data: bytes | memoryview, offset: int = 0, physical_offset: int | None = None, *, check_crc: bool = True
) -> RawRecord:
    """Read the record at `offset`, whose own physical offset must be `physical_offset`, if given. Raises BadRecord if
    it is truncated, inconsistent or fails its CRC."""
    room = len(data) - offset
    if room < RECORD_BYTES_MIN:
        raise BadRecord(f"record at {offset} is cut short: {room} bytes are left")
    head = HEAD.unpack_from(data, offset)
    (size, magic, crc, _, _, _, own_offset, sys_flag, _, _, _, _, _, _, body_size) = head
    if magic != MAGIC:
        raise BadRecord(f"magic {magic:#x}")
    if not RECORD_BYTES_MIN <= size <= room:
        raise BadRecord(f"size {size} with {room} bytes left")
    if own_offset != physical_offset and physical_offset is not None:
        raise BadRecord(f"a record of offset {own_offset}")
    body_at = _BODY_OFFSET
    if sys_flag & V6:
        longer = HEADS[sys_flag & V6]
        body_at = longer.size
        if body_at > size:
            raise BadRecord("hosts do not fit")
        head = longer.unpack_from(data, offset)
        body_size = head[-1]
    record = bytes(data[offset : offset + size])
    if not 0 <= body_size <= size - body_at - _TAIL_BYTES_MIN:
        raise BadRecord(f"body of {body_size} bytes in a record of {size}")
    body_end = body_at + body_size
    body = record[body_at:body_end]
    if check_crc and body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise BadRecord("body CRC differs")
    topic_end = body_end + 1 + record[body_end]
    if topic_end + 2 > size or topic_end + 2 + (record[topic_end] << 8 | record[topic_end + 1]) != size:
        raise BadRecord("parts do not add up to the size")
    return RawRecord._make((*head, body, record[body_end + 1 : topic_end], record[topic_end + 2 :]))


@attrs.frozen
class Record:
    """One stored message. `body` is as stored, possibly compressed; times are ms since the epoch.

    `queue_offset` counts entries of its queue, `physical_offset` bytes of the log.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_offset: int
    body: bytes
    body_crc: int
    properties: Mapping[str, str] = attrs.field(factory=dict)


def decode_record(data: bytes | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the record at `offset`. Raises BadRecord as `decode_raw`, and if the topic is not UTF-8."""
    raw = decode_raw(data, offset, check_crc=check_crc)
    try:
        topic = raw.topic.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"the topic of the record at {offset} is not text: {error}") from None
    return Record(
        topic=topic,
        queue_id=raw.queue_id,
        queue_offset=raw.queue_offset,
        physical_offset=raw.physical_offset,
        store_size=raw.size,
        flag=raw.flag,
        sys_flag=raw.sys_flag,
        born_timestamp=raw.born_timestamp,
        born_host=decode_host(raw.born_host),
        store_timestamp=raw.store_timestamp,
        store_host=decode_host(raw.store_host),
        reconsume_times=raw.reconsume_times,
        prepared_offset=raw.prepared_offset,
        body=raw.body,
        body_crc=raw.body_crc,
        properties=decode_properties(raw.properties),
    )


def decode_records(data: bytes | memoryview, *, check_crc: bool = True) -> list[Record]:
    """Decode consecutive records, as in a pull response. Raises BadRecord at the first bad one."""
    records = []
    at = 0
    while at < len(data):
        record = decode_record(data, at, check_crc=check_crc)
        records.append(record)
        at += record.store_size
    return records


def store_timestamp_at(data: memoryview, at: int) -> int:
    """Store timestamp of the record at `at`, which is known to be valid, ms."""
    timestamp: int
    sys_flag, timestamp = _SYS_FLAG_AND_STORE_TIME.unpack_from(data, at)
    if sys_flag & SysFlag.BORN_HOST_V6:
        timestamp = HEADS[sys_flag & V6].unpack_from(data, at)[10]
    return timestamp


def property_bytes(buffer: Any, at: int, size: int) -> bytes:
    """The property bytes of the record of `size` bytes at `at`, which they end. Hot.

    Arbitrary bytes if the record is inconsistent. `buffer`: bytes, or a map of a file, which takes half the time of a
    view.
    """
    try:
        sys_flag, body_size = _SYS_FLAG_AND_BODY_SIZE.unpack_from(buffer, at)
        body_at = _BODY_OFFSET
        if sys_flag & V6:
            longer = HEADS[sys_flag & V6]
            body_at, body_size = longer.size, longer.unpack_from(buffer, at)[-1]
        place = at + body_at + body_size
        return bytes(buffer[place + 3 + buffer[place] : at + size])
    except (struct_error, IndexError):
        return b""


def properties_of(buffer: Any, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """`property_bytes` of the records of some `sizes` at `offsets` less `base`. Hot."""
    unpack = _SYS_FLAG_AND_BODY_SIZE.unpack_from
    body_at, v6 = _BODY_OFFSET, V6  # faster than globals
    found: list[bytes] = []
    add = found.append
    for offset, size in zip(offsets, sizes, strict=True):
        at = offset - base
        try:
            sys_flag, body_size = unpack(buffer, at)
            if sys_flag & v6:
                add(property_bytes(buffer, at, size))
            else:
                place = at + body_at + body_size
                add(buffer[place + 3 + buffer[place] : at + size])
        except (struct_error, IndexError):
            add(b"")
    return found


# Writing

#: topic, queue id, flag, sys flag, born timestamp (ms), born host (8 or 20 bytes), reconsume times, prepared offset,
#: body, properties.
NewMessage = tuple[bytes, int, int, int, int, bytes, int, int, bytes, bytes]


def encode_record(record: Record) -> bytes:
    """Return the bytes of `record`: host flags, size and CRC are computed.

    Raises MQError if topic or properties do not fit their length fields.
    """
    topic = record.topic.encode()
    properties = encode_properties(record.properties)
    if len(topic) > TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
        raise MQError(
            f"topic of {len(topic)} bytes ({TOPIC_BYTES_MAX} at most) or properties of {len(properties)} "
            f"({PROPERTIES_BYTES_MAX})"
        )
    message = (
        topic, record.queue_id, record.flag, record.sys_flag, record.born_timestamp, encode_host(record.born_host),
        record.reconsume_times, record.prepared_offset, record.body, properties,
    )  # fmt: skip
    parts, _ = record_parts(
        message, record.queue_offset, record.physical_offset, record.store_timestamp, encode_host(record.store_host)
    )
    return b"".join(parts)


def record_parts(
    message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int, store_host: bytes
) -> tuple[tuple[bytes, bytes, bytes, bytes], int]:
    """A record: its head, the body, what lies between, and the properties; and the size. Host flags, size and CRC are
    computed. Raises ValueError, TypeError and struct.error on values that do not fit their fields."""
    topic, queue_id, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset, body, properties = message
    v6 = host_flags(born_host, store_host)
    head, tail = HEADS[v6], encode_tail(topic, len(properties))
    size = head.size + len(body) + len(tail) + len(properties)
    packed = head.pack(
        size, MAGIC, body_crc(body), queue_id, flag, queue_offset, physical_offset, sys_flag & ~V6 | v6, born_ms,
        born_host, store_timestamp, store_host, reconsume_times, prepared_offset, len(body),
    )  # fmt: skip
    return (packed, body, tail, properties), size


@lru_cache(4096)  # one topic's messages have few lengths of properties: a commit of a half message encodes two records
def encode_tail(topic: bytes, properties_bytes: int) -> bytes:
    """The bytes between body and properties, for so many bytes of properties. Raises ValueError if they do not fit
    their length fields."""
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {properties_bytes} bytes: at most {PROPERTIES_BYTES_MAX} fit a record")
    return bytes((len(topic),)) + topic + properties_bytes.to_bytes(2, "big")


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of the filler of the last `size` bytes of a segment."""
    return SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)
