"""The commit log record, which is also what a pull answer carries.

    0  total size        4     | 28 physical offset   8     | ..  store host   8 or 20
    4  magic             4     | 36 sys flag          4     | ..  reconsume    4
    8  body CRC32        4     | 40 born timestamp    8     | ..  prepared     8
    12 queue id          4     | 48 born host   8 or 20     | ..  body         4 + n
    16 flag              4     | ..                         | ..  topic        1 + n
    20 queue offset      8     | 56 store timestamp   8     | ..  properties   2 + n

A host is its address (4 bytes, or 16 where the sys flag says so) and a 4-byte port. All numbers are big-endian.
Source: CommitLog and MessageDecoder of 4.9.7. This module never touches a file.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from mqbroker.errors import MQError
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties, reencode_properties

MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194

SIZE_OFFSET = 0
MAGIC_OFFSET = 4
BODY_CRC_OFFSET = 8
QUEUE_ID_OFFSET = 12
FLAG_OFFSET = 16
QUEUE_OFFSET_OFFSET = 20
PHYSICAL_OFFSET_OFFSET = 28
SYS_FLAG_OFFSET = 36
BORN_TIMESTAMP_OFFSET = 40
BORN_HOST_OFFSET = 48

#: A record of an empty body, topic and properties, with IPv4 hosts.
RECORD_BYTES_MIN = 91
#: The filler at the end of a segment: its size and magic.
BLANK_BYTES_MIN = 8
#: An inflated body larger than this is refused: no producer may send one.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

# Size to born timestamp; then each host by itself, since its length varies.
_HEAD = struct.Struct(">IIIiiqqiq")
_STORE_TIME = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
# All before the body, with IPv4 hosts.
_FIXED_V4 = struct.Struct(">IIIiiqqiq8sq8siqi")
_BLANK = struct.Struct(">II")
_INT = struct.Struct(">i")
# Sys flag and body size, with IPv4 hosts.
_FLAG_AND_BODY_V4 = struct.Struct(">36xi44xi")
_BODY_SIZE_OFFSET_V4 = 84
# Where a body of no bytes ends.
_BODY_END_V4 = 88
_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_HOST_V4 = struct.Struct(">4sI")
_HOST_V6 = struct.Struct(">16sI")

Host = tuple[str, int]


class BadRecord(MQError):
    """Bytes that are not a whole, undamaged record."""


@attrs.frozen
class Record:
    """One stored message. `body` is as stored, maybe compressed; times are ms since the epoch.

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


def encode_host(host: Host) -> bytes:
    """Return 8 bytes for an IPv4 host, 20 for an IPv6 one. Raises MQError where it is neither."""
    address, port = host
    try:
        if ":" in address:
            return _HOST_V6.pack(socket.inet_pton(socket.AF_INET6, address), port)
        return _HOST_V4.pack(socket.inet_pton(socket.AF_INET, address), port)
    except (OSError, ValueError, struct.error) as error:
        raise MQError(f"{address!r}:{port} is not an IP address and port: {error}") from error


def decode_host(data: bytes) -> Host:
    """The inverse of `encode_host`, of 8 or 20 bytes."""
    if len(data) == 8:
        raw, port = _HOST_V4.unpack(data)
        return socket.inet_ntop(socket.AF_INET, raw), port
    raw, port = _HOST_V6.unpack(data)
    return socket.inet_ntop(socket.AF_INET6, raw), port


def body_crc(body: bytes) -> int:
    """The CRC32 a record keeps: Java clears its sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def decode_record(data: bytes | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Read the record at `offset`. Raises BadRecord where it is cut short, inconsistent or fails its CRC."""
    try:
        return _decode(memoryview(data)[offset:], check_crc)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadRecord(f"record at {offset} is cut short or not text: {error}") from error


