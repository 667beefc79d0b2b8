"""Log scan: reads the log back record by record, for dispatch and recovery.

Sizes read from the log are checked before they are used. Never changes the log.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast
from zlib import crc32

from zope.interface import Interface

from mqbroker.kernel import compiled
from mqbroker.store.consumequeues import TOPIC_NAME
from mqbroker.store.disk import IMappedFile, Unreadable, read_before_touch
from mqbroker.wire.names import is_lmq
from mqbroker.wire.record import (
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    MAGIC,
    MAGIC_BYTES,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    V6,
    BadRecord,
    decode_raw,
    fields_struct,
)


class ILogView(Interface):
    """The bytes of the log, segment by segment."""

    def view(offset: int) -> tuple[memoryview, int] | None:
        """The segment that holds `offset`, and the position in it; None if the log does not hold it."""

    def place(offset: int) -> tuple[IMappedFile, int]:
        """As `view`, with the file instead of its bytes, of an offset that the log has."""

    def path_of(offset: int) -> str:
        """The file that holds the byte at `offset`, which the log has."""


_HEAD = fields_struct(
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "store_timestamp",
    "body_size",
)
#: Bytes that a run reads at once: few enough to stay in the processor's cache.
RUN_BYTES = 128 * 1024
RUN_RECORDS = RUN_BYTES // RECORD_BYTES_MIN
#: Records that are read one by one after a slow one: those rarely come alone.
_ONE_BY_ONE = 100
#: Bytes that a disk writes atomically.
SECTOR_BYTES = 512
_LOST_SECTOR = bytes(SECTOR_BYTES)
#: Bytes that are searched for the next record at a time; less where the disk cannot read all of them.
_FIND_BYTES = 1024 * 1024
_PAGE_BYTES = 4096


class Scanned(NamedTuple):
    """What dispatch needs of a record."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    store_timestamp_ms: int
    properties: bytes


#: Scanned as a plain tuple, cheaper for a million records.
Row = tuple[bytes, int, int, int, int, int, int, bytes]


class Run:
    """Consecutive whole records from `start` to `end` of the log: their number, where the last one begins, and the
    newest store timestamp (ms, 0 if there are none).

    `data`: their bytes, and maybe more behind them; None where only the rows are known. `appended_ms`: when this
    process appended them; 0 if it did not. `has_nul`: whether properties may contain the byte 0.
    """

    __slots__ = ("_rows", "appended_ms", "count", "data", "end", "has_nul", "last", "newest_ms", "start")

    def __init__(
        self,
        start: int,
        end: int,
        count: int,
        last: int,
        newest_ms: int,
        data: bytes | None = None,
        rows: Sequence[Row] | None = None,
        appended_ms: int = 0,
        has_nul: bool = True,
    ) -> None:
        self.start, self.end, self.count, self.last, self.newest_ms = start, end, count, last, newest_ms
        self.data, self.appended_ms, self.has_nul = data, appended_ms, has_nul
        self._rows = rows

    @classmethod
    def of_rows(cls, rows: Sequence[Row], start: int, data: bytes | None = None) -> Run:
        """The run that has these rows."""
        if not rows:
            return cls(start, start, 0, start, 0, data, rows)
        last, size = rows[-1][3:5]
        return cls(start, last + size, len(rows), last, max(0, *[row[6] for row in rows]), data, rows)

    def split(self, at: int, count: int) -> tuple[Run, Run]:
        """Split the run at the record that begins at `at`, the one with number `count`."""
        cut, rows, data = at - self.start, self._rows, self.data
        before = behind = None
        if rows is not None:
            before, behind = [row for row in rows if row[3] < at], [row for row in rows if row[3] >= at]
        left = max(1, self.count - count)
        return (
            Run(self.start, at, count, self.start, self.newest_ms, data and data[:cut], before, has_nul=self.has_nul),
            Run(at, self.end, left, self.last, self.newest_ms, data and data[cut:], behind, has_nul=self.has_nul),
        )

    def records_below(self, end: int) -> tuple[int, int]:
        """Where the first record that does not end at or below `end` begins, and how many records are before it."""
        at, count = self.start, 0
        if self.data is None:
            for row in self.rows:
                if row[3] + row[4] > end:
                    break
                at, count = row[3] + row[4], count + 1
            return at, count
        while at < self.end:
            size, _ = SIZE_AND_MAGIC.unpack_from(self.data, at - self.start)
            if at + size > end:
                break
            at, count = at + size, count + 1
        return at, count

    @property
    def rows(self) -> Sequence[Row]:
        """What dispatch needs of each record."""
        if self._rows is None:
            assert self.data is not None
            self._rows = _rows_of(self.data, self.start, self.end)
        return self._rows


