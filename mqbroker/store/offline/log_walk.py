"""Log walk: reads the whole log record by record, through corrupt ranges; and fence records, which replace those.

A fence replaces a corrupt range, so that every broker gets past it: records of a rolled back transaction, which neither
the Java broker nor ours dispatches to consume queues or index, but both accept. The corrupt bytes are kept as their
bodies, except where head and end are written. Java's recovery stops at the first range without a record, and truncates
all that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

from mqbroker.store.disk import IDisk, IMappedFile, Unreadable
from mqbroker.store.layout import MAGIC_V2
from mqbroker.store.logscan import Damage, Filler, Nothing, Run, Scanned, find_next, scan_file, scan_run
from mqbroker.store.offline.detected_layout import SegmentFile
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import HEAD, MAGIC, RECORD_BYTES_MIN, body_crc, encode_tail

#: The topic of fence records, which are in no queue and no index. See `fence`.
FENCE_TOPIC = b"RMQ_SYS_DAMAGE"
#: The shortest fence: with one character of the topic.
FENCE_BYTES_MIN = RECORD_BYTES_MIN + 1
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)
#: Bytes between two calls of `on_progress`.
_STEP = 4 * 1024 * 1024


class Fence(NamedTuple):
    """Bytes start..end were corrupt, and are fenced so that every broker skips them."""

    start: int
    end: int


class Tail(NamedTuple):
    """The log ends at `start`: no record follows. Bytes other than zero reach up to `dirty_end`."""

    path: str
    start: int
    dirty_end: int
    why: str


def walk(
    disk: IDisk, segments: list[SegmentFile], segment_bytes: int, on_progress: Callable[[int], None]
) -> Iterator[Scanned | Damage | Fence | Tail]:
    """Everything in the segments, in order; one Tail at the end, and more only for dirt in later segments.

    `on_progress` is called with the number of bytes since its last call.
    """
    waiting: Damage | None = None  # no record after it yet: it may be the tail
    for segment in segments:
        size = min(segment.size, segment_bytes)
        if size <= 0:
            continue
        with closing(disk.open_mapped(segment.path, size, read_only=True)) as file:
            for item in walk_segment(file, segment, 0, on_progress):
                if isinstance(item, Damage) and item.end == segment.offset + size:
                    waiting = waiting._replace(end=item.end, why=waiting.why or item.why) if waiting else item
                    continue
                if waiting is not None:
                    yield waiting
                    waiting = None
                yield item
    if waiting is not None:
        yield from _tails(disk, segments, segment_bytes, waiting)
    elif segments:
        end = segments[-1].offset + segment_bytes
        yield Tail(segments[-1].path, end, end, "")


def walk_segment(
    file: IMappedFile, segment: SegmentFile, start: int, on_progress: Callable[[int], None]
) -> Iterator[Scanned | Damage | Fence]:
    """Everything in one segment from byte `start` on. A range without a record up to the end is a Damage."""
    view, base = file.view, segment.offset
    at = told = start
    size = len(view)
    while at < size:
        if at - told >= _STEP:
            on_progress(at - told)
            told = at
        run = _run_at(file, at, base)
        for row in run.rows:
            item = Scanned._make(row)
            if item.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK and _is_fence(item):
                yield Fence(item.physical_offset, item.physical_offset + item.size)
            else:
                yield item
        at = run.end - base
        if run.count:
            continue
        why = ""
        try:
            found = scan_file(file, at, base + at)
            if isinstance(found, Nothing) and not found.is_empty:
                why = found.why
            if view[at + 4 : at + 8] == MAGIC_V2.to_bytes(4, "big"):
                why = "a record of RocketMQ 5.x"
        except Unreadable as error:
            found, why = None, f"the disk cannot read it: {error}"
        if isinstance(found, Filler):
            at = size
        else:
            following = find_next(file, at, base)
            end = following.physical_offset - base if following else size
            yield Damage(segment.path, base + at, base + end, why)
            at = end
    on_progress(max(0, size - told))


def _run_at(file: IMappedFile, at: int, base: int) -> Run:
    """The records from `at` of a segment on; a single one if the disk cannot read the whole chunk."""
    with suppress(Unreadable):
        return scan_run(file, at, base, file.size)
    with suppress(Unreadable):
        found = scan_file(file, at, base + at)
        if isinstance(found, Scanned):
            return Run.of_rows([found], base + at)
    return Run.of_rows([], base + at)


def _is_fence(item: Scanned) -> bool:
    return item.topic == FENCE_TOPIC[: item.size - RECORD_BYTES_MIN] and not item.properties


def _tails(disk: IDisk, segments: list[SegmentFile], segment_bytes: int, waiting: Damage) -> Iterator[Tail]:
    """The range between the last record and the end of the last file: one Tail for each segment that is not all
    zeros."""
    is_first = True
    for segment in segments:
        size = min(segment.size, segment_bytes)
        if segment.offset + size <= waiting.start or size <= 0:
            continue
        start = max(waiting.start, segment.offset)
        with closing(disk.open_mapped(segment.path, size, read_only=True)) as file:
            dirty_end = segment.offset + _end_of_dirt(file.view, start - segment.offset)
        if is_first or dirty_end > start:
            yield Tail(segment.path, start, max(start, dirty_end), waiting.why if is_first else "no record before it")
        is_first = False


def _end_of_dirt(view: memoryview, at: int) -> int:
    """End of the last byte at or after `at` that is not zero; `at` if all are zeros."""
    end = at
    for start in range(at, len(view), _CHUNK):
        piece = bytes(view[start : start + _CHUNK])
        if piece != _ZEROS[: len(piece)]:
            end = start + len(piece.rstrip(b"\0"))
    return end


#: Java allocates so much memory for each record that it reads; its brokers accept no larger message by default.
FENCE_BYTES_MAX = 4 * 1024 * 1024


def fences(damaged: memoryview, offset: int, timestamp_ms: int) -> Iterator[tuple[int, bytes]]:
    """The writes that fence `damaged`, which is at `offset` of the log and has at least FENCE_BYTES_MIN.

    `timestamp_ms`: of the record that follows.
    """
    at = 0
    while at < len(damaged):
        size = len(damaged) - at
        if size > FENCE_BYTES_MAX:
            size = min(FENCE_BYTES_MAX, size - FENCE_BYTES_MIN)
        topic = FENCE_TOPIC[: size - RECORD_BYTES_MIN]
        body_bytes = size - RECORD_BYTES_MIN - len(topic)
        body_at = at + HEAD.size
        crc = body_crc(damaged[body_at : body_at + body_bytes])
        head = HEAD.pack(
            size, MAGIC, crc, 0, 0, 0, offset + at, SysFlag.TRANSACTION_ROLLBACK,
            timestamp_ms, bytes(8), timestamp_ms, bytes(8), 0, 0, body_bytes,
        )  # fmt: skip
        yield at, head
        yield body_at + body_bytes, encode_tail(topic, 0)
        at += size
