"""The calls of the operating system that the store's own code for disks makes, on a simulated disk.

`load` gives a copy of one of its modules that makes them: descriptors, the order of calls, and what is done about an
error are those of production. A call that is not here is an AttributeError: it has to be simulated first.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib.util
import io
import mmap
import os
import stat
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from tests.store.simulation.aio import Aio
from tests.store.simulation.inode import PAGE_BYTES, Inode, pages_of
from tests.store.simulation.threads import Threads

if TYPE_CHECKING:
    from tests.store.simulation.disk import Directory, SimDisk

T = TypeVar("T")

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MEMORY_BYTES = 1024 * 1024 * 1024
_FIRST_DESCRIPTOR = 100
_PUNCH_HOLE = 0x3


class X86:
    """platform."""

    @staticmethod
    def machine() -> str:
        return "x86_64"


def error_of(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number)) if path is None else OSError(number, os.strerror(number), path)


#: What the module of the disk has from here opens files, too.
_SYSTEM = "mqbroker.config.system"


@functools.cache
def _code(name: str) -> types.CodeType:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return compile(Path(spec.origin).read_text(), spec.origin, "exec")


def load(name: str, calls: Calls) -> Any:
    """A copy of a module of the store, on this disk."""
    module = types.ModuleType(name)
    exec(_code(name), module.__dict__)
    maps = Maps(calls)
    names = {"os": calls, "mmap": maps, "shutil": Trees(calls), "_libc": Libc(calls)}
    names |= {"map_untracked": maps.mmap, "_mincore": calls.mincore, "threading": calls.threads}
    names |= {"_syscall": calls.aio, "platform": X86}
    for each, value in names.items():
        if hasattr(module, each):
            setattr(module, each, value)
    module.__dict__["open"] = calls.open_file
    if name != _SYSTEM and hasattr(module, "open_new"):
        module.__dict__["open_new"] = load(_SYSTEM, calls).__dict__["open_new"]
    return module


@attrs.define(eq=False)
class Event:
    """What an event descriptor counts."""

    count: int = 0


@attrs.define(eq=False)
class Opened:
    """An open descriptor. `errors_told`: how many of its file's write errors it need not be told any more."""

    node: Inode | Directory | Event
    path: str
    flags: int
    errors_told: int = 0
    is_new: bool = False


def _call(function: Callable[..., T]) -> Callable[..., T]:
    """A system call: other threads may make theirs before and after, and none meanwhile."""

    @functools.wraps(function)
    def call(self: Calls, *arguments: Any, **options: Any) -> T:
        self.disk.on_call()
        result = function(self, *arguments, **options)
        self.disk.on_call()
        return result

    return call


class _Paths:
    """os.path."""

    join, dirname, basename = staticmethod(os.path.join), staticmethod(os.path.dirname), staticmethod(os.path.basename)

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def lexists(self, path: str) -> bool:
        self._disk.on_call()
        return self._disk.find(path) is not None

    exists = lexists

    def isdir(self, path: str) -> bool:
        self._disk.on_call()
        found = self._disk.find(path)
        return found is not None and not isinstance(found, Inode)


