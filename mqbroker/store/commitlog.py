"""The commit log: every message of every queue, one after another, in segments.

A segment ends with a filler record (its size and BLANK_MAGIC) where the next record does not fit. Appends are queued
for the dispatcher in `dispatch_queue`. Knows nothing of flushing, indexes or readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from struct import error as struct_error

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqbroker.errors import DiskFull, MessageRefused, RecordTooLarge, StoreBusy, StoreUnwritable
from mqbroker.kernel import LogTail, NextOffsets
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IMappedFile, read_before_touch
from mqbroker.store.dispatch_queue import Appended, DispatchQueue
from mqbroker.store.logscan import ILogView, Run, leaves_doubt
from mqbroker.store.segment import SegmentSource, is_full_disk
from mqbroker.store.transient import COMMIT_BYTES, TransientStore
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import BLANK_BYTES_MIN, NewMessage, encode_blank, record_parts

#: Consecutive read-only bytes of the log, which stay valid.
Pieces = Sequence[bytes] | Sequence[memoryview]

#: The next segment is created when this part of one is full. Half left too little time with small segments on a busy
#: disk: every second one was created by the append that needed it.
NEXT_WANTED_PART = 4

#: Bytes ahead of the end that are faulted in, and for how long that is assumed to hold.
READIED_BYTES = 256 * 1024
READIED_MS = 100
#: From this many bytes on, a master's records are written by system calls. Fewer, for which senders may
#: wait, are copied as those of a send are: two calls take as long as all else of an append.
WRITTEN_BYTES = 16 * 1024
#: A slave whose log grows by more than this within this time catches up with its master.
CATCH_UP_BYTES, CATCH_UP_MS = 40 * 1024 * 1024, 250
#: Bytes at the start of a segment that are faulted in when one request fills the segment before: about what a request
#: has.
FRESH_BYTES = 4 * 1024 * 1024


class Refusal(Enum):
    """Why appends are refused; of several reasons the first is reported."""

    #: Appended messages cannot be synced: permanent.
    STOPPED = auto()
    DISK_FULL = auto()
    #: Appended messages would not reach consume queues or index.
    NOT_DISPATCHED = auto()
    #: Appended messages have waited too long for their sync.
    NOT_SYNCED = auto()
    #: The log is a copy of a master's, whose records alone are appended.
    FOLLOWS = auto()


@implementer(ILogView)
class CommitLog(LogTail):
    """The log, open for appending at `end`.

    :param segments: at least one; the last has blocks behind every byte and is written to from `end` on.
    :param now_ms: wall clock, milliseconds.
    :param store_host: 8 or 20 bytes, put into every record.
    :param transient: where new messages wait before they are written to the segments; None for no such place.
    """

    def __init__(
        self,
        segments: list[IMappedFile],
        first_offset: int,
        end: int,
        source: SegmentSource,
        queues: ConsumeQueues,
        now_ms: Callable[[], int],
        store_host: bytes,
        transient: TransientStore | None = None,
    ) -> None:
        self.run_type = Run
        self.segments = segments
        self.segment_bytes = segments[0].size
        self.min_offset = first_offset
        self.end = end
        self.last_timestamp_ms = 0
        #: End of the newest record that recovery could take for one with a lost sector.
        self.doubtful_end = 0
        self._source = source
        self._queues = queues
        self._now_ms = now_ms
        self._store_host = store_host
        self._transient = transient
        self._is_reserved = False
        self._uncommitted: deque[Run] = deque()
        self._unstored: NextOffsets = []
        if transient is not None:
            transient.on_commit.append(self._committed)
            transient.on_failure.append(self._commit_failed)
        #: Appended records that are not yet dispatched.
        self.dispatch_queue = DispatchQueue()
        #: Called when something is about to be dispatched, and nothing was before.
        self.on_dispatchable: list[Callable[[], None]] = []
        #: Called each time that `readable_end` has grown.
        self.on_growth: list[Callable[[], None]] = []
        #: Called once for each segment, when the next one should be created.
        self.on_next_wanted: list[Callable[[], None]] = []
        #: Where a slave's log ended when its growth was last looked at, when that was (ms), and what was found.
        self._copied, self._was_copied_fast = (end, now_ms()), False
        self._refusals: dict[Refusal, str] = {}
        # Why there is no next segment, if the last append found none.
        self._why_no_segment = ""
        self._activate()

    # Refusing

    def refuse(self, cause: Refusal, why: str) -> bool:
        """Refuse appends until `allow`; returns True if they were not refused for this cause before."""
        is_new = cause not in self._refusals
        self._refusals[cause] = why
        return is_new

    def allow(self, cause: Refusal) -> bool:
        """Stop refusing appends for this cause; returns True if they were refused."""
        return self._refusals.pop(cause, None) is not None

    def why(self, cause: Refusal) -> str:
        """Why appends are refused for one cause; empty if they are not."""
        return self._refusals.get(cause, "")

    @property
    def why_refused(self) -> str:
        """Why appends are refused, or why the last found no segment; empty if they are accepted."""
        return self._refusals[self._first_cause] if self._refusals else self._why_no_segment

    @property
    def _first_cause(self) -> Refusal:
        return min(self._refusals, key=lambda cause: cause.value)

    def _refused(self) -> StoreUnwritable:
        return (DiskFull if self._first_cause is Refusal.DISK_FULL else StoreUnwritable)(self.why_refused)

    def _activate(self) -> None:
        self._base = self.min_offset + (len(self.segments) - 1) * self.segment_bytes
        self._limit = self._base + self.segment_bytes - BLANK_BYTES_MIN
        self._buffer = self.segments[-1].buffer
        self._next_wanted_at = self._base + self.segment_bytes // NEXT_WANTED_PART
        self._readied_to = self._readied_until = 0
        self._source.use(self.segments[-1], self.segments[-2] if len(self.segments) > 1 else None)
        if self._transient is not None:
            self._buffer = self._transient.begin(self.segments[-1], self._base, self.end)

    # Appending

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Store messages in order, all or none.

        Raises StoreError: MessageRefused on a message that no log can store (RecordTooLarge, a value that does not fit
        its field, an invalid topic), StoreUnwritable and StoreBusy on the state of the store.
        """
        if self._refusals:
            raise self._refused()
        if not messages:
            return []
        appended = self._append_here(messages)
        if appended is None:
            return self._append_across(messages)
        return appended

    def _append_here(self, messages: Sequence[NewMessage]) -> list[Appended] | None:
        """Append to the current segment; None, with nothing done, if it is too small."""
        now, end, _ = self.next_place(self._now_ms())
        open_queue, doubtful_end = self._queues.open, 0
        parts: list[bytes] = []
        appended: list[Appended] = []
        unstored = self._unstored
        try:
            try:
                for message in messages:
                    queue = open_queue(message[0], message[1])
                    unstored.append((queue, queue.next_offset))
                    is_queued = not message[3] & SysFlag.TRANSACTION_PREPARED
                    queue_offset = queue.next_offset if is_queued else 0
                    record, size = record_parts(message, queue_offset, end, now, self._store_host)
                    queue.next_offset += is_queued
                    parts += record
                    appended.append((end, queue_offset, size, now))
                    end += size
                    if leaves_doubt(message[9]):
                        doubtful_end = end
            except (struct_error, TypeError, ValueError) as error:
                raise MessageRefused(f"message {len(appended)} of the batch: {error}") from error
            if end > self._limit:
                return None
            data = b"".join(parts)
            run = Run(self.end, end, len(messages), appended[-1][0], now, data, appended_ms=now)
            self._store(data, run, now, doubtful_end)
        finally:
            self._take_back_numbers()
        return appended

    def _take_back_numbers(self) -> None:
        """Roll back the next offsets of queues whose messages were not stored. Allocates nothing: memory may be
        exhausted."""
        unstored = self._unstored
        while unstored:
            queue, former = unstored.pop()
            queue.next_offset = former

    def _store(self, data: bytes, run: Run, now: int, doubtful_end: int = 0) -> None:
        """Store the records of `run`, which are in `data`, at the end of the segment, which has room, and queue them
        for dispatch. The first 8 bytes are written last, so that a crash leaves no partial record. Raises
        StoreUnwritable, with nothing stored."""
        start, stop = self.end - self._base, run.end - self._base
        if stop > self._readied_to or now >= self._readied_until:
            self._make_ready(start, stop, now)
        self._buffer[start + COMMIT_BYTES : stop] = memoryview(data)[COMMIT_BYTES : stop - start]
        self._buffer[start : start + COMMIT_BYTES] = data[:COMMIT_BYTES]
        self._stored(run, doubtful_end)

    def _stored(self, run: Run, doubtful_end: int = 0) -> None:
        """Let the log end behind records that are stored, and leave them to the dispatcher."""
        self.doubtful_end = max(self.doubtful_end, doubtful_end)
        self.end = run.end
        self._unstored.clear()
        self.last_timestamp_ms = max(self.last_timestamp_ms, run.newest_ms)
        if self._transient is None:
            self._add_to_dispatch_queue(run)
        else:
            self._uncommitted.append(run)
            self._transient.appended(self.end, self.last_timestamp_ms)
        if self.end > self._next_wanted_at:
            self._next_wanted_at = self._base + self.segment_bytes
            for listener in self.on_next_wanted:
                listener()

    def append_unready(self, data: bytes, count: int, last: int, now: int, numbers: NextOffsets) -> None:
        """As `append_encoded`. Raises StoreUnwritable."""
        begin, size = self.end, len(data)
        try:
            for queue, next_offset in numbers:
                self._unstored.append((queue, queue.next_offset))
                queue.next_offset = next_offset
            self._store(data, Run(begin, begin + size, count, begin + last, now, data, appended_ms=now), now)
        finally:
            self._take_back_numbers()

    def _make_ready(self, start: int, stop: int, now: int) -> None:
        """Fault in the pages that are about to be written, as those of the active segment may have been evicted: a
        store into one that the disk cannot read would kill the process (SIGBUS)."""
        segment = self.segments[-1]
        end = min(max(stop, start + READIED_BYTES), self.segment_bytes)
        self._source.claim(end)
        if self._transient is None:
            try:
                read_before_touch(segment, start, end - start)
            except OSError as error:
                raise StoreUnwritable(f"where the next message goes {error}") from error
        self._readied_to, self._readied_until = end, now + READIED_MS

    def _add_to_dispatch_queue(self, run: Run) -> None:
        if not self.dispatch_queue:
            for listener in self.on_dispatchable:
                listener()
        self.dispatch_queue.put(run)
        for listener in self.on_growth:
            listener()

    def _committed(self) -> None:
        waiting = self._uncommitted
        while waiting and waiting[0].end <= self.readable_end:
            self._add_to_dispatch_queue(waiting.popleft())

    def _commit_failed(self, why: str) -> None:
        self.refuse(Refusal.STOPPED, why)
        self._uncommitted.clear()

    def _append_across(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append messages that do not all fit into the current segment."""
        groups = self._group(messages)
        self._make_ready(self.end - self._base, self.segment_bytes, self._now_ms())
        fresh = self._acquire_segments(len(groups) - 1)
        appended: list[Appended] = []
        for i, group in enumerate(groups):
            if i:
                self._roll_to(fresh[i - 1])
            if group:
                part = self._append_here(group)
                assert part is not None
                appended += part
        return appended

    def _acquire_segments(self, count: int) -> list[IMappedFile]:
        if self._transient is not None and not self._is_reserved:
            why_no_room = self._transient.why_no_room_for(count, self.segment_bytes)
            if why_no_room:
                raise StoreBusy(why_no_room)
        fresh: list[IMappedFile] = []
        try:
            for _ in range(count):
                fresh.append(self._source.acquire(self._base + (len(fresh) + 1) * self.segment_bytes))
                read_before_touch(fresh[-1], 0, min(FRESH_BYTES, self.segment_bytes))
        except OSError as error:
            self._give_back(fresh)
            self._why_no_segment = self._source.why_none(error)
            raise (DiskFull if is_full_disk(error) else StoreUnwritable)(self._why_no_segment) from error
        self._why_no_segment = ""
        return fresh

    def _give_back(self, segments: Sequence[IMappedFile]) -> None:
        for number, segment in enumerate(segments, 1):
            self._source.adopt(self._base + number * self.segment_bytes, segment)

    @contextmanager
    def reserved(self, messages: Sequence[NewMessage]) -> Iterator[None]:
        """Context in which messages that are appended in parts are all accepted, or the first part is refused.

        Raises as `append`."""
        if self.writes:
            self._give_back(self._acquire_segments(len(self._group(messages)) - 1))
            self._is_reserved = True
        try:
            yield
        finally:
            self._is_reserved = False

    @property
    def writes(self) -> bool:
        """Whether appends are accepted at all."""
        return not self._refusals

    def _group(self, messages: Sequence[NewMessage]) -> list[list[NewMessage]]:
        """Split messages by segment; the first list fits the current one. Every record is encoded once, so that a bad
        value is found before anything is written."""
        groups: list[list[NewMessage]] = [[]]
        room = self._limit - self.end
        for message in messages:
            try:
                self._queues.open(message[0], message[1])
                _, size = record_parts(message, 0, 0, 0, self._store_host)
            except (struct_error, TypeError, ValueError) as error:
                raise MessageRefused(str(error)) from error
            if size + BLANK_BYTES_MIN > self.segment_bytes:
                raise RecordTooLarge(f"a record of {size} bytes; a segment holds {self.segment_bytes}")
            if size > room:
                groups.append([])
                room = self.segment_bytes - BLANK_BYTES_MIN
            room -= size
            groups[-1].append(message)
        return groups

    def _roll_to(self, segment: IMappedFile) -> None:
        at, start = self.end - self._base, self.end
        self._buffer[at : at + BLANK_BYTES_MIN] = encode_blank(self.segment_bytes - at)
        self.end += BLANK_BYTES_MIN
        self.segments.append(segment)
        self._activate()
        self._stored(Run(start, self._base, 0, start, 0, rows=()))

    # A master's records

    def append_raw(self, run: Run) -> None:
        """Append records as a master has them: `run`, which has their bytes, goes on where the log ends, and ends
        within the segment. Raises StoreUnwritable."""
        assert run.data is not None
        start, stop = self._place_raw(run.end - run.start)
        is_copied_fast = self._is_copied_fast()
        doubtful_end = 0
        for row in run.rows if run.has_nul else ():
            if leaves_doubt(row[7]):
                doubtful_end = row[3] + row[4]
        if stop - start < WRITTEN_BYTES and not is_copied_fast:
            self._store(run.data, run, self._now_ms(), doubtful_end)
        else:
            self._source.claim(stop, fills_ahead=not is_copied_fast)
            self._write_raw(start, memoryview(run.data)[: stop - start])
            self._stored(run, doubtful_end)

    def _write_raw(self, start: int, data: memoryview) -> None:
        """Write records by calls: the pages need not be in memory before. As in `_store` last what begins the first of
        them."""
        segment = self.segments[-1]
        try:
            segment.write_at(start + COMMIT_BYTES, data[COMMIT_BYTES:])
            segment.write_at(start, data[:COMMIT_BYTES])
        except OSError as error:
            with suppress(OSError):  # else what was written would follow records that are appended as a master
                segment.write_zeros(start, len(data))
            raise StoreUnwritable(f"the master's messages cannot be written {error}") from error

    def append_raw_filler(self, data: bytes) -> None:
        """Append the filler that ends the segment as a master has it, and go on in the next. Raises StoreUnwritable,
        with nothing appended."""
        at, stop = self._place_raw(len(data))
        self._make_ready(at, stop, self._now_ms())
        [segment] = self._acquire_segments(1)
        if data[BLANK_BYTES_MIN:].strip(b"\0"):  # else it has blocks, and no page need be written
            self._buffer[at + BLANK_BYTES_MIN : stop] = data[BLANK_BYTES_MIN:]
        self._roll_to(segment)

    def _place_raw(self, size: int) -> tuple[int, int]:
        """Where in the segment the next `size` bytes begin and end. Raises StoreUnwritable."""
        if why := self.why_raw_refused:
            raise StoreUnwritable(why)
        start = self.end - self._base
        assert self._transient is None
        assert start + size <= self.segment_bytes
        return start, start + size

    @property
    def why_raw_refused(self) -> str:
        """As `why_refused`, for a master's records."""
        return self.why_refused if self._refusals.keys() - {Refusal.FOLLOWS} else self._why_no_segment

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`, where a segment begins. Raises StoreUnwritable, and StoreBusy where it
        may be tried again soon, with nothing changed."""
        assert self.end == self.min_offset
        assert offset % self.segment_bytes == 0
        try:
            self._source.move(self.segments[0], offset)
        except OSError as error:
            raise StoreUnwritable(f"the commit log cannot begin at {offset}: {error}") from error
        self.min_offset = self.end = offset
        self._copied = offset, self._now_ms()
        self._activate()

    def prepare_next(self) -> None:
        """Request the next segment when it is due, and find out whether there is room again after there was none."""
        is_copied_fast = self._is_copied_fast()
        self._source.claim(self.end - self._base, fills_ahead=not is_copied_fast)
        next_base = self._base + self.segment_bytes
        if self._why_no_segment:
            try:
                self._source.adopt(next_base, self._source.acquire(next_base))
            except OSError:
                return
            self._why_no_segment = ""
        elif self.end - self._base > self.segment_bytes // NEXT_WANTED_PART:
            self._source.prepare(next_base, is_filled=not is_copied_fast)

    def _is_copied_fast(self) -> bool:
        """Whether a slave catches up with its master: zeros that are written before its records would double what the
        disk has to take, for appends that nobody waits for. Once it does, it counts as that until it is four times
        slower than the limit: each change costs a segment that was prepared for the other way."""
        if Refusal.FOLLOWS not in self._refusals:
            return False
        now, (end, since) = self._now_ms(), self._copied
        limit = CATCH_UP_BYTES // 4 if self._was_copied_fast else CATCH_UP_BYTES
        is_fast = (self.end - end) * CATCH_UP_MS > limit * max(now - since, CATCH_UP_MS)
        if now - since >= CATCH_UP_MS:
            self._was_copied_fast, self._copied = is_fast, (self.end, now)
        elif is_fast:
            self._was_copied_fast = True
        return self._was_copied_fast

    # Forgetting

    def drop_first(self) -> IMappedFile:
        """Drop the oldest segment, which must not be the last; slices that readers hold stay valid. The caller closes
        it.
        """
        assert len(self.segments) > 1
        self.min_offset += self.segment_bytes
        return self.segments.pop(0)

    # Reading

    @property
    def readable_end(self) -> int:
        """End of the log for readers, dispatch and flush: `end` without what waits in the transient store to be
        committed."""
        return self.end if self._transient is None else self._transient.committed

    def make_readable(self, offset: int) -> Deferred[None] | None:
        """Have the transient store commit a record that it has, so that readers find it; None if it has none at
        `offset`. Fires in any case."""
        if self._transient is None or not self._transient.committed <= offset < self.end:
            return None
        committed: Deferred[None] = self._transient.commit_to(offset + 1)
        return committed

    @property
    def readable_ms(self) -> int:
        """Store timestamp of the newest message below `readable_end`, ms."""
        return self.last_timestamp_ms if self._transient is None else self._transient.committed_ms

    def view(self, offset: int) -> tuple[memoryview, int] | None:
        """The segment that holds `offset`, and the position in it; None if the log does not hold it."""
        if not self.min_offset <= offset < self.readable_end:
            return None
        index, at = divmod(offset - self.min_offset, self.segment_bytes)
        return self.segments[index].view, at

    def place(self, offset: int) -> tuple[IMappedFile, int]:
        """The segment of an offset between min and end, and the position in it."""
        index, at = divmod(offset - self.min_offset, self.segment_bytes)
        return self.segments[index], at

    def read(self, offset: int, size: int) -> memoryview | None:
        """`size` bytes at `offset`, all in one segment; None if the log does not hold them."""
        if not self.min_offset <= offset < offset + size <= self.readable_end:
            return None
        index, at = divmod(offset - self.min_offset, self.segment_bytes)
        if at + size > self.segment_bytes:
            return None
        return self.segments[index].view[at : at + size]

    def path_of(self, offset: int) -> str:
        """The file that holds the byte at `offset`."""
        return self.segments[(offset - self.min_offset) // self.segment_bytes].path

    def segments_between(self, start: int, end: int) -> list[IMappedFile]:
        """The segments that hold bytes start..end."""
        first = max(0, start - self.min_offset) // self.segment_bytes
        last = (end - 1 - self.min_offset) // self.segment_bytes
        return self.segments[first : last + 1]

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
