"""Segments of the log: fully allocated files of one size, each named by its start offset; and the page prefault, which
prepares the pages for the next appends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.errors import StoreBusy
from mqbroker.store.disk import IDisk, IMappedFile, Outage
from mqbroker.store.worker import IWorker

#: Bytes that are prepared ahead, and bytes of them that are synced at once.
AHEAD_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 16 * 1024 * 1024
#: The same without a sync: what is prepared further ahead is synced by others before it is needed.
UNSYNCED_AHEAD_BYTES = 8 * 1024 * 1024
UNSYNCED_PIECE_BYTES = 2 * 1024 * 1024


class PagePrefault:
    """Prefaults the pages of one file for writing, on the worker, without changing them.

    The first write to a page with unwritten blocks waits for a running sync: 20 ms at each flush were measured, and
    less than 5 ms with prefault. Segments that are created ahead are written through with zeros; this is for the
    others: the first one, and the last one after a start."""

    log = Logger()

    def __init__(self, worker: IWorker) -> None:
        self._worker = worker
        self._file: IMappedFile | None = None
        self._ready = 0
        self._running: Deferred[None] | None = None
        self._is_stopped = False

    def keep(self, file: IMappedFile, at: int, *, is_synced: bool = True) -> None:
        """Prepare the pages of `file` from `at` on. Files smaller than a piece are left alone. Without `is_synced` few
        of them, and the zeros in them are not written to the disk before the records."""
        piece, ahead = (PIECE_BYTES, AHEAD_BYTES) if is_synced else (UNSYNCED_PIECE_BYTES, UNSYNCED_AHEAD_BYTES)
        if self._running is not None or self._is_stopped or file.size < PIECE_BYTES:
            return
        if file is not self._file:
            self._file, self._ready = file, 0
        start = max(self._ready, at - at % piece)
        end = min(file.size, at + ahead)
        if end < file.size:
            end -= end % piece
        if start >= end:
            return
        self._running = self._worker.run(lambda: self._populate(file, range(start, end, piece), end, is_synced))
        self._running.addCallbacks(lambda _: self._done(end), self._failed)

    @property
    def is_busy(self) -> bool:
        """Whether the worker prepares pages."""
        return self._running is not None

    def _populate(self, file: IMappedFile, pieces: range, end: int, is_synced: bool) -> None:
        for offset in pieces:
            if self._is_stopped:
                return
            file.populate(offset, min(pieces.step, end - offset), is_soon_full=not is_synced)
            if is_synced:
                file.sync_apart()

    def _done(self, end: int) -> None:
        self._running = None
        self._ready = end

    def _failed(self, failure: Failure) -> None:
        # Not tried again: the log's own sync will meet the error and report it.
        self._running = None
        self._is_stopped = True
        self.log.warn("pages cannot be made ready ahead: {why}", why=failure.getErrorMessage())

    def stop(self) -> Deferred[None]:
        """Fires when the worker is done."""
        self._is_stopped = True
        if self._running is None:
            return succeed(None)
        stopped: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: stopped.callback(None))
        return stopped


log = Logger()


def segment_path(directory: str, offset: int) -> str:
    """The path of the segment that starts at `offset`."""
    return os.path.join(directory, f"{offset:020d}")


def is_full_disk(error: OSError) -> bool:
    """Whether the error would go away with more free space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def why_full(disk: IDisk, directory: str, what: str, error: OSError) -> str:
    """The advice to make room on the disk of `directory`, which must exist."""
    try:
        space = disk.space(directory)
        room = f"{space.used_bytes} bytes used, {space.available_bytes} free"
    except OSError:
        room = "nobody knows how much is free"
    return (
        f"the broker's disk is full [{directory}: {room}]: {what}: make room, or let messages go sooner "
        f"(fileReservedTime): {error}"
    )


