"""Pages that are on the disk only, and cannot be read: what is looked at or stored in was read before, and a read that
fails is no shorter file."""

from __future__ import annotations

import errno
from random import Random

import pytest

from mqbroker.store.disk import Unreadable
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.inode import PAGE_BYTES
from tests.store.simulation.steps import PLAIN
from tests.store.simulation.test_guarantees import append, make_world, work_off
from tests.store.simulation.world import LOG, ROOT, World

PATH = "/data/file"
CONTENT = bytes(range(1, 251)) * 60


def with_a_bad_page(number: int) -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/data")
    disk.write(PATH, CONTENT)
    disk.drop(Random(0), 1.0)
    disk.make_bad(disk.inode(PATH), number)
    return disk


@pytest.mark.parametrize("number", range(4))
def test_a_page_that_cannot_be_read_is_not_the_end_of_a_file(number: int) -> None:
    disk = with_a_bad_page(number)
    with pytest.raises(OSError, match=f"Input/output error: '{PATH}'") as caught:
        disk.read_part(PATH, 100, len(CONTENT))
    assert caught.value.errno == errno.EIO
    assert disk.read_part(PATH, 0, number * PAGE_BYTES) == CONTENT[: number * PAGE_BYTES]
    with pytest.raises(OSError, match=f"Input/output error: '{PATH}'"):
        disk.read(PATH)
    disk.mend_pages()
    assert disk.read_part(PATH, 100, len(CONTENT)) == CONTENT[100:]
    assert disk.read_part(PATH, len(CONTENT), 10) == b""
    assert disk.read(PATH) == CONTENT


def test_why_bytes_could_not_be_fetched_is_told_as_it_is() -> None:
    disk = with_a_bad_page(2)
    file = disk.open_mapped(PATH, len(CONTENT))
    file.fetch(0, 2 * PAGE_BYTES)
    with pytest.raises(OSError, match="Input/output error"):
        file.fetch(0, 3 * PAGE_BYTES)


def cold_world(**changes: object) -> World:
    return make_world(extras=["cold"], **changes)


def written_through(world: World) -> None:
    """As segments are that were made ahead of time."""
    for _, inode in world.disk.files(LOG):
        inode.zeroed.update(range(len(inode.blocks)))


def test_nothing_is_stored_in_a_page_that_nobody_read() -> None:
    world = cold_world()
    for size in (300, 5000, 5000):  # the next segment is made ahead
        append(world, waits=True, size=size)
        work_off(world)
    written_through(world)
    world.do(["advance", 3000, 0.9, 0])
    world._stop(0)
    names = world.disk.names(LOG)
    disk = world.disk = world.disk.crashed(Random(0))
    disk.drop(Random(0), 1.0)
    store = world.open(disk, world.clock, world.worker)
    assert disk.names(LOG) == names == [f"{0:020d}", f"{16384:020d}"]
    for size in (300, 5000, 5000, 5000):
        store.append([world._message(0, 0, size, PLAIN, 0)])
        store.dispatch_now()
        disk.check_all_stores()
    assert store.log_end > 16384
    assert store.max_offset("A", 0) == 7
    assert store.stats.dispatched == store.log_end


def test_the_time_of_the_oldest_message_is_read_once_and_not_looked_at() -> None:
    world = cold_world()
    for _ in range(4):
        append(world, waits=True, size=9000)
        work_off(world)
    earliest_ms = world.store.stats.earliest_ms
    world.do(["power", 0])
    segment = world.disk.inode(f"{LOG}/{0:020d}")
    segment.drop(Random(0), 1.0)
    world.disk.faults.fail_read_in = 1
    assert world.store.stats.earliest_ms == -1
    assert world.store.stats.earliest_ms == earliest_ms
    segment.drop(Random(0), 1.0)
    assert world.store.stats.earliest_ms == earliest_ms
    assert segment.unread


@pytest.mark.parametrize("part", ["commitlog", "consumequeue"])
def test_a_start_that_meets_an_unreadable_page_changes_nothing(part: str) -> None:
    world = cold_world(index=False)
    world.do(["append", True, [[0, 0, 300, PLAIN]] * 12])
    work_off(world)
    world.do(["advance", 3000, 0.9, 0])
    world.disk = world.disk.crashed(Random(0))
    world.disk.drop(Random(0), 1.0)
    path, inode = next(iter(world.disk.files(f"{ROOT}/{part}")))
    before = inode.image()
    world.disk.make_bad(inode, 0)
    with pytest.raises(Unreadable, match=f"^.*'{path}'$"):
        world.open(world.disk, world.clock, world.worker)
    assert inode.image() == before
    world.disk.mend_pages()
    store = world.open(world.disk, world.clock, world.worker)
    assert store.max_offset("A", 0) == 12
