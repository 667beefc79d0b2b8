"""The worker and the disk that stand in for the real ones: they wait, fail or die where a test says so."""

from __future__ import annotations

import errno
import heapq
import itertools
import os
from collections.abc import Callable
from mmap import PAGESIZE
from typing import Any, cast

import attrs
from twisted.internet.base import DelayedCall
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.store.disk import DiskSpace, IDisk, IMappedFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import IWorker
from tests.store.simulation.threads import Ended


@implementer(IWorker)
class SteppedWorker:
    """Does nothing until it is told to, or with `at_once` all at once. Nobody hears of a job that ends the process."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def run(self, function: Callable[[], Any]) -> Deferred[Any]:
        if self.at_once:
            return maybeDeferred(function).addErrback(_unless_ended)
        result = Deferred[Any]()
        self.waiting.append((function, result))
        return result

    def step(self) -> None:
        """Do the job that waits longest."""
        function, result = self.waiting.pop(0)
        maybeDeferred(function).addErrback(_unless_ended).chainDeferred(result)

    def work(self) -> None:
        """Do all that waits, and what that brings."""
        while self.waiting:
            self.step()

    def fail(self, error: Exception) -> None:
        """Fail all that waits."""
        waiting, self.waiting = self.waiting, []
        for _, result in waiting:
            result.errback(error)


def _unless_ended(failure: Failure) -> Failure | Deferred[Any]:
    return Deferred() if failure.check(Ended) else failure


class Killed(Exception):
    """The process ends here."""


@attrs.define
class Faults:
    """What the disk does wrong from now on."""

    room: int | None = None  # bytes that can still be allocated
    sync_error: int | None = None  # errno
    failing: str = ""  # what is in the paths of files that cannot be synced
    written: list[str] = attrs.field(factory=list)  # by write_at
    syncs: int = 0
    space: DiskSpace = DiskSpace(10 * 1024**4, 90 * 1024**4)
    unremovable: set[str] = attrs.field(factory=set)  # file names
    write_error: int | None = None  # errno, of small files
    synced_directories: set[str] = attrs.field(factory=set)
    #: Nothing is in memory but what is fetched from now on, by path and page.
    is_cold: bool = False
    fetched: set[tuple[str, int]] = attrs.field(factory=set)
    #: (path, offset, size) of each fetch.
    fetches: list[tuple[str, int, int]] = attrs.field(factory=list)
    #: Whether a page of a path is in memory all the same.
    is_warm: Callable[[str, int], bool] = lambda path, page: False
    #: (path, offset) of bytes that cannot be read.
    unreadable: set[tuple[str, int]] = attrs.field(factory=set)
    #: So many changes are made still, then none: `Killed` is raised before each.
    lives: int | None = None
    #: What was changed, by the disk's method and its path.
    changes: list[tuple[str, str]] = attrs.field(factory=list)

    def change(self, what: str, path: str) -> None:
        """Called before each change."""
        if self.lives is not None:
            self.lives -= 1
            if self.lives < 0:
                raise Killed
        self.changes.append((what, path))

    def evict(self, *, but_log_from: int | None = None) -> None:
        """Have nothing in memory; or queues and index, and the log from the page of an offset on."""
        self.is_cold = True
        if but_log_from is not None:
            first = but_log_from // PAGESIZE
            self.is_warm = lambda path, page: "commitlog" not in path or page >= first
        self.fetched.clear()
        self.fetches.clear()


def _pages(offset: int, size: int) -> range:
    return range(offset // PAGESIZE, -(-(offset + size) // PAGESIZE))


@implementer(IMappedFile)
class FaultyFile:
    """A file of the real disk, but for what `faults` says."""

    def __init__(self, inner: IMappedFile, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.path = inner.path
        self.size = inner.size
        self.buffer = inner.buffer
        self.view = inner.view
        self.descriptor = None  # a real one would be synced without asking for faults

    def allocate(self, offset: int, size: int) -> None:
        self._faults.change("allocate", self.path)
        if self._faults.room is not None:
            if size > self._faults.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._faults.room -= size
        self._inner.allocate(offset, size)

    def write_zeros(self, offset: int, size: int) -> None:
        self._inner.write_zeros(offset, size)

    def write_at(self, offset: int, data: memoryview) -> None:
        self._faults.written.append(self.path)
        self._inner.write_at(offset, data)

    def is_resident(self, offset: int, size: int) -> bool:
        if not self._faults.is_cold:
            return True
        faults = self._faults
        return all(
            (self.path, page) in faults.fetched or faults.is_warm(self.path, page) for page in _pages(offset, size)
        )

    def fetch(self, offset: int, size: int) -> None:
        self._faults.fetches.append((self.path, offset, size))
        if any(path == self.path and offset <= at < offset + size for path, at in self._faults.unreadable):
            raise OSError(errno.EIO, "Input/output error", self.path)
        self._inner.fetch(offset, size)
        self._faults.fetched.update((self.path, page) for page in _pages(offset, size))

    def pin(self) -> None:
        self._inner.pin()

    def unpin(self) -> None:
        self._inner.unpin()

    def clear_from(self, offset: int) -> None:
        self._faults.change("clear_from", self.path)
        self._inner.clear_from(offset)

    def sync(self) -> None:
        self._faults.change("sync", self.path)
        self._faults.syncs += 1
        if self._faults.sync_error is not None and self._faults.failing in self.path:
            raise OSError(self._faults.sync_error, "Input/output error")
        self._inner.sync()

    def sync_apart(self) -> None:
        self.sync()

    def close(self) -> None:
        self._inner.close()


@implementer(IDisk)
class FaultyDisk(OsDisk):
    """The real disk, but for what `faults` says: calls that fail, the one before which the process dies, cold pages."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.boot = b"first boot"

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        self.faults.change("create_mapped", path)
        return FaultyFile(super().create_mapped(path, size, keep_open=keep_open), self.faults)

    def open_mapped(self, path: str, size: int, *, keep_open: bool = False, read_only: bool = False) -> IMappedFile:
        self.faults.change("open_mapped", path)
        return FaultyFile(super().open_mapped(path, size, keep_open=keep_open, read_only=read_only), self.faults)

    def space(self, path: str) -> DiskSpace:
        return self.faults.space

    def make_directories(self, path: str) -> None:
        self.faults.change("make_directories", path)
        super().make_directories(path)

    def rename(self, old: str, new: str) -> None:
        self.faults.change("rename", old)
        super().rename(old, new)

    def remove_tree(self, path: str) -> None:
        self.faults.change("remove_tree", path)
        super().remove_tree(path)

    def remove(self, path: str) -> None:
        self.faults.change("remove", path)
        if os.path.basename(path) in self.faults.unremovable:
            raise OSError(errno.EACCES, "Permission denied", path)
        super().remove(path)

    def write(self, path: str, data: bytes) -> None:
        self.faults.change("write", path)
        if self.faults.write_error is not None:
            raise OSError(self.faults.write_error, os.strerror(self.faults.write_error), path)
        super().write(path, data)

    def sync_directory(self, path: str) -> None:
        self.faults.change("sync_directory", path)
        self.faults.synced_directories.add(path)
        super().sync_directory(path)

    def cached_files_max(self) -> int:
        return 3

    def boot_id(self) -> bytes:
        return self.boot


