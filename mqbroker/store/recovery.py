"""Recovery: where the log of a store being opened ends, and from where on consume queues must be rebuilt.

After a clean stop the newest consume queue entry tells; after a crash, everything above the checkpoint is read and
checked. The log is truncated only above what a sync ever covered: corrupt ranges below are reported and skipped. Knows
no sockets, clocks or turns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from mqbroker.errors import LogMissing, StoreDamaged, StoreUnknown
from mqbroker.store.checkpoint import Checkpoint, CheckpointFile
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import BLANK_SIZE, QueueEnd
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IDisk, IMappedFile, read_before_touch, store_again
from mqbroker.store.layout import MAGIC_V2
from mqbroker.store.logscan import (
    Damage,
    Filler,
    ILogView,
    Nothing,
    Run,
    Scanned,
    before_lost_sector,
    find_next,
    scan_file,
    scan_run,
)
from mqbroker.store.multi_dispatch import is_entry_of
from mqbroker.store.record_verifier import stands_at
from mqbroker.store.stepwise import Progress, Steps
from mqbroker.wire.record import RECORD_BYTES_MIN

_FILE_NAME = re.compile(r"\d{20}")
_MEND = "set the size the store was made with, or move away files that do not belong to it; see `mq store check`"
_QUEUES_A_STEP = 500
_PAGE_BYTES = 4096

log = Logger()


@implementer(ILogView)
@attrs.frozen
class Segments:
    """The segment files as found: `files[0]` starts at `first_offset` of the log.

    `unfinished`: a file after them that a killed process created without setting its size.
    """

    files: list[IMappedFile]
    first_offset: int
    segment_bytes: int
    unfinished: str | None = None
    directory: str = ""

    @property
    def end(self) -> int:
        return self.first_offset + len(self.files) * self.segment_bytes

    @property
    def used_end(self) -> int:
        """End of the last segment that was written to."""
        count = len(self.files)
        while count and not has_bytes(self.files[count - 1], 0, 8):
            count -= 1
        return self.first_offset + count * self.segment_bytes

    def at(self, offset: int) -> tuple[IMappedFile, int] | None:
        """The segment of `offset` and the position in it."""
        if not self.first_offset <= offset < self.end:
            return None
        return self.place(offset)

    def place(self, offset: int) -> tuple[IMappedFile, int]:
        """As `at`, of an offset between the first and the end."""
        index, at = divmod(offset - self.first_offset, self.segment_bytes)
        return self.files[index], at

    def scan_at(self, offset: int) -> Scanned | Filler | Nothing:
        found = self.at(offset)
        if found is None:
            return Nothing(True, "outside of the log")
        return scan_file(*found, offset)

    def view(self, offset: int) -> tuple[memoryview, int] | None:
        """As `at`, with the segment's bytes."""
        found = self.at(offset)
        return (found[0].view, found[1]) if found is not None else None

    def path_of(self, offset: int) -> str:
        """The file that holds the byte at `offset`."""
        return self.place(offset)[0].path


@attrs.frozen
class Start:
    """The offset from which the log is read: the start of a record, or the end of the log. Consume queues are trusted
    below, but some lack entries if `queues_lack`. The log below `durable_end`, or stored before `durable_ms`, was
    synced. Above, sectors of records may be missing if `may_lack_sectors`: doubtful records are accepted below the mark
    only. `tally`: of queues below the offset, if known."""

    offset: int
    durable_end: int
    durable_ms: int = 0
    may_lack_sectors: bool = False
    queues_lack: bool = False
    tally: tuple[int, int] | None = None


@attrs.frozen
class Recovered:
    """`end`: of the log. `read_bytes`: bytes of it that were read."""

    end: int
    last_timestamp_ms: int
    corrupt_ranges: list[Damage]
    read_bytes: int


