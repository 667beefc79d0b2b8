"""The disk as the store sees it, and the real one. Must never know what the files mean."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator

import attrs
from zope.interface import Attribute, Interface, implementer

ZEROS_BYTES = 1024 * 1024
_ZEROS = bytes(ZEROS_BYTES)
MADV_NORMAL = 0
MADV_RANDOM = 1
MADV_WILLNEED = 3
MADV_POPULATE_WRITE = 23
MLOCK_ONFAULT = 1
#: With FALLOC_FL_KEEP_SIZE, which must go with it.
FALLOC_FL_PUNCH_HOLE = 0x2 | 0x1
_SYNC_BYTES = 16 * ZEROS_BYTES
_FETCH_BYTES = 256 * 1024
_PAGE_BYTES = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@attrs.frozen
class DiskSpace:
    """What of the disk under a path is used, and what may still be: what is kept for root counts as neither."""

    used_bytes: int
    available_bytes: int

    @property
    def used_percent(self) -> int:
        """Rounded up, as the Java broker does before it compares with a ratio."""
        total = self.used_bytes + self.available_bytes
        return -(-100 * self.used_bytes // total) if total else 0


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

    def write(path: str, data: bytes) -> None:
        """Write a small file in place, create it where missing, and sync it and its directory's entry."""

    def remove(path: str) -> None:
        """Delete a file."""

    def rename(old: str, new: str) -> None:
        """Give a file or directory another name on the same disk, at once and instead of what had it."""

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


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Have an OSError say which file it is about, as those of open() do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@implementer(IMappedFile)
class OsMappedFile:
    """A file of the operating system, mapped shared."""

    __slots__ = ("_address", "_is_read_only", "buffer", "descriptor", "path", "size", "view")

    def __init__(self, path: str, size: int, fd: int, keep_open: bool, read_only: bool = False) -> None:
        self.path = path
        self.size = size
        self._is_read_only = read_only
        self._address = 0
        self.descriptor: int | None = None
        try:
            self.buffer = mmap.mmap(fd, size, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_DEFAULT)
        except BaseException:
            os.close(fd)
            raise
        self.view = memoryview(self.buffer).toreadonly()
        if keep_open:
            self.descriptor = fd
        else:
            os.close(fd)

    def _with_fd(self, act: Callable[[int], None]) -> None:
        with _naming(self.path):
            self._act(act)

    def _act(self, act: Callable[[int], None]) -> None:
        if self.descriptor is not None:
            act(self.descriptor)
            return
        fd = os.open(self.path, (os.O_RDONLY if self._is_read_only else os.O_RDWR) | os.O_CLOEXEC)
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
                size = min(ZEROS_BYTES, self.size - offset)
                if not self._populate(offset, size):
                    os.pwrite(fd, memoryview(_ZEROS)[:size], offset)
                if (offset + size) % _SYNC_BYTES == 0:
                    os.fdatasync(fd)
            os.fdatasync(fd)

        self._with_fd(write)

    def populate(self, offset: int, size: int) -> None:
        for at in range(offset, offset + size, ZEROS_BYTES):
            self._populate(at, min(ZEROS_BYTES, offset + size - at))

    def _populate(self, offset: int, size: int) -> bool:
        """False with a kernel before 5.14, which does not know it.

        Page by page: what writes or reads ahead do is to fill the cache by folios of up to 2 MiB, each of which is then
        written whole at every sync of a few bytes in it.
        """
        at = self._at(offset)
        _call("madvise", at, size, MADV_RANDOM, self.path)
        try:
            return not _call("madvise", at, size, MADV_POPULATE_WRITE, self.path)
        finally:
            _call("madvise", at, size, MADV_NORMAL, self.path)

    def write_at(self, offset: int, data: memoryview) -> None:
        def write(fd: int) -> None:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], offset + done)

        self._with_fd(write)

    def is_resident(self, offset: int, size: int) -> bool:
        if self._is_read_only:
            return False
        first = offset - offset % _PAGE_BYTES
        pages = -(-(offset + size - first) // _PAGE_BYTES)
        found = bytearray(pages)
        if _mincore(self._at(first), offset + size - first, (ctypes.c_char * pages).from_buffer(found)):
            return False
        return all(page & 1 for page in found)

    def fetch(self, offset: int, size: int) -> None:
        def read(fd: int) -> None:
            end = offset + size
            for at in range(offset, end, _FETCH_BYTES):
                want = min(_FETCH_BYTES, end - at)
                if len(os.pread(fd, want, at)) != want:
                    raise OSError(errno.EIO, f"the file was cut off below byte {at + want}", self.path)

        self._with_fd(read)

    def pin(self) -> None:
        _call("madvise", self._at(0), self.size, MADV_WILLNEED, self.path)
        if _call("mlock", self._at(0), self.size, None, self.path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)

    def unpin(self) -> None:
        _libc.munlock(ctypes.c_void_p(self._at(0)), ctypes.c_size_t(self.size))

    def _at(self, offset: int) -> int:
        """The address of a byte of the mapping, for functions of libc: mmap.madvise would hold the GIL meanwhile."""
        if not self._address:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        return self._address + offset

    def clear_from(self, offset: int) -> None:
        def cut(fd: int) -> None:
            # Not by making it shorter for a moment: a process that was killed then left a file of another size.
            if offset < self.size and not _punch_hole(fd, offset, self.size - offset):
                os.ftruncate(fd, offset)
                os.ftruncate(fd, self.size)

        self._with_fd(cut)

    def sync(self) -> None:
        self._with_fd(os.fdatasync)

    def sync_apart(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        self._address = 0
        self.view.release()
        with contextlib.suppress(BufferError):  # someone holds a slice: unmapped when that goes
            self.buffer.close()


def _punch_hole(fd: int, offset: int, size: int) -> bool:
    """Make bytes of a file zero and unallocated; False where the file system cannot."""
    if not _libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size)):
        return True
    error = ctypes.get_errno()
    if error in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(error, os.strerror(error))


def _call(name: str, address: int, size: int, advice: int | None, path: str) -> int:
    """Call madvise or mlock without the GIL; returns 0, or EINVAL. Raises OSError on any other error."""
    arguments = [ctypes.c_void_p(address), ctypes.c_size_t(size)]
    if not getattr(_libc, name)(*arguments, *([] if advice is None else [advice])):
        return 0
    error = ctypes.get_errno()
    if error != errno.EINVAL:
        raise OSError(error, os.strerror(error), path)
    return error


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
            with _naming(path):
                os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return OsMappedFile(path, size, fd, keep_open)

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        fd = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
        return OsMappedFile(path, size, fd, keep_open, read_only)

    def make_buffer(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)

    def pin_buffer(self, buffer: mmap.mmap) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        # Only pages that are used: the buffer is as large as a segment.
        if _libc.mlock2(ctypes.c_void_p(address), ctypes.c_size_t(len(buffer)), MLOCK_ONFAULT):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        return DiskSpace((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        is_new = not os.path.exists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _naming(path):
                if os.pwrite(fd, data, 0) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(fd)
            if is_new:
                self.sync_directory(os.path.dirname(path))
        except OSError:
            if is_new:  # the next write makes it again, and then knows that its name was not synced
                os.unlink(path)
            raise
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _naming(path):
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
