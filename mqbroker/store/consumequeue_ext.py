"""Consume queue extension: one unit per message, with the fields that a queue entry has no room for, in its own files.

    0  size of the unit  2 | 2  tags code  8 | 10  store timestamp, ms  8 | 18  size of the bit map  2 | 20  bit map

A unit is found by its address, which replaces the tags code in the queue entry: its offset in the files plus the
smallest 64-bit number, so that no address equals a tags code. A unit is never split: one that does not fit is put into
the next file, after -1 in two bytes; four bytes stay free at the end of each file. Layout and addresses are those of
ConsumeQueueExt of 4.9.7. All of it can be rebuilt from the log: invalid bytes count as no unit, and the queue works
without. Knows nothing of the content of bit maps.
"""

from __future__ import annotations

import os
import re
from struct import Struct
from typing import NamedTuple

from twisted.logger import Logger

from mqbroker.errors import StoreDamaged
from mqbroker.store.disk import IMappedFile, read_before_touch
from mqbroker.store.file_cache import CachedFile, FileCache

#: The greatest address; tags codes, which are 32-bit numbers, and times are above.
ADDRESS_MAX = -(2**31) - 1
_ADDRESS_MIN = -(2**63)
OFFSET_MAX = ADDRESS_MAX - _ADDRESS_MIN
UNIT_BYTES_MIN = 20
UNIT_BYTES_MAX = 0x7FFF
END_BYTES = 4
#: Files are sparse; blocks are allocated for this many bytes at a time.
ALLOCATE_BYTES = 64 * 1024

_UNIT = Struct(">hqqh")
_END_MARK = b"\xff\xff"
_FILE_NAME = re.compile(r"\d{20}")
_CLEAR_LOOK_BYTES = 64


def is_address(code: int) -> bool:
    """Whether a value in the tags code field is the address of a unit."""
    return code <= ADDRESS_MAX


def decorate(offset: int) -> int:
    """The address of the unit at `offset`."""
    return offset + _ADDRESS_MIN


def undecorate(address: int) -> int:
    """The offset of the unit with `address`; an offset stays what it is."""
    return address - _ADDRESS_MIN if is_address(address) else address


