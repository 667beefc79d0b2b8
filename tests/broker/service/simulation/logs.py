"""What is in the logs of brokers, whether they run or not, and what they have cut off."""

from __future__ import annotations

from typing import Any

from mqbroker.store.layout import StorePaths
from mqbroker.store.message_store import MessageStore
from mqbroker.store.truncation import cut_log
from mqbroker.wire.record import BLANK_MAGIC, SIZE_AND_MAGIC, Record
from tests.broker.service.group import Replica
from tests.store.simulation.disk import SimDisk

SEGMENT_BYTES = 64 * 1024
#: The logs that were cut: disk, where they end now, and what was behind that.
CUTS: list[tuple[SimDisk, int, bytes]] = []


def note_cut(disk: Any, paths: StorePaths, segment_bytes: int, end: int) -> None:
    """In place of `cut_log`: that, and a note of it."""
    found, base = b"", end - end % segment_bytes
    while disk.exists(path := f"{paths.commit_log}/{base:020d}"):
        found, base = found + disk.content(path), base + segment_bytes
    removed = found[end % segment_bytes :]
    blank = _blank_bytes(removed)  # the same in all logs that end there
    CUTS.append((disk, end + blank, removed[blank:]))
    cut_log(disk, paths, segment_bytes, end)


def log_bytes(replica: Replica, begin: int, end: int) -> bytes:
    """A part of a broker's log as it is on its disk, or on its way there; what is not there is missing."""
    found, disk = b"", replica.disk
    assert isinstance(disk, SimDisk)
    for base in range(begin - begin % SEGMENT_BYTES, end, SEGMENT_BYTES):
        path = str(replica.root / "commitlog" / f"{base:020d}")
        if not disk.exists(path):
            break
        found += disk.content(path)[max(0, begin - base) : end - base]
    return found


def _blank_bytes(found: bytes) -> int:
    """How many bytes of a log are a blank at the end of a segment; 0 if they begin with a message."""
    size, magic = SIZE_AND_MAGIC.unpack_from(found) if len(found) >= SIZE_AND_MAGIC.size else (0, 0)
    return size if magic == BLANK_MAGIC else 0


def has(replica: Replica, offset: int, body: bytes) -> bool:
    """Whether a broker's log has the message, of one that was killed as it was then."""
    found = log_bytes(replica, offset, offset - offset % SEGMENT_BYTES + SEGMENT_BYTES)
    return body in found[: int.from_bytes(found[:4], "big")]


def queue_entries(store: MessageStore, begin: int, end: int) -> list[tuple[int, ...]]:
    """The entries begin..end of the queue."""
    [queue] = [queue for queue in store._queues if (queue.topic, queue.queue_id) == ("T", 0)] or [None]
    return [] if queue is None else [queue.entry_from_disk(offset) for offset in range(begin, end)]


def numbers(bodies: set[bytes]) -> list[int]:
    """Which messages they are."""
    return sorted(int(body[1:7]) for body in bodies)


def body_of(record: Record | None) -> bytes | None:
    return None if record is None else record.body