def _forget(call: Any) -> None:
    """A call that is cancelled is left out when its time comes."""


class QuickClock(Clock):
    """A clock that does not sort all calls for each that is made or due: the same calls in the same order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Any]] = []
        self._numbers = itertools.count()
        #: Whether a call that was due is being made.
        self.is_calling = False
        super().__init__()

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> DelayedCall:
        made: Any = DelayedCall(self.rightNow + delay, callable, args, kw, _forget, self._wait, self.seconds)
        made.number = next(self._numbers)
        heapq.heappush(self._waiting, (made.time, made.number, made))
        return cast(DelayedCall, made)

    def _wait(self, call: Any) -> None:
        heapq.heappush(self._waiting, (call.getTime(), call.number, call))

    def getDelayedCalls(self) -> list[Any]:
        return list({call: None for _, _, call in sorted(self._waiting) if call.active()})

    @property
    def is_due(self) -> bool:
        """Whether a call may be due."""
        return bool(self._waiting) and self._waiting[0][0] <= self.rightNow

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.rightNow:
            at, number, call = heapq.heappop(waiting)
            if not call.active():
                continue
            if call.getTime() > at:  # put off
                heapq.heappush(waiting, (call.getTime(), number, call))
                continue
            call.called = 1
            was_calling, self.is_calling = self.is_calling, True
            try:
                call.func(*call.args, **call.kw)
            finally:
                self.is_calling = was_calling