def _decode(data: memoryview, check_crc: bool) -> Record:
    (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp) = _HEAD.unpack_from(
        data
    )
    if magic != MAGIC:
        raise BadRecord(f"magic {magic:#x} where {MAGIC:#x} must be")
    if not RECORD_BYTES_MIN <= size <= len(data):
        raise BadRecord(f"size {size} with {len(data)} bytes at hand")
    data = data[:size]
    at = BORN_HOST_OFFSET
    host_bytes = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    born_host = decode_host(bytes(data[at : at + host_bytes]))
    at += host_bytes
    (store_timestamp,) = _STORE_TIME.unpack_from(data, at)
    at += 8
    host_bytes = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    store_host = decode_host(bytes(data[at : at + host_bytes]))
    at += host_bytes
    reconsume_times, prepared_offset, body_size = _TAIL.unpack_from(data, at)
    at += _TAIL.size
    if not 0 <= body_size <= size - at:
        raise BadRecord(f"body of {body_size} bytes in a record of {size}")
    body = bytes(data[at : at + body_size])
    at += body_size
    if check_crc and body and body_crc(body) != crc:
        raise BadRecord(f"body CRC {body_crc(body):#x} where the record says {crc:#x}")
    topic_end = at + 1 + data[at]
    topic = bytes(data[at + 1 : topic_end]).decode()
    properties_end = topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big")
    if properties_end != size:
        raise BadRecord(f"parts end at {properties_end} in a record of {size}")
    return Record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_size=size,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=body,
        body_crc=crc,
        properties=decode_properties(bytes(data[topic_end + 2 :])),
    )


def property_bytes(view: memoryview, at: int, size: int) -> bytes:
    """The property bytes of the whole record of `size` bytes at `at`, which they end. Hot.

    Something else where its parts are not as they must be.
    """
    try:
        sys_flag, body_bytes = _FLAG_AND_BODY_V4.unpack_from(view, at)
        place = at + _BODY_SIZE_OFFSET_V4
        if sys_flag & _V6:
            place += 12 * (bool(sys_flag & SysFlag.BORN_HOST_V6) + bool(sys_flag & SysFlag.STORE_HOST_V6))
            (body_bytes,) = _INT.unpack_from(view, place)
        place += 4 + body_bytes
        return view[place + 3 + view[place] : at + size].tobytes()
    except (struct.error, IndexError):
        return b""


