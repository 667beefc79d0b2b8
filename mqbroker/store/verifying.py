"""Checks records that were in the log when it was opened, before they are served for the first time.

What this process appended is as it was stored; what lay on the disk may have rotted. A record's CRC is over its body
only: of the rest it is checked that its parts add up and that it is where, and what, its consume queue entry says.
Must never wait: who asks has the bytes in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct

from twisted.logger import Logger

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.store.disk import read_before_touch
from mqbroker.store.logscan import BODY_OFFSET_V4, Damage, Filler, Scanned, scan_at
from mqbroker.store.mending import LostEntry
from mqbroker.store.multi_dispatch import is_entry_of
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import BLANK_MAGIC, MAGIC

#: Size, magic, CRC, queue id, queue offset, physical offset, sys flag and body size, with IPv4 hosts.
_HEAD = Struct(">IIIi4xqqi44xi")
_HEAD_START = Struct(">II")
_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6

#: One bit stands for 64 bytes of the log, in which no two records can start; 16 KiB of bits for 8 MiB.
_CELL_BITS = 6
_CHUNK_BITS = 23
_CELLS_MASK = (1 << (_CHUNK_BITS - _CELL_BITS)) - 1
_CHUNK_BYTES = (_CELLS_MASK + 1) // 8
#: Chunks that are remembered, which is 16 MiB of memory for 8 GiB of the log; the oldest is forgotten for a new one.
_CHUNKS_MAX = 1024
_ROTTEN_MAX = 1000


class Verifier:
    """Remembers which records it found whole.

    :param report: is told of each record that is not.
    `rotten_entries`: how many consume queue entries pointed at something else than their message.
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
        """Whether the message that an entry of `queue` says is at `physical_offset` is there, whole. Raises LostEntry
        where the entry, or its tags code, is wrong.

        All its `size` bytes, which are those at `at` of `view`, must be in the log. Hot where old messages are read.
        """
        real_size, magic, crc, queue_id, own_offset, own_physical, sys_flag, body_bytes = _HEAD.unpack_from(view, at)
        place = BODY_OFFSET_V4 + body_bytes
        if (
            magic == MAGIC
            and real_size == size
            and own_physical == physical_offset
            and own_offset == queue_offset
            and queue_id == queue.queue_id
            and not sys_flag & _V6
            and 0 <= body_bytes <= size - BODY_OFFSET_V4 - 3
        ):
            cell = physical_offset >> _CELL_BITS & _CELLS_MASK
            chunk = self._chunks.get(physical_offset >> _CHUNK_BITS)
            is_known = chunk is not None and chunk[cell >> 3] & 1 << (cell & 7)
            start = at + place if is_known else at
            record = view[start : at + size].tobytes()  # one copy of it is cheaper than many looks through a view
            if is_known:
                if record.startswith(queue.topic_bytes, 1) and record[0] == len(queue.topic_bytes):
                    return True
            elif record.startswith(queue.topic_bytes, place + 1) and record[place] == len(queue.topic_bytes):
                tail = place + 1 + record[place]
                if (not body_bytes or zlib.crc32(record[BODY_OFFSET_V4:place]) & 0x7FFFFFFF == crc) and (
                    int.from_bytes(record[tail : tail + 2], "big") == size - tail - 2
                ):
                    self._check_code(queue, code, record[tail + 2 :])
                    self._remember(physical_offset)
                    return True
        return self._judge(queue, queue_offset, physical_offset, code, size)

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
        # In the schedule topic it is a time, and an extension has the rest.
        if code > ADDRESS_MAX and not queue.is_schedule:
            right = self._of_its_tag(properties)
            if code != right:
                raise LostEntry(f"its tags code is {code} where that of its message is {right}", is_there=True)

    def _judge(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, code: int, size: int) -> bool:
        """An unusual record, or what is wrong: with the record, or with the entry that points here."""
        found = self._commit_log.view(physical_offset)
        assert found is not None
        view, at = found
        item = scan_at(view[: at + size], at, physical_offset)  # a rotten size must not lead to bytes on the disk
        if isinstance(item, Scanned):
            if item.size != size:
                why = f"{size} bytes where a record of {item.size} is"
            elif is_entry_of(queue, queue_offset, item):
                if item.topic == queue.topic_bytes:
                    self._check_code(queue, code, item.properties)
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
        """Whether a record of this size was here, so that what is wrong is the record and not the entry."""
        view, at = self._commit_log.view(physical_offset) or (memoryview(b""), 0)
        real_size, magic, _, _, _, own_physical, _, _ = _HEAD.unpack_from(view, at)
        if (real_size, magic, own_physical) == (size, MAGIC, physical_offset):
            return True
        following = self._commit_log.view(physical_offset + size)
        if following is not None:
            file, at = self._commit_log.place(physical_offset + size)
            try:
                read_before_touch(file, at, min(_HEAD.size, file.size - at))
            except OSError:
                return False
        view, at = following or (memoryview(b""), 0)
        if len(view) - at < _HEAD.size:
            return len(view) - at >= 8 and _HEAD_START.unpack_from(view, at) == (len(view) - at, BLANK_MAGIC)
        after_size, magic, _, _, _, own_physical, _, _ = _HEAD.unpack_from(view, at)
        return (magic, own_physical) == (MAGIC, physical_offset + size) or (after_size, magic) == (
            len(view) - at,
            BLANK_MAGIC,
        )

    def is_hopeless(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry cannot be built again, as was told; or too many could not to look for one more."""
        return (queue.topic, queue.queue_id, queue_offset) in self._told or len(self._told) >= _ROTTEN_MAX

    def tell_rotten(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, why: str) -> None:
        """An entry cannot be built again."""
        key = (queue.topic, queue.queue_id, queue_offset)
        if key not in self._told and len(self._told) < _ROTTEN_MAX:
            self._told.add(key)
            self.rotten_entries += 1
            self.log.error(
                "{directory}: entry {n} is passed over: it points to {offset} of the log, where is {why}",
                directory=queue.directory, n=queue_offset, offset=physical_offset, why=why,
            )  # fmt: skip
