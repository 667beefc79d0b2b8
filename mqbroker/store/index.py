"""The index: from a message's keys to where it stands in the log. Hash tables in files, a cache of the log.

    header 40 bytes:  begin and end store timestamp, begin and end physical offset (8 each), slots used, count (4 each)
    slots   4 bytes:  number of the newest entry whose key has this slot, 0 for none
    entries 20 bytes: hash 4, physical offset 8, seconds since begin 4, number of the next older entry of the slot 4

A key is hashed as "topic#key". Entry 0 is not used, and the count starts at 1. Must never read the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from operator import mul
from struct import Struct

from mqbroker.store.cold import Pages
from mqbroker.store.commitlog import Piled
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.properties import find_property
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.javahash import java_hash

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
_HEADER = Struct(">qqqqii")
_SLOT = Struct(">i")
_ENTRY = Struct(">iqii")
_ALLOCATE_BYTES = 1024 * 1024
_MAX_INT = 0x7FFFFFFF
_UNIQ_KEY = b"UNIQ_KEY\x01"
_KEYS = b"KEYS\x01"

#: Keys differ in their last characters (unique keys: time and counter); the hash of what comes before is kept.
_TAIL = 8
_TAIL_POWERS = tuple(31**i for i in reversed(range(_TAIL)))
_TAIL_FACTOR = 31**_TAIL
_HEADS_MAX = 10_000
_FILE_NAME = re.compile(r"\d{17}")

#: Hash of "topic#key", physical offset, store timestamp (ms).
IndexRow = tuple[int, int, int]


def positive_hash(value: int) -> int:
    """What the index keeps of a 32-bit hash: its absolute value, and 0 for the one that has none."""
    value &= 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return value if value <= _MAX_INT else 0


class KeyHasher:
    """Java's hash of "topic#key", from the hash of "topic#" and the key's bytes."""

    def __init__(self) -> None:
        #: First part of an ASCII key -> what to multiply the topic's hash by, and what to add.
        self.heads: dict[bytes, tuple[int, int]] = {}

    def hash(self, topic_hash: int, key: bytes) -> int:
        tail = key[-_TAIL:]
        if len(tail) < _TAIL or not key.isascii():
            text = key.decode("utf-8", "replace")
            units = len(text.encode("utf-16-be", "surrogatepass")) // 2
            return positive_hash(topic_hash * pow(31, units, 1 << 32) + java_hash(text))
        head = key[:-_TAIL]
        try:
            factor, add = self.heads[head]
        except KeyError:
            factor, add = self._keep(head)
        value: int = (topic_hash * factor + add + sum(map(mul, tail, _TAIL_POWERS))) & 0xFFFFFFFF
        if value >= 0x80000000:
            value = 0x100000000 - value
            if value > _MAX_INT:
                return 0
        return value

    def _keep(self, head: bytes) -> tuple[int, int]:
        if len(self.heads) >= _HEADS_MAX:
            self.heads.clear()
        factor = pow(31, len(head) + _TAIL, 1 << 32)
        add = java_hash(head.decode("ascii")) * _TAIL_FACTOR & 0xFFFFFFFF
        self.heads[head] = (factor, add)
        return factor, add


class IndexFile:
    """One index file. The header in the file is brought up to date by `write_header` only."""

    def __init__(self, file: IMappedFile, slots: int, capacity: int) -> None:
        self.file = file
        self._buffer = file.buffer
        self._slots = slots
        self._capacity = capacity
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        header: tuple[int, int, int, int, int, int] = _HEADER.unpack_from(file.view)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count = header
        if not 0 < self.count <= capacity:
            self.count = 1
        # Blocks for header, slots and the entries there are; new entries get theirs as they come.
        self._allocated = self._entries_at + self.count * ENTRY_BYTES
        self._is_open = True
        file.allocate(0, self._allocated)

    @property
    def is_full(self) -> bool:
        return self.count >= self._capacity

    def put_rows(self, rows: Sequence[IndexRow], start: int) -> int:
        """Add entries for rows from `start` on; returns the first that the file has no place for.

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
        read_slot, write_slot, write_entry = _SLOT.unpack_from, _SLOT.pack_into, _ENTRY.pack_into
        seconds = former_ms = 0
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
        """Add the first entry, which gives the file its beginning."""
        key_hash, physical_offset, timestamp_ms = row
        # Java counts the seconds of this one from what the file had for its beginning before.
        seconds = (timestamp_ms - self.begin_ms) // 1000 if 0 < self.begin_ms < timestamp_ms else 0
        _ENTRY.pack_into(
            self._buffer, self._entries_at + ENTRY_BYTES, key_hash, physical_offset, min(seconds, _MAX_INT), 0
        )
        _SLOT.pack_into(self._buffer, HEADER_BYTES + key_hash % self._slots * SLOT_BYTES, 1)
        self.slots_used += 1
        self.begin_offset = self.end_offset = physical_offset
        self.begin_ms = self.end_ms = timestamp_ms
        self.count = 2

    def _allocate(self, end: int) -> None:
        if end > self._allocated:
            want = min(self.file.size, max(end, self._allocated + _ALLOCATE_BYTES))
            self.file.allocate(self._allocated, want - self._allocated)
            self._allocated = want

    def roll_back(self) -> None:
        """Undo entries made after the header was last written, by a process that was killed before it came to it."""
        number = self.count
        while number < self._capacity and any(self.file.view[self._at(number) : self._at(number + 1)]):
            number += 1
        for undone in range(number - 1, self.count - 1, -1):
            key_hash, _, _, older = _ENTRY.unpack_from(self._buffer, self._at(undone))
            slot_at = HEADER_BYTES + key_hash % self._slots * SLOT_BYTES
            if _SLOT.unpack_from(self._buffer, slot_at)[0] == undone:
                _SLOT.pack_into(self._buffer, slot_at, older)
            self._buffer[self._at(undone) : self._at(undone + 1)] = bytes(ENTRY_BYTES)

    def _at(self, number: int) -> int:
        return self._entries_at + number * ENTRY_BYTES

    def newest_entries(self, message_offset: int) -> int:
        """How many entries at the end of this file are those of one message."""
        number = self.count - 1
        while number > 0:
            _, physical_offset, _, _ = _ENTRY.unpack_from(self._buffer, self._at(number))
            if physical_offset != message_offset:
                break
            number -= 1
        return self.count - 1 - number

    def begin_after(self, previous: IndexFile) -> None:
        """Date the first entry, as Java does, from the end of the file before."""
        self.begin_ms = self.end_ms = previous.end_ms
        self.begin_offset = self.end_offset = previous.end_offset

    def write_header(self) -> None:
        _HEADER.pack_into(
            self._buffer, 0, self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count
        )

    async def _is_ready(self, pages: Pages, at: int, size: int) -> bool:
        """Have bytes in memory; False where the file was deleted meanwhile."""
        try:
            await pages.ready(self.file, at, size)
        except FileNotFoundError:
            return False
        return self._is_open

    def forget(self) -> None:
        """It is about to be closed: whoever waits for bytes of it finds nothing."""
        self._is_open = False

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    async def find(self, key_hash: int, begin_ms: int, end_ms: int, count: int, pages: Pages) -> list[int]:
        """Physical offsets of messages whose key has this hash, newest first. Times are good to the second.

        Raises OSError where the disk cannot read it; none is found in a file that is deleted meanwhile.
        """
        found: list[int] = []
        slot_at = HEADER_BYTES + key_hash % self._slots * SLOT_BYTES
        if not await self._is_ready(pages, slot_at, SLOT_BYTES):
            return []
        (number,) = _SLOT.unpack_from(self._buffer, slot_at)
        while 0 < number < self.count and len(found) < count:
            if not await self._is_ready(pages, self._at(number), ENTRY_BYTES):
                return []
            entry_hash, physical_offset, seconds, older = _ENTRY.unpack_from(self._buffer, self._at(number))
            # The first entry is the beginning, whatever it says: see `_put_first`.
            time_ms = self.begin_ms + (seconds * 1000 if number > 1 else 0)
            if entry_hash == key_hash and begin_ms <= time_ms + 999 and time_ms <= end_ms:
                found.append(physical_offset)
            if time_ms + 999 < begin_ms or older >= number:
                break
            number = older
        return found


