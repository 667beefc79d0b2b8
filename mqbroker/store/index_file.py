"""An index file: a hash table from keys to log offsets.

    header 40 bytes:  begin and end store timestamp, begin and end physical offset (8 each), slots used, count (4 each)
    slots   4 bytes:  number of the newest entry whose key has this slot, 0 for none
    entries 20 bytes: hash 4, physical offset 8, seconds since begin 4, number of the next older entry of the slot 4

Entry 0 is not used, and the count starts at 1. Knows nothing of what is hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import attrs
from twisted.logger import Logger

from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.disk import IMappedFile, read_before_touch
from mqbroker.store.page_loader import Pages

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
_HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
_ALLOCATE_BYTES = 1024 * 1024
#: Bytes of evicted slots that are read at once.
_READ_BYTES = 1024 * 1024
_MAX_INT = 0x7FFFFFFF
#: The count of a file that is to be rebuilt.
_DAMAGED = -1

log = Logger()


@attrs.frozen
class IndexHeader:
    """As in the file, unchecked."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    count: int


def read_header(view: memoryview) -> IndexHeader:
    """Parse the header of an index file. Raises struct.error if it is too short."""
    return IndexHeader(*_HEADER.unpack_from(view))


#: Hash of "topic#key", physical offset, store timestamp (ms).
IndexRow = tuple[int, int, int]