class Filler(NamedTuple):
    """The rest of a segment, which holds no record."""

    size: int


class Nothing(NamedTuple):
    """Not a record: `is_empty` for zeros, otherwise `why` tells what is wrong."""

    is_empty: bool
    why: str


def scan_at(view: memoryview, at: int, physical_offset: int) -> Scanned | Filler | Nothing:
    """Parse the record at `at` of a segment's bytes, whose log offset is `physical_offset`."""
    room = len(view) - at
    if room < RECORD_BYTES_MIN or SIZE_AND_MAGIC.unpack_from(view, at)[1] != MAGIC:
        return _scan_other(view, at, room)
    try:
        record = decode_raw(view, at, physical_offset)
        (size, _, _, queue_id, _, own_offset, _, sys_flag, _, _, timestamp, _, _, _, _, _, topic, properties) = record
    except BadRecord as why:
        return Nothing(False, str(why))
    # Every earlier message of its queue took bytes of the log.
    if not 0 <= own_offset <= physical_offset // RECORD_BYTES_MIN:
        return Nothing(False, f"queue offset {own_offset}")
    if queue_id < 0 or not _is_topic(topic):
        return Nothing(False, "topic or queue cannot be one")
    return Scanned(topic, queue_id, own_offset, physical_offset, size, sys_flag, timestamp, properties)


def scan_file(file: IMappedFile, at: int, physical_offset: int) -> Scanned | Filler | Nothing:
    """As `scan_at`, for a segment that may be on disk only. May wait. Raises Unreadable."""
    room = file.size - at
    read_before_touch(file, at, min(room, RECORD_BYTES_MIN))
    if room >= RECORD_BYTES_MIN:
        size, magic = SIZE_AND_MAGIC.unpack_from(file.view, at)
        if magic == MAGIC and size <= room and at % _PAGE_BYTES + size > _PAGE_BYTES:
            read_before_touch(file, at, size)
    return scan_at(file.view, at, physical_offset)


def scan_run(file: IMappedFile, at: int, base: int, end: int, count: int = RUN_RECORDS) -> Run:
    """Scan up to `count` records from `at` of a segment that starts at `base` in the log, up to `end` in it; none if
    `scan_at` finds none. May wait. Raises Unreadable."""
    read_before_touch(file, at, min(RUN_BYTES, file.size - at))
    run = scan_bytes(file.buffer[at : min(at + RUN_BYTES, end)], base + at, count)
    return run if run.count else _scan_one_by_one(file, at, base, end, count)


def _scan_one_by_one(file: IMappedFile, at: int, base: int, end: int, count: int) -> Run:
    rows: list[Scanned] = []
    start = base + at
    while at < end and len(rows) < min(count, _ONE_BY_ONE):
        item = scan_file(file, at, base + at)
        if not isinstance(item, Scanned):
            break
        rows.append(item)
        at += item.size
    return Run.of_rows(rows, start)


