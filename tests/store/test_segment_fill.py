"""Zeros written ahead of the records: which, when, and never where a record may stand."""

from __future__ import annotations

import errno
import threading

import pytest
from twisted.logger import capturedLogs
from zope.interface import implementer

from mqbroker.store.disk import IMappedFile
from mqbroker.store.segment import FILL_AHEAD_BYTES, FILL_BYTES, FILL_SYNC_BYTES, SegmentFill
from tests.fakes import SteppedWorker

Range = tuple[int, int]


@implementer(IMappedFile)
class Pages:  # type: ignore[misc] # only what is asked of a file here
    """A file that notes what was written where, and up to where it was when synced."""

    def __init__(self, size: int = 16 * FILL_SYNC_BYTES) -> None:
        self.size = size
        self.path = "pages"
        self.written: list[Range] = []
        self.synced: list[int] = []
        self.error: OSError | None = None

    def write_zeros(self, offset: int, size: int) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((offset, offset + size))

    def sync_apart(self) -> None:
        self.synced.append(self.written[-1][1])


class Filled:
    """A fill, the file that it fills, and its worker, which works when told."""

    def __init__(self, file: Pages | None = None, *, is_filled: bool = False) -> None:
        self.worker = SteppedWorker()
        self.worker.at_once = False
        self.file = file or Pages()
        self.fill = SegmentFill(self.worker)
        self.fill.begin(self.file, is_filled=is_filled)

    def claim(self, stop: int, *, fills_ahead: bool = True) -> None:
        """Claim, and let the worker do what it was told."""
        self.fill.claim(stop, fills_ahead=fills_ahead)
        if self.worker.waiting:
            self.worker.step()


def joined(pieces: list[Range]) -> list[Range]:
    """Ranges, with those made one of which one ends where the next begins."""
    found: list[Range] = []
    for start, end in pieces:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def test_zeros_are_written_ahead_in_pieces_and_synced_in_larger_ones() -> None:
    filled = Filled()
    filled.claim(0)
    file = filled.file
    assert file.written == [(at, at + FILL_BYTES) for at in range(0, FILL_AHEAD_BYTES, FILL_BYTES)]
    assert file.synced == [*range(FILL_SYNC_BYTES, FILL_AHEAD_BYTES + 1, FILL_SYNC_BYTES)]


