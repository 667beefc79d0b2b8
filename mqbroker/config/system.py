"""Queries of the operating system: addresses and names of the machine, times and permissions of files."""

from __future__ import annotations

import os
import socket
import stat

import attrs


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


class StampedFiles:
    """Files and their stamps at the last check for changes."""

    def __init__(self, *paths: str | None) -> None:
        self._paths = [path for path in paths if path]
        self._stamps = self._look()

    def have_changed(self) -> bool:
        """Whether any has changed since the last call, or since the creation."""
        before, self._stamps = self._stamps, self._look()
        return self._stamps != before

    def _look(self) -> list[FileStamp | None]:
        return [file_stamp(path) for path in self._paths]


def others_can_read(path: str) -> bool:
    """Whether others than its owner may read the file at `path`."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