def has_bytes(file: IMappedFile, at: int, size: int) -> bool:
    """Whether a range has other bytes than zeros. Raises Unreadable."""
    read_before_touch(file, at, min(size, file.size - at))
    return any(file.view[at : at + size])


def load_segments(disk: IDisk, directory: str, segment_bytes: int) -> Segments:
    """Open the existing segments. Raises StoreDamaged if one is missing, misshapen or foreign."""
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
            return Segments(files, first, segment_bytes, path, directory)
        if size != segment_bytes:
            raise StoreDamaged(path, size, f"{size} bytes; mappedFileSizeCommitLog is {segment_bytes}: {_MEND}")
        if not files:
            first = int(name)
        files.append(open_one(path, size))
    return Segments(files, first, segment_bytes, None, directory)


def find_start(
    segments: Segments, queues: ConsumeQueues, checkpoint: Checkpoint, is_clean: bool, is_intact: bool
) -> Start:
    """Find the offset to read the log from. Changes nothing. `is_intact`: the machine did not crash, so nothing was
    lost."""
    if is_clean and (not queues.is_whole or checkpoint.tally not in (None, queues.tally())):
        return Start(*_crashed_start(segments, queues, checkpoint), queues_lack=True)
    if is_clean:
        offset, durable_end = _clean_start(segments, queues, checkpoint.log_offset or 0)
        is_cut = any(queue.end_of_last() > offset for queue in queues)
        return Start(offset, durable_end, tally=None if is_cut else checkpoint.tally)
    found = _crashed_start(segments, queues, checkpoint)
    if checkpoint.log_offset is None:
        return Start(*found, checkpoint.safe_ms, queues_lack=not queues.is_whole)
    return Start(*found, may_lack_sectors=not is_intact, queues_lack=not queues.is_whole)


def refuse_later(segments: Segments, queues: ConsumeQueues) -> None:
    """Raises StoreUnknown if a record of a later version follows those that consume queues have, before anything is
    changed. One that is in a queue has a topic for which `ConsumeQueues.load` refuses the store."""
    offset = max((queue.end_of_last() for queue in queues), default=-1)
    while (found := segments.at(offset)) is not None:
        file, at = found
        run = scan_run(file, at, offset - at, file.size)
        if run.count:
            offset = run.end
            continue
        item = scan_file(file, at, offset)
        if not isinstance(item, Filler):
            _refuse(file, at)
            return
        offset += item.size


def refuse_lost_log(
    segments: Segments, queues: ConsumeQueues, has_index: bool, checkpoint: Checkpoint, is_intact: bool
) -> None:
    """Raises LogMissing if there is no segment, but files that were derived from some: a person must confirm their
    deletion. The log may be gone only if the machine crashed before anything was durable."""
    was_durable = checkpoint.log_offset or checkpoint.log_ms
    if segments.files or not (is_intact or was_durable):
        return
    count = sum(queue.max_offset > 0 for queue in queues)
    if count or has_index:
        raise LogMissing(
            segments.directory,
            f"there is no segment of the log, but beside it there are {count} queues with messages"
            f"{' and an index' if has_index else ''}: set storePathCommitLog to where the log is, or mount its disk; "
            "if it is lost for good, so are its messages here: move the whole store away (keep it), as a group of "
            "brokers fills an empty one up; else restore a backup, or a copy of a replica",
        )


