"""Interface of the disk that the store uses; `os_disk` implements it. Knows nothing of what the files mean."""

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
    """Used and available space of a disk; space reserved for root counts as neither."""

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
    """Whether descriptors or memory maps ran out, in this process or system-wide: it says nothing of the file, and a
    retry may work."""
    return error.errno in _SHORTAGES


class IMappedFile(Interface):
    """A file of fixed size, mapped into memory. Unallocated bytes must not be written."""

    path: str = Attribute("where it is")
    size: int = Attribute("its length, bytes")
    buffer: mmap.mmap = Attribute("writable; what is stored here is in the file, though not yet synced")
    view: memoryview = Attribute("the same bytes, read-only")
    descriptor: int | None = Attribute("the file's open descriptor; None where it has none, or its syncs are not real")

    def allocate(offset: int, size: int) -> None:
        """Allocate disk blocks for these bytes. Raises OSError (ENOSPC) with nothing changed."""

    def write_zeros(offset: int, size: int) -> None:
        """Write zeros, so that storing into these bytes later waits for no blocks, and costs little for each page. For
        the worker; nothing may be stored in them meanwhile. Raises OSError."""

    def clear_from(offset: int) -> None:
        """Zero and deallocate all bytes from `offset` on. The buffer must not be used meanwhile."""

    def write_at(offset: int, data: memoryview) -> None:
        """Write bytes with a system call, which may block. It takes half the time of storing into pages that are not
        in memory. Raises OSError, with none or a part of them written."""

    def is_resident(offset: int, size: int) -> bool:
        """Whether these bytes are resident, so that reading them from `view` does not wait for the disk. Cheap."""

    def fetch(offset: int, size: int) -> None:
        """Read these bytes into memory. For the worker. Raises OSError where the disk cannot read them, or where the
        file has become shorter, so that touching them in `view` would end the process."""

    def pin() -> None:
        """Lock all of it in memory. For the worker. Raises OSError if that is forbidden."""

    def unpin() -> None:
        """Undo `pin`. For the worker."""

    def sync() -> None:
        """Sync all bytes stored so far. May run on a worker. Raises OSError."""

    def sync_apart() -> None:
        """As `sync`, but through a descriptor of its own, so that the next `sync` reports an error too: the kernel
        reports it once per descriptor. For the worker."""

    def close() -> None:
        """Close the file; slices of `view` that others hold stay valid."""


class Unreadable(OSError):
    """The disk cannot read bytes of a file; `offset`: the first of those requested."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        why = (
            f"the disk cannot read it at byte {offset} ({error.strerror or error}): try again, and if it stays so, "
            "copy the file with what reads on behind an error (ddrescue) and put the copy in its place; consumequeue/ "
            "and index/ may be moved away instead, and are rebuilt"
        )
        super().__init__(error.errno, why, path)
        self.offset = offset


def read_before_touch(file: IMappedFile, offset: int, size: int) -> None:
    """Read bytes that may be on disk only into memory: touching an unreadable page through `view` would kill the
    process (SIGBUS). May wait. Raises Unreadable."""
    if not file.is_resident(offset, size):
        with unreadable(file.path, offset):
            file.fetch(offset, size)


class unreadable:  # noqa: N801 - a context manager, entered for each queue at a start: a generator would be slower
    """Raise an error of the disk as Unreadable; a lack of descriptors or memory is raised unchanged."""

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
    """Dirty each page of start..end by storing one of its bytes again, so that the next sync writes them all: after a
    failed sync the kernel may take pages in memory for clean. On the thread that writes to the file. Raises OSError.

    In a sparse file, pages without content, which may have no blocks, and those that are not resident are skipped.
    """
    for at in range(start - start % mmap.PAGESIZE, end, mmap.PAGESIZE):
        page = min(mmap.PAGESIZE, end - at)
        if is_sparse and not (file.is_resident(at, page) and any(file.view[at : at + page])):
            continue
        read_before_touch(file, at, 1)
        file.write_at(at, memoryview(file.view[at : at + 1].tobytes()))


def sync_each(disk: IDisk, sync: Callable[[T], None], items: Sequence[T]) -> list[tuple[T, OSError]]:
    """Sync each of the items. Returns those that failed; after the first failure not many more are tried. Items removed
    meanwhile need no sync. For the worker."""
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
        """Sorted names in a directory; empty if it does not exist."""

    def is_directory(path: str) -> bool:
        """Whether `path` is a directory."""

    def exists(path: str) -> bool:
        """Whether there is anything at `path`."""

    def file_size(path: str) -> int:
        """Length of a file, bytes."""

    def create_mapped(path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        """Create a sparse file of `size` zeros. Raises FileExistsError.

        With `keep_open` its descriptor stays open, so that no write error is missed between two syncs.
        """

    def open_mapped(path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        """Map the first `size` bytes of an existing file.

        With `read_only` it cannot be written, and read permission is enough.
        """

    def make_buffer(size: int) -> mmap.mmap:
        """Anonymous memory of `size` zeros."""

    def pin_buffer(buffer: mmap.mmap) -> None:
        """Lock a buffer in memory. Raises OSError if that is forbidden."""

    def modified_ms(path: str) -> int:
        """Time of the last write to a file: wall clock, ms."""

    def space(path: str) -> DiskSpace:
        """Space of the disk that holds `path`."""

    def read(path: str) -> bytes:
        """All of a file."""

    def read_part(path: str, offset: int, size: int) -> bytes:
        """Some bytes of a file; fewer where it ends before."""

    def write_part(path: str, offset: int, data: memoryview) -> None:
        """Write some bytes within a file."""

    def write(path: str, data: bytes) -> None:
        """Write a small file in place, created if missing, and sync it and its directory entry."""

    def replace(path: str, pieces: Sequence[bytes]) -> None:
        """Replace a file's content atomically and durably by `pieces`; file and directory are created if missing, and
        the former content is kept as `.bak`."""

    def remove(path: str) -> None:
        """Delete a file."""

    def rename(old: str, new: str) -> None:
        """Rename a file or directory on the same disk, atomically replacing the target."""

    def remove_tree(path: str) -> None:
        """Delete a directory recursively."""

    def sync_directory(path: str) -> None:
        """Sync the names in a directory."""

    def together(act: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        """Call `act` with each of the items, several at a time where they are many, so that waits for the disk overlap;
        returns what each raised. For the worker; `act` must be thread-safe."""

    def lock(path: str) -> ILockedFile:
        """Lock the file for this process. Raises StoreLocked."""

    def boot_id() -> bytes:
        """Changes with each boot: unsynced writes survive the process, but not a reboot.

        Empty if unknown."""

    def memory_bytes() -> int:
        """Physical memory of the machine: what the page cache may hold at most."""

    def cached_files_max() -> int:
        """Number of files that a cache may keep mapped, leaving room for those that must always be, and for
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
