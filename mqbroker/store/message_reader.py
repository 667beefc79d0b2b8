"""Message reader: gets of a queue's messages for pulls.

Hot path: resident messages are picked by the compiled module. What it leaves, and everything without it, is read with
checks (`checked_reader.py`), after pages that are not resident were loaded. Knows nothing of the requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import TYPE_CHECKING
from weakref import ref

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.errors import StoreBusy, StoreError
from mqbroker.kernel import compiled
from mqbroker.store.checked_reader import CheckedReader, window_of
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY_BYTES
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import IMappedFile, is_shortage
from mqbroker.store.entry_repair import EntryRepair, LostEntry
from mqbroker.store.get_message_result import Get, GetMessageResult, GetMessageStatus, TransferLimits, outside
from mqbroker.store.logscan import Damage
from mqbroker.store.page_loader import FailedReads, FileRange, PageLoader, why_unread
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.store.record_verifier import RecordVerifier
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from mqbroker.kernel.compiled import ResidentRange

#: (queue offset, physical offset) -> the record; None if it needs a get.
RecentRecord = Callable[[int, int], bytes | None]

#: Entries of a consume queue, where to begin in them and how many to look at; messages and bytes at most; what reads
#: the log, and what messages must be (see `kernel/pulls.pxi: pick_messages`); first and next offset of the queue.
Located = tuple[
    memoryview, int, int, int, int,
    Callable[[int, int], memoryview | None], tuple[bytes, int, int, bool] | None, int, int,
]  # fmt: skip

_LONG = Struct(">q")
#: A queue's range is kept if more messages are left than this many pulls get; of this many queues at most.
_FOLLOWING = 2
_RANGES_MAX = 10_000
#: Loads for one get before loaded bytes count as resident whatever mincore says; and loads from then on.
_LOADS_MAX = 8


class Reader:
    """Answers gets.

    :param memory_bytes: of the machine; messages further behind than a share of it count as on disk.
    :param report: called with ranges that cannot be read.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        settings: StoreSettings,
        memory_bytes: int,
        corrupt_ranges: CorruptRanges,
        report: Callable[[Damage], None],
        page_loader: PageLoader,
        failed_reads: FailedReads,
        entry_repair: EntryRepair,
        resident_pages: ResidentPages,
    ) -> None:
        self.resident_pages = resident_pages
        self._log = log
        self._entry_repair = entry_repair
        self._queues = queues.by_name
        self._bounds = queues.bounds
        self._corrupt_ranges = corrupt_ranges
        self._report = report
        self._page_loader = page_loader
        self._failed_reads = failed_reads
        self.verifier = RecordVerifier(log, report)
        self._limits = TransferLimits(settings)
        share = settings.access_message_in_memory_max_ratio / 100 / settings.memory_shares
        self.near_bytes = int(memory_bytes * share)
        self._checked = CheckedReader(
            log, corrupt_ranges, self.verifier, self._limits, self.near_bytes, page_loader.touched, resident_pages
        )
        self._hot_bytes = self._checked.hot_bytes
        #: Where pulls of queues go on, by topic and queue id; only with the compiled module.
        self.resident_ranges: dict[tuple[str, int], ResidentRange] = {}

    def settings_changed(self, settings: StoreSettings) -> None:
        self._limits.settings_changed(settings)
        self.resident_ranges.clear()

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        tags_codes: AbstractSet[int] | None = None,
        property_filter: IPropertyFilter | None = None,
    ) -> GetMessageResult | Deferred[GetMessageResult]:
        """Get messages of a queue from `offset` on, at least one however large; filtered by `tags_codes` and
        `property_filter`, if given.

        Never waits for the disk: fires later if pages must be loaded. Raises StoreBusy if too many wait, or no more
        files can be open. The Deferred fails with StoreDamaged if consume queue or log cannot be read - the next get
        may succeed -, and with StoreError when the store stops.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return outside(offset, *(self._bounds(topic, queue_id) or (0, 0)))
        try:
            found = self._get_at_once(queue, offset, max_count, max_bytes, tags_codes, property_filter)
            if found is None:
                get = Get(queue, offset, max_count, max_bytes, tags_codes, property_filter)
                return _result_of(Deferred.fromCoroutine(self._get_checked(get)))
        except OSError as error:
            raise self._cannot_open(queue, error) from error
        return found

    def _cannot_open(self, queue: ConsumeQueue, error: OSError) -> StoreError:
        return why_unread(error.filename or queue.directory, 0, error, _rebuild(queue))

    def _get_at_once(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        tags_codes: AbstractSet[int] | None,
        property_filter: IPropertyFilter | None,
    ) -> GetMessageResult | None:
        """The result, if the compiled module is there and all messages are resident and whole; None if it takes more
        than that (`checked_reader.py`)."""
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high, queue.next_offset)
        if compiled is None or property_filter is not None:
            return None
        place = self._locate(queue, offset, max_count, max_bytes, tags_codes is not None)
        if place is None:
            return None
        entries, at, count, room, bytes_limit, read, origin, _, _ = place
        found = compiled.pick_messages(entries, at, count, tags_codes, room, bytes_limit, read, origin)
        if found is None:
            return None
        looked_at, taken, messages = found
        status = GetMessageStatus.FOUND if taken else GetMessageStatus.NO_MATCHED_MESSAGE
        pieces = [messages] if taken else []
        return GetMessageResult(status, offset + looked_at, low, high, pieces, taken, False)

    def locate(self, name: tuple[str, int], offset: int, max_count: int, is_filtered: bool) -> Located | None:
        """Where a get from `offset` of a queue, by topic and id, finds resident messages, for the compiled module; None
        if it may have to wait, finds none, or the files cannot be opened. Hot."""
        queue = self._queues.get(name)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        try:
            return self._locate(queue, offset, max_count, None, is_filtered)
        except OSError:
            return None

    def _locate(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int | None, is_filtered: bool
    ) -> Located | None:
        """See `locate`, of an offset that the queue has. Raises OSError."""
        if queue.ext is not None:
            return None
        file, at, available = queue.place(offset)
        count_limit, bytes_limit = self._limits.of(max_bytes, is_near=True)
        room = max(1, min(max_count, count_limit))
        count = min(available, window_of(max_count) if is_filtered else room)
        has_entries = self.resident_pages.has_entries
        is_recent = offset >= queue.resident_from
        if not has_entries(queue, offset, count, anew=not is_recent):
            return None
        entries = file.view
        (first,) = _LONG.unpack_from(entries, at)
        behind = self._log.end - first
        is_hot = is_recent and behind <= self._hot_bytes
        is_own = first >= self._corrupt_ranges.intact_from
        low, high = queue.min_offset, queue.max_offset
        if is_hot and is_own:
            if available > _FOLLOWING * count:
                self._keep_range(queue, file, offset, offset - at // ENTRY_BYTES, first)
            return entries, at, count, room, bytes_limit, self._read_hot, None, low, high
        if behind > self.near_bytes or not (is_hot or not is_recent or has_entries(queue, offset, count, anew=True)):
            return None
        if not is_hot:
            queue.note_read(offset)
        origin = None if is_own else (queue.topic_bytes, queue.queue_id, offset, not queue.is_schedule)
        return entries, at, count, room, bytes_limit, self._read_resident, origin, low, high

    def _keep_range(self, queue: ConsumeQueue, file: IMappedFile, offset: int, first: int, start: int) -> None:
        """Keep what the pulls that follow need: of `file`, whose first entry is `first`, from `offset` on, whose
        message is at `start` in the log."""
        assert compiled is not None
        part = self.resident_pages.log_range(start)
        if part is None:
            return
        low, high, log_until = part
        end, entries_until = self.resident_pages.entries_end(queue)
        file_end = first + file.size // ENTRY_BYTES
        segment, at = self._log.place(start)
        if len(self.resident_ranges) >= _RANGES_MAX:
            self.resident_ranges.clear()
        self.resident_ranges[queue.topic, queue.queue_id] = compiled.ResidentRange(
            queue,
            self._corrupt_ranges,
            ref(file.view),
            ref(segment.view),
            first,
            offset,
            min(end, file_end),
            file_end,
            start - at,
            max(low, self._corrupt_ranges.intact_from),
            high,
            *self._limits.of(None, is_near=True),
            window_of(1),
            min(log_until, entries_until),
        )

    def _read_hot(self, start: int, size: int) -> memoryview | None:
        """Bytes that this process appended not long ago; None if they are not resident, or in two segments."""
        return self._log.read(start, size) if self.resident_pages.has_log(start, start + size) else None

    def _read_resident(self, start: int, size: int) -> memoryview | None:
        """As `_read_hot`, of bytes that may be evicted at any moment, or corrupt."""
        end = start + size
        if self._corrupt_ranges.covers(start, end) or not self.resident_pages.has_log(start, end, anew=True):
            return None
        self._page_loader.touched(*self._log.place(start))
        return self._log.read(start, size)

    def recent_records(self, topic: str, queue_id: int) -> RecentRecord:
        """A function that finds single messages of a queue by both offsets, in few steps: for services that store many
        of the newest again. Old, corrupt or undispatched messages need a get."""
        name = topic, queue_id
        log, by_name, corrupt_ranges, resident_pages = (
            self._log,
            self._queues,
            self._corrupt_ranges,
            self.resident_pages,
        )
        hot_bytes, segment_bytes = self._hot_bytes, log.segment_bytes

        def find(offset: int, physical_offset: int) -> bytes | None:
            queue = by_name.get(name)
            if queue is None or not queue.min_offset <= offset < queue.max_offset or offset < queue.resident_from:
                return None
            # The physical offset may come from a client: the queue's entry must agree.
            try:
                if not resident_pages.has_entries(queue, offset, 1):
                    return None
                found, size = queue.span(offset)
            except OSError:  # its file cannot be opened: a get reports why
                return None
            if found != physical_offset or found < corrupt_ranges.intact_from or log.end - found > hot_bytes:
                return None
            number, at = divmod(found - log.min_offset, segment_bytes)
            end = at + size
            if number < 0 or size < RECORD_BYTES_MIN or end > segment_bytes:
                return None
            if not resident_pages.has_log(found, found + size):
                return None
            record: bytes = log.segments[number].buffer[at:end]
            return record

        return find

    async def _get_checked(self, get: Get) -> GetMessageResult:
        """Read with checks, and again whenever missing bytes were loaded or a lost entry was rebuilt."""
        loads = 0
        was_read: list[FileRange] = []
        is_repaired = False
        while True:
            missing: list[FileRange] = []
            # Pages that never stay resident, or of unknown state, count as resident in the end if they were read.
            counts_as_read = was_read if loads >= _LOADS_MAX else ()
            try:
                found = self._checked.get(get, missing, counts_as_read, is_repaired=is_repaired)
                if not missing:
                    return found
                if loads >= _LOADS_MAX and get.property_filter is not None and found.next_offset > get.offset:
                    return found  # what was examined so far is a result: the next get has the rest
                if loads >= 2 * _LOADS_MAX:
                    raise StoreBusy("what is read leaves memory again before it is looked at")
                unreadable = await self._page_loader.fetch(missing, goes_on=loads > 0)
            except LostEntry:
                try:
                    is_repaired = await self._entry_repair.repair(get.queue, get.offset)
                except OSError as error:
                    raise self._cannot_open(get.queue, error) from error
                was_read = []
                continue
            except OSError as error:
                raise self._cannot_open(get.queue, error) from error
            loads += 1
            was_read += missing
            for file_range, why in unreadable:
                self._leave_out(file_range, why, get)
                was_read.remove(file_range)

    def _leave_out(self, stretch: FileRange, error: OSError, get: Get) -> None:
        """Hide ranges of the log that stay unreadable. Raises StoreBusy if no descriptor is free, and StoreDamaged if a
        retry may succeed, or if it is the queue, which can be rebuilt. Ranges deleted meanwhile are ignored."""
        if is_shortage(error):
            raise why_unread(stretch.file.path, stretch.at, error)
        log = self._log
        for number, segment in enumerate(log.segments):
            if segment is stretch.file:
                start = log.min_offset + number * log.segment_bytes + stretch.at
                self._failed_reads.check(stretch, error)
                why = f"the disk cannot read it: {error}"
                self._report(Damage(segment.path, start, start + stretch.size, why))
                return
        queue = get.queue
        is_there = queue.min_offset <= get.offset < queue.max_offset
        is_of_unit = queue.ext is not None and stretch.file.path.startswith(queue.ext.directory + os.sep)
        if is_there and (is_of_unit or queue.place(get.offset)[0] is stretch.file):
            raise why_unread(stretch.file.path, stretch.at, error, _rebuild(queue))


def _result_of(reading: Deferred[GetMessageResult]) -> GetMessageResult | Deferred[GetMessageResult]:
    """The result of a finished read; raises its error."""
    done: list[GetMessageResult | Failure] = []
    if not reading.called:
        return reading
    reading.addBoth(done.append)
    (result,) = done
    if isinstance(result, Failure):
        result.raiseException()
    return result


def _rebuild(queue: ConsumeQueue) -> str:
    return f"stop, delete {queue.directory} and start to have it built again"