def scan_bytes(data: bytes, start: int, count: int = RUN_RECORDS, at: int = 0) -> Run:
    """Scan up to `count` whole plain records from `at` of `data` on, which is at `start` of the log, up to the first
    that is none: one with IPv6 hosts may be. Hot in a recovery, and on a slave. From 0 on, `data` is the run's."""
    if compiled is None:
        rows = _scan_plain(data, at, start - at, count)
        return Run.of_rows(rows, start, data[at:] if rows else b"")
    done, end, last, newest_ms, has_nul = compiled.scan(data, at, len(data), start - at, count, True)
    kept = data[at:end] if at else data
    return Run(start, start + end - at, done, start + last - at, newest_ms, kept, has_nul=has_nul)


def _rows_of(data: bytes, start: int, end: int) -> list[Row]:
    """The rows of records that are known to be whole."""
    rows: list[Row] = []
    at = 0
    while start + at < end:
        plain = _scan_plain(data[: end - start], at, start, RUN_RECORDS)
        if not plain:
            plain = [cast(Scanned, scan_at(memoryview(data), at, start + at))]
        rows += plain
        at = rows[-1][3] + rows[-1][4] - start
    return rows


def _scan_plain(data: bytes, at: int, start: int, count: int) -> list[Row]:
    """The rows of records with IPv4 hosts from `at` on, where `data` begins at `start` of the log."""
    room = len(data)
    last = room - RECORD_BYTES_MIN
    rows: list[Row] = []
    place = at
    topic = tail = b""  # of the record before: most have the same
    tail_bytes = 0
    rest_bytes: int | None = None
    unpack, add, body_start = _HEAD.unpack_from, rows.append, _HEAD.size
    for _ in range(count):
        if place > last:
            break
        size, magic, crc, queue_id, own_offset, own_physical, sys_flag, timestamp, body_bytes = unpack(data, place)
        topic_at = place + body_start + body_bytes
        end = place + size
        if magic != MAGIC or own_physical != start + place or sys_flag & V6 or body_bytes < 0 or end > room:
            break
        if end - topic_at != rest_bytes or not data.startswith(tail, topic_at):
            if topic_at + 3 > end:
                break
            topic_end = topic_at + 1 + data[topic_at]
            if topic_end + 2 > end or topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) != end:
                break
            topic = data[topic_at + 1 : topic_end]
            if not _is_topic(topic):
                break
            tail = data[topic_at : topic_end + 2]
            tail_bytes, rest_bytes = len(tail), end - topic_at
        if queue_id < 0 or own_offset < 0 or own_offset * RECORD_BYTES_MIN > own_physical:
            break
        if body_bytes and crc32(data[place + body_start : topic_at]) & 0x7FFFFFFF != crc:
            break
        properties = data[topic_at + tail_bytes : end]
        add((topic, queue_id, own_offset, own_physical, size, sys_flag, timestamp, properties))
        place = end
    return rows


def leaves_doubt(properties: bytes) -> bool:
    """Whether a record with these properties may look as if a sector of them was not written: the file had zeros
    before, and no CRC covers properties, which may have any bytes."""
    return b"\0" in properties and (properties[-1:] == b"\0" or _LOST_SECTOR in properties)


def before_lost_sector(file: IMappedFile, base: int, run: Run, durable_end: int) -> Run:
    """The records of a run up to the first that ends above `durable_end` and has a sector of zeros within its
    properties: one that was never written before a crash of the machine. `base`: the segment's start. May wait. Raises
    Unreadable."""
    start, end = max(0, run.start - base), min(run.end - base + SECTOR_BYTES, file.size)
    read_before_touch(file, start, end - start)
    if find_bytes(file, _LOST_SECTOR, start, end) < 0:
        return run
    for number, row in enumerate(run.rows):
        end = row[3] + row[4]
        if end > durable_end and _has_lost_sector(file, end - base - len(row[7]), end - base):
            return Run.of_rows(run.rows[:number], run.start, run.data)
    return run


