"""Finding out, when a store is opened, where its log ends and from where on consume queues must be built again.

After a clean stop that is where the newest consume queue entry says; after a crash, everything above the checkpoint
is read and checked. The log is cut only above what a sync ever covered: damage below is reported and passed over.
Must never know of sockets, clocks or turns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack

import attrs
from twisted.logger import Logger

from mqbroker.errors import StoreDamaged, StoreUnknown
from mqbroker.store.checkpoint import Checkpoint
from mqbroker.store.consumequeue import BLANK_SIZE, ConsumeQueue, ConsumeQueues
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.layout import MAGIC_V2
from mqbroker.store.logscan import Damage, Filler, Nothing, Scanned, find_next, scan_at
from mqbroker.store.turns import Progress, Steps

_FILE_NAME = re.compile(r"\d{20}")
_PAGE_BYTES = 4096
#: No property holds so many zeros in a row, but every lost sector does.
_ZEROS_OF_A_TEAR = bytes(64)
_STEP_RECORDS = 1000
_MEND = "set the size the store was made with, or move away what is none of its; `mq store check` tells more"

log = Logger()


@attrs.frozen
class Segments:
    """The segment files as found: `files[0]` starts at `first_offset` of the log.

    `unfinished`: a file after them that a killed process made and did not give its size yet.
    """

    files: list[IMappedFile]
    first_offset: int
    segment_bytes: int
    unfinished: str | None = None

    @property
    def end(self) -> int:
        return self.first_offset + len(self.files) * self.segment_bytes

    @property
    def used_end(self) -> int:
        """Where the last segment ends that anything was written to."""
        count = len(self.files)
        while count and not any(self.files[count - 1].view[:8]):
            count -= 1
        return self.first_offset + count * self.segment_bytes

    def at(self, offset: int) -> tuple[IMappedFile, int] | None:
        """The segment of `offset` and the position in it."""
        if not self.first_offset <= offset < self.end:
            return None
        index, at = divmod(offset - self.first_offset, self.segment_bytes)
        return self.files[index], at

    def scan_at(self, offset: int) -> Scanned | Filler | Nothing:
        found = self.at(offset)
        if found is None:
            return Nothing(True, "outside of the log")
        return scan_at(found[0].view, found[1], offset)


@attrs.frozen
class Recovered:
    """`end`: of the log. `rebuild_from`: consume queues hold all below and nothing above."""

    end: int
    rebuild_from: int
    last_timestamp_ms: int
    damages: list[Damage]
    read_bytes: int


def load_segments(disk: IDisk, directory: str, segment_bytes: int) -> Segments:
    """Map the segments there are. Raises StoreDamaged where one is missing, misshapen or none of ours."""
    with ExitStack() as opened:

        def open_one(path: str, size: int) -> IMappedFile:
            file = disk.open_mapped(path, size, keep_open=True)
            opened.callback(file.close)
            return file

        segments = _load_segments(disk, directory, segment_bytes, open_one)
        opened.pop_all()
    return segments


def _load_segments(
    disk: IDisk, directory: str, segment_bytes: int, open_one: Callable[[str, int], IMappedFile]
) -> Segments:
    files: list[IMappedFile] = []
    first = 0
    names = disk.names(directory)
    for name in names:
        path = os.path.join(directory, name)
        if not _FILE_NAME.fullmatch(name) or int(name) % segment_bytes:
            raise StoreDamaged(path, 0, f"not a segment; mappedFileSizeCommitLog is {segment_bytes}: {_MEND}")
        if files and int(name) != first + len(files) * segment_bytes:
            why = f"segment {first + len(files) * segment_bytes:020d} before it is missing"
            raise StoreDamaged(path, 0, f"{why}: restore it from a copy; `mq store repair` says what else can be done")
        size = disk.file_size(path)
        if not size and name == names[-1]:
            return Segments(files, first, segment_bytes, path)
        if size != segment_bytes:
            raise StoreDamaged(path, size, f"{size} bytes; mappedFileSizeCommitLog is {segment_bytes}: {_MEND}")
        if not files:
            first = int(name)
        files.append(open_one(path, size))
    return Segments(files, first, segment_bytes)


def recover(
    segments: Segments,
    queues: ConsumeQueues,
    checkpoint: Checkpoint,
    *,
    is_clean: bool,
    before_cut: Callable[[int], None] = lambda offset: None,
) -> Steps[Recovered]:
    """Find the end of the log and truncate consume queues to what can be relied on. Changes nothing of the log.

    `before_cut` is told from where on before queues lose what the checkpoint may say is in them.
    """
    if is_clean and checkpoint.tally not in (None, queues.tally()):
        log.warn("consume queues are not as they were when the broker was stopped: all are built anew")
        start = segments.first_offset
        durable_end = max(start, checkpoint.log_offset or 0)
    elif is_clean:
        start, durable_end = _clean_start(segments, queues, checkpoint.log_offset or 0)
    else:
        start, durable_end = _crashed_start(segments, queues, checkpoint)
    durable_ms = checkpoint.safe_ms if not is_clean and checkpoint.log_offset is None else 0
    recovered = yield from _find_end(segments, start, durable_end, durable_ms)
    known_end = max(checkpoint.log_offset or 0, start)
    if segments.files and recovered.end < known_end and not recovered.damages:
        why = "the log ends here, and more was on the disk: its last segments are missing"
        recovered.damages.append(Damage(segments.files[-1].path, recovered.end, known_end, why))
    before_cut(recovered.rebuild_from)
    for queue in queues:
        if not is_clean or queue.end_of_last() > recovered.rebuild_from:
            queue.truncate(recovered.rebuild_from)
        # Without its first file the next one of a queue would pass for the first that retention left.
        is_headless = not segments.first_offset and queue.max_offset and queue.is_empty
        if not segments.files or is_headless:
            queue.reset()
    return recovered


def _clean_start(segments: Segments, queues: ConsumeQueues, durable_end: int) -> tuple[int, int]:
    start = max((queue.end_of_last() for queue in queues), default=-1)
    if _before(segments, queues, start) is not None:
        return start, max(start, durable_end)  # half messages, which are in no queue, may follow
    if start == durable_end and _is_rotten_before(segments, queues, start):
        return start, start
    return segments.first_offset, max(segments.first_offset, durable_end)  # no queue, or of another log


def _is_rotten_before(segments: Segments, queues: ConsumeQueues, end: int) -> bool:
    """Whether what should be the record that ends at `end` is none, but not nothing either."""
    offsets = [queue.entry(queue.max_offset - 1)[0] for queue in queues if queue.end_of_last() == end]
    found = [segments.scan_at(offset) for offset in offsets if end <= segments.end]
    return any(isinstance(item, Nothing) and not item.is_empty for item in found)


def _before(segments: Segments, queues: ConsumeQueues, end: int) -> Scanned | None:
    """The record that ends at `end`, if a queue knows one and the log has it."""
    for queue in queues:
        if queue.end_of_last() == end and queue.max_offset > queue.min_offset:
            physical_offset, _, _ = queue.entry(queue.max_offset - 1)
            found = segments.scan_at(physical_offset)
            if isinstance(found, Scanned) and found.physical_offset + found.size == end:
                return found
    return None


def _crashed_start(segments: Segments, queues: ConsumeQueues, checkpoint: Checkpoint) -> tuple[int, int]:
    first = segments.first_offset
    if checkpoint.log_offset is not None and checkpoint.queues_offset is not None:
        start = min(checkpoint.log_offset, checkpoint.queues_offset)
        at_start = segments.scan_at(start)
        is_boundary = first <= start <= segments.end and (not isinstance(at_start, Nothing) or at_start.is_empty)
        if is_boundary and queues.is_whole and (_have_entries(queues) or start == first):
            return start, checkpoint.log_offset
        return first, checkpoint.log_offset
    starts = [_start_by_time(segments, queue, checkpoint.safe_ms) for queue in queues]
    return max(starts, default=first), first


def _have_entries(queues: ConsumeQueues) -> bool:
    return any(queue.max_offset > 0 for queue in queues)


def _start_by_time(segments: Segments, queue: ConsumeQueue, safe_ms: int) -> int:
    """Where the newest message of a queue that was stored by `safe_ms` ends: all queues hold all below on the disk."""

    def is_safe(physical_offset: int, size: int) -> bool:
        if (size == BLANK_SIZE and not physical_offset) or (size > 0 and physical_offset < segments.first_offset):
            return True
        found = segments.scan_at(physical_offset) if size > 0 else None
        return isinstance(found, Scanned) and found.store_timestamp_ms <= safe_ms

    low = queue.min_offset
    offset = queue.search(is_safe, low, queue.max_offset)
    if offset <= low:
        return segments.first_offset
    physical_offset, size, _ = queue.entry(offset - 1)
    return max(segments.first_offset, physical_offset + size if size != BLANK_SIZE else 0)


def _find_end(segments: Segments, start: int, durable_end: int, durable_ms: int) -> Steps[Recovered]:
    """Read records from `start` to the first place above the durable mark where none stands."""
    damages: list[Damage] = []
    offset = start
    timestamp = 0
    used_end = segments.used_end
    while offset < segments.end:
        offset, timestamp = _pass_records(segments, offset, timestamp)
        yield Progress("the log is read back", offset, used_end)
        if offset == segments.end:
            break
        item = segments.scan_at(offset)
        if isinstance(item, Nothing) and not item.is_empty:
            _refuse_later(segments, offset)
        is_sure = offset < durable_end or timestamp < durable_ms
        if isinstance(item, Scanned) and (is_sure or not _may_be_torn(item)):
            timestamp = max(timestamp, item.store_timestamp_ms)
            offset += item.size
        elif isinstance(item, Filler):
            offset += item.size
        elif not is_sure:
            break
        else:
            why = item.why if isinstance(item, Nothing) else ""
            following = _next_record(segments, offset)
            if following is None:
                damages.append(_damage(segments, offset, max(offset, durable_end), f"the log ends here: {why}"))
                break
            damages.append(_damage(segments, offset, following, why))
            offset = following
    return Recovered(offset, min(start, offset), timestamp, damages, offset - min(start, offset))


def _pass_records(segments: Segments, offset: int, timestamp_ms: int) -> tuple[int, int]:
    """Pass over whole records of one segment, one step long; where the next is, and the newest timestamp."""
    found = segments.at(offset)
    assert found is not None
    view, at = found[0].view, found[1]
    base = offset - at
    for _ in range(_STEP_RECORDS):
        item = scan_at(view, at, base + at)
        if not isinstance(item, Scanned) or _may_be_torn(item):
            break
        if item.store_timestamp_ms > timestamp_ms:
            timestamp_ms = item.store_timestamp_ms
        at += item.size
    return base + at, timestamp_ms


def _refuse_later(segments: Segments, offset: int) -> None:
    """Raises StoreUnknown at a record of a later version: it must not be cut off as a torn one."""
    found = segments.at(offset)
    assert found is not None
    file, at = found
    if file.view[at + 4 : at + 8] == MAGIC_V2.to_bytes(4, "big"):
        raise StoreUnknown(file.path, f"a record of RocketMQ 5.x stands at byte {at}; use a broker of that version")


def _may_be_torn(item: Scanned) -> bool:
    """Whether the end of a record, which no CRC covers, was not written: there were zeros before it."""
    properties = item.properties
    return properties[-1:] == b"\0" or _ZEROS_OF_A_TEAR in properties


def _next_record(segments: Segments, offset: int) -> int | None:
    at = offset
    while at < segments.end:
        found = segments.at(at)
        assert found is not None
        file, place = found
        following = find_next(file, place, at - place)
        if following is not None:
            return following.physical_offset
        at += segments.segment_bytes - place
    return None


def _damage(segments: Segments, start: int, end: int, why: str) -> Damage:
    found = segments.at(start)
    assert found is not None
    return Damage(found[0].path, start, end, why)


def store_again(segments: Segments, start: int, end: int) -> None:
    """Store a byte of each page of start..end of the log as it is, so that the next sync writes them all.

    A sync that failed before the last stop may have left pages in memory that the kernel takes for written. Raises
    OSError."""
    offset = max(segments.first_offset, start)
    while offset < end and (found := segments.at(offset)) is not None:
        file, first = found
        base = offset - first
        for at in range(first - first % _PAGE_BYTES, min(segments.segment_bytes, end - base), _PAGE_BYTES):
            file.write_at(at, memoryview(file.view[at : at + 1].tobytes()))
        offset = base + segments.segment_bytes


def last_timestamp(segments: Segments, queues: ConsumeQueues, end: int) -> int:
    """Store timestamp of the newest message below `end` that consume queues know; 0 where there is none."""
    newest = 0
    is_below: Callable[[int, int], bool] = lambda offset, size: offset + size <= end  # noqa: E731
    for queue in queues:
        offset = queue.search(is_below, queue.min_offset, queue.max_offset)
        if offset > queue.min_offset:
            found = segments.scan_at(queue.entry(offset - 1)[0])
            if isinstance(found, Scanned):
                newest = max(newest, found.store_timestamp_ms)
    return newest
