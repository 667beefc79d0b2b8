"""Which part of the log counts as resident, and for how long."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from mqbroker.store.commitlog import CommitLog
from mqbroker.store.resident_pages import LOG_MOMENT_S, ResidentPages

MIB = 1 << 20
SEGMENT_BYTES = 6 * MIB + MIB // 2


@attrs.define
class Segment:
    """Bytes of the log from `start` on, of which some are not in memory."""

    start: int
    evicted: list[range]
    size: int = SEGMENT_BYTES
    looks: int = 0

    def is_resident(self, at: int, size: int) -> bool:
        self.looks += 1
        first, end = self.start + at, self.start + at + size
        return not any(first < each.stop and each.start < end for each in self.evicted)


@attrs.define
class Log:
    """Segments from `min_offset` on, which are read up to `readable_end`."""

    evicted: list[range] = attrs.Factory(list)
    min_offset: int = SEGMENT_BYTES
    readable_end: int = 3 * SEGMENT_BYTES - 1000
    segments: list[Segment] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self.segments = [Segment(n * SEGMENT_BYTES, self.evicted) for n in range(3)]

    def place(self, offset: int) -> tuple[Segment, int]:
        assert self.min_offset <= offset < self.readable_end
        return self.segments[offset // SEGMENT_BYTES], offset % SEGMENT_BYTES


def pages_of(log: Log, now: list[float]) -> ResidentPages:
    return ResidentPages(cast(CommitLog, log), lambda: now[0])


#: Where the second segment begins: the stretch of 1 MiB that is looked at together begins half a MiB before.
SECOND = SEGMENT_BYTES
LAST = 2 * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("offset", "low", "high"),
    [
        (SECOND, SECOND, 10 * MIB),  # with what is left of that stretch, and three more
        (7 * MIB, 7 * MIB, 11 * MIB),
        (7 * MIB + 5, 7 * MIB, 11 * MIB),
        (12 * MIB + 5, 12 * MIB, LAST),  # to the end of the segment
        (LAST + 5, LAST, 17 * MIB),
        (3 * SEGMENT_BYTES - 1001, 19 * MIB, 3 * SEGMENT_BYTES - 1000),  # to the end of what can be read
    ],
)
def test_the_range_around_an_offset(offset: int, low: int, high: int) -> None:
    pages = pages_of(Log(), [100.0])
    assert pages.log_range(offset) == (low, high, 100.0 + LOG_MOMENT_S)


@pytest.mark.parametrize("offset", [SECOND - 1, 0, -1, 3 * SEGMENT_BYTES - 1000, 1 << 62])
def test_an_offset_that_the_log_does_not_have(offset: int) -> None:
    assert pages_of(Log(), [100.0]).log_range(offset) is None


def test_the_range_ends_before_what_is_not_resident() -> None:
    log = Log([range(9 * MIB + 5, 9 * MIB + 6)])
    pages = pages_of(log, [100.0])
    assert pages.log_range(8 * MIB + 1) == (8 * MIB, 9 * MIB, 100.0 + LOG_MOMENT_S)
    assert pages.log_range(9 * MIB + 1) is None
    assert pages.log_range(10 * MIB) == (10 * MIB, 13 * MIB, 100.0 + LOG_MOMENT_S)


def test_each_part_counts_as_resident_as_long_as_if_it_was_looked_at_by_itself() -> None:
    now = [100.0]
    log = Log()
    pages = pages_of(log, now)
    assert pages.has_log(9 * MIB, 9 * MIB + 10)
    first_until = now[0] + LOG_MOMENT_S
    now[0] += LOG_MOMENT_S / 2
    assert pages.log_range(7 * MIB) == (7 * MIB, 11 * MIB, first_until)
    second_until = now[0] + LOG_MOMENT_S
    looks = sum(segment.looks for segment in log.segments)
    assert pages.log_range(8 * MIB + 7) == (8 * MIB, 12 * MIB, first_until)
    assert sum(segment.looks for segment in log.segments) == looks + 1
    log.evicted.append(range(8 * MIB, 8 * MIB + 1))
    assert pages.has_log(8 * MIB, 8 * MIB + 1)
    now[0] = first_until
    # The stretch that was looked at first is looked at again, and is there; the evicted one is found to be so later.
    assert pages.log_range(9 * MIB) == (9 * MIB, 13 * MIB, second_until)
    now[0] = second_until
    assert pages.log_range(7 * MIB) == (7 * MIB, 8 * MIB, now[0] + LOG_MOMENT_S)
    assert not pages.has_log(8 * MIB, 8 * MIB + 1)


def test_what_is_not_resident_is_looked_at_again_after_a_moment() -> None:
    now = [100.0]
    log = Log([range(8 * MIB, 8 * MIB + 1)])
    pages = pages_of(log, now)
    assert pages.log_range(8 * MIB + 1) is None
    log.evicted.clear()
    assert pages.log_range(8 * MIB + 1) is None
    now[0] += LOG_MOMENT_S
    assert pages.log_range(8 * MIB + 1) == (8 * MIB, 12 * MIB, now[0] + LOG_MOMENT_S)
