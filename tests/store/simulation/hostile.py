"""Messages as no honest client sends them: bytes that look like what a torn write, a crash or the store itself leaves.

All of them may be sent, so all of them are stored, got and recovered as they are.
"""

from __future__ import annotations

import struct
import zlib

from mqbroker.wire.record import BLANK_MAGIC, MAGIC, NewMessage

#: What a message of a batch may be. A forged record has the offset in the log that it really gets.
(
    HONEST,
    NUL_AT_END,
    NULS_INSIDE,
    SECTOR_OF_NULS,
    NO_TEXT,
    FORGED_PROPERTIES,
    NUL_BODY,
    FORGED_BODY,
    FILLER_BODY,
    ODD_TOPIC,
    LONG_TOPIC,
) = range(11)
KINDS = range(HONEST + 1, LONG_TOPIC + 1)
#: The body of a forged record. Where the head of what holds it rots, nobody can tell that it was none.
FORGED = b"forged by a sender"
#: The names of the last two kinds.
TOPICS = ("%a|B-_%", "x" * 127)
#: What any of them adds at most to a message besides its topic.
_ADDED_BYTES_MAX = 700
_RECORD = struct.Struct(">IIIiiqqiq8sq8siqi")


def size_of(message: NewMessage, store_host_bytes: int) -> int:
    """How long a message's record is."""
    return 72 + len(message[5]) + store_host_bytes + len(message[8]) + 1 + len(message[0]) + 2 + len(message[9])


def make_hostile(kind: int, message: NewMessage, start: int, hosts_bytes: int) -> NewMessage:
    """The message, hostile in one way, as it is stored at `start` of the log with hosts of so many bytes together."""
    topic, queue_id, flag, sys_flag, born_ms, born_host, reconsume, prepared, body, properties = message
    body_at = 72 + hosts_bytes
    body = body[: max(0, len(body) - _ADDED_BYTES_MAX)]
    if kind == NUL_AT_END:
        properties += b"\x02x\x01y\0"
    elif kind == NULS_INSIDE:
        properties = b"x\x01" + bytes(64) + b"\x02" + properties
    elif kind == SECTOR_OF_NULS:
        properties += b"\x02x\x01" + bytes(600)
    elif kind == NO_TEXT:
        properties = b"\xff\xfe\x01\x80\x02\x02\x01\x02\xc0\x01\x02" + properties + b"\x02\x01\xed\xa0\x80"
    elif kind == FORGED_PROPERTIES:
        at = start + body_at + len(body) + 1 + len(topic) + 2 + len(properties) + 3
        properties += b"\x02x\x01" + _forged(message, at)
    elif kind == NUL_BODY:
        body = bytes(len(body) + _ADDED_BYTES_MAX // 2)
    elif kind == FORGED_BODY:
        body = _forged(message, start + body_at) + body
    elif kind == FILLER_BODY:
        body = struct.pack(">II", len(body) + 8, BLANK_MAGIC) + body
    else:
        topic = TOPICS[kind - ODD_TOPIC].encode()
    return topic, queue_id, flag, sys_flag, born_ms, born_host, reconsume, prepared, body, properties


def _forged(message: NewMessage, at: int) -> bytes:
    """A record that is whole, and right for its place."""
    topic, queue_id = message[:2]
    tail = bytes((len(topic),)) + topic + b"\0\0"
    size = _RECORD.size + len(FORGED) + len(tail)
    head = _RECORD.pack(
        size, MAGIC, zlib.crc32(FORGED) & 0x7FFFFFFF, queue_id, 0, 0, at, 0, 0, bytes(8), 1795255600500, bytes(8), 0, 0,
        len(FORGED),
    )  # fmt: skip
    return head + FORGED + tail