def test_more_is_written_once_half_of_what_is_ahead_is_taken() -> None:
    filled = Filled()
    filled.claim(0)
    del filled.file.written[:]
    filled.claim(FILL_AHEAD_BYTES // 2)
    assert filled.file.written == []
    filled.claim(FILL_AHEAD_BYTES // 2 + 1)
    assert joined(filled.file.written) == [(FILL_AHEAD_BYTES, FILL_AHEAD_BYTES * 3 // 2 + FILL_BYTES)]


def test_after_a_start_they_begin_where_the_records_end() -> None:
    filled = Filled()
    end = 5 * FILL_SYNC_BYTES + 77
    filled.claim(end)
    assert filled.file.written[0] == (end, 5 * FILL_SYNC_BYTES + FILL_BYTES)
    assert joined(filled.file.written) == [(end, 5 * FILL_SYNC_BYTES + FILL_AHEAD_BYTES + FILL_BYTES)]


def test_a_segment_is_filled_to_its_end_and_the_next_from_its_beginning() -> None:
    filled = Filled(Pages(FILL_SYNC_BYTES + 100))
    filled.claim(0)
    assert joined(filled.file.written) == [(0, FILL_SYNC_BYTES + 100)]
    assert filled.file.synced == [FILL_SYNC_BYTES, FILL_SYNC_BYTES + 100]
    filled.claim(FILL_SYNC_BYTES)
    assert filled.worker.waiting == []
    following = Pages()
    filled.fill.begin(following, is_filled=False)
    filled.claim(0)
    assert joined(following.written) == [(0, FILL_AHEAD_BYTES)]


@pytest.mark.parametrize(("size", "is_filled"), [(FILL_SYNC_BYTES - 1, False), (FILL_SYNC_BYTES, True)])
def test_small_segments_and_those_that_were_filled_before_are_left_alone(size: int, is_filled: bool) -> None:
    filled = Filled(Pages(size), is_filled=is_filled)
    filled.fill.claim(0)
    assert filled.worker.waiting == []


def test_where_records_come_too_fast_no_zeros_are_written() -> None:
    filled = Filled()
    filled.claim(FILL_BYTES // 2, fills_ahead=False)
    file = filled.file
    assert (file.written, file.synced) == ([], [])
    filled.claim(FILL_AHEAD_BYTES)
    assert joined(file.written) == [(FILL_AHEAD_BYTES, 2 * FILL_AHEAD_BYTES)]


def test_the_worker_stops_where_records_begin_to_come_too_fast() -> None:
    filled = Filled()
    fill, file = filled.fill, filled.file
    fill.claim(0)
    fill.claim(FILL_BYTES, fills_ahead=False)
    filled.worker.step()
    assert file.written == []
    fill.claim(2 * FILL_BYTES)
    fill.claim(3 * FILL_BYTES, fills_ahead=False)
    fill.claim(4 * FILL_BYTES)
    filled.worker.step()
    assert joined(file.written) == [(4 * FILL_BYTES, 4 * FILL_BYTES + FILL_AHEAD_BYTES)]


def test_records_that_come_before_the_worker_get_no_zeros() -> None:
    filled = Filled()
    filled.fill.claim(0)
    for end in (10, FILL_BYTES + 10, 3 * FILL_BYTES):
        filled.fill.claim(end)
    assert len(filled.worker.waiting) == 1
    filled.worker.step()
    assert filled.file.written[0][0] >= 3 * FILL_BYTES


def test_records_wait_for_the_piece_that_is_written_where_they_go_and_for_no_other() -> None:
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    class Slow(Pages):
        def write_zeros(self, offset: int, size: int) -> None:
            super().write_zeros(offset, size)
            if offset == FILL_BYTES:
                begun.set()
                assert may_end.wait(60)
                order.append("written")

    filled = Filled(Slow())
    fill = filled.fill
    fill.claim(0)
    function, _ = filled.worker.waiting.pop()
    writer = threading.Thread(target=function)
    writer.start()
    assert begun.wait(60)
    fill.claim(FILL_BYTES)  # these zeros are written

    def take() -> None:
        fill.claim(FILL_BYTES + 1)
        order.append("claimed")

    taker = threading.Thread(target=take)
    taker.start()
    may_end.set()
    taker.join(60)
    writer.join(60)
    assert order == ["written", "claimed"]


def test_records_that_overtake_the_worker_give_it_a_lead() -> None:
    filled = Filled()
    filled.fill.claim(0)
    filled.fill.claim(10)
    filled.worker.step()
    assert filled.file.written[0] == (FILL_BYTES + 10, 2 * FILL_BYTES)


def test_a_failure_ends_it_for_the_segment_with_a_warning() -> None:
    filled = Filled()
    filled.file.error = OSError(errno.EIO, "Input/output error")
    with capturedLogs() as events:
        filled.claim(0)
        filled.claim(FILL_BYTES)
    assert [event["why"] for event in events] == ["[Errno 5] Input/output error"]
    assert filled.worker.waiting == []
    following = Pages()
    filled.fill.begin(following, is_filled=False)
    filled.claim(0)
    assert joined(following.written) == [(0, FILL_AHEAD_BYTES)]


def test_stopping_waits_for_the_worker_and_takes_up_no_more() -> None:
    filled = Filled()
    fill, worker = filled.fill, filled.worker
    fill.claim(0)
    stopped: list[None] = []
    fill.stop().addCallback(stopped.append)
    assert stopped == []
    worker.step()
    assert stopped == [None]
    assert filled.file.written == []
    fill.claim(FILL_AHEAD_BYTES)
    assert worker.waiting == []
