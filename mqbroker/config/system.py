"""Queries of the operating system: addresses and names of the machine, times and permissions of files."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


def first_address() -> str:
    """The address by which this machine reaches others; loopback if it reaches none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # An address set aside for documentation: connecting a datagram socket only chooses a route.
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def resolve(name: str) -> str:
    """The IP address of a host, the first IPv4 one if there are several. Blocks while name servers are asked. Raises
    OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0])


@attrs.frozen
class Host:
    """The machine's names, as the defaults use them."""

    home: str
    name: str
    address: str

    @classmethod
    def this(cls) -> Host:
        return cls(os.path.expanduser("~"), socket.gethostname() or "DEFAULT_BROKER", first_address())


#: Modified time, size and inode: a file that was moved into its place counts as another.
FileStamp = tuple[int, int, int]


def file_stamp(path: str) -> FileStamp | None:
    """The stamp of a file; None if it does not exist, or is not accessible."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class StampedFiles(Generic[T]):
    """Files that are read again when they have changed; `content` is what the last read that succeeded returned."""

    def __init__(self, read: Callable[[], T], *paths: str | None) -> None:
        """Raises what `read` raises, which is called now and for each change."""
        self._read, self._paths = read, [path for path in paths if path]
        #: As they were before the last read that succeeded.
        self._stamps = self._look()
        #: The text of the last failure, and the stamps then.
        self._failure: tuple[str, list[FileStamp | None]] | None = None
        self.content = read()

    def read_if_changed(self) -> T | None:
        """The new content, if a file has changed since before the last read that succeeded; None if none has.

        Raises what `read` raises: then the files count as changed until it succeeds."""
        stamps = self._look()
        if stamps == self._stamps:
            return None
        self.content = self._read()
        self._stamps, self._failure = stamps, None
        return self.content

    def read_or_keep(self, log_failure: Callable[[str], object]) -> T:
        """The content, read again if a file has changed; the former content, and `note_failure`, if that fails."""
        try:
            self.read_if_changed()
        except Exception as error:
            self.note_failure(error, log_failure)
        return self.content

    def note_failure(self, error: BaseException | None, log_failure: Callable[[str], object]) -> None:
        """Call `log_failure` with the reason, unless it is that of the last failure and no file has changed since."""
        before, self._failure = self._failure, (str(error) or type(error).__name__, self._look())
        if self._failure != before:
            log_failure(self._failure[0])

    def _look(self) -> list[FileStamp | None]:
        return [file_stamp(path) for path in self._paths]


# In a shared directory, another user may have put a link in the place of a file's name.


def open_new(path: str, mode: int = 0o666) -> int:
    """Create a file, in the place of one that a killed process has left; returns its descriptor. Raises OSError."""
    if os.path.lexists(path):
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_own(path: str, mode: int) -> int:
    """Open a file for writing, created if missing; returns its descriptor. Raises OSError for a symbolic link, a second
    hard link of a file, or anything but a regular file."""
    try:
        # Without O_NONBLOCK the open of a pipe waits for its reader.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, IS_LINK, path) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a file of its own; remove it, or name another one", path)


IS_LINK = "it is a symbolic link, which may lead to another's file; remove it, or name the file itself"


def is_own_link(path: str) -> bool:
    """Whether it is a symbolic link that this process's user, or root, has made."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.geteuid())


def open_log(path: str) -> int:
    """Open a file to append to it, created if missing; returns its descriptor. Symbolic links are followed if they are
    this user's or root's, such as /dev/stdout. Raises OSError."""
    links = 0 if is_own_link(path) else os.O_NOFOLLOW
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | links, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, IS_LINK, path) from None


def others_can_read(path: str) -> bool:
    """Whether others than its owner may read the file at `path`."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
