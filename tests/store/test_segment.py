"""Segments made ahead of time, and when that did not work out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mqbroker.store.segment import SegmentSource, segment_path
from tests.store.harness import FaultyDisk, SteppedWorker

SIZE = 8192


class Made:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = FaultyDisk()
        self.worker = SteppedWorker()
        self.worker.at_once = False
        self.source = SegmentSource(self.disk, self.worker, str(root), SIZE)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_prepared_segment_is_the_one_taken(made: Made) -> None:
    made.source.prepare(SIZE)
    made.source.prepare(SIZE)
    assert len(made.worker.waiting) == 1
    made.worker.step()
    inode = (made.root / f"{SIZE:020d}").stat().st_ino
    made.source.prepare(SIZE)
    assert made.worker.waiting == []
    assert made.source.take(SIZE).path == segment_path(str(made.root), SIZE)
    assert (made.root / f"{SIZE:020d}").stat().st_ino == inode


def test_a_segment_needed_before_it_is_ready_is_made_at_once(made: Made) -> None:
    made.source.prepare(SIZE)
    file = made.source.take(SIZE)
    file.buffer[0:4] = b"data"
    made.worker.step()  # sees that it is not wanted any more
    assert made.names() == [f"{SIZE:020d}"]
    assert (made.root / f"{SIZE:020d}").read_bytes()[:4] == b"data"
    made.source.prepare(2 * SIZE)
    made.worker.step()
    assert made.names() == [f"{SIZE:020d}", f"{2 * SIZE:020d}"]


def test_a_half_made_segment_is_replaced_and_its_maker_writes_elsewhere(made: Made) -> None:
    made.source.prepare(SIZE)
    function, result = made.worker.waiting.pop()
    taken: list[object] = []

    class Watching(FaultyDisk):
        def sync_directory(self, path: str) -> None:
            # The worker has written zeros but not told yet; the reactor cannot wait.
            file = made.source.take(SIZE)
            file.buffer[0:4] = b"data"
            taken.append(file)

    function.__self__._disk = Watching()  # type: ignore[attr-defined]
    result.callback(function())
    assert (made.root / f"{SIZE:020d}").read_bytes()[:4] == b"data"
    assert made.source.take(2 * SIZE) is not taken[0]


def test_no_room_leaves_nothing_behind(made: Made) -> None:
    made.disk.faults.room = SIZE - 1
    made.source.prepare(SIZE)
    made.worker.step()
    assert made.names() == []
    with pytest.raises(OSError) as raised:
        made.source.take(SIZE)
    assert raised.value.errno == errno.ENOSPC
    assert made.names() == []
    made.disk.faults.room = SIZE
    made.source.take(SIZE)
    assert made.names() == [f"{SIZE:020d}"]


def test_stopping_waits_for_the_worker(made: Made) -> None:
    made.source.prepare(SIZE)
    stopped: list[None] = []
    made.source.stop().addCallback(stopped.append)
    assert stopped == []
    made.worker.step()
    assert stopped == [None]
    again: list[None] = []
    made.source.stop().addCallback(again.append)
    assert again == [None]