class Index:
    """The row of index files; `offset`: all of the log below is indexed.

    :param file_name: names a new file: the wall clock as yyyyMMddHHmmssSSS, as far ahead as the argument, ms.
    """

    def __init__(self, disk: IDisk, directory: str, slots: int, capacity: int, file_name: Callable[[int], str]) -> None:
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._file_bytes = HEADER_BYTES + slots * SLOT_BYTES + capacity * ENTRY_BYTES
        self._file_name = file_name
        self._hasher = KeyHasher()
        self._unsynced: list[IndexFile] = []
        self.files: list[IndexFile] = []
        self.offset = 0
        # A message whose first so many keys are in: the files may end between its keys.
        self._resumed = (-1, 0)
        self._has_new_name = False

    def load(self) -> None:
        """Open the files there are; one of another size ends the row. What is none of ours is passed over."""
        for name in self._disk.names(self._directory):
            path = os.path.join(self._directory, name)
            if not _FILE_NAME.fullmatch(name):  # whoever put it there
                continue
            if self._disk.file_size(path) != self._file_bytes:
                break
            file = self._disk.open_mapped(path, self._file_bytes)
            self.files.append(IndexFile(file, self._slots, self._capacity))

    def keep_files(self, is_good: Callable[[IndexFile], bool]) -> None:
        """Delete the first file that is not good and all after it, used or not; they are to be built anew."""
        kept: list[IndexFile] = []
        for file in self.files:
            if not is_good(file):
                break
            kept.append(file)
        for file in self.files[len(kept) :]:
            file.file.close()
        self.files = kept
        names = {os.path.basename(file.file.path) for file in kept}
        for name in self._disk.names(self._directory):
            if _FILE_NAME.fullmatch(name) and name not in names:
                self._disk.remove(os.path.join(self._directory, name))
                self._has_new_name = True

    def add(self, appends: Sequence[Piled]) -> None:
        """Index the keys of messages, appended one after another. Raises OSError; see `offset` for how far it came."""
        hasher = self._hasher
        heads = hasher.heads
        powers = _TAIL_POWERS
        rows: list[IndexRow] = []
        for messages, appended, queues in appends:
            for message, (physical_offset, _, _, timestamp_ms), queue in zip(messages, appended, queues, strict=True):
                properties = message[9]
                at = properties.rfind(_UNIQ_KEY)
                if (at and (at < 0 or properties[at - 1] != 2)) or _KEYS in properties or message[3] & 12:
                    rows += self.rows_of(queue, message[3], properties, physical_offset, timestamp_ms)
                    continue
                end = properties.find(b"\x02", at)
                key = properties[at + 9 :] if end < 0 else properties[at + 9 : end]
                # What KeyHasher.hash does, for keys whose head it knows: half of the time spent here went into calls.
                tail = key[-_TAIL:]
                known = heads.get(key[:-_TAIL])
                if known is None or len(tail) < _TAIL or not tail.isascii():
                    if key:
                        rows.append((hasher.hash(queue.key_hash, key), physical_offset, timestamp_ms))
                    continue
                value = (queue.key_hash * known[0] + known[1] + sum(map(mul, tail, powers))) & 0xFFFFFFFF
                if value > _MAX_INT:
                    value = positive_hash(value)
                rows.append((value, physical_offset, timestamp_ms))
        physical_offset, _, size, _ = appends[-1][1][-1]
        self.put(rows, physical_offset + size)

    def rows_of(
        self, queue: ConsumeQueue, sys_flag: int, properties: bytes, physical_offset: int, timestamp_ms: int
    ) -> list[IndexRow]:
        """What to enter for one message: its unique key and each of its keys."""
        if sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
            return []
        keys = [find_property(properties, _UNIQ_KEY), *find_property(properties, _KEYS).split(b" ")]
        rows = [(self._hasher.hash(queue.key_hash, key), physical_offset, timestamp_ms) for key in keys if key]
        if physical_offset == self._resumed[0]:
            del rows[: self._resumed[1]]
        return rows

    def put(self, rows: Sequence[IndexRow], end: int) -> None:
        """Enter rows, with which all of the log below `end` is indexed. Raises OSError; see `add`."""
        done = 0
        try:
            while done < len(rows):
                if not self.files or self.files[-1].is_full:
                    self._add_file()
                done = self.files[-1].put_rows(rows, done)
        except OSError:
            self.offset = offset = rows[done][1]
            already = self._resumed[1] if self._resumed[0] == offset else 0
            self._resumed = (offset, already + sum(row[1] == offset for row in rows[:done]))
            raise
        self.offset = end

    def _add_file(self) -> None:
        self._disk.make_directories(self._directory)
        if self.files:  # before there is another: only the last file is looked at for entries above its header
            self.files[-1].write_header()
        ahead_ms = 0
        while True:
            path = self._path_of_next(ahead_ms)
            if not self._disk.exists(path):
                break
            ahead_ms += 1
        mapped = self._disk.create_mapped(path, self._file_bytes)
        try:
            file = IndexFile(mapped, self._slots, self._capacity)
        except OSError:
            mapped.close()
            self._disk.remove(path)
            raise
        if self.files:
            file.begin_after(self.files[-1])
        self.files.append(file)
        self._unsynced.append(file)
        self._has_new_name = True

    def _path_of_next(self, ahead_ms: int) -> str:
        name = self._file_name(ahead_ms)
        if self.files:  # the order of names is that of files, also when the clock went back
            newest = int(os.path.basename(self.files[-1].file.path))
            name = max(name, f"{newest + 1 + ahead_ms:017d}")
        return os.path.join(self._directory, name)

    def write_header(self) -> None:
        if self.files:
            self.files[-1].write_header()

    def take_unsynced(self) -> list[IMappedFile]:
        """The files written to since this was last called."""
        taken = [file.file for file in self._unsynced]
        self._unsynced = self.files[-1:]
        return taken

    def take_new_names(self) -> list[str]:
        """The directories in which files were made since this was last called."""
        taken = [os.path.dirname(self._directory), self._directory] if self._has_new_name else []
        self._has_new_name = False
        return taken

    def oldest_below(self, physical_min: int) -> IndexFile | None:
        """The first file, where all its messages are below `physical_min` and it is not the last."""
        first = self.files[0] if len(self.files) > 1 else None
        return first if first is not None and first.end_offset < physical_min else None

    def is_synced(self, file: IndexFile) -> bool:
        return file not in self._unsynced

    def drop_first_file(self) -> None:
        """Forget the first file. The caller closes it."""
        assert len(self.files) > 1
        self.files.pop(0).forget()

    def resume(self, is_clean: bool) -> None:
        """Go on after the newest entry of the files there are."""
        last = self.files[-1]
        if not is_clean:
            last.roll_back()
        if last.count <= 1 and len(self.files) > 1:  # killed before it had a header: nothing is in it yet
            last.begin_after(self.files[-2])
        self._unsynced = [last]
        if not is_clean:  # who knows what was not synced
            self._unsynced = list(self.files)
            self._has_new_name = True
        self.offset = last.end_offset
        self._resumed = (last.end_offset, self._entries_of(last.end_offset))

    def _entries_of(self, message_offset: int) -> int:
        """How many entries the newest message has: a file may have become full between two of its keys."""
        entries = 0
        for file in reversed(self.files):
            found = file.newest_entries(message_offset)
            entries += found
            if found < file.count - 1:
                break
        return entries

    @property
    def end_ms(self) -> int:
        return self.files[-1].end_ms if self.files else 0

    @property
    def end_offset(self) -> int:
        """Where the newest indexed message stands in the log."""
        return self.files[-1].end_offset if self.files else 0

    async def find(self, topic: str, key: str, begin_ms: int, end_ms: int, count: int, pages: Pages) -> list[int]:
        """Physical offsets of messages that may have this key, newest first: hashes can collide."""
        key_hash = self._hasher.hash(java_hash(topic + "#"), key.encode())
        found: list[int] = []
        for file in reversed(list(self.files)):
            if file.overlaps(begin_ms, end_ms):
                found += await file.find(key_hash, begin_ms, end_ms, count - len(found), pages)
            if len(found) >= count or file.begin_ms < begin_ms:
                break
        return found

    def close(self) -> None:
        for file in self.files:
            file.forget()
            file.file.close()
