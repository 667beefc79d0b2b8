"""The log as raw bytes, for replication: at once what is in memory, the rest after the worker has read it."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from mqbroker.errors import StoreError
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.page_loader import FileRange, PageLoader, Unreadable
from mqbroker.store.resident_pages import ResidentPages


class RawLog:
    """Reads stretches of the log that lie in one segment each."""

    def __init__(self, log: CommitLog, resident_pages: ResidentPages, page_loader: PageLoader) -> None:
        self._log, self._resident_pages, self._page_loader = log, resident_pages, page_loader
        self.segment_bytes = log.segment_bytes
        #: Called each time that `end` has grown.
        self.on_growth = log.on_growth

    @property
    def start(self) -> int:
        return self._log.min_offset

    @property
    def end(self) -> int:
        return self._log.readable_end

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        """`size` bytes at `offset`, which the log has: at once where they are in memory.

        The Deferred fails with StoreError where the disk cannot read them or they were deleted meanwhile. Raises
        StoreBusy where too many reads wait.
        """
        if self._resident_pages.has_log(offset, offset + size):
            found = self._log.read(offset, size)
            if found is not None:
                return found
        file, at = self._log.place(offset)
        fetched = self._page_loader.fetch([FileRange(file, at, size)], goes_on=True)
        return fetched.addCallback(self._read_fetched, offset, size)

    def _read_fetched(self, unread: Unreadable, offset: int, size: int) -> bytes:
        for _, why in unread:
            raise StoreError(f"the log cannot be read at {offset}: {why}")
        found = self._log.read(offset, size)
        if found is None:
            raise StoreError(f"the log at {offset} was deleted meanwhile")
        return bytes(found)