class ExtUnit(NamedTuple):
    """One unit. The bit map is empty where no filter was computed."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes

    @property
    def size(self) -> int:
        return UNIT_BYTES_MIN + len(self.bit_map)


def parse_unit(view: memoryview, at: int, room: int) -> ExtUnit | None:
    """Parse the unit at `at`, of `room` bytes at most; None if there is no whole one."""
    if room < UNIT_BYTES_MIN:
        return None
    size, tags_code, store_timestamp_ms, bit_map_bytes = _UNIT.unpack_from(view, at)
    if bit_map_bytes < 0 or size != UNIT_BYTES_MIN + bit_map_bytes or size > room or is_address(tags_code):
        return None
    return ExtUnit(tags_code, store_timestamp_ms, bytes(view[at + UNIT_BYTES_MIN : at + size]))


class ConsumeQueueExt:
    """The units of one queue. `end` is the offset of the next one.

    :param new_names: collects the directories in which a file was created, until they are synced.
    """

    log = Logger()

    def __init__(self, cache: FileCache, directory: str, file_bytes: int, new_names: set[str]) -> None:
        self.directory = directory
        self.end = 0
        self._cache = cache
        self._disk = cache.disk
        self._file_bytes = file_bytes
        self._new_names = new_names
        self._files: list[CachedFile] = []
        self._first = 0
        self._base = 0
        self._allocated = 0
        self._unsynced: list[CachedFile] = []

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    # Writing

    def put(self, tags_code: int, store_timestamp_ms: int, bit_map: bytes = b"") -> int | None:
        """Write a unit and return its address; None if it is too large, or the addresses are used up.

        Raises OSError with nothing written.
        """
        size = UNIT_BYTES_MIN + len(bit_map)
        if size > min(UNIT_BYTES_MAX, self._file_bytes - END_BYTES) or self.end + size > OFFSET_MAX:
            return None
        at = self.end - self._base
        if not self._files or at + size + END_BYTES > self._file_bytes:
            self._roll()
            at = 0
        if at + size > self._allocated:
            self._allocate(at + size)
        buffer = self._files[-1].buffer
        _UNIT.pack_into(buffer, at, size, tags_code, store_timestamp_ms, len(bit_map))
        if bit_map:
            buffer[at + UNIT_BYTES_MIN : at + size] = bit_map
        address = decorate(self.end)
        self.end += size
        return address

    def read_end(self) -> None:
        """As `ConsumeQueue.read_end`."""
        at = self.end - self._base
        if self._files and 0 < at < self._file_bytes:
            read_before_touch(self._files[-1], at - 1, 1)

    def _roll(self) -> None:
        if not self._files:
            self._add_file(0)
            return
        at = self.end - self._base
        if at < self._file_bytes:
            self._allocate(at + len(_END_MARK))
            self._files[-1].buffer[at : at + len(_END_MARK)] = _END_MARK
            self.end = self._base + self._file_bytes
        self._add_file(self.end)

    def _add_file(self, base: int) -> None:
        if not self._files:
            self._disk.make_directories(self.directory)
            for name in self._disk.names(self.directory):  # of a queue that is no more
                self._disk.remove(os.path.join(self.directory, name))
            topic_directory = os.path.dirname(self.directory)
            root = os.path.dirname(topic_directory)
            self._new_names.update((topic_directory, root, os.path.dirname(root)))
            self._first = base
        self._new_names.add(self.directory)
        self._files.append(self._cache.create(self._path(base), self._file_bytes))
        self.end = base
        self._activate()

    def _path(self, base: int) -> str:
        return os.path.join(self.directory, f"{base:020d}")

    def _allocate(self, end: int) -> None:
        if end > self._allocated:
            want = min(self._file_bytes, -(-end // ALLOCATE_BYTES) * ALLOCATE_BYTES)
            self._files[-1].allocate(self._allocated, want - self._allocated)
            self._allocated = want

    def _activate(self) -> None:
        file = self._files[-1]
        self._base = self._first + (len(self._files) - 1) * self._file_bytes
        self._allocated = 0
        self._unsynced.append(file)

    def drain_unsynced(self) -> list[IMappedFile]:
        """The files written to since this was last called."""
        taken: list[IMappedFile] = [*self._unsynced]
        self._unsynced = self._files[-1:]
        return taken

    # Reading

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if there is none. May wait. Raises Unreadable."""
        found = self.place(address)
        if found is None:
            return None
        file, at = found
        room = min(self._file_bytes - END_BYTES - at, self.end - (address - _ADDRESS_MIN))
        if room >= UNIT_BYTES_MIN:
            read_before_touch(file, at, UNIT_BYTES_MIN)
            (size, *_) = _UNIT.unpack_from(file.view, at)
            if UNIT_BYTES_MIN < size <= room:
                read_before_touch(file, at, size)
        return parse_unit(file.view, at, room)

    def place(self, address: int) -> tuple[IMappedFile, int] | None:
        """The file and position of an address; None if no unit can be there."""
        offset = address - _ADDRESS_MIN
        if not is_address(address) or not self._first <= offset < self.end:
            return None
        index, at = divmod(offset - self._first, self._file_bytes)
        return self._files[index], at

    # Loading and cutting

    def load(self) -> None:
        """Open the existing files. Those after a missing one are deleted.

        Raises StoreDamaged on foreign files and files of another size.
        """
        for name in self._disk.names(self.directory):
            path = os.path.join(self.directory, name)
            if not _FILE_NAME.fullmatch(name) or int(name) % self._file_bytes:
                why = "not an extension file of the size in mappedFileSizeConsumeQueueExt"
                raise StoreDamaged(path, 0, why)
            size = self._disk.file_size(path)
            follows = not self._files or int(name) == self._first + len(self._files) * self._file_bytes
            if not size or not follows:  # it, or one before it, was being created when the process ended
                self.log.warn("{path} does not continue the files before it: deleted", path=path)
                self._disk.remove(path)
                continue
            if size != self._file_bytes:
                raise StoreDamaged(path, size, f"{size} bytes; mappedFileSizeConsumeQueueExt is {self._file_bytes}")
            if not self._files:
                self._first = int(name)
            self._files.append(self._cache.open(path, size))
        if self._files:
            self.end = self._first + len(self._files) * self._file_bytes
            self._activate()

    def truncate_by_max(self, address: int) -> bool:
        """Truncate all units behind the one at `address`; False, with nothing done, if there is none."""
        unit = self.unit(address)
        if unit is None:
            return False
        end = undecorate(address) + unit.size
        while end <= self._first + (len(self._files) - 1) * self._file_bytes:
            self._drop(self._files.pop())
        self._activate()
        self.end = end
        at = end - self._base
        read_before_touch(self._files[-1], at, min(_CLEAR_LOOK_BYTES, self._file_bytes - at))
        if any(self._files[-1].view[at : at + _CLEAR_LOOK_BYTES]):
            self._files[-1].clear_from(at)
        return True

    def truncate_by_min(self, address: int) -> list[str]:
        """Drop the files that end before the unit at `address`; returns their paths, to be deleted."""
        gone: list[str] = []
        if is_address(address):
            while len(self._files) > 1 and self._first + self._file_bytes < undecorate(address):
                file = self._files.pop(0)
                self._release(file)
                gone.append(file.path)
                self._first += self._file_bytes
        return gone

    def reset(self) -> None:
        """Delete all units: they are about to be rebuilt."""
        while self._files:
            self._drop(self._files.pop())
        self.end = self._first = self._base = self._allocated = 0

    def detach_files(self) -> list[IMappedFile]:
        """Detach all files. Returns them; the caller closes them."""
        files: list[IMappedFile] = [*self._files]
        self._files = []
        self._unsynced = []
        self.end = self._first = self._base = self._allocated = 0
        return files

    def _drop(self, file: CachedFile) -> None:
        self._release(file)
        self._disk.remove(file.path)

    def _release(self, file: CachedFile) -> None:
        self._unsynced = [other for other in self._unsynced if other is not file]
        file.close()

    def close(self) -> None:
        for file in self._files:
            file.close()
