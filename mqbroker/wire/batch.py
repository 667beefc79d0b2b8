"""The body of SEND_BATCH_MESSAGE: messages of one topic and queue, one after another.

    4 size, 4 magic (0), 4 CRC (0), 4 flag, 4 body length, body, 2 properties length, properties

Source: MessageDecoder.encodeMessage of 4.9.7. Sizes are checked against the body's length before any slice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from mqbroker.errors import MQError
from mqbroker.wire.command import FRAME_BYTES_MAX
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")


class BadBatch(MQError):
    """A batch body with inconsistent sizes."""


class BatchEntry(NamedTuple):
    """One message of a batch; `properties` in their encoded form."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Return the body for `entries`. Raises BadBatch if properties exceed 32767 bytes."""
    parts: list[bytes] = []
    for flag, body, properties in entries:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise BadBatch(f"properties of {len(properties)} bytes, {PROPERTIES_BYTES_MAX} at most")
        size = _HEAD.size + len(body) + _PROPERTIES_LENGTH.size + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes, count_max: int = FRAME_BYTES_MAX) -> list[BatchEntry]:
    """Read all messages of a batch body. Raises BadBatch, also if they are more than `count_max`."""
    entries: list[BatchEntry] = []
    at = 0
    try:
        while at < len(data):
            if len(entries) >= count_max:
                raise BadBatch(f"more than {count_max} messages")
            size, _, _, flag, body_length = _HEAD.unpack_from(data, at)
            body_at = at + _HEAD.size
            properties_at = body_at + body_length + _PROPERTIES_LENGTH.size
            if body_length < 0 or properties_at > len(data):
                raise BadBatch(f"message at {at}: body of {body_length} bytes with {len(data) - body_at} left")
            (properties_length,) = _PROPERTIES_LENGTH.unpack_from(data, body_at + body_length)
            end = properties_at + properties_length
            if properties_length < 0 or end > len(data) or size != end - at:
                raise BadBatch(f"message at {at}: size {size} says other than its parts")
            entries.append(BatchEntry(flag, data[body_at : body_at + body_length], data[properties_at:end]))
            at = end
    except struct.error as error:
        raise BadBatch(f"message at {at} is cut short: {error}") from None
    return entries
