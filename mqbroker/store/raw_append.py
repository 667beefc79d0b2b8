"""The log of a slave: splits pieces of the master's log into records, and appends each after checking it.

Pieces begin and end anywhere. A partial record is buffered; only whole records, and the fillers at the ends of
segments, are appended, so that the log never ends within a record.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.dispatch import Dispatcher
from mqbroker.store.flush import LogFlusher
from mqbroker.store.logscan import Nothing, Run, Scanned, scan_at, scan_bytes
from mqbroker.wire.record import BLANK_BYTES_MIN, BLANK_MAGIC, MAGIC, RECORD_BYTES_MIN, SIZE_AND_MAGIC, BadRecord

#: Largest record that is accepted: a master of either system stores messages of at most 4 MiB by default, and its
#: setting may be raised.
RECORD_BYTES_MAX = 256 * 1024 * 1024
#: Records that are appended with one call.
APPENDED_RECORDS = 4096


class RawAppender:
    """Appends a master's log to this one.

    :param find_last: the offset and size of the log's last record; None if it has none.
    """

    def __init__(
        self,
        log: CommitLog,
        flusher: LogFlusher,
        dispatcher: Dispatcher,
        find_last: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._log, self._flusher, self._dispatcher = log, flusher, dispatcher
        self._find_last = find_last
        self._last: tuple[int, int] | None = None
        #: The pieces of an incomplete record, their size, and the size from which on progress is possible.
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = self._needed = 0
        self.segment_bytes = log.segment_bytes

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self._log.end

    @property
    def flushed(self) -> int:
        """The log is on disk below this offset."""
        return min(self._flusher.flushed, self._log.end)

    @property
    def why_refused(self) -> str:
        """Why nothing can be appended; empty if it can."""
        return self._log.why_raw_refused

    def durable(self, end: int) -> Deferred[None]:
        """See `MessageStore.durable`."""
        return self._flusher.durable(end)

    def last_record(self) -> tuple[int, bytes] | None:
        """The offset and the bytes of the last record; None without records, or if other bytes follow it. May wait.
        Raises OSError."""
        last = self._last or self._find_last()
        if last is None:
            return None
        found = self._log.read(*last)
        return None if found is None else (last[0], bytes(found))

    def restart(self) -> None:
        """Forget what waits for its rest: the next piece begins at `end`."""
        self._waiting.clear()
        self._waiting_bytes = self._needed = 0

    def take(self, offset: int, data: bytes | memoryview) -> None:
        """Take bytes that are at `offset` of the master's log, for the next `append`. An empty log begins where the
        first of them are. Raises BadRecord where they do not continue the log, StoreUnwritable and StoreBusy."""
        if offset != self.end + self._waiting_bytes:
            if self.end or self._waiting_bytes:
                raise BadRecord(f"the piece at {offset} does not continue the log, which ends at {self.end}")
            self._begin_at(offset)
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def append(self) -> None:
        """Append the whole records received so far. Raises BadRecord, StoreUnwritable and StoreBusy, after the records
        before were appended; the caller must then call `restart`."""
        if self._waiting_bytes < self._needed:
            return
        data = b"".join(self._waiting)
        self.restart()
        rest = data[self._append_whole(data) :]
        if rest:
            self._waiting.append(rest)
            self._waiting_bytes = len(rest)

    def _begin_at(self, offset: int) -> None:
        if offset % self.segment_bytes:
            raise BadRecord(
                f"the master's segment begins at {offset}, where none of {self.segment_bytes} bytes does: set "
                "mappedFileSizeCommitLog to the master's value"
            )
        self._log.begin_at(offset)
        self._dispatcher.begin_at(offset)

    def _append_whole(self, data: bytes) -> int:
        """Append the whole records at the beginning of `data`; returns how many bytes they are."""
        at = 0
        while at < len(data):
            run = scan_bytes(data, self.end, APPENDED_RECORDS, at)
            if run.count and self._fits(run.end):
                size = run.end - self.end
                self._append(run)
            else:
                size = self._append_one(data, at)
            if not size:
                break
            at += size
        return at

    def _fits(self, end: int) -> bool:
        room = self.segment_bytes - self.end % self.segment_bytes
        return end - self.end <= room - BLANK_BYTES_MIN

    def _append(self, run: Run) -> None:
        self._log.append_raw(run)
        self._dispatcher.appended()
        self._last = run.last, run.end - run.last

    def _append_one(self, data: bytes, at: int) -> int:
        """Append the record or filler at `at`; returns its size, 0 if it is not whole."""
        size: int
        room = self.segment_bytes - self.end % self.segment_bytes
        if len(data) - at < SIZE_AND_MAGIC.size:
            self._needed = SIZE_AND_MAGIC.size
            return 0
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            self._check(size == room, f"a filler of {size} bytes where {room} are left of the segment")
        else:
            self._check(magic == MAGIC, f"magic {magic:#x}")
            self._check(RECORD_BYTES_MIN <= size <= room - BLANK_BYTES_MIN, f"{size} bytes, with {room} left")
            self._check(size <= RECORD_BYTES_MAX, f"{size} bytes")
        if len(data) - at < size:
            self._needed = size
            return 0
        if magic == BLANK_MAGIC:
            self._log.append_raw_filler(data[at : at + size])
            return size
        record = data[at : at + size]
        item = scan_at(memoryview(record), 0, self.end)
        self._check(isinstance(item, Scanned), item.why if isinstance(item, Nothing) else "")
        assert isinstance(item, Scanned)
        self._append(Run.of_rows([item], self.end, record))
        return size

    def _check(self, is_good: bool, why: str) -> None:
        if not is_good:
            raise BadRecord(f"the master's log has no record at {self.end}: {why}")
