"""The transient store pool: messages are appended to off-file buffers, and committed to the log a little later.

Only committed bytes are visible to readers, dispatch and flush. A kill loses the uncommitted ones, at most those of the
commit intervals: the price of appends that never touch a page of a file.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import BrokerRole, FlushDiskType, StoreSettings
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.worker import IWorker

#: Size and magic of the first record, which are stored last in an append or a commit.
COMMIT_BYTES = 8
PAGE_BYTES = 4096


@attrs.frozen
class TransientRules:
    """When appended bytes are committed, and in how much memory they wait.

    At once if `least_bytes` wait; less waits for `interval_s`, or until `thorough_s` after the last commit. With
    `fails_fast` messages are refused while no buffer is free; else they are written to the file directly.
    """

    buffers_max: int
    fails_fast: bool
    least_bytes: int
    interval_s: float
    thorough_s: float

    @classmethod
    def of(cls, settings: StoreSettings) -> TransientRules | None:
        """None if no pool is configured, or the broker flushes synchronously or is a slave, as in Java."""
        if (
            not settings.transient_store_pool_enable
            or settings.flush_disk_type is not FlushDiskType.ASYNC_FLUSH
            or settings.broker_role is BrokerRole.SLAVE
        ):
            return None
        return cls(
            buffers_max=settings.transient_store_pool_size,
            fails_fast=settings.fast_fail_if_no_buffer_in_store_pool,
            least_bytes=max(1, settings.commit_commit_log_least_pages * PAGE_BYTES),
            interval_s=settings.commit_interval_commit_log_ms / 1000,
            thorough_s=settings.commit_commit_log_thorough_interval_ms / 1000,
        )


class _Sheet:
    """The part of one segment that is appended in memory; `buffer` is None if none was free."""

    def __init__(self, file: IMappedFile, base: int, buffer: mmap.mmap | None) -> None:
        self.file = file
        self.base = base
        self.buffer = buffer
        #: Its end in the log, once the next sheet has begun.
        self.end: int | None = None


class TransientStore:
    """The buffers that the log appends to, and their commits to the segments, by the worker.

    :param committed: initial end of the log.
    """

    log = Logger()

    def __init__(
        self,
        disk: IDisk,
        worker: IWorker,
        clock: IReactorTime,
        rules: TransientRules,
        committed: int,
        committed_ms: int,
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._clock = clock
        self._rules = rules
        self.committed = committed
        #: Store timestamp of the newest committed message, ms.
        self.committed_ms = committed_ms
        #: Called when more is committed.
        self.on_commit: list[Callable[[], None]] = []
        #: Called with the reason when a commit failed: the uncommitted bytes are lost.
        self.on_failure: list[Callable[[str], None]] = []
        self._sheets: deque[_Sheet] = deque()
        self._free: list[mmap.mmap] = []
        self._made = 0
        self._end = committed
        self._end_ms = committed_ms
        self._committed_at = clock.seconds()
        self._running: Deferred[None] | None = None
        self._call: IDelayedCall | None = None
        self._is_urgent = False
        self._has_failed = False
        #: By the end that they wait for, in order of their calls.
        self._waiting: list[tuple[int, Deferred[None]]] = []
        #: Whether the lack of memory for a buffer was logged.
        self._is_short = False

    # Appending

    def why_no_room_for(self, count: int, size: int) -> str:
        """Why so many more segments of `size` bytes cannot be begun; empty if they can, without a buffer only if direct
        appends are allowed. Missing buffers are allocated here, where a batch can still be refused."""
        if not self._rules.fails_fast or self._is_all_committed + len(self._free) >= count:
            return ""
        if self._is_all_committed + self.buffers_left < count:
            return "all buffers of the transient store pool wait to be written"
        while self._is_all_committed + len(self._free) < count:
            buffer = self._make(size)
            if buffer is None:
                return "there is no memory for another buffer of the transient store pool"
            self._free.append(buffer)
        return ""

    @property
    def buffers_left(self) -> int:
        """Number of segments that can be begun without waiting for a commit."""
        return len(self._free) + self._rules.buffers_max - self._made

    @property
    def _is_all_committed(self) -> bool:
        return self._running is None and self.committed == self._end

    def begin(self, file: IMappedFile, base: int, end: int) -> mmap.mmap:
        """Begin a segment: returns the buffer for `file`, which starts at `base`, or the file's own if no buffer is
        free and none can be allocated. `end`: end of the bytes of the segment before."""
        if self._sheets:
            self._sheets[-1].end = end
            if self._is_all_committed:
                self._finish(self._sheets.pop())
        buffer = self._lend(file.size)
        self._sheets.append(_Sheet(file, base, buffer))
        return buffer if buffer is not None else file.buffer

    def _finish(self, sheet: _Sheet) -> None:
        """Take back the buffer of a segment that ends here: only its filler is not in the file."""
        if sheet.buffer is not None and sheet.end is not None:
            start, stop = self.committed - sheet.base, sheet.end - sheet.base
            sheet.file.buffer[start:stop] = sheet.buffer[start:stop]
            self._free.append(sheet.buffer)

    def _lend(self, size: int) -> mmap.mmap | None:
        if self._free:
            return self._free.pop()
        if self._made >= self._rules.buffers_max:
            return None
        return self._make(size)

    def _make(self, size: int) -> mmap.mmap | None:
        """Allocate a buffer; None if there is no memory for it."""
        try:
            buffer = self._disk.make_buffer(size)
        except OSError as error:
            if not self._is_short:
                self._is_short = True
                self.log.error(
                    "transient store pool: there is no memory for a buffer of {size} bytes, messages are written to "
                    "the file, or refused (fastFailIfNoBufferInStorePool), while no other buffer is free: {error}; "
                    "free memory, or set "
                    "transientStorePoolSize to {made}",
                    size=size, error=error, made=self._made,
                )  # fmt: skip
            return None
        self._is_short = False
        self._made += 1
        try:
            self._disk.pin_buffer(buffer)
        except OSError as error:
            if self._made == 1:
                self.log.warn("transient store pool: memory is not locked and may be swapped: {error}", error=error)
        return buffer

    def appended(self, end: int, timestamp_ms: int) -> None:
        """Called when the log was appended to up to `end`."""
        self._end = end
        self._end_ms = timestamp_ms
        if self._running is not None or self._is_urgent or self._has_failed:
            return
        if end - self.committed >= self._rules.least_bytes:
            self._is_urgent = True
            self._schedule(0)
        elif self._call is None:
            since = self._clock.seconds() - self._committed_at
            self._schedule(max(self._rules.interval_s, self._rules.thorough_s - since))

    def commit_to(self, end: int) -> Deferred[None]:
        """Commit the appended records below `end`, for a reader. Fires when that is done or has failed."""
        if self.committed >= end or self._has_failed:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._waiting.append((end, waiter))
        if self._running is None:  # else the next commit begins when that ends
            if self._call is not None:
                self._call.cancel()
            self._commit()
        return waiter

    def _wake(self) -> None:
        ready = [waiter for end, waiter in self._waiting if end <= self.committed or self._has_failed]
        self._waiting = [each for each in self._waiting if each[0] > self.committed and not self._has_failed]
        for waiter in ready:
            waiter.callback(None)

    def _schedule(self, delay_s: float) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._clock.callLater(delay_s, self._commit)

    # Committing

    def _commit(self) -> None:
        self._call = None
        self._is_urgent = False
        end, end_ms = self._end, self._end_ms
        pieces = [piece for sheet in self._sheets if (piece := self._piece(sheet, end)) is not None]

        def write() -> None:
            for file, at, data in pieces:
                # Stored last, so that a kill leaves no record's head without its end.
                file.write_at(at + COMMIT_BYTES, data[COMMIT_BYTES:])
                file.write_at(at, data[:COMMIT_BYTES])

        running = self._running = self._worker.run(write)
        running.addCallbacks(lambda _: self._done(end, end_ms), self._failed)

    def _piece(self, sheet: _Sheet, end: int) -> tuple[IMappedFile, int, memoryview] | None:
        if sheet.buffer is None:
            return None
        start = max(self.committed - sheet.base, 0)
        stop = (end if sheet.end is None else sheet.end) - sheet.base
        return (sheet.file, start, memoryview(sheet.buffer)[start:stop]) if start < stop else None

    def _done(self, end: int, end_ms: int) -> None:
        self._running = None
        self.committed = end
        self.committed_ms = end_ms
        self._committed_at = self._clock.seconds()
        while len(self._sheets) > 1 and self._sheets[1].base <= end:
            sheet = self._sheets.popleft()
            if sheet.buffer is not None:
                self._free.append(sheet.buffer)
        for told in self.on_commit:
            try:
                told()
            except Exception:  # the rest must be committed, too
                self.log.failure("unexpected error after a commit of the transient store pool")
        self._wake()
        if self._waiting:
            self._commit()
        elif self._end > end:
            self.appended(self._end, self._end_ms)

    def _failed(self, failure: Failure) -> None:
        self._running = None
        self._has_failed = True
        why = (
            f"messages cannot be written to the commit log, {self._end - self.committed} bytes that were acknowledged "
            f"are lost: {failure.getErrorMessage()}; restart the broker when the disk works"
        )
        self.log.critical("{why}", why=why)
        for failed in self.on_failure:
            failed(why)
        self._wake()

    def stop(self) -> Deferred[None]:
        """Commit the rest; fires when that is done or has failed."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._running is None:
            if self._has_failed or self.committed >= self._end:
                return succeed(None)
            self._commit()
            return self.stop()
        stopped: Deferred[None] = Deferred()
        self._running.addBoth(lambda _: self.stop().chainDeferred(stopped))
        return stopped
