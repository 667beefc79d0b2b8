"""The process of a daemon: limit of open files, garbage collector, pid and ports files, reactor."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import resource
import stat
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path

import attrs
from twisted.internet.error import ReactorAlreadyInstalledError
from twisted.internet.main import installReactor
from twisted.logger import Logger

from mqbroker.config import NettySettings
from mqbroker.config.system import FileStamp, file_stamp, open_new, open_own
from mqbroker.errors import MQError
from mqbroker.store.os_disk import files_kept

log = Logger()


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files allowed: {hard} instead of {soft}", hard=hard, soft=soft)


def files_for_connections() -> int:
    """Number of open files up to which connections are accepted."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - files_kept()


#: Where fewer connections than these may be open, any broker may soon want more.
CONNECTIONS_MIN = 1000


def report_few_files(server: NettySettings) -> None:
    """Log that the limit of files allows fewer connections than the settings: as a warning only where connectionsMax
    was set, or where they are very few."""
    most = files_for_connections()
    if server.connections_max > most:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_default = server.connections_max == attrs.fields(NettySettings).connections_max.default
        if is_default and most >= CONNECTIONS_MIN:
            log.info(
                "up to {most} connections are accepted: {allowed} files may be open, of which {kept} are reserved "
                "for other files; for connectionsMax={wanted} raise the limit of open files (ulimit -Hn, LimitNOFILE)",
                most=most, allowed=allowed, kept=allowed - most, wanted=server.connections_max,
            )  # fmt: skip
            return
        log.warn(
            "connectionsMax={wanted} cannot be reached: {allowed} files may be open, of which {kept} are reserved "
            "for files other than connections; raise the limit of open files (ulimit -Hn, LimitNOFILE), or lower "
            "connectionsMax",
            wanted=server.connections_max,
            allowed=allowed,
            kept=allowed - most,
        )


#: Threshold of the youngest generation. Python's 700 objects are two reads of a busy connection.
YOUNGEST = 20_000


def relax_collector() -> None:
    """Collect rarely: for the start of a daemon. With Python's threshold the collector took a quarter of the start of a
    store with 80,000 queues, none of them garbage."""
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])


def freeze_collector() -> None:
    """Exclude all present objects, which are permanent, from collections: for the end of a daemon's start.

    Collecting them again and again, tens of thousands of objects each time, delayed responses by 40 ms.
    """
    gc.collect()
    gc.freeze()
    relax_collector()


#: Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Largest buffer that is taken from the heap; bytes that are kept when they become free at the heap's end.
HEAP_BUFFER_BYTES, KEPT_BYTES = 1024 * 1024, 4 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let the C library keep what buffers of reads and writes free. By default those from 128 KiB on are mapped anew
    each time, which takes longer than to fill them: a slave copies a log 1.15 times as fast without that."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter; -P keeps another `mqbroker` in the user's directory out."""
    return [sys.executable, "-P", "-m", module, *arguments]


def import_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH of a process that is to find this package, wherever it is."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), environ.get("PYTHONPATH", "")]))


class AlreadyRunning(MQError):
    """Another process holds the pid file."""


class PidFile:
    """The file with the id of this process, locked while it lives: one left by a killed process is not locked."""

    def __init__(self, path: str) -> None:
        """Raises OSError, and AlreadyRunning, with the other process's id, if it is locked."""
        self._path = path
        self._file = _locked(path)
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._file.close()


def require_file(path: str) -> None:
    """Raise OSError if `path` is a device or a pipe, which must not be replaced or deleted."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a file", path)


def lock_pid_file(file: TextIOWrapper, path: str) -> None:
    """Raises AlreadyRunning if another process has it locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        why = f"process {file.read(20).strip()} has it and runs; stop that first, or name another file"
        raise AlreadyRunning(f"{path}: {why}") from None


def _locked(path: str) -> TextIOWrapper:
    require_file(path)
    while True:
        file = os.fdopen(open_own(path, 0o666), "r+", encoding="ascii", errors="replace")
        try:
            lock_pid_file(file, path)
        except AlreadyRunning:
            file.close()
            raise
        # Its former holder may have removed it just before it was locked.
        if file_stamp(path) is not None and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
        file.close()


class WrittenFile:
    """A file that appears atomically when it is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: FileStamp | None = None

    def write(self, text: str) -> None:
        """Write it atomically. Raises OSError."""
        require_file(self._path)
        temporary = f"{self._path}.tmp"
        with os.fdopen(open_new(temporary), "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, self._path)
        self._stamp = file_stamp(self._path)

    def remove(self) -> None:
        """Remove it, unless it was not written or was replaced by another process."""
        stamp, self._stamp = self._stamp, None
        if stamp is not None and file_stamp(self._path) == stamp:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def install_reactor() -> None:
    """Install our own reactor, if the system has epoll and none is installed yet."""
    try:
        from mqbroker.daemons.epoll import BusyPollReactor
    except ImportError:
        return
    try:
        installReactor(BusyPollReactor())  # type: ignore[no-untyped-call]
    except ReactorAlreadyInstalledError:
        return
