"""A disk whose mapped pages cannot be touched before they were read: who does it is ended by the kernel, as by SIGBUS
where the disk cannot read them.

`python -X faulthandler -m tests.store.guarded_disk [[ROOT, [[PATH, PAGE] ...]] ...]` opens and reads stores, in a
process that may end so, and prints a line for each. `... evict ROOT HAS_CACHES` makes a store and has its pages leave
memory while it is written to and read.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable
from mmap import PAGESIZE
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.daemons.daemon import why_not_started
from mqbroker.errors import StoreError
from mqbroker.store import MessageStore, open_store
from mqbroker.store.disk import IMappedFile
from mqbroker.store.os_disk import OsDisk, OsMappedFile
from mqbroker.store.worker import InlineWorker
from tests.store.harness import HOST, SMALL, START_S, message, now, stop, turns

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NONE, _READ_WRITE = 0, 3


class GuardedFile(OsMappedFile):
    """Its pages are those that were read, or that this process made."""

    __slots__ = ("_disk", "_open", "is_open")

    def guard(self, disk: GuardedDisk) -> GuardedFile:
        self._disk = disk
        self._open: set[int] = set()
        self.is_open = True
        self._protect(0, self.size, _NONE)
        return self

    def close(self) -> None:
        if self.is_open:
            self._protect(0, self.size, _READ_WRITE)
        self.is_open = False
        super().close()

    def evict(self) -> None:
        """Have all pages leave memory, as the system may when they are synced."""
        self._open.clear()
        self._protect(0, self.size, _NONE)

    def _protect(self, offset: int, size: int, how: int) -> None:
        first = offset - offset % PAGESIZE
        if _mprotect(self._at(first), offset + size - first, how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def is_resident(self, offset: int, size: int) -> bool:
        return set(_pages(offset, size)) <= self._open

    def fetch(self, offset: int, size: int) -> None:
        for page in _pages(offset, size):
            if (self.path, page) in self._disk.unreadable:
                raise OSError(errno.EIO, "Input/output error", self.path)
        super().fetch(offset, size)
        self._open.update(_pages(offset, size))
        self._protect(offset, size, _READ_WRITE)

    def clear_from(self, offset: int) -> None:
        super().clear_from(offset)
        first = -(-offset // PAGESIZE) * PAGESIZE  # these pages are in no file any more
        if first < self.size:
            self._open.update(_pages(first, self.size - first))
            self._protect(first, self.size - first, _READ_WRITE)


def _pages(offset: int, size: int) -> range:
    return range(offset // PAGESIZE, -(-(offset + size) // PAGESIZE))


class GuardedDisk(OsDisk):
    """`unreadable`: path and page."""

    def __init__(self) -> None:
        self.unreadable: set[tuple[str, int]] = set()
        self.made: list[GuardedFile] = []

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        super().create_mapped(path, size).close()
        file = self.open_mapped(path, size, keep_open=keep_open)
        assert isinstance(file, GuardedFile)
        file.fetch(0, size)
        return file

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        file = GuardedFile(path, size, fd, keep_open, read_only).guard(self)
        self.made.append(file)
        return file

    def evict(self) -> None:
        self.made = [file for file in self.made if file.is_open]
        for file in self.made:
            file.evict()

    def read_part(self, path: str, offset: int, size: int) -> bytes:
        if any((path, page) in self.unreadable for page in _pages(offset, size)):
            raise OSError(errno.EIO, "Input/output error", path)
        return super().read_part(path, offset, size)

    def boot_id(self) -> bytes:
        return b"boot"


COUNT = 60


def make(root: str, disk: OsDisk, has_ext: bool, has_index: bool = True) -> tuple[MessageStore, Clock]:
    clock = Clock()
    clock.advance(START_S)
    settings = StoreSettings(
        store_path_root_dir=root, **SMALL, enable_consume_queue_ext=has_ext, message_index_enable=has_index
    )
    return open_store(settings, disk=disk, clock=clock, worker=InlineWorker(), store_host=HOST), clock


def fill(root: str, has_ext: bool) -> None:
    """Messages of two queues, in four segments; stopped."""
    store, clock = make(root, OsDisk(), has_ext)
    store.start()
    store.append(
        [message("T", i % 2, b"%05d" % i * 1500, b"KEYS\x01k%d\x02TAGS\x01%c" % (i, 97 + i % 3)) for i in range(COUNT)]
    )
    turns(clock, 20)
    stop(store)


def _result(waiting: Any) -> Any:
    """What something waits for that came at once; raises what it failed with."""
    if not isinstance(waiting, Deferred):
        if not hasattr(waiting, "send"):
            return waiting
        waiting = ensureDeferred(waiting)
    got: list[Any] = []
    waiting.addBoth(got.append)
    if isinstance(got[0], Failure):
        got[0].raiseException()
    return got[0]


def read_all(store: MessageStore) -> int:
    """Gets all messages, by offset, by tag, by key and by time; says how many there were."""
    count = 0
    for queue_id in (0, 1):
        offset = 0
        while offset < store.max_offset("T", queue_id):
            found = _result(store.get("T", queue_id, offset, 7))
            assert all(bytes(piece) for piece in found.pieces)  # who sends them touches them
            count += found.count
            offset = found.next_offset
        _result(store.get("T", queue_id, 0, 32, None, frozenset([97])))
        time_ms = _result(store.queries.store_timestamp("T", queue_id, 3))
        _result(store.queries.offset_by_time("T", queue_id, time_ms))
    _result(store.query("T", "k7", 32, 0, 2**62))
    return count


def open_and_read(root: str, unreadable: set[tuple[str, int]]) -> dict[str, Any]:
    """Open, read all, append some, read again and stop. Where the store does not open, or cannot be read: why."""
    disk = GuardedDisk()
    disk.unreadable = unreadable
    has_ext = os.path.exists(os.path.join(root, "consumequeue_ext"))
    try:
        store, clock = make(root, disk, has_ext)
    except (OSError, StoreError) as error:
        return {"refused": why_not_started(error)}
    store.start()
    try:
        turns(clock, 1)
        count = read_all(store)
        store.append([message("T", 0, b"new")] * 3)
        turns(clock, 2)
        return {"count": count, "then": read_all(store)}
    except (OSError, StoreError) as error:
        return {"failed": str(error)}
    finally:
        stop(store)


def fail_alone(store: MessageStore, disk: GuardedDisk, root: str) -> list[tuple[str, str]]:
    """Look up by key, and by tag, where index or extension cannot be read: the files, and why each was refused."""
    found: list[tuple[str, str]] = []
    asks: dict[str, Callable[[], Any]] = {
        "index": lambda: store.query("T", "k1", 32, 0, 2**62),
        "consumequeue_ext/T/0": lambda: store.get("T", 0, 0, 32, None, frozenset([97])),
    }
    for directory, ask in asks.items():
        (name,) = os.listdir(os.path.join(root, directory))
        path = os.path.join(root, directory, name)
        disk.evict()
        disk.unreadable = {(path, page) for page in _pages(0, os.path.getsize(path))}
        try:
            _result(ask())
        except StoreError as error:
            found.append((path, str(error)))
        assert _result(store.get("T", 0, 0, 32)).count > 0
        disk.unreadable = set()
        _result(ask())
    return found


ROUNDS = 12


def evict_and_go_on(root: str, has_caches: bool) -> dict[str, Any]:
    """Append and read messages of a new store, with extension and index or without, whose pages leave memory again and
    again; then what happens where the next page cannot be read."""
    disk = GuardedDisk()
    store, clock = make(root, disk, has_ext=has_caches, has_index=has_caches)
    store.start()
    counts: list[int] = []
    for number in range(ROUNDS):
        store.append(
            [
                message("T", i % 2, b"%05d" % i * 300, b"KEYS\x01k%d\x02TAGS\x01%c" % (number, 97 + i % 3))
                for i in range(number + 5)
            ]
        )
        turns(clock, 2)
        disk.evict()
        clock.advance(2)
        ((physical_offset, offset, _, _),) = store.append([message("T", number % 2, b"alone", b"TAGS\x01a")])
        turns(clock)
        find = store.recent_records("T", number % 2)
        assert b"alone" in (find(offset, physical_offset) or b"")
        disk.evict()
        turns(clock, 2)
        assert find(offset, physical_offset) is None
        counts.append(read_all(store))
        disk.evict()
        assert len(_result(store.query("T", f"k{number}", 32, 0, 2**62)).records) == has_caches * (number + 5)
        disk.evict()
        assert len(now(store).query("T", f"k{number}", 32, 0, 2**62)) == has_caches * (number + 5)
    refused = fail_alone(store, disk, root) if has_caches else []
    stored = sum(store.max_offset("T", queue_id) for queue_id in (0, 1))
    end = store.log_end
    turns(clock, 2)
    disk.evict()
    clock.advance(2)
    path = f"{root}/commitlog/{end // 131072 * 131072:020d}"
    disk.unreadable = {(path, end % 131072 // PAGESIZE)}
    why = ""
    try:
        store.append([message("T", 0, b"refused")])
    except StoreError as error:
        why = str(error)
    disk.unreadable = set()
    store.append([message("T", 0, b"taken")])
    turns(clock, 2)
    last = read_all(store)
    stop(store)
    return {"counts": counts, "stored": stored, "why": why, "path": path, "last": last, "refused": refused}


if __name__ == "__main__":
    if sys.argv[1] == "evict":
        print(json.dumps(evict_and_go_on(sys.argv[2], sys.argv[3] == "True")))
        sys.exit()
    for root, unreadable in json.loads(sys.argv[1]):
        print(json.dumps(open_and_read(root, {(path, page) for path, page in unreadable})), flush=True)
