"""Cache of mapped files of fixed size: as many are mapped at a time as the system allows, the others again on use.

Each mapped file takes a map, and the consume queues' files could exceed the system's limit of these.
Eviction is by second chance, in the order of mapping. Files with unsynced writes are evicted last: the kernel reports a
writeback error to a later open of the file, but need not keep it for a file that is not open. Knows nothing of what the
files mean.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from zope.interface import implementer

from mqbroker.store.disk import IDisk, IMappedFile, is_shortage

#: How many files are skipped when a place is needed, before one is evicted whatever it is.
_LOOKS_MAX = 16


class FileCache:
    """Creates and opens files, and keeps at most `most` of them mapped. For the reactor's thread."""

    def __init__(self, disk: IDisk, most: int, *, read_only: bool = False) -> None:
        self.disk = disk
        self._read_only = read_only
        self._most = most
        #: Mapped files, in the order of eviction.
        self._mapped: OrderedDict[CachedFile, None] = OrderedDict()

    def __len__(self) -> int:
        """Number of mapped files."""
        return len(self._mapped)

    @property
    def is_full(self) -> bool:
        """Whether another file can only be mapped in place of one that is."""
        return len(self._mapped) >= self._most

    def create(self, path: str, size: int) -> CachedFile:
        """Create a sparse file of `size` zeros. Raises OSError, FileExistsError."""
        file = CachedFile(self, path, size)
        file.mapped = self._map(file, self.disk.create_mapped)
        return file

    def open(self, path: str, size: int) -> CachedFile:
        """The first `size` bytes of an existing file, which is not accessed before it is used."""
        return CachedFile(self, path, size)

    def map(self, file: CachedFile) -> IMappedFile:
        """Map an existing file. Raises OSError."""
        return self._map(file, partial(self.disk.open_mapped, read_only=self._read_only))

    def _map(self, file: CachedFile, act: Callable[[str, int], IMappedFile]) -> IMappedFile:
        self._shrink(self._most - 1)
        try:
            mapped = act(file.path, file.size)
        except OSError as error:
            if not is_shortage(error) or not self._mapped:
                raise
            self._shrink(len(self._mapped) // 2)
            mapped = act(file.path, file.size)
        self._mapped[file] = None
        return mapped

    def _shrink(self, most: int) -> None:
        while len(self._mapped) > most:
            self._next().let_go()

    def _next(self) -> CachedFile:
        mapped = self._mapped
        for _ in range(_LOOKS_MAX):
            file, _none = mapped.popitem(last=False)
            if not (file.is_used or file.is_dirty):
                return file
            file.is_used = False
            mapped[file] = None
        return mapped.popitem(last=False)[0]

    def close(self) -> None:
        """Unmap all files; one that is used again is mapped again."""
        self._shrink(0)

    def forget(self, file: CachedFile) -> None:
        """Remove a file that is not mapped any more."""
        self._mapped.pop(file, None)


@implementer(IMappedFile)
class CachedFile:
    """A file of a cache. Slices of `buffer` and `view` stay valid, and shared with the file, when it is mapped again;
    after `close` any use raises FileNotFoundError."""

    __slots__ = ("_cache", "_is_closed", "is_dirty", "is_used", "mapped", "path", "size")
    descriptor = None

    def __init__(self, cache: FileCache, path: str, size: int) -> None:
        self._cache = cache
        self.path = path
        self.size = size
        self.mapped: IMappedFile | None = None
        #: Whether it was used since the cache last looked for a file to unmap.
        self.is_used = True
        #: Whether something may have been written since the last sync began.
        self.is_dirty = False
        self._is_closed = False

    @property
    def buffer(self) -> mmap.mmap:
        self.is_used = self.is_dirty = True
        mapped = self.mapped
        return (mapped if mapped is not None else self._map()).buffer

    @property
    def view(self) -> memoryview:
        self.is_used = True
        mapped = self.mapped
        return (mapped if mapped is not None else self._map()).view

    @property
    def is_left_unmapped(self) -> bool:
        """Whether it is not mapped, and better written to by system calls: these take a tenth of what it takes to map
        it in place of another."""
        return self.mapped is None and self._cache.is_full

    def store(self, offset: int, data: bytes | bytearray) -> None:
        """Store bytes. Raises OSError."""
        if self.is_left_unmapped:
            self.write_at(offset, memoryview(data))
        else:
            self.buffer[offset : offset + len(data)] = data

    def _map(self) -> IMappedFile:
        self._check_open()
        self.mapped = self._cache.map(self)
        return self.mapped

    def _check_open(self) -> None:
        if self._is_closed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def let_go(self) -> None:
        """Unmap the file once no slice of it is held and the worker is done with it."""
        self.mapped = None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[IMappedFile]:
        """The open file, without a place in the cache: for the worker, and for single operations."""
        mapped = self.mapped  # another thread may unmap it meanwhile
        if mapped is not None:
            yield mapped
            return
        self._check_open()
        mapped = self._cache.disk.open_mapped(self.path, self.size)
        try:
            yield mapped
        finally:
            mapped.close()

    def allocate(self, offset: int, size: int) -> None:
        if self.is_left_unmapped:
            with self._opened() as mapped:
                mapped.allocate(offset, size)
        else:
            (self.mapped or self._map()).allocate(offset, size)  # it will be written next

    def write_zeros(self, offset: int, size: int) -> None:
        with self._opened() as mapped:
            mapped.write_zeros(offset, size)

    def clear_from(self, offset: int) -> None:
        with self._opened() as mapped:
            mapped.clear_from(offset)

    def write_at(self, offset: int, data: memoryview) -> None:
        self.is_dirty = True
        mapped = self.mapped
        if mapped is not None:
            mapped.write_at(offset, data)
            return
        self._check_open()
        self._cache.disk.write_part(self.path, offset, data)

    def is_resident(self, offset: int, size: int) -> bool:
        """False if it cannot be mapped: the fetch that follows reports why."""
        self.is_used = True
        try:
            mapped = self.mapped or self._map()
        except OSError:
            return False
        return mapped.is_resident(offset, size)

    def fetch(self, offset: int, size: int) -> None:
        with self._opened() as mapped:
            mapped.fetch(offset, size)

    def pin(self) -> None:
        raise NotImplementedError("it would not stay mapped")

    def unpin(self) -> None:
        """Nothing was pinned."""

    def sync(self) -> None:
        self.is_dirty = False
        try:
            with self._opened() as mapped:
                mapped.sync()
        except OSError:
            self.is_dirty = True
            raise

    def sync_apart(self) -> None:
        with self._opened() as mapped:
            mapped.sync_apart()

    def close(self) -> None:
        self._is_closed = True
        self._cache.forget(self)
        mapped, self.mapped = self.mapped, None
        if mapped is not None:
            mapped.close()
