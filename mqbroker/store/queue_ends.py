"""The note of a clean stop: where each consume queue ends, so that a start need not look into all their files.

A start gives it another name before anything is changed. It is true only together with the checkpoint that was written
with it: a Java broker, which does not mind the file, changes that with the first message it stores. Under its other
name it says from then on which numbers queues have given at least. Must never know how a queue is opened.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from twisted.logger import Logger

from mqbroker.store.consumequeue import ConsumeQueue, QueueEnd
from mqbroker.store.disk import IDisk

log = Logger()

#: Ends the name of a note that was put aside.
FORMER = ".last"
_NUMBER_MAX = 2**63 - 1


def write_ends(disk: IDisk, path: str, queues: Iterable[ConsumeQueue], checkpoint: bytes) -> None:
    """Write the note. Raises OSError."""
    rows = []
    for queue in queues:
        end = queue.noted_end()
        if end is not None:
            rows.append([queue.topic, queue.queue_id, *end[:5], *end.last, *end.oldest])
    data = json.dumps({"checkpoint": zlib.crc32(checkpoint), "queues": rows}, separators=(",", ":")).encode()
    disk.write(path, b"%08x\n" % zlib.crc32(data) + data)


def read_ends(disk: IDisk, path: str, checkpoint: bytes) -> dict[tuple[str, int], QueueEnd]:
    """Read the note that was written with this checkpoint; empty where there is none. Raises OSError."""
    return _read(disk, path, zlib.crc32(checkpoint))


def read_former_ends(disk: IDisk, path: str) -> dict[tuple[str, int], QueueEnd]:
    """Read the note that was put aside last, whatever happened since; empty where there is none. Raises OSError."""
    return _read(disk, path + FORMER, None)


def _read(disk: IDisk, path: str, checkpoint_crc: int | None) -> dict[tuple[str, int], QueueEnd]:
    if not disk.exists(path):
        return {}
    try:
        return parse_ends(disk.read(path), checkpoint_crc)
    except ValueError as error:
        log.warn("{path} is damaged and not used: {why}", path=path, why=str(error))
    return {}


def put_ends_aside(disk: IDisk, path: str) -> None:
    """Give the note its other name: files are about to change. Raises OSError."""
    if disk.exists(path):
        disk.rename(path, path + FORMER)


def parse_ends(data: bytes, checkpoint_crc: int | None) -> dict[tuple[str, int], QueueEnd]:
    """The ends of queues by topic and queue id; none where they are of another checkpoint, of which None is any.
    Raises ValueError."""
    head, _, body = data.partition(b"\n")
    if head != b"%08x" % zlib.crc32(body):
        raise ValueError("its CRC is another")
    try:
        content = json.loads(body)
        if checkpoint_crc not in (None, content["checkpoint"]):
            return {}
        return dict(map(_parse_row, content["queues"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_row(row: Any) -> tuple[tuple[str, int], QueueEnd]:
    topic, *numbers = row
    if not isinstance(topic, str) or not all(type(n) is int and -1 <= n <= _NUMBER_MAX for n in numbers):
        raise ValueError(f"{row!r} is not the end of a queue")
    queue_id, first, files, modified_ms, min_offset, max_offset, *spans = numbers
    last_offset, last_size, oldest_offset, oldest_size = spans
    last, oldest = (last_offset, last_size), (oldest_offset, oldest_size)
    return (topic, queue_id), QueueEnd(first, files, modified_ms, min_offset, max_offset, last, oldest)