class Calls:
    """os. `descriptors` that are open, by number; `maps`: the address at which each file is mapped."""

    O_RDONLY, O_RDWR, O_CREAT, O_EXCL, O_CLOEXEC, O_DIRECTORY, O_TMPFILE, O_NOFOLLOW = (
        os.O_RDONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_CLOEXEC, os.O_DIRECTORY, os.O_TMPFILE,
        os.O_NOFOLLOW,
    )  # fmt: skip
    POSIX_FADV_WILLNEED, EFD_NONBLOCK, EFD_CLOEXEC = os.POSIX_FADV_WILLNEED, os.EFD_NONBLOCK, os.EFD_CLOEXEC
    strerror = staticmethod(os.strerror)

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.path = _Paths(disk)
        self.descriptors: dict[int, Opened] = {}
        self.maps: dict[int, tuple[Inode, str]] = {}
        self.threads = Threads()
        self.aio = Aio(self)
        self._next = _FIRST_DESCRIPTOR

    # Descriptors

    @_call
    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        disk = self.disk
        disk.refuse("open", path)
        disk.check_descriptors(len(self.descriptors), path)
        node = disk.find(path)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            disk.refuse("create", path)
            disk.directory(path)
            return self._add(Opened(Inode(links=0), f"{path}/", flags, is_new=True))
        if node is None:
            if not flags & os.O_CREAT:
                raise error_of(errno.ENOENT, path)
            node = disk.create(path)
            return self._add(Opened(node, path, flags, is_new=True))
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise error_of(errno.EEXIST, path)
        if isinstance(node, Inode) == bool(flags & os.O_DIRECTORY):
            raise error_of(errno.ENOTDIR if isinstance(node, Inode) else errno.EISDIR, path)
        return self._add(Opened(node, path, flags, node.write_errors if isinstance(node, Inode) else 0))

    def _add(self, opened: Opened) -> int:
        self._next += 1
        self.descriptors[self._next] = opened
        return self._next

    def close(self, fd: int) -> None:
        if self.descriptors.pop(fd, None) is None:
            raise error_of(errno.EBADF)

    def opened(self, fd: int) -> Opened:
        found = self.descriptors.get(fd)
        if found is None:
            raise error_of(errno.EBADF)
        return found

    def file(self, fd: int) -> tuple[Inode, str]:
        opened = self.opened(fd)
        if not isinstance(opened.node, Inode):
            raise error_of(errno.EISDIR)
        return opened.node, opened.path

    # Bytes

    @_call
    def ftruncate(self, fd: int, size: int) -> None:
        inode, path = self.file(fd)
        self.disk.act("set_size", path)
        self.disk.give_blocks(inode.set_size(size))
        inode.modified_ms = self.disk.now_ms()

    @_call
    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        inode, path = self.file(fd)
        self.disk.act("allocate", path)
        self.disk.take_blocks(inode, offset, size)

    @_call
    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        inode, path = self.file(fd)
        data = bytes(data)
        half = len(data) // 2
        for start, end in ((0, half), (half, len(data))):
            self.disk.act("write_at", path)
            self._bring_edges(inode, path, offset + start, offset + end)
            self.disk.give_blocks(inode.set_size(max(inode.size, offset + end)))
            self.disk.take_blocks(inode, offset + start, end - start)
            inode.store(offset + start, data[start:end])
            inode.modified_ms = self.disk.now_ms()
        return len(data)

    def _bring_edges(self, inode: Inode, path: str, start: int, end: int) -> None:
        """Pages of which a part only is written are read before."""
        for at in (start, end):
            if at % PAGE_BYTES:
                self.disk.bring(inode, path, at, 1)

    @_call
    def pread(self, fd: int, size: int, offset: int) -> bytes:
        inode, path = self.file(fd)
        self.disk.act("fetch", path)
        size = max(0, min(size, inode.size - offset))
        try:
            return self.disk.read_bytes(inode, path, offset, size)
        except OSError:
            # What comes before the page that cannot be read is an answer: only who asks for the rest is told why.
            following = (offset // PAGE_BYTES + 1) * PAGE_BYTES
            if following >= offset + size or self.disk.is_unreadable(inode, offset):
                raise
            return self.disk.read_bytes(inode, path, offset, following - offset)

    @_call
    def fdatasync(self, fd: int) -> None:
        self.sync(fd)

    fsync = fdatasync

    def sync(self, fd: int) -> None:
        """Sync, which is a call of no thread."""
        opened = self.opened(fd)
        node = opened.node
        if isinstance(node, Event):
            raise error_of(errno.EINVAL)
        if not isinstance(node, Inode):
            self.disk.sync_names(node, opened.path)
            return
        try:
            self.disk.sync_inode(node, opened.path)
        except OSError as error:
            opened.errors_told = node.write_errors
            raise error_of(error.errno or errno.EIO) from None
        if opened.errors_told < node.write_errors:  # met by another descriptor's sync; each is told once
            opened.errors_told = node.write_errors
            raise error_of(errno.EIO)

    # Events

    def eventfd(self, value: int, flags: int) -> int:
        return self._add(Opened(Event(value), "", flags))

    def event(self, fd: int) -> Event:
        node = self.opened(fd).node
        assert isinstance(node, Event)
        return node

    def eventfd_read(self, fd: int) -> int:
        event = self.event(fd)
        self.aio.check("event")
        if not event.count:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count, event.count = event.count, 0
        return count

    # Names

    @_call
    def listdir(self, path: str) -> list[str]:
        return list(self.disk.directory(path).names)

    @_call
    def stat(self, path: str) -> types.SimpleNamespace:
        node = self.disk.find(path)
        if node is None:
            raise error_of(errno.ENOENT, path)
        if isinstance(node, Inode):
            return types.SimpleNamespace(
                st_size=node.size, st_mtime_ns=node.modified_ms * 1_000_000, st_mode=stat.S_IFREG | 0o644
            )
        return types.SimpleNamespace(st_size=0, st_mtime_ns=0, st_mode=stat.S_IFDIR | 0o755)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        at = ""
        for name in path.strip("/").split("/"):
            at += f"/{name}"
            if not self.path.lexists(at):
                self.mkdir(at)
        if not self.path.isdir(path):
            raise error_of(errno.ENOTDIR, path)

    @_call
    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self.disk.refuse("mkdir", path)
        self.disk.make_directory(path)

    @_call
    def unlink(self, path: str) -> None:
        self.disk.unlink(path)

    @_call
    def rmdir(self, path: str) -> None:
        self.disk.remove_directory(path)

    @_call
    def link(self, path: str, other: str, *, src_dir_fd: int = -1) -> None:
        self.disk.refuse("create", other)
        if path.startswith("/proc/self/fd/"):
            opened = self.opened(int(os.path.basename(path)))
            assert opened.flags & os.O_TMPFILE == os.O_TMPFILE
            assert src_dir_fd >= 0, "without it, the link in /proc would be given another name"
            inode, _ = self.file(int(os.path.basename(path)))
            opened.path = other
        else:
            inode = self.disk.inode(path)
        self.disk.link(inode, other)

    @_call
    def rename(self, old: str, new: str) -> None:
        self.disk.move(old, new)

    replace = rename

    @_call
    def statvfs(self, path: str) -> types.SimpleNamespace:
        self.disk.refuse("open", path)
        if self.disk.find(path) is None:
            raise error_of(errno.ENOENT, path)
        used, free = self.disk.used_bytes, self.disk.free_bytes
        return types.SimpleNamespace(f_frsize=1, f_blocks=used + free, f_bfree=free, f_bavail=free)

    def sysconf(self, name: str) -> int:
        return {"SC_PAGE_SIZE": mmap.PAGESIZE, "SC_PHYS_PAGES": MEMORY_BYTES // mmap.PAGESIZE}[name]

    # Others

    def open_file(self, path: str, mode: str = "r") -> io.BytesIO:
        """The built-in function, for files that are read whole."""
        assert mode == "rb"
        if path == BOOT_ID:
            return io.BytesIO(self.disk.boot)
        fd = self.open(path, os.O_RDONLY)
        try:
            inode, _ = self.file(fd)
            self.disk.act("read", path)
            return io.BytesIO(self.disk.read_bytes(inode, path, 0, inode.size))
        finally:
            self.close(fd)

    def mincore(self, address: int, size: int, found: Any) -> int:
        inode, at = self.mapped(address)
        for number, page in enumerate(pages_of(at, size)):
            found[number] = bytes((page not in inode.unread,))
        return 0

    def mapped(self, address: int) -> tuple[Inode, int]:
        """The file that is mapped at an address, and the place in it."""
        for start, (inode, _) in self.maps.items():
            if start <= address < start + len(inode.memory):
                return inode, address - start
        raise AssertionError(f"nothing is mapped at {address:#x}")


class Maps:
    """mmap, of files."""

    PAGESIZE, ACCESS_READ, ACCESS_DEFAULT = mmap.PAGESIZE, mmap.ACCESS_READ, mmap.ACCESS_DEFAULT

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def mmap(self, fd: int, size: int, **options: Any) -> mmap.mmap:
        calls = self._calls
        if fd == -1:
            if calls.disk.faults.refused.get("mmap") == errno.ENOMEM:  # the others are about files
                calls.disk.refuse("mmap", "")
            return mmap.mmap(fd, size, **options)
        calls.disk.on_call()
        opened = calls.opened(fd)
        inode, path = calls.file(fd)
        if not opened.is_new:
            calls.disk.act("open", path)
        calls.disk.refuse("mmap", path)
        if not 0 < size <= inode.size:
            raise ValueError("mmap length is greater than file size")
        calls.maps[ctypes.addressof(ctypes.c_char.from_buffer(inode.memory))] = inode, path
        return inode.memory


class Trees:
    """shutil."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def rmtree(self, path: str) -> None:
        calls = self._calls
        for name in sorted(calls.listdir(path)):
            below = os.path.join(path, name)
            if calls.path.isdir(below):
                self.rmtree(below)
            else:
                calls.unlink(below)
        calls.rmdir(path)


def _of_libc(function: Callable[..., None]) -> Callable[..., int]:
    """What raises OSError, as C functions tell of errors."""

    @functools.wraps(function)
    def call(self: Libc, *arguments: Any) -> int:
        self._calls.disk.on_call()
        try:
            function(self, *(getattr(each, "value", each) for each in arguments))
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1
        return 0

    return call


class Libc:
    """The functions that are called without the interpreter's lock."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @_of_libc
    def madvise(self, address: int, size: int, advice: int) -> None:
        pass

    @_of_libc
    def mlock(self, address: int, size: int) -> None:
        self._calls.disk.act("pin", self._path(self._calls.mapped(address)[0]))

    @_of_libc
    def munlock(self, address: int, size: int) -> None:
        self._calls.disk.act("unpin", self._path(self._calls.mapped(address)[0]))

    @_of_libc
    def mlock2(self, address: int, size: int, flags: int) -> None:
        self._calls.disk.act("pin_buffer", "")

    @_of_libc
    def fallocate(self, fd: int, mode: int, offset: int, size: int) -> None:
        assert mode == _PUNCH_HOLE
        inode, path = self._calls.file(fd)
        self._calls.disk.act("clear_from", path)
        assert offset + size == inode.size
        if offset % PAGE_BYTES:
            self._calls.disk.bring(inode, path, offset, 1)
        self._calls.disk.give_blocks(inode.clear_from(offset))

    def _path(self, inode: Inode) -> str:
        return next(path for found, path in self._calls.maps.values() if found is inode)
