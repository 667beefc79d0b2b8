"""Stores of a few segments, and files that look old."""

from __future__ import annotations

import os

from mqbroker.store import MessageStore
from mqbroker.store.disk import DiskSpace
from mqbroker.store.get_message_result import GetMessageStatus
from mqbroker.wire.record import decode_record
from tests.store.harness import START_S, Bench, message, now, turns

SEGMENT = 131072
HOUR_MS = 3_600_000
#: The benches' clocks start at 10:06 UTC.
NOW_HOUR = 10
OTHER_HOUR = (4,)
BODY = b"x" * 32_000  # four to a segment


def space(used_percent: int, free_bytes: int = 100 * 1024**4) -> DiskSpace:
    """A disk with so much free of which exactly so many percent are used."""
    return DiskSpace(free_bytes // (100 - used_percent) * used_percent, free_bytes)


def filled(bench: Bench, segments: int) -> MessageStore:
    """A started store of so many segments, four messages in each but the last, all on the disk, fresh."""
    store = bench.open()
    store.start()
    for i in range(4 * segments - 3):
        store.append([message(body=b"%06d" % i + BODY, properties=b"KEYS\x01k%d" % i)])
    store.append([message("Rare", body=b"rare")])
    turns(bench.clock, 3)
    assert store.stats.flushed == store.log_end
    age(bench, 0)
    return store


def names(bench: Bench) -> list[str]:
    """The segments there are, as numbers; one made ahead of time does not count."""
    found = sorted(int(path.name) // SEGMENT for path in (bench.root / "commitlog").iterdir())
    return [str(n) for n in found]


def age(bench: Bench, ms: float, *only: int) -> None:
    """Have the segments written to so long ago."""
    for path in (bench.root / "commitlog").iterdir():
        if not only or int(path.name) // SEGMENT in only:
            ns = int((bench.clock.seconds() * 1000 - ms) * 1_000_000)
            os.utime(path, ns=(ns, ns))


def a_turn(bench: Bench) -> None:
    """Let one turn of retention, and all it does, happen."""
    turns(bench.clock, 10)


def to_second(bench: Bench, after_start: float) -> None:
    """Come to what is due so many seconds after the bench was made."""
    bench.clock.advance(START_S + after_start - bench.clock.seconds() + 1e-6)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    """The messages of queue 0, without their padding, got one by one from its minimum."""
    found = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        got = now(store).get(topic, 0, offset, 1)
        assert (got.status, got.next_offset) == (GetMessageStatus.FOUND, offset + 1)
        record = decode_record(got.pieces[0])
        assert record.queue_offset == offset
        found.append(record.body[:6])
        offset += 1
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%06d" % i for i in range(first, end)]