def cut_queues(segments: Segments, queues: ConsumeQueues, start: int, is_clean: bool) -> Steps[dict[ConsumeQueue, int]]:
    """Truncate consume queues at `start` of the log. Returns those that were deleted, since they do not match the log,
    or the note of the clean stop: they must be rebuilt below `start`, too; with each, a lower bound of its next offset.
    Raises OSError."""
    lost: dict[ConsumeQueue, int] = {}
    newest = _Newest(segments)
    # In the order of the log, as one page has the newest messages of many queues.
    for number, queue in enumerate(sorted(queues, key=lambda queue: queue.last)):
        if not number % _QUEUES_A_STEP:
            yield Progress("the ends of consume queues are checked", number, len(queues.by_name), "queues")
        if not is_clean or queue.end_of_last() > start:
            queue.truncate(start)
        is_headless = queue.lacks_first or _may_lack_first(segments, queue)
        is_garbled = not ((not is_clean and newest.stands(queue)) or ends_well(segments, queue, is_clean))
        if is_headless or is_garbled:
            log.warn("{directory} does not match the log: it is rebuilt", directory=queue.directory)
            lost[queue] = queue.first_offset if is_headless else 0
        # A killed process may have created its first file with nothing but blank entries.
        is_begun = queue.end_of_last() < 0 and queue.max_offset <= queue.begins_at > 0
        if not segments.files or is_headless or is_garbled or is_begun:
            queue.reset()
    return lost


class _Newest:
    """Quick check of the newest messages of queues against the log. Hot at a start with many queues."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        # The resident part of a segment.
        self._read: tuple[IMappedFile | None, int, int] = (None, 0, 0)

    def stands(self, queue: ConsumeQueue) -> bool:
        """Whether the newest message of a queue is where its entry says; False if that needs a full check. Raises
        Unreadable."""
        physical_offset, size = queue.last
        found = self._segments.at(physical_offset)
        if queue.is_empty or found is None or not RECORD_BYTES_MIN <= size <= found[0].size - found[1]:
            return False
        file, at = found
        known, start, end = self._read
        if not (known is file and start <= at and at + size <= end):
            end = min(-(-(at + size) // _PAGE_BYTES) * _PAGE_BYTES, file.size)
            read_before_touch(file, at, end - at)
            self._read = file, at, end
        return stands_at(file.view, at, size, queue, queue.max_offset - 1, physical_offset)


def _may_lack_first(segments: Segments, queue: ConsumeQueue) -> bool:
    """Whether messages before a queue's first file may be in the log: then that first file was lost, as retention
    deletes no file of which the log has a message."""
    if queue.first_offset <= queue.begins_at or (segments.first_offset and queue.lacks_first is not None):
        return False
    return queue.is_empty or queue.oldest()[0] >= segments.first_offset


def find_lacking(
    segments: Segments, queues: ConsumeQueues, ends: Mapping[tuple[str, int], QueueEnd], start: int
) -> int:
    """The offset to read the log from for what consume queues lack below `start`: its beginning, unless it is known
    where they ended."""
    places = [start]
    for name, end in ends.items():
        queue = queues.by_name.get(name)
        if queue is None or queue.is_empty:
            places += [end.oldest[0]] if end.min_offset < end.max_offset else []
        elif queue.max_offset < end.max_offset:
            places.append(queue.end_of_last())
    offset = max(segments.first_offset, min(places))
    found = segments.scan_at(offset)
    is_boundary = not isinstance(found, Nothing) or offset >= start or offset == segments.end
    return offset if ends and is_boundary else segments.first_offset


def ends_well(segments: Segments, queue: ConsumeQueue, is_clean: bool) -> bool:
    """Whether the newest entry of a queue is plausible. After a crash it is compared with the log, if that has the
    message."""
    if queue.is_empty:
        return True
    physical_offset, size = queue.last
    if physical_offset < 0 or size < RECORD_BYTES_MIN or physical_offset + size % BLANK_SIZE > segments.end:
        return False
    if is_clean or size == BLANK_SIZE or physical_offset < segments.first_offset:
        return True
    found = segments.scan_at(physical_offset)
    return not isinstance(found, Scanned) or is_entry_of(queue, queue.max_offset - 1, found)


def is_whole(queues: ConsumeQueues, checkpoint: Checkpoint, start: int) -> bool:
    """Whether consume queues hold as much of the log below `start` as the checkpoint's tally, if it has one."""
    if start != checkpoint.queues_offset or checkpoint.tally in (None, queues.tally()):
        return True
    log.warn("consume queues do not match the checkpoint")
    return False


