"""The file of a table on the simulated disk, cut short at each of its system calls."""

from __future__ import annotations

import errno
from random import Random

import pytest
from twisted.internet.defer import Deferred

from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.worker import InlineWorker
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.threads import Ended

PATH = "/data/store/config/topics.json"
SEEDS = range(6)


def a_disk() -> SimDisk:
    disk = SimDisk()
    for path in ("/data", "/data/store"):
        disk.make_directories(path)
        disk.sync_directory("/")
        disk.sync_directory("/data")
    return disk


def on(disk: SimDisk) -> JsonFile:
    return JsonFile(PATH, InlineWorker(), disk)


def saved(file: JsonFile, number: int) -> bool:
    found: list[bool] = []
    done: Deferred[bool] = file.save(lambda: b"%d " % number + bytes(5000) + b"whole")
    done.addCallback(found.append)
    return found[0]


def parse(data: bytes) -> int:
    if not data.endswith(b"whole"):
        raise MQError("half")
    return int(data.split(b" ")[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_table_is_there_after_a_power_cut(seed: int) -> None:
    disk = a_disk()
    assert saved(on(disk), 1)
    assert on(disk.crashed(Random(seed))).load(parse) == 1


@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("former", [1, 2])
def test_cut_short_at_each_call_it_is_whole(end: str, former: int) -> None:
    met = set()
    for operations in range(1, 26):
        for seed in range(3):
            rng = Random(seed)
            disk = a_disk()
            file = on(disk)
            for number in range(1, former + 1):
                assert saved(file, number)
            disk.faults.end_in = operations
            try:
                is_saved = saved(file, former + 1)
            except Ended:
                is_saved = False
            disk.faults.end_in = None
            disk = disk.crashed(rng) if end == "power" else disk.killed(rng)
            found = on(disk).load(parse)
            assert found in ([former + 1] if is_saved else [former, former + 1])
            met.add((is_saved, found))
            assert saved(on(disk), former + 2)  # what the dead one left is in nobody's way
            assert on(disk.crashed(rng)).load(parse) == former + 2
    assert met == {(False, former), (False, former + 1), (True, former + 1)}


@pytest.mark.parametrize("what", ["room", "name", "descriptor", *range(1, 4)])
def test_a_refusal_leaves_what_was_and_is_no_harm_later(what: object) -> None:
    disk = a_disk()
    file = on(disk)
    assert saved(file, 1)
    assert saved(file, 2)
    if what == "room":
        disk.faults.room_bytes = 4096
    elif what == "name":
        disk.faults.refused = {"create": errno.ENOSPC}
    elif what == "descriptor":
        disk.faults.refused = {"open": errno.EMFILE}
    else:
        disk.faults.fail_sync_in = what if isinstance(what, int) else None
    is_saved = saved(file, 3)
    assert is_saved == (what == 3)  # there are two syncs
    disk.faults.room_bytes, disk.faults.refused, disk.faults.fail_sync_in = None, {}, None
    assert on(disk).load(parse) in ([3] if is_saved else [2, 3])
    file.retry()
    for seed in SEEDS:
        assert on(disk.killed(Random(seed))).load(parse) == 3
    assert on(disk.crashed(Random(0))).load(parse) == 3


def test_what_was_to_be_next_stays_once_it_was_read_instead_of_what_rotted() -> None:
    disk = a_disk()
    assert saved(on(disk), 1)
    assert saved(on(disk), 2)
    # A process was killed between the two renames of the next save, and the content that both names have by then rots.
    disk.unlink(PATH + ".bak")
    disk.link(disk.inode(PATH), PATH + ".bak")
    content = b"3 " + bytes(50) + b"whole"
    disk.write(PATH + ".tmp", content)
    disk.sync_directory("/data/store/config")
    inode = disk.inode(PATH)
    inode.spoil(0, bytes(inode.size))
    assert on(disk).load(parse) == 3
    assert disk.durable_bytes(PATH) == content
