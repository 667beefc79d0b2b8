"""Up to where log, consume queues and index are known to be on the disk: the checkpoint file, and the note of an
orderly stop that says where each consume queue ends.

    0   store timestamp of the log's last synced message    8 | 24  magic                     8
    8   ... of the last in a synced consume queue           8 | 32  offsets of the same three 24
    16  ... of the last in a synced index                   8 | 56  CRC32 of bytes 0 to 56    4

    60  number of consume queues                            8 | 68  sum of their next offsets 8
    76  CRC32 of bytes 0 to 76                              4

The first three are the Java broker's, which looks at nothing else and leaves the rest as it is: the CRCs tell whether
the rest belongs to the timestamps. The tally of queues is of all that is in the log below the offset of the queues;
where there is none, nobody knows.

The note `queueEnds` spares a start to look into the files of all queues. A start gives it another name before anything
is changed. It is true only together with the checkpoint that was written with it: a Java broker, which does not mind
the file, changes that with the first message it stores. Under its other name it says from then on which numbers queues
have given at least. Must never know when either is written.
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


class CheckpointFile:
    """The checkpoint, and the file it is kept in. All raise OSError where that cannot be written."""

    def __init__(self, disk: IDisk, path: str, known: Checkpoint) -> None:
        self._disk = disk
        self.path = path
        #: What the file says.
        self.known = known
        # Several workers may write at a time, and none must undo what another has noted.
        self._lock = threading.Lock()

    def write(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._write(checkpoint)

    def _write(self, checkpoint: Checkpoint) -> None:
        self._disk.write(self.path, encode_checkpoint(checkpoint))
        self.known = checkpoint

    def advance(self, checkpoint: Checkpoint) -> None:
        """Write how far all is; where the log is further was noted, it stays."""
        with self._lock:
            noted = self.known.log_offset
            if noted is not None and noted > (checkpoint.log_offset or 0):
                checkpoint = attrs.evolve(checkpoint, log_offset=noted)
            self._write(checkpoint)

    def note_log(self, offset: int) -> None:
        """Note that all of the log below `offset` is on the disk."""
        with self._lock:
            if offset > (self.known.log_offset or 0):
                self._write(attrs.evolve(self.known, log_offset=offset))

    def forget_log_above(self, offset: int) -> None:
        """Note that the log ends at `offset`, so that what is appended there does not pass for synced after a kill."""
        known = self.known
        if known.log_offset is not None and known.log_offset > offset:
            self.write(attrs.evolve(known, log_offset=offset))

    def note_queues(self, offset: int, timestamp_ms: int, tally: tuple[int, int] | None) -> None:
        """Note that consume queues have all below `offset` of the log, the newest message of `timestamp_ms`, on the
        disk."""
        self.write(attrs.evolve(self.known, queues_offset=offset, queues_ms=timestamp_ms, tally=tally))

    def note_cut(self, offset: int, tally: tuple[int, int]) -> None:
        """Note what consume queues have that were cut to `offset` of the log, where the checkpoint is of that."""
        if self.known.queues_offset == offset and self.known.tally != tally:
            self.write(attrs.evolve(self.known, tally=tally))

    def forget_queues_above(self, offset: int, tally: tuple[int, int] | None = None) -> None:
        """Note that consume queues are about to be built anew from `offset` of the log: an end of the process or of
        the machine meanwhile leaves them shorter than the checkpoint says. `tally`: of what they have below, where that
        is known."""
        known = self.known
        if known.queues_offset is not None and known.queues_offset > offset:
            self.write(attrs.evolve(known, queues_offset=offset, queues_ms=0, tally=tally))

    def forget_index_above(self, offset: int, end_ms: int) -> None:
        """As `forget_queues_above`, for the index, whose newest message is of `end_ms`."""
        known = self.known
        if known.index_offset is not None and known.index_offset > offset:
            self.write(attrs.evolve(known, index_offset=offset, index_ms=min(known.index_ms, end_ms)))

    def forget_queues(self, share: tuple[int, int] | None) -> None:
        """Note that queues are about to go, so that nobody looks for them after a kill. `share`: their part of the
        tally; None where nobody knows it, and has none of the others either then."""
        with self._lock:
            if self.known.tally is None or share == (0, 0):
                return
            count, total = self.known.tally
            tally = None if share is None else (count - share[0], total - share[1])
            self._write(attrs.evolve(self.known, tally=tally))


log = Logger()

#: Ends the name of a note that was put aside.
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
    """Read the note that was written with this checkpoint; empty where there is none. Raises OSError."""
    return _read(disk, path, zlib.crc32(checkpoint))


def read_former_ends(disk: IDisk, path: str) -> dict[tuple[str, int], QueueEnd]:
    """Read the note that was put aside last, whatever happened since; empty where there is none. Raises OSError."""
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
    """Give the note its other name: files are about to change. Raises OSError."""
    if disk.exists(path):
        disk.rename(path, path + FORMER)


def parse_ends(data: bytes, checkpoint_crc: int | None) -> dict[tuple[str, int], QueueEnd]:
    """The ends of queues by topic and queue id; none where they are of another checkpoint, of which None is any.
    Raises ValueError."""
    head, _, body = data.partition(b"\n")
    if head != b"%08x" % zlib.crc32(body):
        raise ValueError("its CRC is another")
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
