"""The disk as the store sees it; `os_disk` is the real one. Must never know what the files mean."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
from twisted.logger import Logger
from zope.interface import Attribute, Interface


@attrs.frozen
class DiskSpace:
    """What of the disk under a path is used, and what may still be: what is kept for root counts as neither."""

    used_bytes: int
    available_bytes: int
    reserved_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.used_bytes + self.available_bytes + self.reserved_bytes

    @property
    def used_percent(self) -> int:
        """Rounded up, as the Java broker does before it compares with a ratio."""
        total = self.used_bytes + self.available_bytes
        return -(-100 * self.used_bytes // total) if total else 0


T = TypeVar("T")

_TOGETHER_MAX = 1024
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Whether there was no descriptor or no map left, of this process or of all: it says nothing of the file, and the
    same will work later."""
    return error.errno in _SHORTAGES


class IMappedFile(Interface):
    """A file of fixed size, mapped into memory. Bytes never allocated must not be written."""

    path: str = Attribute("where it is")
    size: int = Attribute("its length, bytes")
    buffer: mmap.mmap = Attribute("writable; what is stored here is in the file, though not yet synced")
    view: memoryview = Attribute("the same bytes, read-only")
    descriptor: int | None = Attribute("the file's open descriptor; None where it has none, or its syncs are not real")

    def allocate(offset: int, size: int) -> None:
        """Put disk blocks behind these bytes. Raises OSError (ENOSPC) with nothing harmed."""

    def write_through(stop: Callable[[], bool]) -> None:
        """Have zeros written to the disk for the whole file, so that later writes never wait for blocks.

        May run on a worker; `stop` is asked before each piece. Only for a file nobody writes to yet.
        """

    def populate(offset: int, size: int) -> None:
        """Make these pages, whose content stays, ready to be written to. May run on a worker. Raises OSError."""

    def clear_from(offset: int) -> None:
        """Make all bytes from `offset` on zero and unallocated. Nobody may touch the buffer meanwhile."""

    def write_at(offset: int, data: memoryview) -> None:
        """Store bytes by a write, which unlike storing into `buffer` can wait. For the worker. Raises OSError."""

    def is_resident(offset: int, size: int) -> bool:
        """Whether these bytes are in memory, so that reading them from `view` does not wait for the disk. Cheap."""

    def fetch(offset: int, size: int) -> None:
        """Read these bytes into memory. For the worker. Raises OSError where the disk cannot read them, or where the
        file has become shorter, so that touching them in `view` would end the process."""

    def pin() -> None:
        """Have all of it stay in memory. For the worker. Raises OSError where that is forbidden."""

    def unpin() -> None:
        """Undo `pin`, where it was. For the worker."""

    def sync() -> None:
        """Return when all bytes stored so far are on the disk. May run on a worker. Raises OSError."""

    def sync_apart() -> None:
        """As `sync`, but an error it meets will be met by the next `sync` as well: the kernel tells each descriptor
        once. For the worker."""

    def close() -> None:
        """Close it; slices of `view` that others hold stay valid."""


