"""Checks records that were in the log when it was opened, before they are served for the first time.

Records that this process appended are as stored; those from the disk may be corrupt. A record's CRC is over its body
only: of the rest, the lengths must be consistent, and its place and topic must match its consume queue entry.
It never waits: the caller has the bytes in memory.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.store.disk import read_before_touch
from mqbroker.store.entry_repair import LostEntry
from mqbroker.store.logscan import Damage, Filler, Scanned, scan_at
from mqbroker.store.multi_dispatch import is_entry_of
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.record import BLANK_BYTES_MIN, BLANK_MAGIC, MAGIC, SIZE_AND_MAGIC, V6, fields_struct

_HEAD = fields_struct("size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag", "body_size")
_PLACE = fields_struct("size", "magic", "physical_offset")

#: One bit covers 64 bytes of the log, in which no two records can start; 16 KiB of bits cover 8 MiB.
_CELL_BITS = 6
_CHUNK_BITS = 23
_CELLS_MASK = (1 << (_CHUNK_BITS - _CELL_BITS)) - 1
_CHUNK_BYTES = (_CELLS_MASK + 1) // 8
#: Chunks that are remembered: 16 MiB of memory for 8 GiB of the log; the oldest is evicted.
_CHUNKS_MAX = 1024
_ROTTEN_MAX = 1000


def stands_at(
    view: memoryview, at: int, size: int, queue: ConsumeQueue, queue_offset: int, physical_offset: int
) -> bool:
    """Whether a record of `size` bytes at `at` is this message of a queue, by its offsets and its topic; False if its
    hosts have IPv6 addresses. Hot."""
    own_size, magic, queue_id, own_offset, own_physical, sys_flag, body_bytes = _HEAD.unpack_from(view, at)
    topic_at = _HEAD.size + body_bytes
    tail = view[at + topic_at : at + size].tobytes() if 0 <= topic_at < size else b""
    return (
        magic == MAGIC
        and own_size == size
        and own_physical == physical_offset
        and own_offset == queue_offset
        and queue_id == queue.queue_id
        and not sys_flag & V6
        and tail.startswith(queue.topic_bytes, 1)
        and tail[0] == len(queue.topic_bytes)
    )


class RecordVerifier:
    """Remembers which records it found whole.

    :param report: called with each corrupt record. `rotten_entries`: number of consume queue entries that did not match
        their message.
    """

    log = Logger()

    def __init__(self, commit_log: CommitLog, report: Callable[[Damage], None]) -> None:
        self._commit_log = commit_log
        self._report = report
        self._chunks: dict[int, bytearray] = {}
        self._told: set[tuple[str, int, int]] = set()
        self._of_its_tag = TagsCodes(()).of_its_tag
        self.rotten_entries = 0

    def is_good(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        code: int,
        view: memoryview,
        at: int,
        size: int,
    ) -> bool:
        """Whether the message of an entry of `queue` is whole at `physical_offset`. Raises LostEntry if the entry, or
        its tags code, is wrong.

        All its `size` bytes, which are those at `at` of `view`, must be in the log. Hot where old messages are read.
        """
        cell = physical_offset >> _CELL_BITS & _CELLS_MASK
        chunk = self._chunks.get(physical_offset >> _CHUNK_BITS)
        is_known = chunk is not None and chunk[cell >> 3] & 1 << (cell & 7)
        # Verified; but the page may have been evicted since, and have changed on disk.
        if is_known and stands_at(view, at, size, queue, queue_offset, physical_offset):
            return True
        return self._check_request(queue, queue_offset, physical_offset, code, view[: at + size], at)

    def _remember(self, physical_offset: int) -> None:
        cell = physical_offset >> _CELL_BITS & _CELLS_MASK
        number = physical_offset >> _CHUNK_BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            if len(self._chunks) >= _CHUNKS_MAX:
                del self._chunks[next(iter(self._chunks))]
            chunk = self._chunks[number] = bytearray(_CHUNK_BYTES)
        chunk[cell >> 3] |= 1 << (cell & 7)

    def _check_code(self, queue: ConsumeQueue, code: int, properties: bytes) -> None:
        # In the schedule topic it is a time, and with an extension an address.
        if code > ADDRESS_MAX and not queue.is_schedule:
            right = self._of_its_tag(properties)
            if code != right:
                raise LostEntry(f"its tags code is {code} where that of its message is {right}", is_there=True)

    def _check_request(
        self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, code: int, view: memoryview, at: int
    ) -> bool:
        """Check the whole record, which ends where `view` does, as a corrupt size must not lead to bytes on disk; on a
        mismatch decide whether record or entry is wrong."""
        size = len(view) - at
        item = scan_at(view, at, physical_offset)
        if isinstance(item, Scanned):
            if item.size != size:
                why = f"{size} bytes where a record of {item.size} is"
            elif is_entry_of(queue, queue_offset, item):
                if item.topic == queue.topic_bytes:
                    self._check_code(queue, code, item.properties)
                    self._remember(physical_offset)
                return True
            else:
                why = f"message {item.queue_offset} of queue {item.queue_id} of {item.topic!r}"
        else:
            why = "a filler" if isinstance(item, Filler) else item.why or "no record"
            if self._is_record_place(physical_offset, size):
                path = self._commit_log.path_of(physical_offset)
                self._report(Damage(path, physical_offset, physical_offset + size, why))
                return False
        raise LostEntry(why)

    def _is_record_place(self, physical_offset: int, size: int) -> bool:
        """Whether a record of this size was here, so that the record is corrupt and not the entry."""
        view, at = self._commit_log.view(physical_offset) or (memoryview(b""), 0)
        if _PLACE.unpack_from(view, at) == (size, MAGIC, physical_offset):
            return True
        following = self._commit_log.view(physical_offset + size)
        if following is not None:
            file, at = self._commit_log.place(physical_offset + size)
            try:
                read_before_touch(file, at, min(_HEAD.size, file.size - at))
            except OSError:
                return False
        view, at = following or (memoryview(b""), 0)
        room = len(view) - at
        if room >= BLANK_BYTES_MIN and SIZE_AND_MAGIC.unpack_from(view, at) == (room, BLANK_MAGIC):
            return True
        return room >= _HEAD.size and _PLACE.unpack_from(view, at)[1:] == (MAGIC, physical_offset + size)

    def is_hopeless(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry is known to be beyond repair; or too many are, so that no more are tried."""
        return (queue.topic, queue.queue_id, queue_offset) in self._told or len(self._told) >= _ROTTEN_MAX

    def tell_rotten(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, why: str) -> None:
        """Log, rate limited, that an entry cannot be rebuilt."""
        key = (queue.topic, queue.queue_id, queue_offset)
        if key not in self._told and len(self._told) < _ROTTEN_MAX:
            self._told.add(key)
            self.rotten_entries += 1
            self.log.error(
                "{directory}: entry {n} is skipped: it points to offset {offset} of the log, where there is {why}",
                directory=queue.directory, n=queue_offset, offset=physical_offset, why=why,
            )  # fmt: skip
