"""Keeps the pages that will be appended to next ready to be written.

The first write to a page without written blocks behind it waits while a sync runs: 20 ms at each flush were seen, and
less than 5 ms with this. Segments made ahead of time are written through; this is for the others: the first one, and
the one a start goes on with. Must never know what is in them, and never changes it.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.store.disk import IMappedFile
from mqbroker.store.worker import IWorker

#: How far ahead pages are kept ready, and how many bytes of them are synced at once.
AHEAD_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 16 * 1024 * 1024


class PagePrefault:
    """Looks after one file at a time, on the worker."""

    log = Logger()

    def __init__(self, worker: IWorker) -> None:
        self._worker = worker
        self._file: IMappedFile | None = None
        self._ready = 0
        self._running: Deferred[None] | None = None
        self._is_stopped = False

    def keep(self, file: IMappedFile, at: int) -> None:
        """See to it that the pages of `file` from `at` on are ready. Files smaller than a piece are left alone."""
        if self._running is not None or self._is_stopped or file.size < PIECE_BYTES:
            return
        if file is not self._file:
            self._file, self._ready = file, 0
        start = max(self._ready, at - at % PIECE_BYTES)
        end = min(file.size, at + AHEAD_BYTES)
        if end < file.size:
            end -= end % PIECE_BYTES
        if start >= end:
            return
        self._running = self._worker.run(lambda: self._populate(file, start, end))
        self._running.addCallbacks(lambda _: self._done(end), self._failed)

    def _populate(self, file: IMappedFile, start: int, end: int) -> None:
        for offset in range(start, end, PIECE_BYTES):
            if self._is_stopped:
                return
            file.populate(offset, min(PIECE_BYTES, end - offset))
            file.sync_apart()

    def _done(self, end: int) -> None:
        self._running = None
        self._ready = end

    def _failed(self, failure: Failure) -> None:
        # Not tried again: what cannot be synced here, the log's own sync will meet and say.
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
