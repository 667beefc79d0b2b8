"""Pages made ready ahead of the appends: which, when, and that their content stays."""

from __future__ import annotations

import errno
from mmap import PAGESIZE
from pathlib import Path

import pytest
from zope.interface import implementer

from mqbroker.store.disk import IMappedFile
from mqbroker.store.os_disk import ZEROS_BYTES, OsDisk
from mqbroker.store.segment import AHEAD_BYTES, PIECE_BYTES, UNSYNCED_AHEAD_BYTES, UNSYNCED_PIECE_BYTES, PagePrefault
from tests.fakes import SteppedWorker


@implementer(IMappedFile)
class Pages:  # type: ignore[misc] # only what is asked of a file here
    """A file that notes which of its pages were asked for."""

    def __init__(self, size: int = 16 * PIECE_BYTES) -> None:
        self.size = size
        self.path = "pages"
        self.done: list[tuple[int, int]] = []
        self.are_soon_full: list[bool] = []
        self.syncs = 0
        self.error: OSError | None = None

    def populate(self, offset: int, size: int, *, is_soon_full: bool = False) -> None:
        if self.error is not None:
            raise self.error
        self.done.append((offset, offset + size))
        self.are_soon_full.append(is_soon_full)

    def sync_apart(self) -> None:
        self.syncs += 1


@pytest.fixture
def worker() -> SteppedWorker:
    worker = SteppedWorker()
    worker.at_once = False
    return worker


def pieces(start: int, end: int) -> list[tuple[int, int]]:
    return [(at, at + PIECE_BYTES) for at in range(start, end, PIECE_BYTES)]


def test_pages_ahead_are_made_ready_once_and_each_piece_is_synced(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages()
    ahead.keep(file, 0)
    ahead.keep(file, 0)
    assert len(worker.waiting) == 1
    worker.step()
    assert file.done == pieces(0, AHEAD_BYTES)
    assert file.syncs == len(file.done)
    ahead.keep(file, PIECE_BYTES - 1)
    assert worker.waiting == []
    ahead.keep(file, PIECE_BYTES)
    worker.step()
    assert file.done == pieces(0, AHEAD_BYTES + PIECE_BYTES)


def test_a_restart_begins_at_the_piece_that_is_written_to(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages()
    ahead.keep(file, 5 * PIECE_BYTES + 77)
    worker.step()
    assert file.done == pieces(5 * PIECE_BYTES, 5 * PIECE_BYTES + AHEAD_BYTES)


def test_it_ends_with_the_file_and_begins_anew_with_the_next(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages(PIECE_BYTES * 3 // 2)
    ahead.keep(file, 0)
    worker.step()
    assert file.done == [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES * 3 // 2)]
    ahead.keep(file, PIECE_BYTES)
    assert worker.waiting == []
    following = Pages()
    ahead.keep(following, 0)
    worker.step()
    assert following.done == pieces(0, AHEAD_BYTES)


def test_without_a_sync_few_pages_are_made_ready(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages()
    at = 3 * UNSYNCED_PIECE_BYTES + 77
    ahead.keep(file, at, is_synced=False)
    worker.step()
    assert file.done[0][0] == 3 * UNSYNCED_PIECE_BYTES
    assert file.done[-1][1] == 3 * UNSYNCED_PIECE_BYTES + UNSYNCED_AHEAD_BYTES
    assert (file.syncs, file.are_soon_full) == (0, [True] * len(file.done))


def test_small_files_are_left_alone(worker: SteppedWorker) -> None:
    PagePrefault(worker).keep(Pages(PIECE_BYTES - 1), 0)
    assert worker.waiting == []


def test_a_failure_ends_it_and_harms_nobody(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages()
    file.error = OSError(errno.EIO, "Input/output error")
    ahead.keep(file, 0)
    worker.step()
    ahead.keep(file, 0)
    assert worker.waiting == []


def test_stopping_waits_for_the_worker_and_takes_up_no_more(worker: SteppedWorker) -> None:
    ahead, file = PagePrefault(worker), Pages()
    ahead.keep(file, 0)
    stopped: list[None] = []
    ahead.stop().addCallback(stopped.append)
    assert stopped == []
    worker.step()
    assert stopped == [None]
    assert file.done == []
    ahead.keep(file, AHEAD_BYTES)
    assert worker.waiting == []


@pytest.mark.parametrize("is_soon_full", [False, True])
def test_pages_are_populated_from_within_one_on(tmp_path: Path, is_soon_full: bool) -> None:
    size = 4 * ZEROS_BYTES
    file = OsDisk().create_mapped(str(tmp_path / "pages"), size)
    file.allocate(0, size)
    assert not file.is_resident(ZEROS_BYTES, PAGESIZE)
    file.populate(ZEROS_BYTES - 100, ZEROS_BYTES + 200, is_soon_full=is_soon_full)
    assert file.is_resident(ZEROS_BYTES - 100, ZEROS_BYTES + 200)
    assert bytes(file.buffer) == bytes(size)
    file.close()


def test_the_content_of_populated_pages_stays(tmp_path: Path) -> None:
    file = OsDisk().create_mapped(str(tmp_path / "file"), 1 << 20)
    file.allocate(0, file.size)
    file.buffer[5000:5004] = b"here"
    file.populate(0, file.size)
    assert bytes(file.view[4999:5005]) == b"\0here\0"
    assert not any(file.view[8192:])
    file.close()
