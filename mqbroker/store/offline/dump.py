"""Dump: reads messages and headers of files from a store directory, for display."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import attrs

from mqbroker.store.disk import IDisk
from mqbroker.store.index import record_keys
from mqbroker.store.index_file import HEADER_BYTES, IndexHeader, read_header
from mqbroker.store.logscan import Damage, Scanned, scan_at
from mqbroker.store.offline.detected_layout import Layout
from mqbroker.store.offline.log_walk import walk_segment
from mqbroker.store.offline.queue_files import queues_of
from mqbroker.wire.record import Record, decode_record


@attrs.frozen
class Selection:
    """Selected messages; None for all. `start` and `end` (exclusive) are queue offsets if topic and queue are both
    given, else log offsets."""

    topic: str | None = None
    queue_id: int | None = None
    start: int | None = None
    end: int | None = None
    key: str | None = None

    @property
    def is_of_queue(self) -> bool:
        return self.topic is not None and self.queue_id is not None

    def selects(self, item: Scanned) -> bool:
        if self.topic is not None and item.topic != self.topic.encode("utf-8", "replace"):
            return False
        if self.queue_id is not None and item.queue_id != self.queue_id:
            return False
        offset = item.queue_offset if self.is_of_queue else item.physical_offset
        if (self.start is not None and offset < self.start) or (self.end is not None and offset >= self.end):
            return False
        return self.key is None or self.key.encode("utf-8", "replace") in record_keys(item.properties)


def read_messages(
    disk: IDisk, layout: Layout, selection: Selection, on_progress: Callable[[int], None]
) -> Iterator[Record | Damage]:
    """The selected messages, in the order of the log, and the corrupt ranges between them."""
    start, end = _log_range(disk, layout, selection)
    for segment in layout.segments:
        size = min(segment.size, layout.segment_bytes)
        if size <= 0 or segment.offset + size <= start or (end is not None and segment.offset >= end):
            on_progress(max(size, 0))
            continue
        at = max(start - segment.offset, 0)
        with closing(disk.open_mapped(segment.path, size, read_only=True)) as file:
            if not isinstance(scan_at(file.view, at, segment.offset + at), Scanned):
                at = 0  # in the middle of a record
            on_progress(at)
            for item in walk_segment(file, segment, at, on_progress):
                if isinstance(item, Scanned):
                    if end is not None and item.physical_offset >= end:
                        break
                    if selection.selects(item):
                        yield decode_record(file.view, item.physical_offset - segment.offset)
                elif isinstance(item, Damage) and item.why:
                    yield item


def _log_range(disk: IDisk, layout: Layout, selection: Selection) -> tuple[int, int | None]:
    """The range of the log that can have the messages."""
    start = selection.start or 0
    if not selection.is_of_queue:
        return start, selection.end
    if not start:
        return 0, None
    with queues_of(disk, layout, layout.queue_file_bytes) as queues:
        queue = queues.get(((selection.topic or "").encode("utf-8", "replace"), selection.queue_id or 0))
        entry = queue.entry(start) if queue is not None else None
    # Only a hint where to begin: the log decides which messages there are.
    return (entry[0] if entry is not None and 0 < entry[1] < 0x7FFFFFFF else 0), None


def read_queues(disk: IDisk, layout: Layout, selection: Selection) -> Iterator[dict[str, str | int]]:
    """The consume queues and their offsets, by topic and queue."""
    with queues_of(disk, layout, layout.queue_file_bytes) as queues:
        for (topic, queue_id), queue in sorted(queues.items()):
            name = topic.decode()
            if selection.topic in (None, name) and selection.queue_id in (None, queue_id):
                low, high = queue.bounds(layout.log_first)
                yield {"topic": name, "queue_id": queue_id, "min_offset": low, "max_offset": high}


def read_index_headers(disk: IDisk, layout: Layout) -> Iterator[tuple[str, IndexHeader]]:
    """Path and header of each index file with a header."""
    for path in layout.index_files:
        if disk.file_size(path) >= HEADER_BYTES:
            with closing(disk.open_mapped(path, HEADER_BYTES, read_only=True)) as file:
                header = read_header(file.view)
            yield path, header