def _clean_start(segments: Segments, queues: ConsumeQueues, durable_end: int) -> tuple[int, int]:
    start = max((queue.end_of_last() for queue in queues), default=-1)
    if _before(segments, queues, start) is not None:
        return start, max(start, durable_end)  # half messages, which are in no queue, may follow
    if start == durable_end and _is_rotten_before(segments, queues, start):
        return start, start
    return segments.first_offset, max(segments.first_offset, durable_end)  # no queue, or of another log


def _is_rotten_before(segments: Segments, queues: ConsumeQueues, end: int) -> bool:
    """Whether the bytes of the record that should end at `end` are neither a record nor zeros."""
    offsets = [queue.last[0] for queue in queues if queue.end_of_last() == end]
    found = [segments.scan_at(offset) for offset in offsets if end <= segments.end]
    return any(isinstance(item, Nothing) and not item.is_empty for item in found)


def _before(segments: Segments, queues: ConsumeQueues, end: int) -> Scanned | None:
    """The record that ends at `end`, if a queue has its entry and the log has it."""
    for queue in queues:
        if queue.end_of_last() == end and queue.max_offset > queue.min_offset:
            found = segments.scan_at(queue.last[0])
            if isinstance(found, Scanned) and found.physical_offset + found.size == end:
                return found
    return None


def _crashed_start(segments: Segments, queues: ConsumeQueues, checkpoint: Checkpoint) -> tuple[int, int]:
    first = segments.first_offset
    if checkpoint.log_offset is not None and checkpoint.queues_offset is not None:
        start = min(checkpoint.log_offset, checkpoint.queues_offset)
        at_start = segments.scan_at(start)
        is_boundary = first <= start <= segments.end and (not isinstance(at_start, Nothing) or at_start.is_empty)
        if is_boundary and (_have_entries(queues) or start == first):
            return start, checkpoint.log_offset
        if start > first:
            log.warn("consume queues are missing, or were built from another log: all are rebuilt")
        return first, checkpoint.log_offset
    return _start_by_time(segments, checkpoint.queues_safe_ms), checkpoint.log_offset or first


def _have_entries(queues: ConsumeQueues) -> bool:
    return any(queue.max_offset > 0 for queue in queues)


def _start_by_time(segments: Segments, safe_ms: int) -> int:
    """Start of the newest segment whose first message was stored by `safe_ms`, from where the Java broker recovers.

    Its flushes leave pages of some queues unsynced while they sync others: what a queue has on disk says nothing of the
    others. Source: CommitLog.isMappedFileMatchedRecover of 4.9.7."""
    for number in reversed(range(len(segments.files))):
        base = segments.first_offset + number * segments.segment_bytes
        found = segments.scan_at(base)
        if isinstance(found, Scanned) and found.store_timestamp_ms <= safe_ms:
            return base
    return segments.first_offset


def read_back(segments: Segments, start: Start, take: Callable[[Run], None]) -> Steps[Recovered]:
    """Read records from the start to the first offset above what was synced that has none: there the log ends. Does not
    change the log. `take` is called with all records in order, up to that end."""
    corrupt_ranges: list[Damage] = []
    offset = start.offset
    timestamp = 0
    used_end = segments.used_end
    while offset < segments.end:
        yield Progress("the log is read back", offset, used_end)
        file, at = segments.place(offset)
        run = scan_run(file, at, offset - at, file.size)
        if run.count:
            whole = before_lost_sector(file, offset - at, run, start.durable_end) if start.may_lack_sectors else run
            take(whole)
            offset = whole.end
            timestamp = max(timestamp, whole.newest_ms)
            if whole.end < run.end:
                break
            continue
        item = scan_file(file, at, offset)
        if isinstance(item, Filler):
            offset += item.size
            continue
        _refuse(file, at)
        if offset >= start.durable_end and timestamp >= start.durable_ms:
            break
        damage, following = _pass_damage(segments, offset, item, start.durable_end)
        corrupt_ranges.append(damage)
        if following is None:
            break
        offset = following
    if segments.files and offset < start.durable_end and not corrupt_ranges:
        why = "the log ends here, and more was on the disk: its last segments are missing"
        corrupt_ranges.append(Damage(segments.files[-1].path, offset, start.durable_end, why))
    return Recovered(offset, timestamp, corrupt_ranges, offset - start.offset)


