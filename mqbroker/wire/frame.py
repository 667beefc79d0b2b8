"""Frames: how commands are cut out of a stream of bytes.

    4 bytes  length of all that follows
    1 byte   serialize type of the header (0 JSON, 1 ROCKETMQ)
    3 bytes  header length
    n bytes  header, then the body up to the end of the frame

Source: NettyDecoder and RemotingCommand of 4.9.7.
"""

from __future__ import annotations

import struct

from mqbroker.errors import BadFrame

#: The bound of a Java peer (`com.rocketmq.remoting.frameMaxLength`).
FRAME_BYTES_MAX = 16 * 1024 * 1024

JSON = 0
ROCKETMQ = 1

Frame = tuple[int, bytes, bytes]

_LENGTHS = struct.Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF


class FrameDecoder:
    """Cuts frames out of a stream; keeps what is not yet whole, never more than `frame_bytes_max`."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pending = bytearray()
        self._wanted = 8

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._pending)

    def clear(self) -> None:
        """Hold nothing any more; the stream is at its end."""
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, as (serialize type, header, body).

        Raises BadFrame on a length that no frame can have; the stream is of no use after that.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                self._check_first_length()
                return []
            data = bytes(self._pending)
            self._pending.clear()
        frames: list[Frame] = []
        at = 0
        end = len(data)
        while end - at >= 8:
            length, word = _LENGTHS.unpack_from(data, at)
            header_length = word & _HEADER_LENGTH_MASK
            if not 4 <= length <= self._frame_bytes_max:
                raise BadFrame(f"frame length {length} is not between 4 and {self._frame_bytes_max}")
            if header_length > length - 4:
                raise BadFrame(f"header length {header_length} in a frame of {length}")
            stop = at + 4 + length
            if stop > end:
                self._wanted = stop - at
                break
            body_at = at + 8 + header_length
            frames.append((word >> 24, data[at + 8 : body_at], data[body_at:stop]))
            at = stop
        else:
            self._wanted = 8
        if at < end:
            self._pending += data[at:] if at else data
            self._check_first_length()
        return frames

    def _check_first_length(self) -> None:
        """Refuse a hostile length as soon as its four bytes are there, before anything is collected for it."""
        if 4 <= len(self._pending) < 8:
            length = int.from_bytes(self._pending[:4], "big")
            if not 4 <= length <= self._frame_bytes_max:
                raise BadFrame(f"frame length {length} is not between 4 and {self._frame_bytes_max}")


def encode_frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return one whole frame. Raises BadFrame on a header too long for its length field."""
    if len(header) > _HEADER_LENGTH_MASK:
        raise BadFrame(f"header of {len(header)} bytes, {_HEADER_LENGTH_MASK} at most")
    return _LENGTHS.pack(4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body