class IndexFile:
    """One index file. Only `write_header` updates the header in the file."""

    def __init__(self, file: IMappedFile, slots: int, capacity: int) -> None:
        self.file = file
        self._buffer = file.buffer
        self._slots = slots
        self._capacity = capacity
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        # First of all: on tmpfs even a read of a page without a block ends the process where the disk is full.
        file.allocate(0, self._entries_at)
        read_before_touch(file, 0, HEADER_BYTES)
        header: tuple[int, int, int, int, int, int] = _HEADER.unpack_from(file.view)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count = header
        # A header of zeros is that of an unused file.
        self._has_header = 0 < self.count <= capacity or not any(header)
        if not 0 < self.count <= capacity:
            self.count = 1
        # Blocks for the present entries; those for new entries are allocated later.
        self._allocated = self._entries_at + self.count * ENTRY_BYTES
        self._is_open = True
        self._is_damaged = False
        file.allocate(self._entries_at, self._allocated - self._entries_at)

    @property
    def has_entries(self) -> bool:
        return self.count > 1

    @property
    def is_unused(self) -> bool:
        """Whether the file was never used; an entry without a header means that the header is lost, or not written yet.
        Raises Unreadable."""
        return not (self.has_entries or self._has_entry(1))

    @property
    def is_full(self) -> bool:
        return self.count >= self._capacity

    def is_sound(self) -> bool:
        """Whether the header is valid, and matches the first and the newest entry. Raises Unreadable."""
        if not self._has_header or not self.has_entries:
            return self._has_header
        places: list[int] = []
        for number in (1, self.count - 1):
            read_before_touch(self.file, self._at(number), ENTRY_BYTES)
            places.append(ENTRY.unpack_from(self.file.view, self._at(number))[1])
        is_possible = 0 < self.slots_used < self.count and 0 <= self.begin_offset <= self.end_offset
        return is_possible and places == [self.begin_offset, self.end_offset]

    def put_rows(self, rows: Sequence[IndexRow], start: int) -> int:
        """Add entries for rows from `start` on; returns the index of the first that the file has no room for.

        Raises OSError with none added. Hot.
        """
        number = self.count
        stop = start + min(len(rows) - start, self._capacity - number)
        at = self._entries_at + number * ENTRY_BYTES
        self._allocate(at + (stop - start) * ENTRY_BYTES)
        if number <= 1 and stop > start:
            self._put_first(rows[start])
            start, number, at = start + 1, number + 1, at + ENTRY_BYTES
        buffer = self._buffer
        slots = self._slots
        begin = self.begin_ms
        read_slot, write_slot, write_entry = SLOT.unpack_from, SLOT.pack_into, ENTRY.pack_into
        seconds, former_ms = 0, begin
        for key_hash, physical_offset, timestamp_ms in rows[start:stop]:
            if timestamp_ms != former_ms:
                seconds = min((timestamp_ms - begin) // 1000, _MAX_INT) if timestamp_ms > begin else 0
                former_ms = timestamp_ms
            slot_at = HEADER_BYTES + key_hash % slots * SLOT_BYTES
            (older,) = read_slot(buffer, slot_at)
            if not 0 < older <= number:
                older = 0
                self.slots_used += 1
            write_entry(buffer, at, key_hash, physical_offset, seconds, older)
            write_slot(buffer, slot_at, number)
            number += 1
            at += ENTRY_BYTES
        if stop > start:
            _, self.end_offset, self.end_ms = rows[stop - 1]
        self.count = number
        return stop

    def _put_first(self, row: IndexRow) -> None:
        """Add the first entry, which sets the file's begin time and offset."""
        key_hash, physical_offset, timestamp_ms = row
        # Java counts this entry's seconds from the file's begin time before.
        seconds = (timestamp_ms - self.begin_ms) // 1000 if 0 < self.begin_ms < timestamp_ms else 0
        ENTRY.pack_into(
            self._buffer, self._entries_at + ENTRY_BYTES, key_hash, physical_offset, min(seconds, _MAX_INT), 0
        )
        SLOT.pack_into(self._buffer, HEADER_BYTES + key_hash % self._slots * SLOT_BYTES, 1)
        self.slots_used += 1
        self.begin_offset = self.end_offset = physical_offset
        self.begin_ms = self.end_ms = timestamp_ms
        self.count = 2

    def _allocate(self, end: int) -> None:
        if end > self._allocated:
            want = min(self.file.size, max(end, self._allocated + _ALLOCATE_BYTES))
            self.file.allocate(self._allocated, want - self._allocated)
            self._allocated = want

    def make_room(self, count: int) -> int:
        """Put blocks behind the next `count` entries, as far as the file goes; returns the number behind the last
        entry that has some. Raises OSError."""
        number = min(self.count + count, self._capacity)
        self._allocate(self._at(number))
        return number

    def roll_back(self) -> None:
        """Undo entries that a killed process made after it last wrote the header."""
        number = self.count
        while number < self._capacity and self._has_entry(number):
            number += 1
        for undone in range(number - 1, self.count - 1, -1):
            key_hash, _, _, older = ENTRY.unpack_from(self._buffer, self._at(undone))
            slot_at = HEADER_BYTES + key_hash % self._slots * SLOT_BYTES
            if SLOT.unpack_from(self._buffer, slot_at)[0] == undone:
                SLOT.pack_into(self._buffer, slot_at, older)
            self._buffer[self._at(undone) : self._at(undone + 1)] = bytes(ENTRY_BYTES)

    def _has_entry(self, number: int) -> bool:
        read_before_touch(self.file, self._at(number), ENTRY_BYTES)
        return any(self.file.view[self._at(number) : self._at(number + 1)])

    def read(self) -> None:
        """Read what new entries touch into memory. Raises Unreadable."""
        for at in range(0, self._entries_at, _READ_BYTES):
            read_before_touch(self.file, at, min(_READ_BYTES, self._entries_at - at))
        newest = self._at(self.count - 1)
        read_before_touch(self.file, newest, min(2 * ENTRY_BYTES, self.file.size - newest))

    def _at(self, number: int) -> int:
        return self._entries_at + number * ENTRY_BYTES

    def newest_entries(self, message_offset: int) -> int:
        """Number of entries at the end of this file that belong to one message."""
        number = self.count - 1
        while number > 0:
            read_before_touch(self.file, self._at(number), ENTRY_BYTES)
            _, physical_offset, _, _ = ENTRY.unpack_from(self._buffer, self._at(number))
            if physical_offset != message_offset:
                break
            number -= 1
        return self.count - 1 - number

    def begin_after(self, previous: IndexFile) -> None:
        """Set the begin time, as Java does, to the end time of the file before."""
        self.begin_ms = self.end_ms = previous.end_ms
        self.begin_offset = self.end_offset = previous.end_offset

    def write_header(self) -> None:
        count = _DAMAGED if self._is_damaged else self.count
        _HEADER.pack_into(
            self._buffer, 0, self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, count
        )

    async def _is_ready(self, pages: Pages, at: int, size: int) -> bool:
        """Read bytes into memory; False if the file was deleted meanwhile."""
        try:
            await pages.ready(self.file, at, size)
        except FileNotFoundError:
            return False
        return self._is_open

    def forget(self) -> None:
        """Mark it as deleted: queries that wait for its bytes find nothing."""
        self._is_open = False

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    async def find(self, key_hash: int, begin_ms: int, end_ms: int, count: int, pages: Pages) -> list[int]:
        """Physical offsets of messages whose key has this hash, newest first. Times are good to the second.

        Raises OSError if the disk cannot read it; finds nothing in a file that is deleted meanwhile. Damage that is met
        is logged once, and marks the file for a rebuild.
        """
        found: list[int] = []
        slot = key_hash % self._slots
        slot_at = HEADER_BYTES + slot * SLOT_BYTES
        if not await self._is_ready(pages, slot_at, SLOT_BYTES):
            return []
        (number,) = SLOT.unpack_from(self._buffer, slot_at)
        if not 0 <= number < self.count:
            await self._note_damage(pages, slot_at)
        while 0 < number < self.count and len(found) < count:
            if not await self._is_ready(pages, self._at(number), ENTRY_BYTES):
                return []
            entry_hash, physical_offset, seconds, older = ENTRY.unpack_from(self._buffer, self._at(number))
            is_possible = 0 <= older < number and self.begin_offset <= physical_offset <= self.end_offset
            if not is_possible or entry_hash % self._slots != slot:
                await self._note_damage(pages, self._at(number))
                break
            # The first entry has the begin time, whatever it says: see `_put_first`.
            time_ms = self.begin_ms + (seconds * 1000 if number > 1 else 0)
            if entry_hash == key_hash and begin_ms <= time_ms + 999 and time_ms <= end_ms:
                found.append(physical_offset)
            if time_ms + 999 < begin_ms:
                break
            number = older
        return found

    async def _note_damage(self, pages: Pages, at: int) -> None:
        """Mark the file to be rebuilt at the next start, and log it."""
        if self._is_damaged or not await self._is_ready(pages, 0, HEADER_BYTES):
            return
        self._is_damaged = True
        self.write_header()
        log.error(
            "{path} is damaged at byte {at}: messages may not be found by their keys; it is rebuilt from the log at "
            "the next start",
            path=self.file.path,
            at=at,
        )


def is_good_after(file: IndexFile, checkpoint: Checkpoint, log_end: int, is_intact: bool) -> bool:
    """Whether an index file can be trusted: after a crash of the machine only one that was full and synced."""
    if not file.is_sound():
        return False
    if file.end_offset >= log_end or is_intact:
        return file.end_offset < log_end
    if checkpoint.index_offset is not None:
        return file.is_full and file.end_offset < checkpoint.index_offset
    return file.is_full and file.end_ms <= checkpoint.index_ms
