"""Checkpoint file: up to where log, consume queues and index are durable; and the note of an orderly stop with the end
of each consume queue.

    0   store timestamp of the log's last synced message    8 | 24  magic                     8
    8   ... of the last in a synced consume queue           8 | 32  offsets of the same three 24
    16  ... of the last in a synced index                   8 | 56  CRC32 of bytes 0 to 56    4

    60  number of consume queues                            8 | 68  sum of their next offsets 8
    76  CRC32 of bytes 0 to 76                              4

The first three fields are the Java broker's, which reads nothing else and leaves the rest unchanged: the CRCs tell
whether the rest belongs to the timestamps. The tally of queues covers the log below the consume queues' offset; absent
means unknown.

The note `queueEnds` saves a start from reading the files of all queues. A start renames it before it changes anything.
It is valid only with the checkpoint that was written with it: a Java broker, which ignores the file, changes the
checkpoint with the first message that it stores. The renamed note gives lower bounds of the queues' next offsets.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterable
from struct import Struct
from typing import Any

import attrs
from twisted.logger import Logger

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import QueueEnd
from mqbroker.store.disk import IDisk

CHECKPOINT_BYTES = 4096
#: Java stamps a flush with the newest message that it saw, which the flush may not have included.
_JAVA_MARGIN_MS = 3000
#: Java syncs all consume queues this often, and stamps that with the newest message in any of them.
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
    """Timestamps in ms. All messages below the offsets are on disk; None where only timestamps are known."""

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
        """Messages stored at or before this time are on disk in log and consume queues."""
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
    """Parse a checkpoint; one that is too short means that nothing is known."""
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


class CheckpointFile:
    """The checkpoint and its file. All methods that write raise OSError."""

    def __init__(self, disk: IDisk, path: str, known: Checkpoint) -> None:
        self._disk = disk
        self.path = path
        #: Content of the file.
        self.known = known
        # Several workers may write concurrently, and none must undo what another wrote.
        self._lock = threading.Lock()

    def write(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._write(checkpoint)

    def _write(self, checkpoint: Checkpoint) -> None:
        self._disk.write(self.path, encode_checkpoint(checkpoint))
        self.known = checkpoint

    def advance(self, checkpoint: Checkpoint) -> None:
        """Advance the checkpoint; the log's offset never moves back."""
        with self._lock:
            noted = self.known.log_offset
            if noted is not None and noted > (checkpoint.log_offset or 0):
                checkpoint = attrs.evolve(checkpoint, log_offset=noted)
            self._write(checkpoint)

    def note_log(self, offset: int) -> None:
        """Record that the log is on disk below `offset`."""
        with self._lock:
            if offset > (self.known.log_offset or 0):
                self._write(attrs.evolve(self.known, log_offset=offset))

    def forget_log_above(self, offset: int) -> None:
        """Record that the log was cut to `offset`, so that new appends there do not count as synced after a kill."""
        known = self.known
        if known.log_offset is not None and known.log_offset > offset:
            self.write(attrs.evolve(known, log_offset=offset))

    def note_queues(self, offset: int, timestamp_ms: int, tally: tuple[int, int] | None) -> None:
        """Record that consume queues have the log below `offset`, whose newest message is of `timestamp_ms`, on
        disk."""
        self.write(attrs.evolve(self.known, queues_offset=offset, queues_ms=timestamp_ms, tally=tally))

    def note_cut(self, offset: int, tally: tuple[int, int]) -> None:
        """Record the tally of consume queues that were cut to `offset` of the log, if the checkpoint is at that
        offset."""
        if self.known.queues_offset == offset and self.known.tally != tally:
            self.write(attrs.evolve(self.known, tally=tally))

    def forget_queues_above(self, offset: int, tally: tuple[int, int] | None = None) -> None:
        """Record that consume queues are about to be rebuilt from `offset` of the log: a crash meanwhile leaves them
        shorter than the checkpoint said. `tally`: of the entries below, where known."""
        known = self.known
        if known.queues_offset is not None and known.queues_offset > offset:
            self.write(attrs.evolve(known, queues_offset=offset, queues_ms=0, tally=tally))

    def forget_index_above(self, offset: int, end_ms: int) -> None:
        """As `forget_queues_above`, for the index, whose newest message is then of `end_ms`."""
        known = self.known
        if known.index_offset is not None and known.index_offset > offset:
            self.write(attrs.evolve(known, index_offset=offset, index_ms=min(known.index_ms, end_ms)))

    def forget_queues(self, share: tuple[int, int] | None) -> None:
        """Record that queues are about to be removed, so that a start after a kill does not miss them. `share`: their
        part of the tally; None if unknown, which drops the tally."""
        with self._lock:
            if self.known.tally is None or share == (0, 0):
                return
            count, total = self.known.tally
            tally = None if share is None else (count - share[0], total - share[1])
            self._write(attrs.evolve(self.known, tally=tally))