def _has_lost_sector(file: IMappedFile, start: int, end: int) -> bool:
    """Whether one of the sectors with bytes start..end of a segment is all zeros, including what follows the end."""
    sectors = range(start - start % SECTOR_BYTES, end, SECTOR_BYTES) if start < end else range(0)
    return any(not file.buffer[at : at + SECTOR_BYTES].strip(b"\0") for at in sectors)


def _scan_other(view: memoryview, at: int, room: int) -> Filler | Nothing:
    """As `scan_at`, for bytes that are no valid record."""
    if room < BLANK_BYTES_MIN:
        return Nothing(room <= 0 or not any(view[at:]), "less than a filler is left of the segment")
    size, magic = SIZE_AND_MAGIC.unpack_from(view, at)
    if magic == BLANK_MAGIC:
        return Filler(room) if size == room else Nothing(False, f"filler of {size} bytes where {room} are left")
    if magic != MAGIC:
        return Nothing(not size and not magic, f"magic {magic:#x}")
    return Nothing(False, f"size {size} with {room} bytes left")


@functools.lru_cache(1024)
def _is_topic(name: bytes) -> bool:
    text = name.decode("utf-8", "replace")
    return TOPIC_NAME.fullmatch(text) is not None or is_lmq(text)


def find_next(segment: IMappedFile, at: int, base: int) -> Scanned | None:
    """The first whole record of a segment at or after `at`; the segment starts at `base` in the log. Unreadable pages
    are skipped. May wait."""
    start, step = at, _FIND_BYTES
    while start < segment.size:
        end = min(start + step, segment.size)
        try:
            found = _find_between(segment, start, min(end + len(MAGIC_BYTES) - 1, segment.size), base)
        except Unreadable:
            if step > _PAGE_BYTES:  # from here on page by page
                step = _PAGE_BYTES
                continue
            found = None
        if found is not None:
            return found
        start = end
    return None


def find_bytes(file: IMappedFile, wanted: bytes, start: int, end: int) -> int:
    """As `bytes.find`, in start..end of a file, whose pages are in memory.

    Python before 3.11.4 reads a byte behind the end of the search (its issue 105235): behind the last page of the map
    that would end the process.
    """
    found = file.buffer.find(wanted, start, min(end, file.size - 1))
    if found >= 0 or end < file.size:
        return found
    last = file.size - len(wanted)
    return last if last >= start and file.buffer[last:] == wanted else -1


def _find_between(segment: IMappedFile, start: int, end: int, base: int) -> Scanned | None:
    read_before_touch(segment, start, end - start)
    place = find_bytes(segment, MAGIC_BYTES, start, end)
    while place >= 0:
        at = place - 4
        with contextlib.suppress(Unreadable):
            found = scan_file(segment, at, base + at) if at >= 0 else None
            if isinstance(found, Scanned):
                return found
        place = find_bytes(segment, MAGIC_BYTES, place + 1, end)
    return None


class Damage(NamedTuple):
    """Bytes start..end of the log that hold no record, though records follow."""

    path: str
    start: int
    end: int
    why: str


def scan(log: ILogView, start: int, end: int, count: int) -> Iterator[Run | Damage]:
    """Scan up to `count` records of start..end, where `start` is a record's or a filler's. A corrupt range is skipped
    and returned, and counts as one. May wait. Raises Unreadable."""
    offset = start
    while offset < end and count > 0 and log.view(offset) is not None:
        segment, at = log.place(offset)
        base = offset - at
        run = scan_run(segment, at, base, min(end - base, segment.size), count)
        if run.count:
            yield run
            offset = run.end
            count -= run.count
            continue
        item = scan_file(segment, at, offset)
        if isinstance(item, Filler):
            offset += item.size
            continue
        count -= 1
        following = find_next(segment, at, base)
        after = following.physical_offset if following else base + segment.size
        yield Damage(segment.path, offset, min(after, end), item.why if isinstance(item, Nothing) else "")
        offset = after
