"""Getting messages of a queue, which is what pulls are answered from: pieces of the log, not copied.

Hot path. Must never know who asks.
"""

from __future__ import annotations

import enum
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import NamedTuple

from mqbroker.config import StoreSettings
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import BLANK_SIZE, ENTRY_BYTES, ConsumeQueue, entries_struct
from mqbroker.store.consumequeue_ext import ADDRESS_MAX
from mqbroker.wire.record import RECORD_BYTES_MIN

_ENTRY = Struct(">qiq")
#: Entries one get may look at while it filters by tags (Java: 16000 bytes of them).
_FILTERED_MAX = 800
_AT_ONCE_MAX = 64


class GetStatus(enum.Enum):
    """Outcomes of a get, by the names of the Java broker."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult(NamedTuple):
    """`pieces` together are `count` records, one after another; they stay valid, and are read-only."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[memoryview]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    suggest_slave: bool


class Reader:
    """Answers gets.

    :param memory_bytes: of the machine; messages further behind than a share of it count as on the disk.
    """

    def __init__(self, log: CommitLog, settings: StoreSettings, memory_bytes: int) -> None:
        self._log = log
        self._near_bytes = memory_bytes * settings.access_message_in_memory_max_ratio // 100
        self._memory_limits = (
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
        )
        self._disk_limits = (
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
        )

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        tags_codes: AbstractSet[int] | None,
    ) -> GetResult:
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, False)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return _outside(offset, low, high)
        log = self._log
        view, at, available = queue.locate(offset)
        (first,) = _LONG.unpack_from(view, at)
        is_far = log.end - first > self._near_bytes
        count_limit, bytes_limit = self._disk_limits if is_far else self._memory_limits
        if max_bytes is not None:
            bytes_limit = max_bytes
        count = min(max_count, count_limit)
        if count < 1:
            count = 1
        if tags_codes is None and count <= _AT_ONCE_MAX:
            if count > available:
                count = available
            pieces = self._get_at_once(view, at, count, bytes_limit)
            if pieces is not None:
                return GetResult(GetStatus.FOUND, offset + count, low, high, pieces, count, is_far)
        return self._get_each(queue, offset, count, bytes_limit, tags_codes)

    def _get_at_once(self, view: memoryview, at: int, count: int, bytes_limit: int) -> list[memoryview] | None:
        """The messages of `count` entries, where all are whole, in one segment and within limits; None otherwise."""
        entries = entries_struct(count).unpack_from(view, at)
        offsets, sizes = entries[::3], entries[1::3]
        size = sum(sizes)
        if size > bytes_limit and count > 1:
            return None
        first = offsets[0]
        span = offsets[-1] + sizes[-1] - first
        if size == span:  # one after another
            piece = self._log.read(first, size)
            return [piece] if piece is not None else None
        whole = self._log.read(first, span)
        if whole is None or min(sizes) < RECORD_BYTES_MIN or min(offsets) != first or max(offsets) != offsets[-1]:
            return None
        return [whole[offset - first : offset - first + size] for offset, size in zip(offsets, sizes, strict=True)]

    def _get_each(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        bytes_limit: int,
        tags_codes: AbstractSet[int] | None,
    ) -> GetResult:
        log = self._log
        view, at, available = queue.locate(offset)
        look = min(available, max_count if tags_codes is None else max(_FILTERED_MAX, max_count))
        status = GetStatus.NO_MATCHED_MESSAGE
        runs: list[tuple[int, int]] = []
        run_start = run_end = -1
        total = count = 0
        seen = 0
        newest = 0
        for physical_offset, size, code in _ENTRY.iter_unpack(view[at : at + look * ENTRY_BYTES]):
            if count and size != BLANK_SIZE and (count >= max_count or total + size > bytes_limit):
                break
            seen += 1
            newest = physical_offset
            if tags_codes is not None and code not in tags_codes and not _is_wanted(queue, code, tags_codes):
                continue
            if size < RECORD_BYTES_MIN or log.read(physical_offset, size) is None:  # removed, a hole, or damaged
                if not count:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if physical_offset != run_end or (physical_offset - log.min_offset) % log.segment_bytes == 0:
                if run_end >= 0:
                    runs.append((run_start, run_end))
                run_start = physical_offset
            run_end = physical_offset + size
            total += size
            count += 1
        if run_end >= 0:
            runs.append((run_start, run_end))
        pieces = []
        for start, end in runs:
            piece = log.read(start, end - start)
            assert piece is not None
            pieces.append(piece)
        if count:
            status = GetStatus.FOUND
        is_far = log.end - newest > self._near_bytes
        return GetResult(status, offset + seen, queue.min_offset, queue.max_offset, pieces, count, is_far)


_LONG = Struct(">q")


def _is_wanted(queue: ConsumeQueue, code: int, tags_codes: AbstractSet[int]) -> bool:
    """Whether a message is wanted whose entry does not have a wanted tags code but may have the address of its unit.

    Without its unit nobody knows: the consumer looks at the tag itself."""
    if code > ADDRESS_MAX:
        return False
    tags_code = queue.tags_code(code)
    return tags_code is None or tags_code in tags_codes


def _outside(offset: int, low: int, high: int) -> GetResult:
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, False)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, False)
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, False)
