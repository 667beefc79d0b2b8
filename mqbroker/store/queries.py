"""Queries: messages by key, by time and by offset. Read-only.

Bytes are requested from `Pages` before they are touched, and looked up again afterwards: files may have been deleted
meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import BLANK_SIZE, ENTRY, ENTRY_BYTES, is_blank
from mqbroker.store.consumequeue_ext import UNIT_BYTES_MAX, ExtUnit, is_address
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.disk import is_shortage
from mqbroker.store.entry_repair import is_lost
from mqbroker.store.index import Index
from mqbroker.store.logscan import Damage, Scanned, scan_at
from mqbroker.store.multi_dispatch import is_entry_of
from mqbroker.store.page_loader import FailedReads, FileRange, Pages, why_unread
from mqbroker.wire.properties import find_property
from mqbroker.wire.record import MAGIC, RECORD_BYTES_MIN, SIZE_AND_MAGIC

#: No frame has room for a message of this size: a record that claims it is not read.
_RECORD_BYTES_MAX = 64 * 1024 * 1024
#: Messages in a row that cannot be read which a search by time passes over in either direction.
_UNREADABLE_MAX = 500
#: Messages that a query by key examines for the key itself, as keys share hashes.
CANDIDATES_MAX = 2048
#: Bytes of the messages of one answer: clients accept no larger frames.
ANSWER_BYTES_MAX = 15 * 1024 * 1024


class ByKey(NamedTuple):
    """Records with a key; `candidates`: number of index entries, of which some may be gone, or have another key."""

    records: list[bytes]
    candidates: int


class QueueEntry(NamedTuple):
    """An entry of a queue: `code` is the tags code, or with an extension the address of a unit."""

    physical_offset: int
    size: int
    code: int
    has_unit: bool
    unit: ExtUnit | None


class Queries:
    """Looks messages up.

    Methods raise StoreDamaged if the disk cannot read consume queue, index or log, and StoreBusy. Ranges of the log
    that stay unreadable are reported as corrupt.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        corrupt_ranges: CorruptRanges,
        report: Callable[[Damage], None],
        pages: Pages,
        failed_reads: FailedReads,
        repair: Callable[[ConsumeQueue, int], Awaitable[bool]],
    ) -> None:
        self._repair = repair
        self._log = log
        self._queues = queues.by_name
        self._bounds = queues.bounds
        self._index = index
        self._corrupt_ranges = corrupt_ranges
        self._report = report
        self._pages = pages
        self._failed_reads = failed_reads
        #: Messages that end above what this returns are not found.
        self.limit: Callable[[], int] = lambda: sys.maxsize

    # By offset

    async def record(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The record at an offset of the log, checked; None if there is none, or one of another size. What was appended
        is found at once, even if it waits in the transient store."""
        committed = self._log.make_readable(physical_offset)
        if committed is not None:
            await committed
        found = await self._scanned(physical_offset, size)
        if found is None:
            return None
        record = self._log.read(physical_offset, found.size)
        return bytes(record) if record is not None else None

    async def _scanned(self, physical_offset: int, size: int | None = None) -> Scanned | None:
        log = self._log
        if self._corrupt_ranges.covers(physical_offset, physical_offset + RECORD_BYTES_MIN):
            return None
        head = await self._bytes(physical_offset, RECORD_BYTES_MIN)
        if head is None:
            return None
        real_size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic != MAGIC or size not in (None, real_size) or not RECORD_BYTES_MIN <= real_size < _RECORD_BYTES_MAX:
            return None
        if physical_offset + real_size > self.limit():
            return None
        if await self._bytes(physical_offset, real_size) is None:
            return None
        if self._corrupt_ranges.covers(physical_offset, physical_offset + real_size):
            return None
        view, at = log.view(physical_offset) or (memoryview(b""), 0)
        item = scan_at(view[: at + real_size], at, physical_offset)
        return item if isinstance(item, Scanned) else None

    async def _bytes(self, physical_offset: int, size: int) -> memoryview | None:
        """Bytes of the log, resident; None if it does not hold them."""
        log = self._log
        if log.read(physical_offset, size) is None:
            return None
        file, at = log.place(physical_offset)
        try:
            await self._pages.ready(file, at, size)
        except OSError as error:
            if is_shortage(error):
                raise why_unread(file.path, at, error) from error
            if physical_offset >= log.min_offset:
                self._failed_reads.check(FileRange(file, at, size), error)
                why = f"the disk cannot read it: {error}"
                self._report(Damage(file.path, physical_offset, physical_offset + size, why))
            return None
        return log.read(physical_offset, size)

    # By queue and offset

    async def entry(self, queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of a message of a queue; None if it has none at `offset`."""
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        file, at, _ = queue.place(offset)
        try:
            await self._pages.ready(file, at, ENTRY_BYTES)
            return queue.entry(offset) if queue.min_offset <= offset < queue.max_offset else None
        except OSError as error:
            if queue.min_offset <= offset:
                raise why_unread(file.path, at, error) from error
        return None

    async def queue_entry(self, topic: str, queue_id: int, offset: int) -> QueueEntry | None:
        """An entry of a queue as it is on disk; None if there is none at `offset`."""
        queue = self._queues.get((topic, queue_id))
        entry = await self.entry(queue, offset) if queue is not None else None
        if entry is None or queue is None:
            return None
        unit: ExtUnit | None = None
        place = queue.ext.place(entry[2]) if queue.ext is not None else None
        if queue.ext is not None and place is not None:
            file, at = place
            try:
                await self._pages.ready(file, at, min(UNIT_BYTES_MAX, file.size - at))
                unit = queue.ext.unit(entry[2])
            except OSError as error:
                raise why_unread(file.path, at, error) from error
        return QueueEntry(*entry, is_address(entry[2]), unit)

    async def tags_codes(self, topic: str, queue_id: int, offset: int, count: int) -> list[int]:
        """The tags codes of up to `count` messages of a queue from `offset` on: of their units, if these are there,
        else as in the entries."""
        codes: list[int] = []
        queue = self._queues.get((topic, queue_id))
        while queue is not None and len(codes) < count:
            at = offset + len(codes)
            if not queue.min_offset <= at < queue.max_offset:
                break
            file, start, available = queue.place(at)
            size = min(available, count - len(codes)) * ENTRY_BYTES
            try:
                await self._pages.ready(file, start, size)
                found = [code for _, _, code in ENTRY.iter_unpack(file.view[start : start + size])]
            except OSError as error:
                raise why_unread(file.path, start, error) from error
            for number, code in enumerate(found):
                if is_address(code) and queue.ext is not None:
                    entry = await self.queue_entry(topic, queue_id, at + number)
                    code = entry.unit.tags_code if entry is not None and entry.unit is not None else code
                codes.append(code)
        return codes

    async def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Log offset of the message at `offset` of a queue; -1 if there is none."""
        queue = self._queues.get((topic, queue_id))
        entry = await self._entry_again(queue, offset) if queue is not None else None
        return entry[0] if entry is not None else -1

    async def _entry_again(self, queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
        """As `entry`, rebuilt if it is lost."""
        entry = await self.entry(queue, offset)
        if entry is not None and is_lost(entry[0], entry[1], self._log.readable_end):
            await self._repair_entry(queue, offset)
            entry = await self.entry(queue, offset)
        return entry

    async def _repair_entry(self, queue: ConsumeQueue, offset: int) -> None:
        try:
            await self._repair(queue, offset)
        except OSError as error:
            raise why_unread(error.filename or queue.directory, 0, error) from error

    async def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at `offset`, ms; -1 if there is none."""
        queue = self._queues.get((topic, queue_id))
        return await self._time_at(queue, offset) if queue is not None else -1

    async def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """Store time of a queue's oldest message, ms; -1 if there is none."""
        queue = self._queues.get((topic, queue_id))
        return await self._time_at(queue, queue.min_offset) if queue is not None else -1

    async def _time_at(self, queue: ConsumeQueue, offset: int) -> int:
        for is_repaired in (False, True):
            entry = await self._entry_again(queue, offset)
            if entry is None or entry[1] == BLANK_SIZE:
                break
            found = await self._scanned(entry[0], entry[1])
            if found is not None and is_entry_of(queue, offset, found):
                return found.store_timestamp_ms
            is_gone = entry[0] < self._log.min_offset or self._corrupt_ranges.covers(
                entry[0], entry[0] + RECORD_BYTES_MIN
            )
            if is_repaired or is_gone:
                break
            await self._repair_entry(queue, offset)
        return -1

    async def is_far(self, topic: str, queue_id: int, offset: int, near_bytes: int) -> bool:
        """Whether a message is further behind the end than `near_bytes`; False if there is none."""
        at = await self.physical_offset(topic, queue_id, offset)
        return at >= 0 and self._log.end - at > near_bytes

    # By time

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of a queue's first message that was stored at `timestamp_ms` or later; the queue's end if there is
        none. Messages that cannot be read are passed over."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return (self._bounds(topic, queue_id) or (0, 0))[1]
        low, high = queue.min_offset, queue.max_offset
        first = high
        while low < high:
            middle = (low + high) // 2
            if await self._is_gone(queue, middle):
                low = middle + 1
                continue
            older_end = max(low, middle - _UNREADABLE_MAX)
            found = await self._readable(queue, range(middle, older_end - 1, -1)) or await self._readable(
                queue, range(middle + 1, min(high, middle + 1 + _UNREADABLE_MAX))
            )
            if found is None and older_end == low:
                low = middle + 1 + _UNREADABLE_MAX
            elif found is None:  # too many in a row: the answer rather comes before them than leaves messages out
                first = high = older_end
            elif found[1] < timestamp_ms:
                low = max(middle, found[0]) + 1
            else:
                first = found[0]
                high = first if first <= middle else older_end
        return first

    async def _is_gone(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether the message at `offset` was deleted from the log, or is a blank before the first one."""
        entry = await self._entry_again(queue, offset)
        if entry is None:
            return True
        place, size, _ = entry
        is_known = not is_lost(place, size, self._log.readable_end)
        return is_known and (place < self._log.min_offset or is_blank(place, size))

    async def _readable(self, queue: ConsumeQueue, offsets: range) -> tuple[int, int] | None:
        """The first of the messages at `offsets` that can be read, and its store time, ms."""
        for offset in offsets:
            stored_ms = await self._time_at(queue, offset)
            if stored_ms >= 0:
                return offset, stored_ms
        return None

    # By key

    async def by_key(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> ByKey:
        """The newest `count` records whose unique key, or one of whose keys, is `key`, the oldest of them first."""
        if self._index is None or count <= 0:
            return ByKey([], 0)
        found: list[bytes] = []
        wanted = (topic.encode(), key.encode())
        total = 0
        seen: set[int] = set()
        # Other keys can share a hash: search for some more than requested, and for many more if they do.
        limit = 4 * count
        while True:
            candidates = await self._candidates(self._index, topic, key, begin_ms, end_ms, limit)
            for physical_offset in sorted(set(candidates) - seen, reverse=True):
                item = await self._scanned(physical_offset)
                if item is None or not _has_key(item, *wanted) or not begin_ms <= item.store_timestamp_ms <= end_ms:
                    continue
                record = self._log.read(physical_offset, item.size)
                total += item.size
                if record is None or (found and total > ANSWER_BYTES_MAX):
                    return ByKey(found[::-1], len(candidates))
                found.append(bytes(record))
                if len(found) >= count:
                    return ByKey(found[::-1], len(candidates))
            if len(candidates) < limit or limit >= CANDIDATES_MAX:
                return ByKey(found[::-1], len(candidates))
            seen.update(candidates)
            limit = min(8 * limit, CANDIDATES_MAX)

    async def _candidates(
        self, index: Index, topic: str, key: str, begin_ms: int, end_ms: int, count: int
    ) -> list[int]:
        try:
            return await index.find(topic, key, begin_ms, end_ms, count, self._pages)
        except OSError as error:
            raise why_unread(error.filename or "the index", 0, error) from error


def _has_key(item: Scanned, topic: bytes, key: bytes) -> bool:
    return item.topic == topic and (
        find_property(item.properties, b"UNIQ_KEY\x01") == key
        or key in find_property(item.properties, b"KEYS\x01").split(b" ")
    )
