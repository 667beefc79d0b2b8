"""Message reader: gets of a queue's messages for pulls, as slices of the log, small ones copied.

Hot path: recent appends of this process are resident and intact, and are answered at once; the rest is read with checks
(`checked_reader.py`), after pages that are not resident were loaded. Knows nothing of the requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from struct import Struct

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.errors import StoreBusy, StoreError
from mqbroker.store.checked_reader import CheckedReader
from mqbroker.store.commitlog import CommitLog, Pieces
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY_BYTES, SPAN, places_struct
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import is_shortage
from mqbroker.store.entry_repair import EntryRepair, LostEntry
from mqbroker.store.get_message_result import Get, GetMessageResult, GetMessageStatus, TransferLimits, outside
from mqbroker.store.logscan import Damage
from mqbroker.store.page_loader import FailedReads, FileRange, PageLoader, why_unread
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.store.record_verifier import RecordVerifier
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN, fields_struct

#: (queue offset, physical offset) -> the record; None if it needs a get.
RecentRecord = Callable[[int, int], bytes | None]

_LONG = Struct(">q")
#: A record's size, queue id, queue offset and physical offset.
_OWN_PLACE = fields_struct("size", "queue_id", "queue_offset", "physical_offset")
_AT_ONCE_MAX = 64
#: Loads for one get before loaded bytes count as resident whatever mincore says; and loads from then on.
_LOADS_MAX = 8
#: Scattered messages up to this average size are copied: that costs less than a view of each.
_COPIED_BYTES_MAX = 512


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
        self.near_bytes = int(memory_bytes * (settings.access_message_in_memory_max_ratio / 100))
        self._checked = CheckedReader(
            log, corrupt_ranges, self.verifier, self._limits, self.near_bytes, page_loader.touched, resident_pages
        )
        self._hot_bytes = self._checked.hot_bytes
        self.settings_changed = self._limits.settings_changed

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
        """The result, if all messages are resident, and were appended by this process or verified before; None if it
        needs checks (`checked_reader.py`). Hot."""
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        if tags_codes is not None or property_filter is not None:
            return None
        is_own = offset >= queue.resident_from
        if not is_own and not queue.verified_range[0] <= offset < queue.verified_range[1]:
            return None
        view, at, available = queue.locate(offset)
        count_limit, bytes_limit = self._limits.of(max_bytes, is_near=True)
        count = min(max_count, count_limit, available)
        if count < 1:
            count = 1
        elif count > _AT_ONCE_MAX:
            return None
        if not self.resident_pages.has_entries(queue, offset, count, anew=not is_own):
            return None
        (first,) = _LONG.unpack_from(view, at)
        behind = self._log.end - first
        if behind > self.near_bytes:
            return None
        is_own = is_own and behind <= self._hot_bytes and first >= self._corrupt_ranges.intact_from
        if not is_own and not queue.verified_range[0] <= offset <= offset + count <= queue.verified_range[1]:
            return None
        pieces = self._pieces(view, at, count, bytes_limit, is_own)
        if pieces is None or not (is_own or self._are_as_verified(queue, offset, count, view, at)):
            return None
        return GetMessageResult(GetMessageStatus.FOUND, offset + count, low, high, pieces, count, False)

    def _pieces(self, view: memoryview, at: int, count: int, bytes_limit: int, is_own: bool) -> Pieces | None:
        """The messages of `count` entries, if all are whole, resident, in one segment and within limits; None
        otherwise. Those not appended by this process, or long ago, may be evicted at any moment."""
        places = places_struct(count).unpack_from(view, at)
        offsets, sizes = places[::2], places[1::2]
        size = sum(sizes)
        if (count > 1 and size > bytes_limit) or size < count * RECORD_BYTES_MIN:
            return None
        first, last = offsets[0], offsets[-1]
        span = last + sizes[-1] - first
        if span <= 0 or not self.resident_pages.has_log(first, first + span, anew=not is_own):
            return None
        if size == span:  # one after another
            whole = self._log.read(first, span)
            return None if whole is None else [whole]
        # Nearly sorted, so that sorting takes half the time of min and max.
        in_order = sorted(offsets)
        if min(sizes) < RECORD_BYTES_MIN or in_order[0] != first or in_order[-1] != last:
            return None
        return self._log.read_each(offsets, sizes, copy=size <= count * _COPIED_BYTES_MAX)

    def _are_as_verified(self, queue: ConsumeQueue, offset: int, count: int, view: memoryview, at: int) -> bool:
        """Whether verified messages are still intact and resident. Pages of entries may have been evicted, and have
        changed on disk: the outermost entries tell."""
        first, first_size = SPAN.unpack_from(view, at)
        last, last_size = SPAN.unpack_from(view, at + (count - 1) * ENTRY_BYTES)
        if self._corrupt_ranges.covers(first, last + last_size):
            return False
        self._page_loader.touched(*self._log.place(first))
        return self._is_at(queue, offset, first, first_size) and self._is_at(queue, offset + count - 1, last, last_size)

    def _is_at(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> bool:
        """Whether the resident record at a place of the log has `offset` and this queue."""
        view, at = self._log.view(physical_offset) or (b"", 0)
        own: tuple[int, int, int, int] = _OWN_PLACE.unpack_from(view, at)
        return own == (size, queue.queue_id, offset, physical_offset)

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
        """Hide ranges of the log that stay unreadable. Raises StoreBusy for want of a descriptor, and StoreDamaged if a
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