def properties_of(buffer: Any, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """`property_bytes` of the records of some `sizes` at `offsets` less `base`. Hot.

    `buffer`: bytes, or a map of a file, of which they are had in half the time that a view takes.
    """
    unpack = _FLAG_AND_BODY_V4.unpack_from
    body_end, is_v6 = _BODY_END_V4, _V6  # which are quicker to come by than globals
    found: list[bytes] = []
    add = found.append
    for offset, size in zip(offsets, sizes, strict=True):
        at = offset - base
        try:
            sys_flag, body_bytes = unpack(buffer, at)
            if sys_flag & is_v6:
                add(property_bytes(memoryview(buffer), at, size))
            else:
                place = at + body_end + body_bytes
                add(buffer[place + 3 + buffer[place] : at + size])
        except (struct.error, IndexError):
            add(b"")
    return found


class RawRecord(NamedTuple):
    """What of a record is stored again with another: hosts and properties as they are."""

    size: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    reconsume_times: int
    body: bytes
    properties: bytes


def decode_raw(data: memoryview, offset: int) -> RawRecord:
    """As `decode_record`, and several times as fast: for who stores many again. Raises BadRecord."""
    if len(data) - offset < RECORD_BYTES_MIN:
        raise BadRecord(f"record at {offset} is cut short")
    (size, magic, crc, _, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
     _, reconsume_times, _, body_bytes) = _FIXED_V4.unpack_from(data, offset)  # fmt: skip
    if sys_flag & _V6:
        return _raw_of(decode_record(data, offset))
    if magic != MAGIC or not RECORD_BYTES_MIN <= size <= len(data) - offset:
        raise BadRecord(f"magic {magic:#x} and size {size} with {len(data) - offset} bytes at hand")
    record = data[offset : offset + size].tobytes()
    body_end = _FIXED_V4.size + body_bytes
    if not _FIXED_V4.size <= body_end <= size - 3:
        raise BadRecord(f"body of {body_bytes} bytes in a record of {size}")
    body = record[_FIXED_V4.size : body_end]
    if body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise BadRecord(f"body CRC is not {crc:#x}")
    at = body_end + 1 + record[body_end]
    if at + 2 > size or at + 2 + (record[at] << 8 | record[at + 1]) != size:
        raise BadRecord(f"parts do not end where a record of {size} does")
    return RawRecord(
        size, queue_offset, physical_offset, flag, sys_flag, born_timestamp, born_host, store_timestamp,
        reconsume_times, body, record[at + 2 :],
    )  # fmt: skip


def _raw_of(record: Record) -> RawRecord:
    return RawRecord(
        record.store_size, record.queue_offset, record.physical_offset, record.flag, record.sys_flag,
        record.born_timestamp, encode_host(record.born_host), record.store_timestamp, record.reconsume_times,
        record.body, reencode_properties(record.properties),
    )  # fmt: skip


def decode_records(data: bytes | memoryview, *, check_crc: bool = True) -> list[Record]:
    """Read records that stand one after another, as in a pull answer. Raises BadRecord at the first bad one."""
    view = memoryview(data)
    records = []
    at = 0
    while at < len(view):
        record = decode_record(view, at, check_crc=check_crc)
        records.append(record)
        at += record.store_size
    return records


def encode_record(record: Record) -> bytes:
    """Return the bytes of `record`: host flags follow the hosts, size and CRC are computed.

    Raises MQError on a topic or properties that do not fit their length fields.
    """
    topic = record.topic.encode()
    properties = encode_properties(record.properties)
    if len(topic) > 127 or len(properties) > PROPERTIES_BYTES_MAX:
        raise MQError(
            f"topic of {len(topic)} bytes (127 at most) or properties of {len(properties)} ({PROPERTIES_BYTES_MAX})"
        )
    born_host, store_host = encode_host(record.born_host), encode_host(record.store_host)
    sys_flag = record.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    sys_flag |= SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
    sys_flag |= SysFlag.STORE_HOST_V6 if len(store_host) == 20 else 0
    size = RECORD_BYTES_MIN - 16 + len(born_host) + len(store_host) + len(record.body) + len(topic) + len(properties)
    return b"".join(
        (
            _HEAD.pack(
                size,
                MAGIC,
                body_crc(record.body),
                record.queue_id,
                record.flag,
                record.queue_offset,
                record.physical_offset,
                sys_flag,
                record.born_timestamp,
            ),
            born_host,
            _STORE_TIME.pack(record.store_timestamp),
            store_host,
            _TAIL.pack(record.reconsume_times, record.prepared_offset, len(record.body)),
            record.body,
            bytes((len(topic),)),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of the filler that takes the last `size` bytes of a segment."""
    return _BLANK.pack(size, BLANK_MAGIC)


def record_body(record: Record) -> bytes:
    """The body as its producer gave it. Raises BadRecord where it does not inflate within INFLATED_BYTES_MAX."""
    return inflate_body(record.body, record.sys_flag)


def inflate_body(body: bytes, sys_flag: int) -> bytes:
    """Undo the compression that `sys_flag` names; 4.9 producers use zlib."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    if sys_flag & SysFlag.COMPRESSION_MASK not in (0, SysFlag.COMPRESSION_ZLIB):
        raise BadRecord(f"compression type {(sys_flag & SysFlag.COMPRESSION_MASK) >> 8} is not zlib")
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BadRecord(f"compressed body does not inflate: {error}") from error
    if not inflater.eof:
        raise BadRecord(f"compressed body is cut short or inflates beyond {INFLATED_BYTES_MAX} bytes")
    return inflated
