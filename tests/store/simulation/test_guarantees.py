"""Cells of the table of guarantees that are about the disk, each as a small scenario on the simulated one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mqbroker.wire.record import decode_record
from tests.store.harness import now
from tests.store.simulation.inode import SECTOR_BYTES
from tests.store.simulation.steps import PLAIN
from tests.store.simulation.worker import SimWorker
from tests.store.simulation.world import LOG, ROOT, World

FLUSH_MS = 500
SEEDS = range(25)


def make_world(**changes: Any) -> World:
    options = {
        "segment_bytes": 16384,
        "queue_file_bytes": 2000,
        "index": True,
        "slots": 7,
        "index_entries": 30,
        "flush_ms": FLUSH_MS,
        "queue_flush_ms": 1000,
        "flush_timeout_ms": 5000,
        "ipv6_store": False,
        **changes,
    }
    return World(options)


def append(world: World, waits: bool, size: int = 300) -> int:
    """Append one message; returns its end in the log."""
    world.do(["append", waits, [[0, 0, size, PLAIN]]])
    return world.model.end


def work_off(world: World) -> None:
    while world.worker.jobs:
        world.do(["work", 1, 0])


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_async_flush_loses_at_most_the_interval(seed: int) -> None:
    world = make_world()
    lasting = 0
    for _ in range(8):
        lasting = append(world, waits=False)
    # A worker that is never slow: whatever was appended is synced when the interval is over.
    world.do(["advance", FLUSH_MS, 1.0, 0])
    work_off(world)
    for _ in range(8):
        append(world, waits=False)
    appended = world.store.log_end
    world.do(["power", seed])  # checks the rest: what is gone is a tail, and of no other message
    assert lasting <= world.store.log_end <= appended
    assert world.store.max_offset("A", 0) >= 8


def test_power_loss_async_flush_may_lose_the_interval() -> None:
    ended = []
    for seed in SEEDS:
        world = make_world()
        append(world, waits=False)
        world.do(["power", seed])
        ended.append(world.store.log_end)
    assert min(ended) == 0 < max(ended)


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_sync_flush_loses_nothing(seed: int) -> None:
    world = make_world()
    acknowledged = 0
    for number in range(20):
        append(world, waits=True, size=300 + 150 * number)  # over a roll
        while not world.model.entries[-1].is_durable:
            world.do(["work", 1, number])
        acknowledged = world.model.end
    append(world, waits=True)  # nobody was told that this one is stored
    world.do(["power", seed])
    assert world.store.log_end >= acknowledged
    assert world.store.max_offset("A", 0) >= 20


@pytest.mark.parametrize("lost", range(1, 8))
def test_torn_tail_is_cut_at_the_last_whole_record(lost: int) -> None:
    world = make_world()
    whole = append(world, waits=True, size=1000)
    work_off(world)
    torn = append(world, waits=False, size=4000)
    following = append(world, waits=False, size=50)
    inode = world.disk.inode(f"{LOG}/{0:020d}")
    inode.sync()  # all of it came to the disk, but for one sector of the last record but one
    sector = -(-whole // SECTOR_BYTES) + lost - 1
    start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
    assert whole <= start
    assert end <= torn < following
    inode.durable = inode.durable[:start] + bytes(SECTOR_BYTES) + inode.durable[end:]
    inode.memory[: inode.size] = inode.durable
    world.do(["power", 0])
    assert world.store.log_end == whole
    assert world.store.max_offset("A", 0) == 1
    assert not world.store.corrupt_ranges
    # The place is used again, and nothing of what stood there is taken for a message.
    append(world, waits=True)
    work_off(world)
    world.do(["power", 1])
    assert world.store.max_offset("A", 0) == 2


def test_clock_jumps_keep_store_times_in_order() -> None:
    world = make_world()
    times = []
    for jump in (0, 3600, -86_400, 0.25, -7, 86_400 * 2, -0.4):
        world.do(["jump", jump])
        append(world, waits=False)
        times.append(world.model.last_ms)
        world.do(["kill", 0])
        append(world, waits=False)
        times.append(world.model.last_ms)
        world.do(["stop", False, 0])
        append(world, waits=False)
        times.append(world.model.last_ms)
    assert times == sorted(times)
    stored = [decode_record(entry.record).store_timestamp for entry in world.model.entries]
    assert stored == times
    assert len(set(times)) == 3  # the clock was followed where it was ahead
    world.store.dispatch_now()
    for offset, time_ms in enumerate(times):
        found = now(world.store).offset_by_time("A", 0, time_ms)
        assert times[found] == time_ms
        assert now(world.store).store_timestamp("A", 0, offset) == time_ms


def is_removed(world: World, queue_id: int) -> bool:
    low, high = world.store.min_offset("A", queue_id), world.store.max_offset("A", queue_id)
    return low == high


@pytest.mark.parametrize("operations", range(1, 30))
def test_a_removal_that_a_start_has_finished_is_on_the_disk(operations: int) -> None:
    for seed in range(4):
        world = make_world()
        world.do(["append", True, [[0, 0, 10, PLAIN], [0, 1, 10, PLAIN]]])
        world.do(["advance", 3000, 0.9, 0])
        world.do(["remove", "A", operations, "kill", seed])
        work_off(world)
        removed = [is_removed(world, queue_id) for queue_id in range(2)]
        world.do(["power", seed])
        assert [is_removed(world, queue_id) for queue_id in range(2)] == removed


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_a_second_removal_that_was_cut_short_keeps_the_first(jobs: int) -> None:
    world = make_world()
    for _ in range(2):
        append(world, waits=True)
    world.do(["remove", "A", 0, "kill", 0])
    work_off(world)
    append(world, waits=True)
    world.do(["advance", 600, 0.9, 0])
    assert world.model.removed_below == {("A", 0): 2}
    world.do(["remove", "A", 0, "kill", 0])
    world.do(["work", jobs, 0])
    append(world, waits=True)  # the topic is made again before it is gone
    world.do(["advance", 0, 0, 0])
    world.do(["kill", 0])
    world.do(["lose", ["consumequeue"], 0, 0, "kill"])  # all is built from the log, and checked
    assert world.store.min_offset("A", 0) >= 2


@pytest.mark.parametrize("operations", range(12, 22))
def test_a_checkpoint_that_a_killed_process_did_not_sync(operations: int) -> None:
    for seed in range(6):
        world = make_world(index_entries=5)
        for _ in range(8):
            append(world, waits=True)
        world.do(["advance", 12_000, 0.9, 0])
        world.do(["lose", ["index"], seed, operations, "kill"])  # at one of them the checkpoint is being written
        world.do(["advance", 20, 0.3, seed])
        world.do(["power", seed])
        world.finish()


@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("seed", range(4))
def test_the_lost_beginning_of_a_queue_that_was_made_again(end: str, seed: int) -> None:
    world = make_world(queue_file_bytes=200)
    append(world, waits=True)
    world.do(["remove", "A", 0, "kill", 0])
    work_off(world)
    for _ in range(12):  # two files, one of which loses all
        append(world, waits=True)
    world.do(["advance", 3000, 0.9, 0])
    world.do(["spoil", "consumequeue", "zeros", end, seed])
    assert world.store.min_offset("A", 0) == 1
    world.finish()


@pytest.mark.parametrize("seed", range(8))
def test_garbage_in_a_queue_that_was_made_again(seed: int) -> None:
    world = make_world(queue_file_bytes=20_000, index=False)
    for _ in range(18):
        world.do(["append", True, [[0, 0, 0, PLAIN]] * 10])
    world.do(["remove", "A", 0, "kill", 0])
    work_off(world)
    append(world, waits=True)
    world.do(["advance", 3000, 0.9, 0])
    world.do(["spoil", "consumequeue", "garbage", "kill", seed])  # where the newest entry is, it has no message
    assert (world.store.min_offset("A", 0), world.store.max_offset("A", 0)) == (180, 181)
    world.finish()


def test_a_checkpoint_that_says_less_is_on_the_disk_before_a_start_goes_by_it() -> None:
    world = make_world()
    path = f"{ROOT}/checkpoint"
    contents: list[bytes] = []
    for _ in range(2):
        append(world, waits=False)
        world.do(["advance", 3000, 1.0, 0])
        work_off(world)
        contents.append(world.disk.durable_bytes(path) or b"")
    less, more = contents
    assert less != more
    disk = world.disk.killed(Random(0))
    disk.write_part(path, 0, memoryview(less))  # as by a process that was killed before it could sync that
    assert disk.durable_bytes(path) == more
    world.open(disk, world.clock, SimWorker())
    assert disk.durable_bytes(path) == less
