"""The checkpoint file: up to where log, consume queues and index are known to be on the disk.

    0   store timestamp of the log's last synced message    8 | 24  magic                     8
    8   ... of the last in a synced consume queue           8 | 32  offsets of the same three 24
    16  ... of the last in a synced index                   8 | 56  CRC32 of bytes 0 to 56    4

    60  number of consume queues                            8 | 68  sum of their next offsets 8
    76  CRC32 of bytes 0 to 76                              4

The first three are the Java broker's, which looks at nothing else and leaves the rest as it is: the CRCs tell whether
the rest belongs to the timestamps. The tally of queues is of all that is in the log below the offset of the queues;
where there is none, nobody knows. Must never know when it is written.
"""

from __future__ import annotations

import zlib
from struct import Struct

import attrs

CHECKPOINT_BYTES = 4096
#: Java stamps a flush with the newest message it saw, which may not have been part of it.
_JAVA_MARGIN_MS = 3000
#: It syncs all of the consume queues this often, and stamps them with the newest message that is in one at all.
_JAVA_QUEUES_MARGIN_MS = 60_000
_TIMES = Struct(">qqq")
_OFFSETS = Struct(">8sqqq")
_CRC = Struct(">I")
_MAGIC = b"MQBcp\x00\x00\x01"
_CRC_AT = _TIMES.size + _OFFSETS.size
_TALLY = Struct(">qq")
TALLY_AT = _CRC_AT + _CRC.size
_TALLY_CRC_AT = TALLY_AT + _TALLY.size


@attrs.frozen
class Checkpoint:
    """Timestamps in ms. All messages below the offsets are on the disk; None where only timestamps are known."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    log_offset: int | None = None
    queues_offset: int | None = None
    index_offset: int | None = None
    #: How many consume queues there are, and the sum of their next offsets.
    tally: tuple[int, int] | None = None

    @property
    def safe_ms(self) -> int:
        """Messages stored at or before this time are in log and consume queues on the disk."""
        return max(0, min(self.log_ms, self.queues_ms) - _JAVA_MARGIN_MS)

    @property
    def queues_safe_ms(self) -> int:
        """As `safe_ms`, for queues after a power cut: Java syncs one with less than two new pages once a minute.

        Source: flushConsumeQueueThoroughInterval and FlushConsumeQueueService of 4.9.7."""
        return max(0, min(self.safe_ms, self.queues_ms - _JAVA_QUEUES_MARGIN_MS))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The content of the file."""
    data = _TIMES.pack(checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms)
    if checkpoint.log_offset is not None:
        offsets = (checkpoint.log_offset, checkpoint.queues_offset, checkpoint.index_offset)
        data += _OFFSETS.pack(_MAGIC, *(-1 if offset is None else offset for offset in offsets))
        data += _CRC.pack(zlib.crc32(data))
        if checkpoint.tally is not None:
            data += _TALLY.pack(*checkpoint.tally)
            data += _CRC.pack(zlib.crc32(data))
    return data.ljust(CHECKPOINT_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Read a checkpoint; one too short to be one says that nothing is known."""
    if len(data) < _TIMES.size:
        return Checkpoint()
    times = _TIMES.unpack_from(data)
    if len(data) < _CRC_AT + _CRC.size or zlib.crc32(data[:_CRC_AT]) != _CRC.unpack_from(data, _CRC_AT)[0]:
        return Checkpoint(*times)
    magic, *offsets = _OFFSETS.unpack_from(data, _TIMES.size)
    if magic != _MAGIC:
        return Checkpoint(*times)
    found = Checkpoint(*times, *(None if offset < 0 else offset for offset in offsets))
    has_tally = len(data) >= _TALLY_CRC_AT + _CRC.size
    if has_tally and zlib.crc32(data[:_TALLY_CRC_AT]) == _CRC.unpack_from(data, _TALLY_CRC_AT)[0]:
        return attrs.evolve(found, tally=_TALLY.unpack_from(data, TALLY_AT))
    return found