log = Logger()

#: Suffix of a renamed note.
FORMER = ".last"
_NUMBER_MAX = 2**63 - 1


def write_ends(disk: IDisk, path: str, queues: Iterable[ConsumeQueue], checkpoint: bytes) -> None:
    """Write the note. Raises OSError."""
    rows = []
    for queue in queues:
        end = queue.noted_end()
        if end is not None:
            rows.append([queue.topic, queue.queue_id, *end[:5], *end.last, *end.oldest])
    data = json.dumps({"checkpoint": zlib.crc32(checkpoint), "queues": rows}, separators=(",", ":")).encode()
    disk.write(path, b"%08x\n" % zlib.crc32(data) + data)


def read_ends(disk: IDisk, path: str, checkpoint: bytes) -> dict[tuple[str, int], QueueEnd]:
    """Read the note that was written with this checkpoint; empty if there is none. Raises OSError."""
    return _read(disk, path, zlib.crc32(checkpoint))


def read_former_ends(disk: IDisk, path: str) -> dict[tuple[str, int], QueueEnd]:
    """Read the note that was renamed last, whatever happened since; empty if there is none. Raises OSError."""
    return _read(disk, path + FORMER, None)


def _read(disk: IDisk, path: str, checkpoint_crc: int | None) -> dict[tuple[str, int], QueueEnd]:
    if not disk.exists(path):
        return {}
    try:
        return parse_ends(disk.read(path), checkpoint_crc)
    except ValueError as error:
        log.warn("{path} is damaged and not used: {why}", path=path, why=str(error))
    return {}


def put_ends_aside(disk: IDisk, path: str) -> None:
    """Rename the note: files are about to change. Raises OSError."""
    if disk.exists(path):
        disk.rename(path, path + FORMER)


def parse_ends(data: bytes, checkpoint_crc: int | None) -> dict[tuple[str, int], QueueEnd]:
    """Parse the queue ends, by topic and queue id; empty if they belong to another checkpoint than `checkpoint` (None:
    any). Raises ValueError."""
    head, _, body = data.partition(b"\n")
    if head != b"%08x" % zlib.crc32(body):
        raise ValueError("its CRC does not match")
    try:
        content = json.loads(body)
        if checkpoint_crc not in (None, content["checkpoint"]):
            return {}
        return dict(map(_parse_row, content["queues"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_row(row: Any) -> tuple[tuple[str, int], QueueEnd]:
    topic, *numbers = row
    is_right = isinstance(topic, str) and {*map(type, numbers)} == {int}
    if not is_right or min(numbers) < -1 or max(numbers) > _NUMBER_MAX:
        raise ValueError(f"{row!r} is not the end of a queue")
    queue_id, first, files, modified_ms, min_offset, max_offset, *spans = numbers
    last_offset, last_size, oldest_offset, oldest_size = spans
    last, oldest = (last_offset, last_size), (oldest_offset, oldest_size)
    return (topic, queue_id), QueueEnd(first, files, modified_ms, min_offset, max_offset, last, oldest)
