"""Finding messages by key and by time. Reads log, consume queues and index; must never write to them."""

from __future__ import annotations

from struct import Struct

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue import BLANK_SIZE, ConsumeQueue
from mqbroker.store.index import Index
from mqbroker.store.logscan import Scanned, scan_at
from mqbroker.store.properties import find_property
from mqbroker.wire.codes import SysFlag
from mqbroker.wire.record import SYS_FLAG_OFFSET

_INT = Struct(">i")
_LONG = Struct(">q")


def store_timestamp_at(log: CommitLog, physical_offset: int) -> int:
    """When the message at `physical_offset` was stored, ms; -1 where the log has none there."""
    found = log.view(physical_offset)
    if found is None:
        return -1
    view, at = found
    (sys_flag,) = _INT.unpack_from(view, at + SYS_FLAG_OFFSET)
    timestamp: int = _LONG.unpack_from(view, at + (68 if sys_flag & SysFlag.BORN_HOST_V6 else 56))[0]
    return timestamp


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int) -> int:
    """The queue offset of the message stored nearest to a time: of equally near ones the older."""

    def is_before(physical_offset: int, size: int) -> bool:
        return size == BLANK_SIZE or store_timestamp_at(log, physical_offset) < timestamp_ms

    low, high = queue.min_offset, queue.max_offset
    offset = queue.search(is_before, low, high)
    if offset == low or low == high:
        return low
    before = timestamp_ms - store_timestamp_at(log, queue.entry(offset - 1)[0])
    if offset == high:
        return offset - 1
    after = store_timestamp_at(log, queue.entry(offset)[0]) - timestamp_ms
    return offset if after == 0 or before > after else offset - 1


def find_by_key(
    log: CommitLog, index: Index, topic: str, key: str, count: int, begin_ms: int, end_ms: int
) -> list[bytes]:
    """Records whose unique key, or one of whose keys, is `key`, newest first."""
    found: list[bytes] = []
    wanted = (topic.encode(), key.encode())
    # Other keys can share a hash: look for some more than asked for.
    for physical_offset in index.find(topic, key, begin_ms, end_ms, 4 * count):
        place = log.view(physical_offset)
        if place is None:
            continue
        item = scan_at(place[0], place[1], physical_offset)
        if isinstance(item, Scanned) and _has_key(item, *wanted) and begin_ms <= item.store_timestamp_ms <= end_ms:
            record = bytes(place[0][place[1] : place[1] + item.size])
            if record not in found:
                found.append(record)
        if len(found) >= count:
            break
    return found


def _has_key(item: Scanned, topic: bytes, key: bytes) -> bool:
    return item.topic == topic and (
        find_property(item.properties, b"UNIQ_KEY\x01") == key
        or key in find_property(item.properties, b"KEYS\x01").split(b" ")
    )