def _refuse(file: IMappedFile, at: int) -> None:
    """Raises StoreUnknown at a record of a later version, which must not be truncated as a torn one."""
    if file.view[at + 4 : at + 8] == MAGIC_V2.to_bytes(4, "big"):
        raise StoreUnknown(file.path, f"there is a record of RocketMQ 5.x at byte {at}; use a broker of that version")


def _pass_damage(
    segments: Segments, offset: int, item: Scanned | Nothing, durable_end: int
) -> tuple[Damage, int | None]:
    """The corrupt range at `offset`, where a record is missing; and where the log continues, if it does."""
    path = segments.path_of(offset)
    why = item.why if isinstance(item, Nothing) else ""
    following = _next_record(segments, offset)
    if offset < durable_end and (following is None or following > durable_end):
        # Appends above the mark begin at it: a record that does not follow is part of a torn tail.
        return Damage(path, offset, durable_end, why), min(durable_end, segments.end)
    if following is None:
        return Damage(path, offset, offset, f"the log ends here: {why}"), None
    return Damage(path, offset, following, why), following


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


def store_log_again(segments: Segments, start: int, end: int) -> None:
    """`store_again` for start..end of the log: a sync may have failed before the last stop. Raises OSError."""
    offset = max(segments.first_offset, start)
    while offset < end and (found := segments.at(offset)) is not None:
        file, first = found
        base = offset - first
        store_again(file, first, min(segments.segment_bytes, end - base))
        offset = base + segments.segment_bytes


def sync_log(segments: Segments, start: int, end: int) -> None:
    """Sync start..end of the log. Raises OSError."""
    first = (max(segments.first_offset, start) - segments.first_offset) // segments.segment_bytes
    count = -(-(end - segments.first_offset) // segments.segment_bytes)
    for file in segments.files[first:count]:
        file.sync()


def last_timestamp(segments: Segments, queues: ConsumeQueues, end: int) -> int:
    """Store timestamp of the newest message below `end` that consume queues have; 0 if there is none.

    Of the last one in the log, where times do not go back: with very many queues the others are scattered."""
    is_below: Callable[[int, int], bool] = lambda offset, size: offset + size <= end  # noqa: E731
    newest = -1
    for queue in queues:
        if queue.min_offset >= queue.max_offset:
            continue
        physical_offset, size = queue.last
        if not is_below(physical_offset, size):
            offset = queue.search(is_below, queue.min_offset, queue.max_offset)
            if offset == queue.min_offset:
                continue
            physical_offset, size = queue.span(offset - 1)
        if size != BLANK_SIZE:
            newest = max(newest, physical_offset)
    found = segments.scan_at(newest) if newest >= 0 else None
    return found.store_timestamp_ms if isinstance(found, Scanned) else 0


def store_found_again(disk: IDisk, segments: Segments, end: int, kept: CheckpointFile, is_intact: bool) -> None:
    """Schedule a sync of the part of the log that was found above the synced one. After a power cut it is synced and
    recorded at once: the bytes behind it that are about to be cleared may be all that makes its last record look
    whole."""
    start = kept.known.log_offset
    if start is None:
        return
    store_log_again(segments, min(start, end), end)
    if not is_intact:
        sync_log(segments, start, end)
        disk.sync_directory(segments.directory)  # after a failed sync and a kill names may be unsynced too
        kept.note_log(end)
