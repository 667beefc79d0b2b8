"""Files by which a daemon tells others of itself. It takes them away at its end, and never those of another."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from io import TextIOWrapper

from mqbroker.config.stamps import FileStamp, file_stamp
from mqbroker.errors import MQError


class AlreadyRunning(MQError):
    """Another process has the pid file."""


class PidFile:
    """The file with the number of this process, locked while it lives: what a killed one left is not locked."""

    def __init__(self, path: str) -> None:
        """Raises OSError, and AlreadyRunning where another process has it, whose number it says."""
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
    """Raise OSError where no file is at `path` but a device or a pipe, which must not be replaced or deleted."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a file", path)


def _locked(path: str) -> TextIOWrapper:
    require_file(path)
    while True:
        file = open(path, "a+", encoding="ascii", errors="replace")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = file.read(20).strip()
            file.close()
            why = f"process {other} has it and runs; stop that first, or name another file"
            raise AlreadyRunning(f"{path}: {why}") from None
        # Whoever had it may have taken it away just before it was locked.
        if file_stamp(path) is not None and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
        file.close()


class WrittenFile:
    """A file that is there, whole, from when it is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: FileStamp | None = None

    def write(self, text: str) -> None:
        """Whoever finds it finds all of it. Raises OSError."""
        require_file(self._path)
        temporary = f"{self._path}.tmp"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, self._path)
        self._stamp = file_stamp(self._path)

    def remove(self) -> None:
        """Take it away, unless it was not written or somebody wrote another in its place."""
        stamp, self._stamp = self._stamp, None
        if stamp is not None and file_stamp(self._path) == stamp:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
