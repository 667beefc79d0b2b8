"""Consume queues by themselves: files, allocation, gaps, truncation."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mqbroker.errors import StoreDamaged
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_entry import ENTRY
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.file_cache import FileCache
from mqbroker.store.stepwise import run_at_once
from tests.fakes import FaultyDisk
from tests.store.harness import tree

FILE = 2000  # 100 entries


def entries(start: int, count: int) -> bytes:
    return b"".join(ENTRY.pack(i * 100, 100, i) for i in range(start, start + count))


def make(root: Path, disk: FaultyDisk | None = None) -> ConsumeQueue:
    return ConsumeQueue(FileCache(disk or FaultyDisk(), 2), str(root / "T" / "0"), "T", 0, FILE, set())


@pytest.mark.parametrize("sizes", [[250], [1] * 250, [99, 1, 1, 99, 50], [100, 100, 50], [64, 64, 64, 58]])
def test_entries_fill_file_after_file(tmp_path: Path, sizes: list[int]) -> None:
    queue = make(tmp_path)
    written = 0
    for size in sizes:
        queue.write(entries(written, size))
        written += size
    assert queue.max_offset == 250
    files = tree(tmp_path)
    assert list(files) == [f"T/0/{i * FILE:020d}" for i in range(3)]
    assert b"".join(files.values()) == entries(0, 250).ljust(3 * FILE, b"\0")
    assert [queue.entry(i) for i in (0, 99, 100, 249)] == [(i * 100, 100, i) for i in (0, 99, 100, 249)]
    view, at, following = queue.locate(150)
    assert (at, following) == (50 * 20, 50)
    assert bytes(view[at : at + 20]) == entries(150, 1)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_loading_finds_the_end(tmp_path: Path, count: int) -> None:
    queue = make(tmp_path)
    if count:
        queue.write(entries(0, count))
    again = make(tmp_path)
    again.load()
    assert again.max_offset == count
    assert again.end_of_last() == (count * 100 or -1)
    again.write(entries(count, 7))
    assert b"".join(tree(tmp_path).values())[: (count + 7) * 20] == entries(0, count + 7)


def test_a_queue_can_start_anywhere_and_what_is_before_is_filled(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.skip_to(130)
    queue.write(entries(130, 5))
    assert (queue.min_offset, queue.max_offset) == (130, 135)
    blank = ENTRY.pack(0, 0x7FFFFFFF, 0)
    assert tree(tmp_path) == {f"T/0/{FILE:020d}": (blank * 30 + entries(130, 5)).ljust(FILE, b"\0")}
    again = make(tmp_path)
    again.load()
    again.correct_min(0)
    assert (again.min_offset, again.max_offset) == (130, 135)


def test_a_gap_is_filled_and_min_offset_stays(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.write(entries(0, 3))
    queue.skip_to(5)
    queue.write(entries(5, 1))
    assert (queue.min_offset, queue.max_offset) == (0, 6)
    assert queue.entry(4) == (300, 0x7FFFFFFF, 0)
    assert queue.entry(5) == (500, 100, 5)


@pytest.mark.parametrize("beyond", [0, 99])
@pytest.mark.parametrize("keep", [0, 1, 99, 100, 101, 200, 249, 250])
def test_truncation_keeps_what_is_whole_below_and_nothing_above(tmp_path: Path, keep: int, beyond: int) -> None:
    queue = make(tmp_path)
    queue.write(entries(0, 250))
    queue.truncate(keep * 100 + beyond)  # the message at keep * 100 is not whole below this
    assert queue.max_offset == keep
    files = b"".join(tree(tmp_path).values())
    assert files == entries(0, keep).ljust(len(files), b"\0")
    queue.write(entries(keep, 120))
    assert b"".join(tree(tmp_path).values())[: (keep + 120) * 20] == entries(0, keep + 120)


def test_min_offset_follows_the_log(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.write(entries(0, 250))
    for physical_min, offset in [(0, 0), (1, 1), (100, 1), (12_000, 120), (24_900, 249), (30_000, 250)]:
        queue.correct_min(physical_min)
        assert queue.min_offset == offset


def test_a_full_disk_leaves_the_queue_as_far_as_it_came(tmp_path: Path) -> None:
    disk = FaultyDisk()
    queue = make(tmp_path, disk)
    queue.write(entries(0, 90))
    disk.faults.room = 0
    with pytest.raises(OSError) as raised:
        queue.write(entries(90, 20))
    assert raised.value.errno == errno.ENOSPC
    assert queue.max_offset == 100
    disk.faults.room = None
    queue.write(entries(100, 10))
    assert queue.entry(109) == (10_900, 100, 109)


@pytest.mark.parametrize("name", ["x", "123", f"{7:020d}"])
def test_foreign_files_are_named(tmp_path: Path, name: str) -> None:
    make(tmp_path).write(entries(0, 150))
    path = tmp_path / "T" / "0" / name
    path.write_bytes(bytes(FILE))
    with pytest.raises(StoreDamaged) as raised:
        make(tmp_path).load()
    assert raised.value.path == str(path)
    assert path.exists()


def test_what_follows_a_missing_file_is_deleted(tmp_path: Path) -> None:
    make(tmp_path).write(entries(0, 150))
    path = tmp_path / "T" / "0" / f"{FILE * 3:020d}"
    path.write_bytes(bytes(FILE))
    queue = make(tmp_path)
    assert not queue.load()
    assert queue.max_offset == 150
    assert not path.exists()


def test_a_file_of_another_size_is_named(tmp_path: Path) -> None:
    make(tmp_path).write(entries(0, 150))
    path = tmp_path / "T" / "0" / f"{FILE:020d}"
    path.write_bytes(bytes(FILE - 20))
    with pytest.raises(StoreDamaged, match="1980 bytes; mappedFileSizeConsumeQueue is 2000"):
        make(tmp_path).load()


def test_blocks_come_in_steps_not_by_the_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    queue = ConsumeQueue(FileCache(disk, 2), str(tmp_path / "T" / "0"), "T", 0, 6_000_000, set())
    disk.faults.room = 65536
    queue.write(entries(0, 3000))
    assert disk.faults.room == 0
    assert (tmp_path / "T" / "0" / f"{0:020d}").stat().st_blocks * 512 <= 2 * 65536


@pytest.mark.parametrize(("topic", "queue_id"), [("../up", 0), ("a/b", 0), ("", 0), ("T", -1), ("t" * 128, 0)])
def test_what_is_no_name_of_a_topic_makes_no_directory(tmp_path: Path, topic: str, queue_id: int) -> None:
    queues = ConsumeQueues(FaultyDisk(), str(tmp_path / "cq"), FILE)
    with pytest.raises(ValueError):
        queues.open(topic.encode(), queue_id)
    assert tree(tmp_path) == {}


def test_loading_opens_all_queues(tmp_path: Path) -> None:
    queues = ConsumeQueues(FaultyDisk(), str(tmp_path), FILE)
    for topic in (b"A", b"%RETRY%G"):
        for queue_id in (0, 12):
            queues.open(topic, queue_id).write(entries(0, queue_id + 1))
    again = ConsumeQueues(FaultyDisk(), str(tmp_path), FILE)
    run_at_once(again.load(), lambda progress: None)
    found = {(queue.topic, queue.queue_id): queue.max_offset for queue in again}
    assert found == {("A", 0): 1, ("A", 12): 13, ("%RETRY%G", 0): 1, ("%RETRY%G", 12): 13}
    assert again.by_bytes[b"A", 12] is again.by_name["A", 12]


def test_a_foreign_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "A" / "notes").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="not a directory of a queue"):
        run_at_once(ConsumeQueues(FaultyDisk(), str(tmp_path), FILE).load(), lambda progress: None)


def test_a_file_with_something_to_sync_is_not_to_be_deleted(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.write(entries(0, 250))
    queue.min_offset = 230
    assert queue.removable_files() == []
    queue.drain_unsynced()
    assert [Path(file.path).name for file in queue.removable_files()] == [f"{0:020d}", f"{2000:020d}"]
    queue.close()
