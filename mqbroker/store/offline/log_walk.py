"""Walking the whole log, record by record, through whatever stands in it; and records that stand in for damage.

A fence takes the place of a damaged stretch, so that every broker gets past it: records of a transaction that was
rolled back, which neither the Java broker nor ours enters into consume queues or index, but both take for whole. What
was damaged stays as their bodies, but for the bytes that head and end take. Java's recovery stops at the first place
that holds no record, and cuts off all that follows. Must never know of queues or indexes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mqbroker.store.disk import IDisk, IMappedFile, Unreadable
from mqbroker.store.layout import MAGIC_V2
from mqbroker.store.logscan import Damage, Filler, Nothing, Run, Scanned, find_next, scan_file, scan_run
from mqbroker.store.offline.detected_layout import SegmentFile
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import HEAD, MAGIC, RECORD_BYTES_MIN, body_crc, encode_tail

#: The topic of the records that stand in for damage: no message of a queue, nor in any index. See `fence`.
FENCE_TOPIC = b"RMQ_SYS_DAMAGE"
#: The shortest such record: with one character of the topic.
FENCE_BYTES_MIN = RECORD_BYTES_MIN + 1
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)
#: Bytes between two calls of `on_progress`.
_STEP = 4 * 1024 * 1024


class Fence(NamedTuple):
    """Bytes start..end were damaged once, and are marked so that every broker passes over them."""

    path: str
    start: int
    end: int


class Tail(NamedTuple):
    """The log ends at `start`: from there on no record stands. Bytes that are not zero reach up to `dirty_end`."""

    path: str
    start: int
    dirty_end: int
    why: str


def walk(
    disk: IDisk, segments: list[SegmentFile], segment_bytes: int, on_progress: Callable[[int], None]
) -> Iterator[Scanned | Damage | Fence | Tail]:
    """All that stands in the segments, in order; one Tail at the end, and more only for dirt in later segments.

    `on_progress` hears how many bytes were passed since it was last called.
    """
    waiting: Damage | None = None  # nothing was found after it yet: it may be the tail
    last: SegmentFile | None = None
    for segment in segments:
        size = min(segment.size, segment_bytes)
        last = segment
        if size <= 0:
            continue
        file = disk.open_mapped(segment.path, size, read_only=True)
        try:
            for item in walk_segment(file, segment, 0, on_progress):
                if isinstance(item, Damage) and item.end == segment.offset + size:
                    waiting = item if waiting is None else _joined(waiting, item)
                    continue
                if waiting is not None:
                    yield waiting
                    waiting = None
                yield item
        finally:
            file.close()
    if waiting is not None:
        yield from _tails(disk, segments, segment_bytes, waiting)
    elif last is not None:
        yield Tail(last.path, last.offset + segment_bytes, last.offset + segment_bytes, "")


def _joined(first: Damage, second: Damage) -> Damage:
    return first._replace(end=second.end, why=first.why or second.why)


def walk_segment(
    file: IMappedFile, segment: SegmentFile, start: int, on_progress: Callable[[int], None]
) -> Iterator[Scanned | Damage | Fence]:
    """All that stands in one segment from byte `start` of it on. What holds no record goes to the end as a Damage."""
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
                yield Fence(segment.path, item.physical_offset, item.physical_offset + item.size)
            else:
                yield item
        at = run.end - base
        if run.rows:
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
    """The records from `at` of a segment on, one alone where the disk cannot read all that is read ahead."""
    with contextlib.suppress(Unreadable):
        return scan_run(file, at, base, file.size)
    with contextlib.suppress(Unreadable):
        found = scan_file(file, at, base + at)
        if isinstance(found, Scanned):
            return Run([found], base + at + found.size, found.store_timestamp_ms)
    return Run([], base + at, 0)


def _is_fence(item: Scanned) -> bool:
    return item.topic == FENCE_TOPIC[: item.size - RECORD_BYTES_MIN] and not item.properties


def _tails(disk: IDisk, segments: list[SegmentFile], segment_bytes: int, waiting: Damage) -> Iterator[Tail]:
    """What is between the last record and the end of the last file, one Tail for each segment that is not all zeros."""
    is_first = True
    for segment in segments:
        size = min(segment.size, segment_bytes)
        if segment.offset + size <= waiting.start or size <= 0:
            continue
        start = max(waiting.start, segment.offset)
        file = disk.open_mapped(segment.path, size, read_only=True)
        try:
            dirty_end = segment.offset + _end_of_dirt(file.view, start - segment.offset)
        finally:
            file.close()
        if is_first or dirty_end > start:
            yield Tail(segment.path, start, max(start, dirty_end), waiting.why if is_first else "no record before it")
        is_first = False


def _end_of_dirt(view: memoryview, at: int) -> int:
    """Where the last byte at or after `at` ends that is not zero; `at` where all are zeros."""
    end = at
    for start in range(at, len(view), _CHUNK):
        piece = bytes(view[start : start + _CHUNK])
        if piece != _ZEROS[: len(piece)]:
            end = start + len(piece.rstrip(b"\0"))
    return end


#: Java takes so much memory for each record it reads; its brokers accept no larger message by default.
FENCE_BYTES_MAX = 4 * 1024 * 1024


def fences(damaged: memoryview, offset: int, timestamp_ms: int) -> Iterator[tuple[int, bytes]]:
    """What to write at which place of `damaged`, which stands at `offset` of the log and has FENCE_BYTES_MIN or more.

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
