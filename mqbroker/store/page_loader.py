"""Page loader: reads pages of mapped files that are not in memory on the worker, before anybody touches them.

Touching a page that is on disk blocks the thread: the reactor's must not be blocked. Sequential reads are read ahead.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from mqbroker.errors import StoreBusy, StoreDamaged, StoreError
from mqbroker.store.disk import IMappedFile, is_shortage
from mqbroker.store.worker import IWorker

T = TypeVar("T")

#: Concurrent loads of the worker: it has other work, such as syncs.
RUNNING_MAX = 2
#: Loads that may wait; one more is refused.
WAITING_MAX = 10_000
#: Bytes loaded around missing ones.
AROUND_BYTES = 64 * 1024
#: Readahead of a file that is read sequentially, bytes.
AHEAD_BYTES = 4 * 1024 * 1024
_STREAMS_MAX = 64
#: A range is damaged if reads of it fail over this time, seconds, and this often. Failures further apart than the third
#: value are unrelated.
LASTING_S = 10.0
LASTING_COUNT = 3
FORGOTTEN_S = 60.0
_PLACES_MAX = 10_000


def why_unread(path: str, at: int, error: OSError, advice: str = "") -> StoreError:
    """The error for an unreadable file that can be rebuilt; StoreBusy if no descriptor is free."""
    if is_shortage(error):
        return StoreBusy(f"{path} cannot be opened now; raise the limit of open files (ulimit -n): {error}")
    why = f"the disk cannot read it ({error})"
    return StoreDamaged(path, at, f"{why}; {advice}" if advice else why)


class FileRange(NamedTuple):
    """A range of a file."""

    file: IMappedFile
    at: int
    size: int


#: Ranges that could not be read, and why.
Unreadable = list[tuple[FileRange, OSError]]


class FailedReads:
    """Ranges that recently could not be read: a single failure concerns that read alone, repeated ones mean damage.

    :param now: seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # When it first failed and last, and how often.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def check(self, stretch: FileRange, error: OSError) -> None:
        """Record a failed read. Raises StoreError for its caller, unless the range has kept failing and counts as
        damaged."""
        if is_shortage(error) or not self._is_lasting(stretch):
            raise why_unread(stretch.file.path, stretch.at, error) from error

    def _is_lasting(self, stretch: FileRange) -> bool:
        key, now = (stretch.file.path, stretch.at), self._now()
        first, last, count = self._places.pop(key, (now, now, 0))
        if not 0 <= now - last <= FORGOTTEN_S:
            first, count = now, 0
        while len(self._places) >= _PLACES_MAX:
            del self._places[next(iter(self._places))]
        self._places[key] = first, now, count + 1
        return now - first >= LASTING_S and count + 1 >= LASTING_COUNT


class Pages(Protocol):
    """Access to bytes of a mapped file, for callers that may wait and for those that may not."""

    async def ready(self, file: IMappedFile, at: int, size: int) -> None:
        """Return when the bytes can be touched. Raises OSError if the disk cannot read them, and StoreBusy."""


@attrs.define
class _Stream:
    """A file that is read sequentially: loaded up to `end`, and further when `next_at` is touched."""

    next_at: int
    end: int


class PageLoader:
    """Loads pages on the worker, a few ranges at a time and the rest in order."""

    def __init__(self, worker: IWorker) -> None:
        self._worker = worker
        self._running = 0
        self._waiting: deque[tuple[Sequence[FileRange], Deferred[Unreadable]]] = deque()
        self._streams: dict[str, _Stream] = {}
        self._stopped: Deferred[None] | None = None
        #: Number of loads.
        self.fetches = 0

    def fetch(self, stretches: Sequence[FileRange], *, goes_on: bool = False) -> Deferred[Unreadable]:
        """Load ranges; fires when they are resident, with those that cannot be read.

        Raises StoreBusy if too many wait, unless it continues a load that waited before.
        """
        if self._stopped is not None:
            raise StoreError("the store is stopping")
        if len(self._waiting) >= WAITING_MAX and not goes_on:
            raise StoreBusy(f"{WAITING_MAX} reads wait for the disk")
        done: Deferred[Unreadable] = Deferred()
        self._waiting.append((stretches, done))
        self._next()
        return done

    def _next(self) -> None:
        while self._waiting and self._running < RUNNING_MAX:
            stretches, done = self._waiting.popleft()
            first = stretches[0]
            around = FileRange(first.file, first.at, min(AROUND_BYTES, first.file.size - first.at))
            self._follow(first)
            self._run(around, stretches, done)

    def _run(self, around: FileRange, stretches: Sequence[FileRange], done: Deferred[Unreadable]) -> None:
        self._running += 1
        self.fetches += 1
        self._worker.run(lambda: _fetch(around, stretches)).addBoth(self._ended, done)

    def _ended(self, result: Unreadable | Failure, done: Deferred[Unreadable]) -> None:
        self._running -= 1
        done.callback(result)
        self._next()
        if self._stopped is not None and not self._running:
            self._stopped.callback(None)

    # Reading ahead

    def _follow(self, first: FileRange) -> None:
        stream = self._streams.pop(first.file.path, None)
        end = first.at + AROUND_BYTES
        # A range at, or a bit behind, the end of the last load means a sequential read.
        goes_on = stream is not None and stream.end <= first.at <= stream.end + AHEAD_BYTES
        while len(self._streams) >= _STREAMS_MAX:
            del self._streams[next(iter(self._streams))]
        self._streams[first.file.path] = _Stream(first.at if goes_on else first.file.size, end)

    def touched(self, file: IMappedFile, at: int) -> None:
        """Resident bytes from `at` on are about to be read: read ahead of them where it is time."""
        stream = self._streams.get(file.path)
        if stream is None or not stream.next_at <= at < stream.end or self._stopped is not None:
            return
        if self._running >= RUNNING_MAX or stream.end >= file.size:
            return
        ahead = FileRange(file, stream.end, min(AHEAD_BYTES, file.size - stream.end))
        stream.next_at, stream.end = stream.end, ahead.at + ahead.size
        self._run(ahead, (), Deferred())

    # One by one

    async def ready(self, file: IMappedFile, at: int, size: int) -> None:
        """See `Pages`."""
        if not file.is_resident(at, size):
            unreadable = await self.fetch([FileRange(file, at, size)])
            if unreadable:
                raise unreadable[0][1]

    def stop(self) -> Deferred[None]:
        """Fires when the worker has finished the running loads; waiting ones fail with StoreError."""
        waiting, self._waiting = self._waiting, deque()
        stopped = self._stopped = Deferred()
        for _, done in waiting:
            done.errback(StoreError("the store is stopping"))
        if not self._running:
            return succeed(None)
        return stopped


def _fetch(around: FileRange, stretches: Sequence[FileRange]) -> Unreadable:
    """On the worker: read the wanted bytes and their surroundings."""
    with contextlib.suppress(OSError):  # the error may be of bytes that were not requested
        around.file.fetch(around.at, around.size)
    unreadable: Unreadable = []
    for stretch in stretches:
        try:
            stretch.file.fetch(stretch.at, stretch.size)
        except OSError as error:
            unreadable.append((stretch, error))
    return unreadable
