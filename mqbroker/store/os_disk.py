"""The real disk: IDisk over the operating system's files and mappings. Knows nothing of what the files mean."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

from zope.interface import implementer

from mqbroker.config.system import open_new
from mqbroker.store.disk import DiskSpace, IDisk, ILockedFile, IMappedFile
from mqbroker.store.untracked_map import map_untracked

MADV_RANDOM = 1
MADV_WILLNEED = 3
MLOCK_ONFAULT = 1
#: With FALLOC_FL_KEEP_SIZE, which must go with it.
FALLOC_FL_PUNCH_HOLE = 0x2 | 0x1
#: Errors where hard links are impossible: of the file system, or of the kernel's protection of hard links.
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: Errors where a file cannot be without a name, or is not given one later: also of kernels that take O_TMPFILE for
#: O_DIRECTORY, and where no /proc is mounted.
_NO_UNNAMED = (*_NO_LINKS, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV)
#: How many pieces of a content are written at once.
_PIECES = 1000
#: Messages are readable by the broker's user only. The umask applies on top.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
#: What one write puts into an empty page cache becomes one folio, where the file system has large ones (XFS, ext4 since
#: Linux 6.16). A page appended to in one of 32 KiB takes a third of the CPU time of one that is a folio of its own, and
#: the sync of a few bytes, which writes a folio whole, no longer; in much larger ones it would.
FOLIO_BYTES = 32 * 1024
#: Takes no memory.
_ZEROS = memoryview(mmap.mmap(-1, FOLIO_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ))
_FETCH_BYTES = 256 * 1024
_PAGE_BYTES = mmap.PAGESIZE
#: Additional threads for many syncs: one flush of the disk then serves all of them.
_THREADS = 7
_ITEMS_A_THREAD = 16
#: Descriptors for files other than connections, or a quarter of the limit where that is low: segments of the log, log
#: files, and temporary ones.
FILES_KEPT = 5000
#: Linux's default limit of maps, of which a quarter may be of consume queues; and how many these may be whatever the
#: limit is, since each takes a page of page table at least.
_MAPS_MAX = 65_530
_CACHED_FILES_MAX = 32_768
_libc = ctypes.CDLL(None, use_errno=True)
#: Without giving up the interpreter, which other threads would keep for milliseconds: it takes 2 us.
_mincore = ctypes.PyDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _naming:  # noqa: N801 - as disk.unreadable
    """Add the file's name to an OSError, as open() does."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path


