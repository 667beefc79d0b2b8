"""Checked reads: gets of messages far behind the end or from before the start, or next to corrupt ones.

One entry of the consume queue after another, by the rules of DefaultMessageStore.getMessage of 4.9.7: what counts as
full, how many entries a get examines, and the next begin offset. Entries of messages that were removed or are corrupt
are skipped. Never waits for the disk: it reports the pages that are not resident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import attrs

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue_entry import BLANK_SIZE, ENTRY, ENTRY_BYTES, entries_struct
from mqbroker.store.consumequeue_ext import ADDRESS_MAX, ExtUnit, undecorate
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import IMappedFile
from mqbroker.store.entry_repair import LOST, LostEntry, is_lost
from mqbroker.store.filtered_read import FilteredRead
from mqbroker.store.get_message_result import Get, GetMessageResult, GetMessageStatus, TransferLimits, outside
from mqbroker.store.page_loader import FileRange
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.store.record_verifier import RecordVerifier
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN, property_bytes

#: Bytes of entries that one get examines, unless more messages are requested: a bound where most are filtered out.
_WINDOW_BYTES = 16_000
#: Entries whose residency is checked at once.
_CHUNK = 64
#: The same for the log, in bytes.
_BLOCK_BYTES = 64 * 1024
#: Messages that this process appended are taken to be resident up to this far behind the end of the log; less where the
#: machine has less than a few times that memory.
HOT_BYTES_MAX = 1024 * 1024 * 1024
#: Maximum size of a unit with its bit map, in practice.
_UNIT_BYTES = 1024
_MAX_INT = 0x7FFFFFFF
_NO_BYTES = memoryview(b"")


@attrs.define
class _Look:
    """State of one get. `missing`: ranges that are not resident. `was_read`: ranges taken to be resident whatever
    mincore says. `is_repaired`: the first entry was repaired already, so a fault in it is final. `why_lost`: what is
    wrong with the entry before which the get ended."""

    get: Get
    missing: list[FileRange]
    was_read: Sequence[FileRange]
    is_repaired: bool
    status: GetMessageStatus = GetMessageStatus.NO_MATCHED_MESSAGE
    seen: int = 0
    newest: int = 0
    skip_below: int = -1
    is_full: bool = False
    why_lost: str = ""
    total: int = 0
    count: int = 0
    runs: list[tuple[int, int]] = attrs.field(factory=list)
    in_memory: tuple[IMappedFile | None, int, int] = (None, 0, 0)
    segment: tuple[int, memoryview, int] = (0, _NO_BYTES, 0)


class CheckedReader:
    """Gets messages with all checks.

    :param near_bytes: messages further behind the end count as on disk.
    :param touched: called with each file position that is about to be read.
    """

    def __init__(
        self,
        log: CommitLog,
        corrupt_ranges: CorruptRanges,
        verifier: RecordVerifier,
        limits: TransferLimits,
        near_bytes: int,
        touched: Callable[[IMappedFile, int], None],
        resident_pages: ResidentPages,
    ) -> None:
        self._resident_pages = resident_pages
        self._log = log
        self._corrupt_ranges = corrupt_ranges
        self._verifier = verifier
        self._near_bytes = near_bytes
        self.hot_bytes = min(near_bytes, HOT_BYTES_MAX)
        self._touched = touched
        self._limits = limits
        self._filtered = FilteredRead(log, corrupt_ranges, self.hot_bytes, limits, resident_pages)

    def get(
        self,
        get: Get,
        missing: list[FileRange],
        was_read: Sequence[FileRange],
        *,
        is_repaired: bool,
    ) -> GetMessageResult:
        """Get messages. If ranges were added to `missing` the result is void: call again when they are resident, or in
        `was_read`. Raises LostEntry, unless the first entry was repaired just now."""
        queue, offset = get.queue, get.offset
        if not queue.min_offset <= offset < queue.max_offset:
            return outside(offset, queue.min_offset, queue.max_offset, queue.next_offset)
        window = window_of(get.max_count)
        if get.property_filter is not None:
            window = min(window, get.property_filter.most_at_once)
            found = self._filtered.get(get, window)
            if found is not None:
                return found
        look = _Look(get, missing, was_read, is_repaired)
        _, _, available = queue.place(offset)
        end = offset + min(available, window)
        for start in range(offset, end, _CHUNK):
            entries = self._entries(look, start, min(_CHUNK, end - start))
            if entries is None:
                break
            if look.count or not self._pass_over(look, start, entries):
                self._look_at(look, start, entries)
            if look.is_full:
                break
        return self._ended(look)

    def _ended(self, look: _Look) -> GetMessageResult:
        queue, offset = look.get.queue, look.get.offset
        if look.why_lost and not look.seen and not look.missing:
            raise LostEntry(look.why_lost)
        if 0 < look.newest < self._log.end - self.hot_bytes:
            queue.note_read(offset + look.seen)
        return self._result(look)

    def _entries(self, look: _Look, start: int, count: int) -> memoryview | None:
        """Entries from `start` on; None if they are not resident, and the get ends or waits."""
        file, at, _ = look.get.queue.place(start)
        size = count * ENTRY_BYTES
        if not self._has(look, file, at, size):
            if not look.count:
                look.missing.append(FileRange(file, at, size))
            return None
        return file.view[at : at + size]

    def _pass_over(self, look: _Look, start: int, entries: memoryview) -> bool:
        """Skip a run of entries if the filter wants none of them; False, with nothing done, otherwise."""
        tags_codes = look.get.tags_codes
        if tags_codes is None or look.get.property_filter is not None or look.skip_below >= 0:
            return False
        flat = entries_struct(len(entries) // ENTRY_BYTES).unpack(entries)
        offsets, sizes, log_end = flat[::3], flat[1::3], self._log.readable_end
        if is_lost(min(offsets), min(sizes), log_end) or is_lost(max(offsets), RECORD_BYTES_MIN, log_end):
            return False
        if min(flat[2::3]) <= ADDRESS_MAX or not tags_codes.isdisjoint(flat[2::3]):
            return False
        look.seen = start - look.get.offset + len(flat) // 3
        look.newest = flat[-3]
        look.status = GetMessageStatus.NO_MATCHED_MESSAGE
        return True

    def _look_at(self, look: _Look, start: int, entries: memoryview) -> None:
        """Add the message of an entry if it is wanted, whole and within the limits. The get ends before a wrong entry;
        with a property filter also before a message that is not resident."""
        get = look.get
        tags_codes, property_filter, log_end = get.tags_codes, get.property_filter, self._log.readable_end
        near_from = self._log.end - self._near_bytes
        seen = start
        for queue_offset, (physical_offset, size, code) in enumerate(ENTRY.iter_unpack(entries), start):
            if is_lost(physical_offset, size, log_end) and self._is_to_mend(look, queue_offset, physical_offset, LOST):
                break
            look.newest = physical_offset
            if physical_offset >= look.skip_below:
                is_near = physical_offset >= near_from
                if look.count and self._limits.are_exceeded(get, look.count, look.total + size, is_near):
                    look.is_full = True
                    break
                if tags_codes is not None and code not in tags_codes and code > ADDRESS_MAX:
                    is_taken = self._is_unwanted(look)
                else:
                    is_taken = self._is_wanted(look, queue_offset, physical_offset, size, code)
                if look.why_lost or (property_filter is not None and look.missing):
                    look.is_full = True
                    break
                if is_taken:
                    self._add_record(look, physical_offset, size)
            seen = queue_offset + 1
        look.seen = seen - get.offset
        if look.count:
            look.status = GetMessageStatus.FOUND

    def _is_wanted(self, look: _Look, queue_offset: int, physical_offset: int, size: int, code: int) -> bool:
        """Whether a message whose tags code may match is wanted, and whole. Void if `look` says why that cannot be
        decided now."""
        _, _, _, _, tags_codes, property_filter = look.get
        if code <= ADDRESS_MAX and (property_filter is not None or tags_codes is not None):
            unit = self._unit(look, queue_offset, physical_offset, code)
            if look.missing or look.why_lost:
                return False
            if unit is not None:
                if not _may_match(unit, tags_codes, property_filter):
                    return self._is_unwanted(look)
                code = unit.tags_code
        base, view, room = look.segment
        at = physical_offset - base
        if not 0 <= at < room:
            base, view, room = look.segment = self._segment(physical_offset)
            at = physical_offset - base
        if not self._is_there(look, queue_offset, physical_offset, size, code, view, at, room):
            return False
        if property_filter is None or look.missing or property_filter.pick((property_bytes(view, at, size),), 1):
            return True
        return self._is_unwanted(look)

    def _is_unwanted(self, look: _Look) -> bool:
        if not look.count:
            look.status = GetMessageStatus.NO_MATCHED_MESSAGE
        return False

    def _unit(self, look: _Look, queue_offset: int, physical_offset: int, code: int) -> ExtUnit | None:
        """The extension unit at the address in an entry; None if there is none, or if `look` says why that cannot be
        decided now."""
        ext = look.get.queue.ext
        if ext is None:
            return None
        place = ext.place(code)
        if place is not None:
            size = min(_UNIT_BYTES, ext.end - undecorate(code))
            if not self._has(look, *place, size):
                look.missing.append(FileRange(*place, size))
                return None
        unit = ext.unit(code)
        if unit is None:
            self._is_to_mend(look, queue_offset, physical_offset, "no unit in the extension")
        return unit

    def _add_record(self, look: _Look, physical_offset: int, size: int) -> None:
        runs = look.runs
        if runs and runs[-1][1] == physical_offset:
            runs[-1] = (runs[-1][0], physical_offset + size)
        else:
            runs.append((physical_offset, physical_offset + size))
        look.total += size
        look.count += 1

    def _is_there(
        self,
        look: _Look,
        queue_offset: int,
        physical_offset: int,
        size: int,
        code: int,
        view: memoryview,
        at: int,
        room: int,
    ) -> bool:
        """Whether the message of an entry is there, whole; if not it is skipped, or the get ends before it."""
        if size >= RECORD_BYTES_MIN and 0 <= at <= room - size:
            if physical_offset >= max(self._log.end - self.hot_bytes, self._corrupt_ranges.intact_from) and (
                self._resident_pages.has_log(physical_offset, physical_offset + size)
            ):
                return True
            if self._is_good(look, queue_offset, physical_offset, code, view, at, size):
                return True
        elif size != BLANK_SIZE and (
            physical_offset >= self._log.min_offset or look.get.queue.oldest()[0] >= self._log.min_offset
        ):
            self._is_to_mend(look, queue_offset, physical_offset, f"no room for a message of {size} bytes")
        if not look.why_lost:
            self._pass_by(look, physical_offset)
        return False

    def _is_good(
        self, look: _Look, queue_offset: int, physical_offset: int, code: int, view: memoryview, at: int, size: int
    ) -> bool:
        """Whether a message that is not a recent append is whole. Assumed while it is not resident."""
        corrupt_ranges = self._corrupt_ranges
        is_own = physical_offset >= corrupt_ranges.intact_from
        if not is_own and corrupt_ranges.covers(physical_offset, physical_offset + size):
            return False
        known, start, end = look.in_memory
        file = self._log.place(physical_offset)[0]
        if not (known is file and start <= at and at + size <= end) and not self._has(look, file, at, size):
            look.missing.append(FileRange(file, at, size))
            return True
        try:
            queue = look.get.queue
            return is_own or self._verifier.is_good(queue, queue_offset, physical_offset, code, view, at, size)
        except LostEntry as lost:
            return not self._is_to_mend(look, queue_offset, physical_offset, str(lost)) and lost.is_there

    def _is_to_mend(self, look: _Look, queue_offset: int, physical_offset: int, why: str) -> bool:
        """End the get before a wrong entry: a get that begins there has it repaired. False if it was repaired already,
        and stays wrong."""
        if look.is_repaired and queue_offset == look.get.offset:
            self._verifier.tell_rotten(look.get.queue, queue_offset, physical_offset, why)
            return False
        if self._verifier.is_hopeless(look.get.queue, queue_offset):
            return False
        look.is_full = True
        look.why_lost = why
        return True

    def _pass_by(self, look: _Look, physical_offset: int) -> None:
        if not look.count:
            look.status = GetMessageStatus.MESSAGE_WAS_REMOVING
        log = self._log
        if 0 <= physical_offset < log.min_offset:  # the others of its segment are lost too
            look.skip_below = physical_offset - physical_offset % log.segment_bytes + log.segment_bytes

    def _segment(self, physical_offset: int) -> tuple[int, memoryview, int]:
        """Start offset, bytes and readable size of the segment of an offset; empty if the log does not hold the
        offset."""
        found = self._log.view(physical_offset)
        if found is None:
            return 0, _NO_BYTES, 0
        view, at = found
        base = physical_offset - at
        return base, view, min(len(view), self._log.readable_end - base)

    def _has(self, look: _Look, file: IMappedFile, at: int, size: int) -> bool:
        """Whether bytes are resident; checks more than these at once, as the following entries will need them."""
        known, start, end = look.in_memory
        if known is file and start <= at and at + size <= end:
            return True
        start = at - at % _BLOCK_BYTES
        end = min(max(start + _BLOCK_BYTES, at + size), file.size)
        if file.is_resident(start, end - start):
            look.in_memory = file, start, end
        elif not file.is_resident(at, size) and not any(
            each.file is file and each.at <= at and at + size <= each.at + each.size for each in look.was_read
        ):
            return False
        self._touched(file, at)
        return True

    def _is_far(self, physical_offset: int) -> bool:
        return self._log.end - physical_offset > self._near_bytes

    def _result(self, look: _Look) -> GetMessageResult:
        pieces = []
        for start, end in look.runs:
            piece = self._log.read(start, end - start)
            assert piece is not None
            pieces.append(piece)
        queue, offset = look.get.queue, look.get.offset
        return GetMessageResult(
            look.status,
            offset + look.seen,
            queue.min_offset,
            queue.max_offset,
            pieces,
            look.count,
            self._is_far(look.newest),
        )


def _may_match(unit: ExtUnit, tags_codes: AbstractSet[int] | None, property_filter: IPropertyFilter | None) -> bool:
    """Whether a message may be wanted by its extension unit: its properties decide."""
    if tags_codes is not None and unit.tags_code not in tags_codes:
        return False
    return property_filter is None or property_filter.may_match(unit)


def window_of(max_count: int) -> int:
    """How many entries a get examines; the Java broker computes it in 32 bits."""
    wanted_bytes = (max_count * ENTRY_BYTES + _MAX_INT + 1) % (1 << 32) - _MAX_INT - 1
    return -(-max(_WINDOW_BYTES, wanted_bytes) // ENTRY_BYTES)
