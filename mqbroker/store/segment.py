"""Segments of the log: fully allocated files of one size, each named by its start offset, and filled with zeros ahead
of the records.
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

#: Zeros are written in pieces, and synced at once in larger ones. Files smaller than that are not filled ahead.
FILL_BYTES = 1024 * 1024
FILL_SYNC_BYTES = 16 * 1024 * 1024
#: Bytes that are filled ahead of the records.
FILL_AHEAD_BYTES = 64 * 1024 * 1024


class SegmentFill:
    """Writes zeros into the active segment ahead of its records, on the worker.

    The first store to a page that is not in the page cache takes three times the CPU time of one to a page that was
    written, and waits for a running sync: 20 ms at each flush were measured. Segments that are created ahead are filled
    as a whole before; this is for the others: the first one, and the last one after a start."""

    log = Logger()

    def __init__(self, worker: IWorker) -> None:
        self._worker = worker
        self._file: IMappedFile | None = None
        # Held while a piece is written: records wait that would stand there.
        self._lock = threading.Lock()
        #: Where the next piece begins. What is below has its zeros, or belongs to the records.
        self._next = 0
        #: Where the worker stops.
        self._until = 0
        self._running: Deferred[None] | None = None
        self._is_stopped = False

    def begin(self, file: IMappedFile, *, is_filled: bool) -> None:
        """Go on in the segment that is active from now on."""
        with self._lock:
            self._file, self._until = file, 0
            self._next = file.size if is_filled or file.size < FILL_SYNC_BYTES else 0

    def claim(self, stop: int, *, fills_ahead: bool = True) -> None:
        """Call before records are stored below `stop`: no zeros are written there any more. Waits for the piece that is
        being written. `fills_ahead`: else none are written ahead of the records either."""
        file = self._file
        assert file is not None
        if stop > self._next:
            with self._lock:
                # A worker that runs goes on behind that, or else the next records would wait for it again.
                lead = FILL_BYTES if self._running is not None else 0
                self._next = max(self._next, min(stop + lead, file.size))
        ahead = FILL_AHEAD_BYTES if fills_ahead else 0
        self._until = min(file.size, stop + ahead)
        is_due = self._next < min(file.size, stop + ahead // 2)
        if is_due and self._running is None and not self._is_stopped:
            self._running = self._worker.run(self._fill)
            self._running.addCallbacks(self._done, self._failed)

    @property
    def is_busy(self) -> bool:
        """Whether the worker fills a segment."""
        return self._running is not None

    def _fill(self) -> None:
        while not self._is_stopped:
            with self._lock:
                file = self._file
                assert file is not None
                if self._next >= self._until:
                    return
                self._next = end = _fill_piece(file, self._next)
            _sync_filled(file, end)

    def _done(self, _: None) -> None:
        self._running = None

    def _failed(self, failure: Failure) -> None:
        # Not tried again in this segment: the log's own sync will meet the error and report it.
        self._running = None
        assert self._file is not None
        self._next = self._file.size
        self.log.warn(
            "the next part of the log cannot be filled with zeros in advance: {why}", why=failure.getErrorMessage()
        )

    def stop(self) -> Deferred[None]:
        """Fires when the worker is done."""
        self._is_stopped = True
        if self._running is None:
            return succeed(None)
        stopped: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: stopped.callback(None))
        return stopped


def _fill_piece(file: IMappedFile, start: int) -> int:
    """Write the zeros of one piece, and return its end."""
    end = min(start - start % FILL_BYTES + FILL_BYTES, file.size)
    file.write_zeros(start, end - start)
    return end


def _sync_filled(file: IMappedFile, end: int) -> None:
    """Sync zeros that were written up to `end`, once they are enough."""
    if end % FILL_SYNC_BYTES == 0 or end == file.size:
        file.sync_apart()


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
        room = "the free space is unknown"
    return (
        f"the broker's disk is full [{directory}: {room}]: {what}: free space, or keep messages for a shorter "
        f"time (fileReservedTime): {error}"
    )


class SegmentSource:
    """Creates segments; the next one ahead of time, filled with zeros by the worker."""

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
        #: Paths of segments that are full of zeros; of the ready ones and the active one.
        self._filled: set[str] = set()
        self._fill = SegmentFill(worker)
        self._preparing = Outage(
            f"the next segment cannot be prepared in {directory} (trying again)", "segments are prepared again"
        )
        self._pinning: Deferred[None] = succeed(None)

    def claim(self, stop: int, *, fills_ahead: bool = True) -> None:
        """Call before records are stored in the active segment below `stop`; see `SegmentFill.claim`."""
        self._fill.claim(stop, fills_ahead=fills_ahead)

    def use(self, file: IMappedFile, former: IMappedFile | None) -> None:
        """Set the active segment, and the one before."""
        self._fill.begin(file, is_filled=file.path in self._filled)
        if former is not None:
            self._filled.discard(former.path)
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

    def prepare(self, offset: int, *, is_filled: bool = True) -> None:
        """Create the segment at `offset` ahead of time, filled with zeros by default. A failure is no error yet."""
        if self._job is not None or offset in self._ready:
            return
        job = self._job = _Preparation(
            self._disk,
            segment_path(self._directory, offset),
            self._segment_bytes,
            self._is_warm,
            is_filled,
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
                if job.is_filled:
                    self._filled.add(result.path)

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
        behind it goes. Raises OSError, and StoreBusy while it is being filled, with the segment where it was."""
        if self._fill.is_busy:  # it opens the file by its name
            raise StoreBusy("the first segment is being filled with zeros")
        self._abandon_job()
        for other in [*self._ready]:
            self._ready.pop(other).close()
            self._remove(other)
        path = segment_path(self._directory, offset)
        was_filled = file.path in self._filled
        self._disk.rename(file.path, path)
        file.path = path
        self._names_made += 1
        if was_filled:
            self._filled.add(path)

    def why_none(self, error: OSError) -> str:
        """Why no segment could be acquired, and what to do about it."""
        if not is_full_disk(error):
            return f"the next segment of the commit log cannot be made in {self._directory}: {error}"
        return why_full(
            self._disk, self._directory, f"there is no room for the next segment of {self._segment_bytes} bytes", error
        )

    def _create(self, offset: int) -> IMappedFile:
        self._remove(offset)
        path = segment_path(self._directory, offset)
        self._filled.discard(path)  # a former segment of that name was
        return self._disk.create_mapped(path, self._segment_bytes, keep_open=True)

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
            return self._stop_fill()
        job.stop()
        stopped: Deferred[None] = Deferred()
        assert job.done is not None
        job.done.addBoth(lambda _: self._stop_fill().chainDeferred(stopped))
        return stopped

    def _stop_fill(self) -> Deferred[None]:
        stopped: Deferred[None] = Deferred()
        self._pinning.addBoth(lambda _: self._fill.stop().chainDeferred(stopped))
        return stopped


class _Preparation:
    """Creates one segment, on the worker."""

    def __init__(
        self,
        disk: IDisk,
        path: str,
        segment_bytes: int,
        is_warm: bool,
        is_filled: bool,
        sync_names: Callable[[], None],
    ) -> None:
        """`sync_names`: syncs the names of the segments before it."""
        self.is_filled = is_filled
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
        """Cancel: the file may be created by others from now on."""
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
            if self.is_filled:
                self._fill(file)
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

    def _fill(self, file: IMappedFile) -> None:
        end = 0
        while end < file.size and not self._is_stopped:
            end = _fill_piece(file, end)
            _sync_filled(file, end)


def _pin(file: IMappedFile) -> None:
    try:
        file.pin()
    except OSError as error:
        log.warn("{path} is not locked in memory, raise the limit (ulimit -l): {error}", path=file.path, error=error)