class Unreadable(OSError):
    """The disk cannot read bytes of a file; `offset`: the first of those that were asked for."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        why = (
            f"the disk cannot read it at byte {offset} ({error.strerror or error}): try again, and if it stays so, "
            "copy the file with what reads on behind an error (ddrescue) and put the copy in its place; consumequeue/ "
            "and index/ may be moved away instead, and are built again"
        )
        super().__init__(error.errno, why, path)
        self.offset = offset


def read_before_touch(file: IMappedFile, offset: int, size: int) -> None:
    """Read bytes into memory that may be on the disk only: touching an unreadable page through `view` would kill the
    process (SIGBUS). May wait. Raises Unreadable."""
    if not file.is_resident(offset, size):
        with unreadable(file.path, offset):
            file.fetch(offset, size)


class unreadable:  # noqa: N801 - a context manager, entered for each queue at a start: a generator would be slower
    """Have an error of the disk raised as Unreadable; a want of descriptors or of memory says nothing of the disk."""

    __slots__ = ("_offset", "_path")

    def __init__(self, path: str, offset: int) -> None:
        self._path = path
        self._offset = offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not (is_shortage(error) or isinstance(error, FileNotFoundError | Unreadable)):
            raise Unreadable(self._path, self._offset, error) from error


def store_again(file: IMappedFile, start: int, end: int, *, is_sparse: bool = False) -> None:
    """Store a byte of each page of start..end as it is, so that the next sync writes them all: after one that failed
    the kernel may take pages in memory for written. On the thread that stores in the file. Raises OSError.

    Of a sparse file pages without content are left alone, which may have no blocks, and those that are not in memory.
    """
    for at in range(start - start % mmap.PAGESIZE, end, mmap.PAGESIZE):
        page = min(mmap.PAGESIZE, end - at)
        if is_sparse and not (file.is_resident(at, page) and any(file.view[at : at + page])):
            continue
        read_before_touch(file, at, 1)
        file.write_at(at, memoryview(file.view[at : at + 1].tobytes()))


def sync_each(disk: IDisk, sync: Callable[[T], None], items: Sequence[T]) -> list[tuple[T, OSError]]:
    """Sync each of the items. Returns those that failed, after the first of which not many more are tried; what was
    removed meanwhile needs no sync. For the worker."""
    for at in range(0, len(items), _TOGETHER_MAX):
        some = items[at : at + _TOGETHER_MAX]
        errors = zip(some, disk.together(sync, some), strict=True)
        failed = [(each, error) for each, error in errors if error and not isinstance(error, FileNotFoundError)]
        if failed:
            return failed
    return []


class ILockedFile(Interface):
    """A lock that is held until `release`."""

    def release() -> None:
        """Release the lock."""


class IDisk(Interface):
    """Files and directories. Every method raises OSError."""

    def make_directories(path: str) -> None:
        """Create `path` and its parents where missing."""

    def names(path: str) -> list[str]:
        """Sorted names in a directory; none where it does not exist."""

    def is_directory(path: str) -> bool:
        """Whether `path` is a directory."""

    def exists(path: str) -> bool:
        """Whether there is anything at `path`."""

    def file_size(path: str) -> int:
        """Length of a file, bytes."""

    def create_mapped(path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        """Make a new sparse file of `size` zeros. FileExistsError where there is one.

        With `keep_open` its descriptor stays open, so that no write error can be missed between two syncs.
        """

    def open_mapped(path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        """Map the first `size` bytes of an existing file.

        With `read_only` nothing may be stored in it, and a file that may only be read will do.
        """

    def make_buffer(size: int) -> mmap.mmap:
        """Memory of `size` zeros that is in no file."""

    def pin_buffer(buffer: mmap.mmap) -> None:
        """Have what is written to a buffer stay in memory. Raises OSError where that is forbidden."""

    def modified_ms(path: str) -> int:
        """When a file was last written to: wall clock, milliseconds."""

    def space(path: str) -> DiskSpace:
        """The room on the disk that holds `path`."""

    def read(path: str) -> bytes:
        """All of a file."""

    def read_part(path: str, offset: int, size: int) -> bytes:
        """Some bytes of a file; fewer where it ends before."""

    def write_part(path: str, offset: int, data: memoryview) -> None:
        """Write some bytes of a file that is as long."""

    def write(path: str, data: bytes) -> None:
        """Write a small file in place, create it where missing, and sync it and its directory's entry."""

    def replace(path: str, pieces: Sequence[bytes]) -> None:
        """Make `pieces` the content of a file, created where missing with its directory, whole at every moment and on
        the disk with its name; the former content stays as `.bak`."""

    def remove(path: str) -> None:
        """Delete a file."""

    def rename(old: str, new: str) -> None:
        """Give a file or directory another name on the same disk, at once and instead of what had it."""

    def remove_tree(path: str) -> None:
        """Delete a directory with all in it."""

    def sync_directory(path: str) -> None:
        """Return when the names in the directory are on the disk."""

    def together(act: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        """Call `act` with each of the items, with some at a time where they are many, as what waits for the disk may
        wait together; and return what each raised. For the worker; `act` must allow other threads."""

    def lock(path: str) -> ILockedFile:
        """Lock the file for this process. Raises StoreLocked."""

    def boot_id() -> bytes:
        """Differs after each start of the machine: stored bytes that were not synced outlive a process, not this.

        Empty where it is not known."""

    def memory_bytes() -> int:
        """Physical memory of the machine: what the page cache may hold at most."""

    def cached_files_max() -> int:
        """How many files a cache may have mapped, so that there is room for those that must always be, and for
        connections."""


log = Logger()


class Outage:
    """One kind of failure, logged once when it begins and once when it ends.

    :param what_fails: such as "/data/topics.json cannot be written".
    :param works_again: what to say when it does.
    """

    def __init__(self, what_fails: str, works_again: str) -> None:
        self._what_fails = what_fails
        self._works_again = works_again
        self.is_on = False

    def failed(self, why: str) -> None:
        if not self.is_on:
            self.is_on = True
            log.error("{what}: {why}", what=self._what_fails, why=why)

    def worked(self) -> None:
        if self.is_on:
            self.is_on = False
            log.info("{what}", what=self._works_again)
