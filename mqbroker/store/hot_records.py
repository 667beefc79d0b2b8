"""Single messages of the newest, by both their places: as they were stored, in memory, and found in a few steps.

For who stores many of them again. Whatever is not so - far behind, from before the start, damaged, not dispatched yet -
takes a get. Must never know what is in them.
"""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.store.checked_reader import HOT_BYTES_MAX
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.corrupt_ranges import CorruptRanges
from mqbroker.store.resident_pages import ResidentPages
from mqbroker.wire.record import RECORD_BYTES_MIN

#: Queue offset and physical offset -> the record, None where it takes a get.
HotRecord = Callable[[int, int], bytes | None]


def hot_records(
    log: CommitLog,
    queues: ConsumeQueues,
    corrupt_ranges: CorruptRanges,
    near_bytes: int,
    resident_pages: ResidentPages,
    topic: str,
    queue_id: int,
) -> HotRecord:
    """What finds the records of a queue.

    :param near_bytes: messages further behind than this count as on the disk.
    """
    name = topic, queue_id
    by_name = queues.by_name
    hot_bytes = min(near_bytes, HOT_BYTES_MAX)
    segment_bytes = log.segment_bytes

    def find(offset: int, physical_offset: int) -> bytes | None:
        queue = by_name.get(name)
        if queue is None or not queue.min_offset <= offset < queue.max_offset or offset < queue.resident_from:
            return None
        # Who asks may name any place in the log: the queue knows where the message is.
        try:
            if not resident_pages.has_entries(queue, offset, 1):
                return None
            found, size = queue.span(offset)
        except OSError:  # its file cannot be opened: a get says why
            return None
        if found != physical_offset or found < corrupt_ranges.intact_from or log.end - found > hot_bytes:
            return None
        number, at = divmod(found - log.min_offset, segment_bytes)
        end = at + size
        if (
            number < 0
            or size < RECORD_BYTES_MIN
            or end > segment_bytes
            or not resident_pages.has_log(found, found + size)
        ):
            return None
        record: bytes = log.segments[number].buffer[at:end]
        return record

    return find
