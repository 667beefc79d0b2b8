"""Gets by a property filter, of recently appended messages, which are known to be whole and resident.

Hot, since few of many examined messages may be wanted: entries are processed in batches, with few steps for each that
is not wanted. What counts as full, how many entries a get examines and its next begin offset are as in
`checked_reader.py`, which serves all other cases. Never waits for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from mqbroker.kernel import compiled
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue_entry import ENTRY_BYTES, places_struct
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.get_message_result import Get, GetMessageResult, GetMessageStatus, TransferLimits, is_above
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN, properties_of

_LONG = Struct(">q")
#: Entries per batch, the first and later ones: those behind the last wanted one are examined in vain.
_STRETCH = 64
_STRETCH_MIN, _STRETCH_MAX = 8, 256


class FilteredRead:
    """Filters recently appended messages.

    :param hot_bytes: messages further behind the end of the log may not be resident.
    """

    def __init__(
        self,
        log: CommitLog,
        corrupt_ranges: CorruptRanges,
        hot_bytes: int,
        limits: TransferLimits,
        resident_pages: ResidentPages,
    ) -> None:
        self._resident_pages = resident_pages
        self._log = log
        self._corrupt_ranges = corrupt_ranges
        self._hot_bytes = hot_bytes
        self._limits = limits

    def get(self, get: Get, window: int) -> GetMessageResult | None:
        """Get the wanted messages of `window` entries, from an offset that the queue has; None if they need checks.
        Hot."""
        queue, offset, max_count, max_bytes, tags_codes, property_filter = get
        if property_filter is None or tags_codes is not None or queue.ext is not None or offset < queue.resident_from:
            return None
        intact_from = max(self._log.min_offset, self._log.end - self._hot_bytes, self._corrupt_ranges.intact_from)
        entries, at, available = queue.locate(offset)
        if not self._resident_pages.has_entries(queue, offset, min(available, window)):
            return None
        if _LONG.unpack_from(entries, at)[0] < intact_from:
            return None
        count_limit, bytes_limit = self._limits.of(max_bytes, is_near=True)
        room = max(1, min(max_count, count_limit))
        end = at + min(available, window) * ENTRY_BYTES
        next_offset, total = offset, 0
        stretch = _STRETCH
        places: list[tuple[int, int]] = []
        while at < end and room:
            count = min(stretch, (end - at) // ENTRY_BYTES)
            flat = places_struct(count).unpack_from(entries, at)
            offsets, sizes = flat[::2], flat[1::2]
            largest = max(sizes)
            messages = self._properties(offsets, sizes, largest, intact_from)
            if messages is None:
                return None
            picked = property_filter.pick(messages, room)
            at += count * ENTRY_BYTES
            room -= len(picked)
            if not room:
                count = picked[-1] + 1
            taken = [(offsets[i], sizes[i]) for i in picked]
            size = sum([size for _, size in taken])
            if total + size + largest > bytes_limit:  # maybe; Java's broker checks it for unwanted messages, too
                fitting = _fitting(sizes[:count], picked, total, bytes_limit)
                if fitting < count:
                    room, count = 0, fitting
                    taken = [(offsets[i], sizes[i]) for i in picked if i < fitting]
            places += taken
            total += size
            next_offset += count
            if places:  # assuming that as many of the next are wanted
                stretch = min(_STRETCH_MAX, room * (next_offset - offset) // len(places) + _STRETCH_MIN)
            else:
                stretch = _STRETCH_MAX
        pieces = self._pieces(places, intact_from)
        if pieces is None:
            return None
        status = GetMessageStatus.FOUND if places else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, next_offset, queue.min_offset, queue.max_offset, pieces, len(places), False)

    def _properties(
        self, offsets: Sequence[int], sizes: Sequence[int], largest: int, intact_from: int
    ) -> list[bytes] | None:
        """The property bytes of messages; None if they may differ from what was stored.

        Checked by the first and the last, so that no more is read than what lies between; of the others only the wanted
        ones are read."""
        log = self._log
        low, high = offsets[0], offsets[-1] + sizes[-1]
        if not intact_from <= low < high <= log.readable_end or largest > high - low:
            return None
        segment, at = log.place(low)
        if at + high - low > segment.size or not self._resident_pages.has_log(low, high):
            return None
        find = properties_of if compiled is None else compiled.properties_of
        found: list[bytes] = find(segment.buffer, low - at, offsets, sizes)
        return found

    def _pieces(self, places: Sequence[tuple[int, int]], intact_from: int) -> list[memoryview] | None:
        """The messages at some places of the log, adjacent ones as one piece; None if one may be missing."""
        runs: list[tuple[int, int]] = []
        end = intact_from
        for offset, size in places:
            if offset < end or size < RECORD_BYTES_MIN:
                return None
            if offset == end and runs:
                runs[-1] = (runs[-1][0], offset + size)
            else:
                runs.append((offset, offset + size))
            end = offset + size
        if not runs:
            return []
        read = self._log.read
        low, high = runs[0][0], runs[-1][1]
        if high > self._log.readable_end or not self._resident_pages.has_log(low, high):
            return None
        whole = read(low, high - low)
        if whole is not None:  # they are in one segment
            return [whole[start - low : end - low] for start, end in runs]
        pieces = [piece for start, end in runs if (piece := read(start, end - start)) is not None]
        return pieces if len(pieces) == len(runs) else None


def _fitting(sizes: Sequence[int], picked: Sequence[int], total: int, bytes_limit: int) -> int:
    """Number of entries until one would exceed the limit by `total` bytes. The first message never does."""
    wanted = frozenset(picked)
    for i, size in enumerate(sizes):
        if total and is_above(bytes_limit, total + size):
            return i
        if i in wanted:
            total += size
    return len(sizes)