class SegmentSource:
    """Creates segments; the next one ahead of time, written through with zeros by the worker."""

    def __init__(self, disk: IDisk, worker: IWorker, directory: str, segment_bytes: int, is_warm: bool = False) -> None:
        """`is_warm`: the active segment is locked in memory, and the next one before it is needed."""
        self._is_warm = is_warm
        self._disk = disk
        self._worker = worker
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._ready: dict[int, IMappedFile] = {}
        self._job: _Preparation | None = None
        # Number of names created, and of those synced; a killed process may have left unsynced ones.
        self._names_made = 1
        self._names_synced = 0
        self._written_through: set[str] = set()
        self._ahead = PagePrefault(worker)
        self._preparing = Outage(
            f"the next segment cannot be prepared in {directory}, which is tried again", "segments are prepared again"
        )
        self._pinning: Deferred[None] = succeed(None)

    def keep_ahead(self, file: IMappedFile, at: int, *, is_synced: bool = True) -> None:
        """Prefault the pages of the active segment from `at` on, unless it was written through; see `PagePrefault`."""
        if file.path not in self._written_through:
            self._ahead.keep(file, at, is_synced=is_synced)

    def use(self, file: IMappedFile, former: IMappedFile | None) -> None:
        """Set the active segment, and the one before."""
        if not self._is_warm:
            return

        def keep() -> None:
            if former is not None:
                former.unpin()
            _pin(file)

        self._pinning = self._worker.run(keep)

    @property
    def has_new_names(self) -> bool:
        """Whether `sync_names` has names to sync."""
        return self._names_made != self._names_synced

    def sync_names(self) -> None:
        """Sync the names of new segments. For the worker. Raises OSError."""
        made = self._names_made
        if made != self._names_synced:
            self._disk.sync_directory(self._directory)
            self._names_synced = made

    def adopt(self, offset: int, file: IMappedFile) -> None:
        """Keep an existing empty segment for `offset`."""
        self._ready[offset] = file

    def prepare(self, offset: int, *, is_written_through: bool = True) -> None:
        """Create the segment at `offset` ahead of time, by default written through with zeros. A failure here is no
        error yet."""
        if self._job is not None or offset in self._ready:
            return
        job = self._job = _Preparation(
            self._disk,
            segment_path(self._directory, offset),
            self._segment_bytes,
            self._is_warm,
            is_written_through,
            self.sync_names,
        )
        job.done = self._worker.run(job.run)
        job.done.addBoth(self._prepared, job, offset)

    def _prepared(self, result: IMappedFile | Failure | None, job: _Preparation, offset: int) -> None:
        if self._job is job:
            self._job = None
        if isinstance(result, Failure):
            if not job.is_stopped():
                self._preparing.failed(result.getErrorMessage())
                self._remove(offset)
        elif result is not None:
            if job.is_stopped():
                self._worker.run(result.close)  # this frees all its pages
            else:
                self._preparing.worked()
                self._ready[offset] = result
                if job.is_written_through:
                    self._written_through.add(result.path)

    def _remove(self, offset: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(segment_path(self._directory, offset))

    def acquire(self, offset: int) -> IMappedFile:
        """The segment at `offset`, created now if it was not ready. Raises OSError, with nothing left behind."""
        file = self._ready.pop(offset, None)
        if file is not None:
            return file
        self._abandon_job()
        self.sync_names()  # a crash must not leave a gap between segments
        file = self._create(offset)
        self._names_made += 1  # not before it exists: the worker may be about to sync names
        try:
            file.allocate(0, file.size)
        except OSError:
            file.close()
            self._remove(offset)
            raise
        return file

    def move(self, file: IMappedFile, offset: int) -> None:
        """Rename the only segment, in which nothing was stored yet, to one that begins at `offset`; what was prepared
        behind it goes. Raises OSError, and StoreBusy while pages are prefaulted, with the segment where it was."""
        if self._ahead.is_busy:  # it opens the file by its name
            raise StoreBusy("the pages of the first segment are being prepared")
        self._abandon_job()
        for other in [*self._ready]:
            self._ready.pop(other).close()
            self._remove(other)
        path = segment_path(self._directory, offset)
        was_written_through = file.path in self._written_through
        self._disk.rename(file.path, path)
        file.path = path
        self._names_made += 1
        if was_written_through:
            self._written_through.add(path)

    def why_none(self, error: OSError) -> str:
        """Why no segment could be acquired, and what to do about it."""
        if not is_full_disk(error):
            return f"the next segment of the commit log cannot be made in {self._directory}: {error}"
        return why_full(
            self._disk, self._directory, f"there is no room for the next segment of {self._segment_bytes} bytes", error
        )

    def _create(self, offset: int) -> IMappedFile:
        self._remove(offset)
        return self._disk.create_mapped(segment_path(self._directory, offset), self._segment_bytes, keep_open=True)

    def _abandon_job(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None

    def stop(self) -> Deferred[None]:
        """Fires when the worker is done with segments. A preallocated one stays for the next start."""
        job = self._job
        for file in self._ready.values():
            file.close()
        self._ready.clear()
        if job is None:
            return self._stop_ahead()
        job.stop()
        stopped: Deferred[None] = Deferred()
        assert job.done is not None
        job.done.addBoth(lambda _: self._stop_ahead().chainDeferred(stopped))
        return stopped

    def _stop_ahead(self) -> Deferred[None]:
        stopped: Deferred[None] = Deferred()
        self._pinning.addBoth(lambda _: self._ahead.stop().chainDeferred(stopped))
        return stopped


class _Preparation:
    """Creates one segment, on the worker."""

    def __init__(
        self,
        disk: IDisk,
        path: str,
        segment_bytes: int,
        is_warm: bool,
        is_written_through: bool,
        sync_names: Callable[[], None],
    ) -> None:
        """`sync_names`: syncs the names of the segments before it."""
        self.is_written_through = is_written_through
        self._sync_names = sync_names
        self._disk = disk
        self._path = path
        self._is_warm = is_warm
        self._segment_bytes = segment_bytes
        self._is_stopped = False
        # Set while the file is created, which removes it on failure.
        self._making = threading.Lock()
        self.done: Deferred[IMappedFile | None] | None = None

    def stop(self) -> None:
        """Cancel: from now on somebody else may create the file."""
        with self._making:
            self._is_stopped = True

    def is_stopped(self) -> bool:
        return self._is_stopped

    def run(self) -> IMappedFile | None:
        if self.is_stopped():
            return None
        self._sync_names()
        with self._making:
            if self.is_stopped():
                return None
            file = self._disk.create_mapped(self._path, self._segment_bytes, keep_open=True)
        try:
            file.allocate(0, file.size)
            if self.is_written_through:
                file.write_through(self.is_stopped)
            self._disk.sync_directory(os.path.dirname(self._path))
        except OSError:
            file.close()
            raise
        if self.is_stopped():
            file.close()
            return None
        if self._is_warm:
            _pin(file)
        return file


def _pin(file: IMappedFile) -> None:
    try:
        file.pin()
    except OSError as error:
        log.warn("{path} is not locked in memory, raise the limit (ulimit -l): {error}", path=file.path, error=error)
