"""A disk in memory, which is gone with the process: for brokers that run in the tests of applications."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from zope.interface import implementer

from mqbroker.errors import StoreLocked
from mqbroker.store.disk import DiskSpace, IDisk, ILockedFile, IMappedFile

#: The size that `space` reports.
_BYTES = 1 << 40


@implementer(IMappedFile)
class MemoryFile:
    """IMappedFile over anonymous memory. Nothing need be synced."""

    descriptor = None

    def __init__(self, path: str, size: int, buffer: mmap.mmap) -> None:
        self.path, self.size, self.buffer = path, size, buffer
        self.view = memoryview(buffer)[:size].toreadonly()

    def allocate(self, offset: int, size: int) -> None:
        """All of it is there."""

    def write_zeros(self, offset: int, size: int) -> None:
        self.buffer[offset : offset + size] = bytes(size)

    def clear_from(self, offset: int) -> None:
        self.write_zeros(offset, self.size - offset)

    def write_at(self, offset: int, data: memoryview) -> None:
        self.buffer[offset : offset + len(data)] = bytes(data)

    def is_resident(self, offset: int, size: int) -> bool:
        return True

    def fetch(self, offset: int, size: int) -> None:
        """It is in memory."""

    def pin(self) -> None:
        """It stays in memory."""

    def unpin(self) -> None:
        """It stays in memory."""

    def sync(self) -> None:
        """There is nothing to sync to."""

    sync_apart = sync

    def close(self) -> None:
        self.view.release()


@implementer(ILockedFile)
class _Lock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks, self._path = locks, path

    def release(self) -> None:
        self._locks.discard(self._path)


@implementer(IDisk)
class MemoryDisk:
    """Files and directories of one process. Not thread-safe."""

    def __init__(self) -> None:
        #: Contents by path; those of mapped files are maps.
        self._files: dict[str, bytes | mmap.mmap] = {}
        self._directories: set[str] = set()
        self._locks: set[str] = set()

    def make_directories(self, path: str) -> None:
        while path not in self._directories and path != os.path.dirname(path):
            self._directories.add(path)
            path = os.path.dirname(path)

    def names(self, path: str) -> list[str]:
        return sorted(os.path.basename(each) for each in self._all() if os.path.dirname(each) == path)

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def file_size(self, path: str) -> int:
        return len(self._file(path))

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._files[path] = made = mmap.mmap(-1, size)
        return MemoryFile(path, size, made)

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        found = self._file(path)
        if isinstance(found, bytes):
            made = self._files[path] = mmap.mmap(-1, len(found))
            made[:] = found
            found = made
        return MemoryFile(path, size, found)

    def make_buffer(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)

    def pin_buffer(self, buffer: mmap.mmap) -> None:
        """It stays in memory."""

    def modified_ms(self, path: str) -> int:
        self._file(path)
        return int(time.time() * 1000)

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(0, _BYTES)

    def read(self, path: str) -> bytes:
        return bytes(self._file(path))

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._file(path)[offset : offset + size])

    def write_part(self, path: str, offset: int, data: memoryview) -> None:
        found = self._file(path)
        if isinstance(found, bytes):
            self._files[path] = found[:offset] + bytes(data) + found[offset + len(data) :]
        else:
            found[offset : offset + len(data)] = bytes(data)

    def write(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def replace(self, path: str, pieces: Sequence[bytes]) -> None:
        self.make_directories(os.path.dirname(path))
        if path in self._files:
            self._files[path + ".bak"] = self._files[path]
        self._files[path] = b"".join(pieces)

    def remove(self, path: str) -> None:
        self._file(path)
        del self._files[path]

    def rename(self, old: str, new: str) -> None:
        if not self.exists(old):
            raise self._missing(old)
        below = old + os.sep
        for each in [each for each in self._files if each == old or each.startswith(below)]:
            self._files[new + each[len(old) :]] = self._files.pop(each)
        for each in [each for each in self._directories if each == old or each.startswith(below)]:
            self._directories.remove(each)
            self._directories.add(new + each[len(old) :])

    def remove_tree(self, path: str) -> None:
        below = path + os.sep
        self._files = {each: data for each, data in self._files.items() if not each.startswith(below)}
        self._directories = {each for each in self._directories if each != path and not each.startswith(below)}

    def sync_directory(self, path: str) -> None:
        """There is nothing to sync to."""

    def together(self, act: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        found: list[OSError | None] = []
        for item in items:
            try:
                act(item)
                found.append(None)
            except OSError as error:
                found.append(error)
        return found

    def lock(self, path: str) -> ILockedFile:
        if path in self._locks:
            raise StoreLocked(path, "it is open in this process")
        self._locks.add(path)
        return _Lock(self._locks, path)

    def boot_id(self) -> bytes:
        return b"memory"

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def cached_files_max(self) -> int:
        return 1024

    def _all(self) -> set[str]:
        return self._files.keys() | self._directories

    def _file(self, path: str) -> bytes | mmap.mmap:
        found = self._files.get(path)
        if found is None:
            raise self._missing(path)
        return found

    def _missing(self, path: str) -> OSError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
