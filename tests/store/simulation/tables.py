"""A table of the broker beside the store, on the same disk: it reads as what was saved last, or later; never half, and
never as nothing once it was there."""

from __future__ import annotations

import zlib
from random import Random
from typing import TYPE_CHECKING

from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from tests.store.simulation.model import require

if TYPE_CHECKING:
    from tests.store.simulation.life import Life

PATH = "/data/store/config/topics.json"


def _encode(number: int, size: int) -> list[bytes]:
    content = b"%d " % number + Random(number).randbytes(size)
    return [content[:10], content[10:], b" %d" % zlib.crc32(content)]


def _parse(data: bytes) -> int:
    """The number of what was saved. Raises MQError where it is not whole."""
    content, _, crc = data.rpartition(b" ")
    if not content or crc != b"%d" % zlib.crc32(content):
        raise MQError(f"{len(data)} bytes that were not saved")
    return int(content.split(b" ")[0])


class TableCheck:
    """Saves numbers, of which `saved` was acknowledged last, and `written` is the last."""

    def __init__(self, world: Life) -> None:
        self._world = world
        self.saved = self.written = 0
        self._is_rotten = False
        self._asked = 0
        self.open()

    def open(self) -> None:
        """As a process does that starts."""
        self._file = JsonFile(PATH, self._world.worker, self._world.disk)
        self._asked = 0

    def save(self, size: int) -> None:
        self.written += 1
        self._asked = self.written
        number, life = self.written, self._file
        content = _encode(number, size)

        def ended(is_saved: bool) -> None:
            if self._file is not life:
                return
            self._world.counts["table saved" if is_saved else "table not saved"] += 1
            if is_saved:
                self.saved = max(self.saved, number)

        self._file.save(lambda: b"".join(content) if number % 2 else iter(content)).addCallback(ended)

    def retry(self) -> None:
        self._file.retry()

    def check_saved(self) -> None:
        """All that this process was to save is. Raises Violation."""
        found = self._file.load(_parse) or 0
        require(found >= self._asked, "works again once the disk does", f"{found} is saved, not {self._asked}")

    def rot(self, rng: Random) -> None:
        """Have what is in the file go bad while nobody has it; the former content is read then."""
        disk = self._world.disk
        if disk.find(PATH) is None or disk.find(PATH + ".bak") is None:
            return
        inode = disk.inode(PATH)
        # Of a process that ended between two renames both names are one file's; a copy is what it was to save next.
        copy = PATH + (".tmp" if disk.inode(PATH + ".bak") is inode else ".bak")
        try:
            _parse(disk.content(copy) if disk.find(copy) is not None else b"")
        except MQError:  # it is what rotted before, and nothing was saved since, or not whole
            return
        at = rng.randrange(inode.size)
        inode.spoil(at, rng.choice([b"\xff", b"\0" * (inode.size - at)]))
        self._is_rotten = True
        self._world.counts["rot of a table"] += 1

    def check(self, end: str) -> None:
        """What a process reads that starts after an end of the one before. Raises Violation."""
        found = self._file.load(_parse) or 0
        what = f"{found} was read, {self.saved} was saved and {self.written} written last"
        require(found <= self.written and (found > 0 or not self.saved), "tables are whole", what)
        require(self._is_rotten or found >= self.saved, "tables keep what was saved", what)
        if self._is_rotten or end == "power":  # what is read after a kill may be in memory only
            self.saved = found
        self._is_rotten = False
