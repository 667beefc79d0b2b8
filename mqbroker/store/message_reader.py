"""Getting messages of a queue, which is what pulls are answered from: pieces of the log, small ones of them copied.

Hot path: what this process appended not long ago is in memory and as it was stored, and is answered at once; the rest
is read with checks (`checked_reader.py`), and what is not in memory is fetched first. Must never know who asks.
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
from mqbroker.store.consumequeue_entry import ENTRY_BYTES, places_struct
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import is_shortage
from mqbroker.store.entry_repair import EntryRepair, LostEntry
from mqbroker.store.get_message_result import Get, GetMessageResult, GetMessageStatus, outside
from mqbroker.store.logscan import Damage
from mqbroker.store.page_loader import FailedReads, FileRange, PageLoader, why_unread
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.store.record_verifier import RecordVerifier
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN, fields_struct

_LONG = Struct(">q")
#: Of a record: size, queue id, queue offset and physical offset.
_OWN_PLACE = fields_struct("size", "queue_id", "queue_offset", "physical_offset")
_AT_ONCE_MAX = 64
#: Messages that are scattered over more of the log than this are asked for one by one whether they are in memory.
_SPAN_MAX = 1024 * 1024
#: How often bytes are fetched for one get before those that were count as in memory whatever is said of them; and how
#: often from then on.
_LOADS_MAX = 8
#: Scattered messages of this size on average are copied: up to there that costs less than a view of each.
_COPIED_BYTES_MAX = 512


class Reader:
    """Answers gets.

    :param memory_bytes: of the machine; messages further behind than a share of it count as on the disk.
    :param report: is told of what cannot be read.
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
        self.near_bytes = int(memory_bytes * (settings.access_message_in_memory_max_ratio / 100))
        self._checked = CheckedReader(
            log, corrupt_ranges, self.verifier, settings, self.near_bytes, page_loader.touched, resident_pages
        )
        self._hot_bytes = self._checked.hot_bytes
        self.settings_changed(settings)

    def settings_changed(self, settings: StoreSettings) -> None:
        """Give as much at a time as `settings` say from now on."""
        self._count_limit = settings.max_transfer_count_on_message_in_memory
        self._bytes_limit = settings.max_transfer_bytes_on_message_in_memory
        self._checked.settings_changed(settings)

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
        """Messages of a queue from `offset` on, at least one however large, of those with one of `tags_codes` and of
        those that pass `property_filter`, where given.

        Never waits for the disk: what is not in memory comes later. Raises StoreBusy where too many wait, or no more
        files can be open. The Deferred fails with StoreDamaged where the consume queue or the log cannot be read - the
        next get may be answered -, and with StoreError when the store stops.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return outside(offset, *(self._bounds(topic, queue_id) or (0, 0)))
        try:
            found = self._get_at_once(queue, offset, max_count, max_bytes, tags_codes, property_filter)
            if found is None:
                get = Get(queue, offset, max_count, max_bytes, tags_codes, property_filter)
                return self._get_known(get) or _result_of(Deferred.fromCoroutine(self._get_checked(get)))
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
        """The answer, or None where it is read with checks (`checked_reader.py`). Hot."""
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        if tags_codes is not None or offset < queue.resident_from or property_filter is not None:
            return None
        log = self._log
        view, at, available = queue.locate(offset)
        count = min(max_count, self._count_limit, available)
        if count < 1:
            count = 1
        elif count > _AT_ONCE_MAX:
            return None
        if not self.resident_pages.has_entries(queue, offset, count):
            return None
        (first,) = _LONG.unpack_from(view, at)
        if first < self._corrupt_ranges.intact_from or log.end - first > self._hot_bytes:
            return None
        pieces = self._pieces(view, at, count, self._bytes_limit if max_bytes is None else max_bytes, is_hot=True)
        if pieces is None:
            return None
        return GetMessageResult(GetMessageStatus.FOUND, offset + count, low, high, pieces, count, False)

    def _pieces(
        self, view: memoryview, at: int, count: int, bytes_limit: int, *, is_hot: bool = False
    ) -> Pieces | None:
        """The messages of `count` entries, where all are whole, in one segment and within limits, and in memory, which
        is asked of those that are `is_hot`; None otherwise."""
        places = places_struct(count).unpack_from(view, at)
        offsets, sizes = places[::2], places[1::2]
        size = sum(sizes)
        if (count > 1 and size > bytes_limit) or size < count * RECORD_BYTES_MIN:
            return None
        first, last = offsets[0], offsets[-1]
        span = last + sizes[-1] - first
        if is_hot and (span <= 0 or not self.resident_pages.has_log(first, first + span)):
            return None
        if size == span:  # one after another
            whole = self._log.read(first, span)
            return None if whole is None else [whole]
        # Nearly in order as they are, sorting them takes half as long as to look for least and greatest.
        in_order = sorted(offsets)
        if min(sizes) < RECORD_BYTES_MIN or in_order[0] != first or in_order[-1] != last:
            return None
        return self._log.read_each(offsets, sizes, copy=size <= count * _COPIED_BYTES_MAX)

    def _get_known(self, get: Get) -> GetMessageResult | None:
        """The answer, where all that is asked for was appended by this process, or found whole before, and is in
        memory; None where it is read with checks (`checked_reader.py`)."""
        queue, offset, max_count, max_bytes, tags_codes, property_filter = get
        if tags_codes is not None or property_filter is not None:
            return None
        file, at, available = queue.place(offset)
        count = max(1, min(max_count, self._count_limit, available))
        if count > _AT_ONCE_MAX or not file.is_resident(at, count * ENTRY_BYTES):
            return None
        log = self._log
        first, first_size, _ = queue.entry(offset)
        start, end = queue.verified_range
        if first < self._corrupt_ranges.intact_from and not start <= offset <= offset + count <= end:
            return None
        last, size, _ = queue.entry(offset + count - 1)
        span = last + size - first
        is_near = log.min_offset <= first < log.readable_end and log.end - first <= self.near_bytes
        if not is_near or not 0 < span <= _SPAN_MAX or self._corrupt_ranges.covers(first, first + span):
            return None
        segment, place = log.place(first)
        if not segment.is_resident(place, min(span, segment.size - place)):
            return None
        self._page_loader.touched(segment, place)
        pieces = self._pieces(file.view, at, count, self._bytes_limit if max_bytes is None else max_bytes)
        if pieces is None:
            return None
        # Entries may have left memory since, and come back as others: pages, so that the outermost tell.
        if first < self._corrupt_ranges.intact_from and not (
            self._is_at(queue, offset, first, first_size) and self._is_at(queue, offset + count - 1, last, size)
        ):
            return None
        return GetMessageResult(
            GetMessageStatus.FOUND, offset + count, queue.min_offset, queue.max_offset, pieces, count, False
        )

    def _is_at(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> bool:
        """Whether the record at a place of the log, which is in memory, says that it is at `offset` of this queue."""
        view, at = self._log.view(physical_offset) or (b"", 0)
        own: tuple[int, int, int, int] = _OWN_PLACE.unpack_from(view, at)
        return own == (size, queue.queue_id, offset, physical_offset)

    async def _get_checked(self, get: Get) -> GetMessageResult:
        """Look with checks, and again whenever what was missing is in memory, or a lost entry is built again."""
        loads = 0
        was_read: list[FileRange] = []
        is_repaired = False
        while True:
            missing: list[FileRange] = []
            # What never stays in memory, or where nobody can tell, counts as that in the end if it was read.
            counts_as_read = was_read if loads >= _LOADS_MAX else ()
            try:
                found = self._checked.get(get, missing, counts_as_read, is_repaired=is_repaired)
                if not missing:
                    return found
                if loads >= _LOADS_MAX and get.property_filter is not None and found.next_offset > get.offset:
                    return found  # what was looked at so far is an answer: the rest is left to the next get
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
        """Keep what goes on being unreadable of the log from readers. Raises StoreBusy where there was only no
        descriptor, and StoreDamaged where it may be read the next time, or where it is of the queue, which is not lost
        but can be built again; what was deleted meanwhile is no matter."""
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
    """What there is already; raises what it failed with."""
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