@implementer(IMappedFile)
class OsMappedFile:
    """IMappedFile over a shared mapping."""

    __slots__ = ("_address", "_is_read_only", "buffer", "descriptor", "path", "size", "view")

    def __init__(self, path: str, size: int, fd: int, keep_open: bool, read_only: bool = False) -> None:
        self.path = path
        self.size = size
        self._is_read_only = read_only
        self._address = 0
        self.descriptor: int | None = None
        try:
            with _naming(path):
                self.buffer = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if read_only else map_untracked(fd, size)
                if not (keep_open or read_only):
                    # For randomly accessed files: the kernel must not read ahead megabytes around each fault, which are
                    # mostly holes and take memory all the same.
                    self.buffer.madvise(MADV_RANDOM)
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

    def write_zeros(self, offset: int, size: int) -> None:
        def write(fd: int) -> None:
            end = offset + size
            for folio in range(offset - offset % FOLIO_BYTES, end, FOLIO_BYTES):
                start = max(folio, offset)
                _write_all(fd, _ZEROS[: min(folio + FOLIO_BYTES, end) - start], start)

        self._with_fd(write)

    def write_at(self, offset: int, data: memoryview) -> None:
        self._with_fd(lambda fd: _write_all(fd, data, offset))

    def is_resident(self, offset: int, size: int) -> bool:
        if self._is_read_only:
            return False
        first = offset - offset % _PAGE_BYTES
        pages = -(-(offset + size - first) // _PAGE_BYTES)
        found = (ctypes.c_char * pages)()
        if _mincore(self._at(first), offset + size - first, found):
            return False
        return found.raw.count(1) == pages  # the other bits are reserved, and not set

    def fetch(self, offset: int, size: int) -> None:
        def read(fd: int) -> None:
            end = offset + size
            for at in range(offset, end, _FETCH_BYTES):
                want = min(_FETCH_BYTES, end - at)
                if len(_read_part(fd, at, want)) != want:
                    raise OSError(errno.EIO, f"the file was cut off below byte {at + want}", self.path)

        self._with_fd(read)

    def pin(self) -> None:
        _call("madvise", self._at(0), self.size, MADV_WILLNEED, self.path)
        if _call("mlock", self._at(0), self.size, None, self.path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)

    def unpin(self) -> None:
        _libc.munlock(ctypes.c_void_p(self._at(0)), ctypes.c_size_t(self.size))

    def _at(self, offset: int) -> int:
        """The address of a byte of the mapping, for libc: mmap.madvise would hold the GIL."""
        if not self._address:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        return self._address + offset

    def clear_from(self, offset: int) -> None:
        def cut(fd: int) -> None:
            # Not by truncating it for a moment: a kill then would leave a file of another size.
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
        with contextlib.suppress(BufferError):  # a slice is in use: unmapped when it is released
            self.buffer.close()


def _read_part(fd: int, offset: int, size: int) -> bytes:
    """Read bytes of a file; fewer at its end. Raises OSError: a read ends short before an unreadable sector, as it does
    at the end of the file, and only one that begins there fails."""
    data = os.pread(fd, size, offset)
    while 0 < len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more
    return data


def _punch_hole(fd: int, offset: int, size: int) -> bool:
    """Zero and deallocate bytes of a file; False if the file system cannot."""
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


def make_directories(path: str) -> None:
    """Create a directory and its parents where missing, for this process's user alone. Raises OSError."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None


def replace_file(path: str, data: bytes | Sequence[bytes]) -> None:
    """Make `data`, or all pieces of it, the content of `path`, keeping the former as `.bak`.

    Who may read it stays as it is; a new file and a new directory are for this process's user alone. Raises OSError
    with the former untouched.
    """
    directory = os.path.dirname(path)
    make_directories(directory)
    try:
        mode = os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mode = FILE_MODE
    temporary = path + ".tmp"
    _write_new(temporary, [data] if isinstance(data, bytes) else data, mode)
    backup = path + ".bak"
    if os.path.exists(path):
        # A link, not a rename: `path` itself is there at every moment.
        backup_next = backup + ".tmp"
        if os.path.lexists(backup_next):
            os.unlink(backup_next)
        try:
            os.link(path, backup_next)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(path, "rb") as file:
                _write_new(backup_next, [file.read()], mode)
        os.replace(backup_next, backup)
    os.replace(temporary, path)
    _sync_directory(directory)


def _write_new(path: str, pieces: Sequence[bytes], mode: int) -> None:
    """Write a file and sync it; replaces the leftover of a process that died, whatever its permissions."""
    fd = open_new(path, mode)
    try:
        at = 0
        for number in range(0, len(pieces), _PIECES):
            data = b"".join(pieces[number : number + _PIECES])
            _write_all(fd, memoryview(data), at)
            at += len(data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _create_sized(path: str, size: int) -> None:
    """Create a file of `size` bytes, all of it a hole. Raises OSError.

    It has its size before it has its name, where the file system can do that: a Java broker does not start with a
    segment of another size (MappedFileQueue.doLoad of 4.9.7), and a process may be killed at any time.
    """
    try:
        fd = os.open(os.path.dirname(path) or ".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(fd, size)
            # Only with a directory, which is not looked at, does os.link follow the symbolic link.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise OSError(error.errno, error.strerror, path) from error
        _create_named(path, size)


def _create_named(path: str, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with _naming(path):
            os.ftruncate(fd, size)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(path):
            os.fsync(fd)
    finally:
        os.close(fd)


@implementer(IDisk)
class OsDisk:
    """The real disk."""

    def make_directories(self, path: str) -> None:
        make_directories(path)

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
        _create_sized(path, size)
        try:
            # Opened by its name: mapped without one, it would be "(deleted)" in /proc/*/maps.
            return OsMappedFile(path, size, os.open(path, os.O_RDWR | os.O_CLOEXEC), keep_open)
        except BaseException:
            os.unlink(path)
            raise

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
        unit = found.f_frsize
        used, reserved = found.f_blocks - found.f_bfree, found.f_bfree - found.f_bavail
        return DiskSpace(used * unit, found.f_bavail * unit, reserved * unit)

    def read(self, path: str) -> bytes:
        with _naming(path), open(path, "rb") as file:
            return file.read()

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _naming(path):
                return _read_part(fd, offset, size)
        finally:
            os.close(fd)

    def write_part(self, path: str, offset: int, data: memoryview) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with _naming(path):
                _write_all(fd, data, offset)
        finally:
            os.close(fd)

    def write(self, path: str, data: bytes) -> None:
        is_new = not os.path.lexists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
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

    def replace(self, path: str, pieces: Sequence[bytes]) -> None:
        replace_file(path, pieces)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        _sync_directory(path)

    def together(self, act: Callable[[Any], None], items: Sequence[Any]) -> list[OSError | None]:
        errors: list[Exception | None] = [None] * len(items)
        left = iter(range(len(items)))  # each of the threads takes its next from here

        def work() -> None:
            for at in left:
                try:
                    act(items[at])
                except Exception as error:
                    errors[at] = error

        threads: list[threading.Thread] = []
        with contextlib.suppress(RuntimeError):  # no thread can be started: then it takes longer
            for _ in range(min(_THREADS, len(items) // _ITEMS_A_THREAD)):
                thread = threading.Thread(target=work)
                thread.start()
                threads.append(thread)
        work()
        for thread in threads:
            thread.join()
        found: list[OSError | None] = []
        for error in errors:
            if not (error is None or isinstance(error, OSError)):
                raise error
            found.append(error)
        return found

    def lock(self, path: str) -> ILockedFile:
        from mqbroker.store.layout import lock_file

        return lock_file(path)

    def boot_id(self) -> bytes:
        try:
            return self.read("/proc/sys/kernel/random/boot_id").strip()
        except OSError:
            return b""

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def cached_files_max(self) -> int:
        return max(1, min(_CACHED_FILES_MAX, _maps_max() // 4))


def files_kept() -> int:
    """How many of the process's open files are reserved for other things than connections."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_KEPT if allowed == resource.RLIM_INFINITY else min(FILES_KEPT, allowed // 4)


def _maps_max() -> int:
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _MAPS_MAX
