"""Detection of a store directory's layout: its files and their sizes, without any settings."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from math import gcd

import attrs

from mqbroker.errors import StoreUnknown
from mqbroker.store.consumequeue_entry import ENTRY_BYTES as QUEUE_ENTRY_BYTES
from mqbroker.store.disk import IDisk, IMappedFile
from mqbroker.store.index_file import ENTRY, HEADER_BYTES, SLOT, SLOT_BYTES, read_header
from mqbroker.store.index_file import ENTRY_BYTES as INDEX_ENTRY_BYTES
from mqbroker.store.layout import INDEX_NAME, SEGMENT_NAME, other_layout
from mqbroker.store.offline.findings import Findings
from mqbroker.wire.record import RECORD_BYTES_MIN

#: Java's default file sizes.
DEFAULT_SLOTS = 5_000_000
#: Queues, and files of each, that are examined to find the file size.
_QUEUES_TO_SIZE = 1000
_FILES_TO_SIZE = 3
_TRIES = 10_000
_MISSIZED = "name the broker's settings with -c; if this size is wrong, restore the file from a copy"


@attrs.frozen
class Given:
    """Settings given by the user; None is detected. ext_file_bytes: if extensions are enabled. multi_dispatch: whether
    INNER_MULTI_DISPATCH is honoured."""

    commit_log: str | None = None
    segment_bytes: int | None = None
    queue_file_bytes: int | None = None
    slots: int | None = None
    capacity: int | None = None
    delay_levels: str | None = None
    ext_file_bytes: int | None = None
    multi_dispatch: bool | None = None


@attrs.frozen
class SegmentFile:
    """A file of the log: `offset` is its start in the log, `size` its length, which may be wrong."""

    path: str
    offset: int
    size: int


@attrs.frozen
class Layout:
    """`segments` in order, possibly with gaps. Sizes are 0 if unknown.

    delay_levels: as in messageDelayLevel, None if unknown. ext_file_bytes: of the extension of consume queues, 0 if
    there is none.
    """

    root: str
    commit_log: str
    segments: list[SegmentFile]
    segment_bytes: int
    queue_file_bytes: int
    slots: int
    capacity: int
    index_files: list[str]
    delay_levels: str | None
    ext_file_bytes: int

    @property
    def log_first(self) -> int:
        return self.segments[0].offset if self.segments else 0

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)


def read_layout(disk: IDisk, root: str, given: Given, findings: Findings) -> Layout:
    """Detect the layout. Raises StoreUnknown if `root` holds no readable store; OSError."""
    why = other_layout(disk, root)
    if not why and not disk.exists(root):
        why = "there is no such directory"
    commit_log = given.commit_log or os.path.join(root, "commitlog")
    if not why and not disk.is_directory(commit_log):
        why = f"there is no {commit_log}/; name the storePathRootDir, and the log with --commitlog if it is elsewhere"
    if why:
        raise StoreUnknown(root, why)
    segments, segment_bytes = _segments(disk, commit_log, given.segment_bytes, findings)
    queue_bytes = given.queue_file_bytes or _queue_file_bytes(disk, os.path.join(root, "consumequeue"))
    ext_bytes = given.ext_file_bytes or _queue_file_bytes(disk, os.path.join(root, "consumequeue_ext"), 1)
    index_files, slots, capacity = _index(disk, os.path.join(root, "index"), given, findings)
    return Layout(
        root, commit_log, segments, segment_bytes, queue_bytes, slots, capacity, index_files, given.delay_levels,
        ext_bytes,
    )  # fmt: skip


def _segments(
    disk: IDisk, directory: str, given_bytes: int | None, findings: Findings
) -> tuple[list[SegmentFile], int]:
    found: list[SegmentFile] = []
    for name in disk.names(directory):
        path = os.path.join(directory, name)
        if SEGMENT_NAME.fullmatch(name) and int(name) < 1 << 63 and not disk.is_directory(path):
            found.append(SegmentFile(path, int(name), disk.file_size(path)))
        else:
            findings.foreign_file(path, "not a segment of the log")
    if found and not found[-1].size:
        path = found.pop().path
        findings.note("unfinished file", path, 0, "made by a broker that was killed; the next start takes it up")
    size = given_bytes or _segment_bytes(found)
    segments = []
    for file in found:
        if size and file.offset % size:
            findings.foreign_file(file.path, f"no segment of {size} bytes starts there")
            continue
        if file.size != size:
            what = f"{file.size} bytes where a segment has {size or 'none known'}"
            findings.lost("segment size", file.path, min(file.size, size), what, _MISSIZED)
        segments.append(file)
    for before, after in itertools.pairwise(segments):
        if size and after.offset != before.offset + size:
            first, last = before.offset + size, after.offset
            what = f"segments missing before it: bytes {first} to {last} of the log"
            findings.lost("missing segment", after.path, 0, what, MISSING_ADVICE)
    return segments, size


MISSING_ADVICE = (
    "restore the missing files from a copy; without one, `mq store repair --fence` puts fillers in their place"
)


def _segment_bytes(files: list[SegmentFile]) -> int:
    """The most frequent size that fits the names; 0 if none does."""
    counts = Counter(file.size for file in files if file.size > RECORD_BYTES_MIN and not file.offset % file.size)
    if counts:
        return _most_frequent(counts)
    # The names of consecutive files tell the size.
    steps = gcd(*(file.offset for file in files)) if len(files) > 1 else 0
    return steps if steps <= 1 << 31 else 0


def _most_frequent(counts: Counter[int]) -> int:
    """The largest of the most frequent sizes; 0 if there is none."""
    return max(counts, key=lambda size: (counts[size], size), default=0)


def listed(disk: IDisk, path: str) -> list[str]:
    """Names in a directory; empty if the path is not one."""
    return disk.names(path) if disk.is_directory(path) else []


def _queue_file_bytes(disk: IDisk, directory: str, entry_bytes: int = QUEUE_ENTRY_BYTES) -> int:
    """The most frequent size of consume queue files; 0 if there is none."""
    counts: Counter[int] = Counter()
    for topic in listed(disk, directory):
        for queue_id in listed(disk, os.path.join(directory, topic)):
            path = os.path.join(directory, topic, queue_id)
            files = [os.path.join(path, name) for name in listed(disk, path) if SEGMENT_NAME.fullmatch(name)]
            counts.update(disk.file_size(file) for file in files[:_FILES_TO_SIZE] if not disk.is_directory(file))
        if counts.total() >= _QUEUES_TO_SIZE:
            break
    return _most_frequent(Counter({size: n for size, n in counts.items() if size and size % entry_bytes == 0}))


def _index(disk: IDisk, directory: str, given: Given, findings: Findings) -> tuple[list[str], int, int]:
    """The index files, their slots and their capacity; 0 if unknown."""
    paths = []
    for name in listed(disk, directory):
        path = os.path.join(directory, name)
        if INDEX_NAME.fullmatch(name) and not disk.is_directory(path):
            paths.append(path)
        else:
            findings.note("foreign file", path, 0, "not an index file; brokers pass over it")
    size = _most_frequent(Counter(map(disk.file_size, paths)))
    slots = given.slots or DEFAULT_SLOTS
    capacity = given.capacity or (size - HEADER_BYTES - slots * SLOT_BYTES) // INDEX_ENTRY_BYTES
    if not size or (capacity > 1 and size == HEADER_BYTES + slots * SLOT_BYTES + capacity * INDEX_ENTRY_BYTES):
        return paths, slots, max(capacity, 0)
    for path in paths:
        if given.slots is None and disk.file_size(path) == size:
            slots = _slots_by_content(disk, path, size)
            if slots:
                return paths, slots, (size - HEADER_BYTES - slots * SLOT_BYTES) // INDEX_ENTRY_BYTES
    return paths, 0, 0


def _slots_by_content(disk: IDisk, path: str, size: int) -> int:
    """Number of slots of a file, derived from the position of its newest entry, which the header describes; 0 if not
    found."""
    if size < HEADER_BYTES + SLOT_BYTES + 2 * INDEX_ENTRY_BYTES:
        return 0
    with closing(disk.open_mapped(path, size, read_only=True)) as file:
        header = read_header(file.view)
        count = header.count
        if not 1 < count <= size // INDEX_ENTRY_BYTES:
            return 0
        before = (count - 1) * INDEX_ENTRY_BYTES
        for at in itertools.islice(_newest_entries(file, header.end_offset, before), _TRIES):
            slots, rest = divmod(at - before - HEADER_BYTES, SLOT_BYTES)
            fits = slots > 0 and not rest and (size - HEADER_BYTES - slots * SLOT_BYTES) % INDEX_ENTRY_BYTES == 0
            if fits and at + INDEX_ENTRY_BYTES <= size:
                key_hash, offset, _, older = ENTRY.unpack_from(file.view, at)
                slot_at = HEADER_BYTES + key_hash % slots * SLOT_BYTES
                is_newest = offset == header.end_offset and 0 <= older < count - 1
                if is_newest and SLOT.unpack_from(file.view, slot_at)[0] == count - 1:
                    return slots
    return 0


def _newest_entries(file: IMappedFile, end_offset: int, before: int) -> Iterator[int]:
    """Possible positions of the newest entry, which has the physical offset `end_offset`, behind so many bytes of
    others."""
    if end_offset:
        mark, shift = re.compile(re.escape(end_offset.to_bytes(8, "big", signed=True))), 4
    else:  # zeros are everywhere: search for the hash of its key
        mark, shift = re.compile(rb"[^\0]"), 0
    at = HEADER_BYTES + SLOT_BYTES + before + shift
    while (found := mark.search(file.buffer, at)) is not None:
        start = found.start() - shift
        yield start if shift else start - (start - HEADER_BYTES) % SLOT_BYTES
        at = found.start() + (1 if shift else SLOT_BYTES - (found.start() - HEADER_BYTES) % SLOT_BYTES)
