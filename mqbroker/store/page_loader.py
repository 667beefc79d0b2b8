"""Page loader: reads pages of mapped files that are not in memory on the worker, before anybody touches them.

Touching a page that is on the disk stops the whole thread until it is there: the reactor's must not. Bytes that are
read one after another are fetched some way ahead. Must never know what the bytes mean.
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

#: Fetches that the worker may have at a time: it has other things to do, such as syncing.
RUNNING_MAX = 2
#: Fetches that may wait for those; one more is refused.
WAITING_MAX = 10_000
#: What is read around bytes that are missing.
AROUND_BYTES = 64 * 1024
#: How far ahead bytes are fetched of a file that is read from front to back.
AHEAD_BYTES = 4 * 1024 * 1024
_STREAMS_MAX = 64
#: What the disk cannot read so often over so long, seconds, is damaged; failures further apart have nothing to do with
#: each other.
LASTING_S = 10.0
LASTING_COUNT = 3
FORGOTTEN_S = 60.0
_PLACES_MAX = 10_000


def why_unread(path: str, at: int, error: OSError, advice: str = "") -> StoreError:
    """What to raise where a file that can be built again could not be read: nothing is wrong with it where there was
    only no descriptor to open it."""
    if is_shortage(error):
        return StoreBusy(f"{path} cannot be opened now; raise the limit of open files (ulimit -n): {error}")
    why = f"the disk cannot read it ({error})"
    return StoreDamaged(path, at, f"{why}; {advice}" if advice else why)


class FileRange(NamedTuple):
    """Some bytes of a file."""

    file: IMappedFile
    at: int
    size: int


#: Stretches that could not be read, and why.
Unreadable = list[tuple[FileRange, OSError]]


class FailedReads:
    """Places that the disk could not read lately: one failure is that read's alone, and what goes on failing is damage.

    :param now: seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # When it first failed and last, and how often.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def check(self, stretch: FileRange, error: OSError) -> None:
        """Take note of a place that could not be read. Raises StoreError for the one who wanted it, but where it goes
        on failing, and is to be taken for damaged."""
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
        """Return when the bytes can be touched. Raises OSError where the disk cannot read them, and StoreBusy."""


@attrs.define
class _Stream:
    """A file that is read from front to back: fetched up to `end`, and on from there when `next_at` is touched."""

    next_at: int
    end: int


class PageLoader:
    """Fetches on the worker, a few at a time and the rest in order."""

    def __init__(self, worker: IWorker) -> None:
        self._worker = worker
        self._running = 0
        self._waiting: deque[tuple[Sequence[FileRange], Deferred[Unreadable]]] = deque()
        self._streams: dict[str, _Stream] = {}
        self._stopped: Deferred[None] | None = None
        #: How many fetches there were.
        self.fetches = 0

    def fetch(self, stretches: Sequence[FileRange], *, goes_on: bool = False) -> Deferred[Unreadable]:
        """Fires when they are in memory, with those that cannot be read.

        Raises StoreBusy where too many wait, unless it goes on with what waited before.
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
        # What goes on where the last fetch ended, or a bit further, is read from front to back.
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
        """Fires when the worker has none of these left; what waits for its turn fails with StoreError."""
        waiting, self._waiting = self._waiting, deque()
        stopped = self._stopped = Deferred()
        for _, done in waiting:
            done.errback(StoreError("the store is stopping"))
        if not self._running:
            return succeed(None)
        return stopped


def _fetch(around: FileRange, stretches: Sequence[FileRange]) -> Unreadable:
    """On the worker: read the wanted bytes and their surroundings."""
    with contextlib.suppress(OSError):  # it may be of bytes that nobody asked for
        around.file.fetch(around.at, around.size)
    unreadable: Unreadable = []
    for stretch in stretches:
        try:
            stretch.file.fetch(stretch.at, stretch.size)
        except OSError as error:
            unreadable.append((stretch, error))
    return unreadable
