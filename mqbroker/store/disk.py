"""The disk as the store sees it, and the real one. Must never know what the files mean."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable

from zope.interface import Attribute, Interface, implementer

ZEROS_BYTES = 1024 * 1024
_ZEROS = bytes(ZEROS_BYTES)
MADV_POPULATE_WRITE = 23


class IMappedFile(Interface):
    """A file of fixed size, mapped into memory. Bytes never allocated must not be written."""

    path: str = Attribute("where it is")
    size: int = Attribute("its length, bytes")
    buffer: mmap.mmap = Attribute("writable; what is stored here is in the file, though not yet synced")
    view: memoryview = Attribute("the same bytes, read-only")

    def allocate(offset: int, size: int) -> None:
        """Put disk blocks behind these bytes. Raises OSError (ENOSPC) with nothing harmed."""

    def write_through(stop: Callable[[], bool]) -> None:
        """Write zeros over the whole file and sync it, so that later writes never wait for blocks.

        May run on a worker; `stop` is asked before each piece. Only for a file nobody writes to yet.
        """

    def populate(offset: int, size: int) -> None:
        """Make these pages, whose content stays, ready to be written to. May run on a worker. Raises OSError."""

    def clear_from(offset: int) -> None:
        """Make all bytes from `offset` on zero and unallocated. Nobody may touch the buffer meanwhile."""

    def sync() -> None:
        """Return when all bytes stored so far are on the disk. May run on a worker. Raises OSError."""

    def close() -> None:
        """Let go of it; slices of `view` that others hold stay valid."""


class ILockedFile(Interface):
    """A lock that is held until `release`."""

    def release() -> None:
        """Let others have it."""


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

    def open_mapped(path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        """Map the first `size` bytes of an existing file."""

    def read(path: str) -> bytes:
        """All of a file."""

    def write(path: str, data: bytes) -> None:
        """Write a small file in place, create it where missing, and sync it and its directory's entry."""

    def remove(path: str) -> None:
        """Delete a file."""

    def remove_tree(path: str) -> None:
        """Delete a directory with all in it."""

    def sync_directory(path: str) -> None:
        """Return when the names in the directory are on the disk."""

    def lock(path: str) -> ILockedFile:
        """Lock the file for this process. Raises StoreLocked."""

    def boot_id() -> bytes:
        """Differs after each start of the machine: stored bytes that were not synced outlive a process, not this.

        Empty where it is not known."""

    def memory_bytes() -> int:
        """Physical memory of the machine: what the page cache may hold at most."""


@implementer(IMappedFile)
class OsMappedFile:
    """A file of the operating system, mapped shared."""

    __slots__ = ("_fd", "buffer", "path", "size", "view")

    def __init__(self, path: str, size: int, fd: int, keep_open: bool) -> None:
        self.path = path
        self.size = size
        self._fd: int | None = None
        try:
            self.buffer = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        self.view = memoryview(self.buffer).toreadonly()
        if keep_open:
            self._fd = fd
        else:
            os.close(fd)

    def _with_fd(self, act: Callable[[int], None]) -> None:
        if self._fd is not None:
            act(self._fd)
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            act(fd)
        finally:
            os.close(fd)

    def allocate(self, offset: int, size: int) -> None:
        self._with_fd(lambda fd: os.posix_fallocate(fd, offset, size))

    def write_through(self, stop: Callable[[], bool]) -> None:
        def write(fd: int) -> None:
            for offset in range(0, self.size, ZEROS_BYTES):
                if stop():
                    return
                os.pwrite(fd, memoryview(_ZEROS)[: self.size - offset], offset)
            os.fdatasync(fd)

        self._with_fd(write)

    def populate(self, offset: int, size: int) -> None:
        # mmap.madvise would hold the GIL while the kernel works; a foreign function does not.
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        first = ctypes.c_char.from_buffer(self.buffer, offset)
        address = ctypes.c_void_p(ctypes.addressof(first))
        if libc.madvise(address, ctypes.c_size_t(size), MADV_POPULATE_WRITE):
            error = ctypes.get_errno()
            if error != errno.EINVAL:  # a kernel before 5.14 does not know it
                raise OSError(error, os.strerror(error), self.path)

    def clear_from(self, offset: int) -> None:
        def cut(fd: int) -> None:
            os.ftruncate(fd, offset)
            os.ftruncate(fd, self.size)

        self._with_fd(cut)

    def sync(self) -> None:
        self._with_fd(os.fdatasync)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.view.release()
        with contextlib.suppress(BufferError):  # someone holds a slice: unmapped when that goes
            self.buffer.close()


@implementer(IDisk)
class OsDisk:
    """The real disk."""

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return OsMappedFile(path, size, fd, keep_open)

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        return OsMappedFile(path, size, os.open(path, os.O_RDWR | os.O_CLOEXEC), keep_open)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        is_new = not os.path.exists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            self.sync_directory(os.path.dirname(path))

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> ILockedFile:
        from mqbroker.store.lock import lock_file

        return lock_file(path)

    def boot_id(self) -> bytes:
        try:
            return self.read("/proc/sys/kernel/random/boot_id").strip()
        except OSError:
            return b""

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
