"""The lock on a store directory: one process, Java or ours, has it open at a time.

The Java broker takes a POSIX record lock on byte 0 of `lock`. An open-file-description lock conflicts with that, and
is neither shared inside this process nor lost when another descriptor of the file is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct

from zope.interface import implementer

from mqbroker.errors import StoreLocked
from mqbroker.store.disk import ILockedFile

#: What the Java broker writes into the file; our process id follows it, for others to report.
_CONTENT = b"lock"
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_BUSY = (errno.EACCES, errno.EAGAIN)


@implementer(ILockedFile)
class LockedFile:
    """A file that this process has locked."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def lock_file(path: str) -> LockedFile:
    """Lock `path`, created where missing. Raises StoreLocked naming the holder's process id where it is known."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        os.pwrite(fd, _CONTENT, 0)
        os.ftruncate(fd, len(_CONTENT))
        os.pwrite(fd, b"\n%d\n" % os.getpid(), len(_CONTENT))
    except OSError as error:
        why = _holder(fd) if error.errno in _BUSY else None
        os.close(fd)
        if why is not None:
            raise StoreLocked(path, why) from None
        raise
    return LockedFile(fd)


def lock_holder(path: str) -> str:
    """Who has the file locked; empty where nobody has, or it is not there. Takes no lock and changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        return "" if _FLOCK.unpack(found)[0] == fcntl.F_UNLCK else _holder(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    pid = _FLOCK.unpack(found)[4]
    if pid <= 0:  # the holder is one of ours: it wrote its id into the file
        match = re.fullmatch(rb"lock\n(\d+)\n", os.pread(fd, 64, 0))
        pid = int(match[1]) if match else 0
    return f"process {pid} has it open" if pid > 0 else "another process has it open"
