"""The kernel's queue of syncs, on system calls that are simulated: it needs no kernel that has one."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.store.linux_aio import LOOK_S, LinuxAio
from tests.store.simulation.calls import load
from tests.store.simulation.disk import SimDisk
from tests.store.simulation.test_guarantees import append, make_world, work_off


class Bench:
    """A queue, and some open files with something to sync."""

    def __init__(self, count: int = 1) -> None:
        self.disk = SimDisk()
        self.calls = self.disk.calls
        self.aio = self.calls.aio
        self.clock = Clock()
        module = load("mqbroker.store.linux_aio", self.calls)
        self.queue: LinuxAio = module.LinuxAio(self.aio, self.clock.seconds, call_later=self.clock.callLater)
        self.paths = [f"/{number}" for number in range(count)]
        self.fds = [self.calls.open(path, os.O_RDWR | os.O_CREAT) for path in self.paths]
        for fd in self.fds:
            self.calls.pwrite(fd, b"data", 0)

    def sync(self, number: int) -> list[Any]:
        found: list[Any] = []
        done: Deferred[None] = self.queue.sync(self.fds[number], self.paths[number])
        done.addCallback(found.append).addErrback(lambda failure: found.append(failure.value))
        return found

    def durable(self, number: int) -> bytes:
        return self.disk.inode(self.paths[number]).durable[:4]


def test_syncs_that_end_in_another_order_are_told_each_to_its_own() -> None:
    bench = Bench(3)
    found = [bench.sync(number) for number in range(3)]
    bench.aio.do(2)
    assert found == [[], [], []]
    bench.aio.look()
    assert found == [[], [], [None]]
    bench.disk.faults.fail_sync_in = 1
    bench.aio.do(0)
    bench.aio.do(0)
    bench.aio.look()
    assert found[1:] == [[None], [None]]
    (error,) = found[0]
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.EIO, "/0")
    assert [bench.durable(number) for number in range(3)] == [b"", b"data", b"data"]
    assert bench.clock.getDelayedCalls() != []
    bench.clock.advance(LOOK_S)
    assert bench.clock.getDelayedCalls() == []


def test_what_is_not_taken_was_not_tried() -> None:
    bench = Bench()
    bench.aio.faults.add("submit")
    with pytest.raises(BlockingIOError):
        bench.sync(0)
    found = bench.sync(0)
    bench.aio.do(0)
    bench.aio.look()
    assert found == [None]


def test_an_end_that_no_word_tells_of_is_looked_for() -> None:
    bench = Bench()
    bench.aio.faults.add("word")
    found = bench.sync(0)
    bench.aio.do(0)
    bench.aio.look()
    assert found == []
    bench.clock.advance(LOOK_S)
    assert found == [None]


def test_a_sync_that_does_not_end_is_looked_for_until_it_does() -> None:
    bench = Bench()
    found = bench.sync(0)
    bench.clock.pump([LOOK_S] * 100)
    assert (found, bench.durable(0)) == ([], b"")
    bench.aio.do(0)
    bench.clock.advance(LOOK_S)
    assert found == [None]


@pytest.mark.parametrize("is_raised", [False, True])
def test_without_its_event_descriptor_what_runs_is_told_and_nothing_more_taken(
    is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(2)
    found = [bench.sync(0), bench.sync(1)]
    bench.aio.do(0)
    if is_raised:  # the reactor lets go of what raises

        def do_read() -> None:
            raise ValueError("a mistake")

        monkeypatch.setattr(bench.queue, "doRead", do_read)
    else:
        bench.aio.faults.add("event")
    bench.aio.look()
    assert bench.aio.readers == []
    with pytest.raises(OSError, match=r"Bad file descriptor|a mistake"):
        bench.sync(0)
    bench.clock.advance(LOOK_S)
    assert found == [[None], []]
    bench.aio.do(0)
    bench.clock.advance(LOOK_S)
    assert found == [[None], [None]]


def test_where_nobody_can_tell_how_a_sync_ended_it_has_failed() -> None:
    bench = Bench()
    found = bench.sync(0)
    bench.disk.faults.fail_sync_in = 1
    bench.aio.faults.add("get events")
    bench.aio.do(0)
    bench.aio.look()
    (error,) = found
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.EIO, "/0")


@pytest.mark.parametrize("fault", ["submit", "event", "get events", "word"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_is_there_after_a_power_cut(fault: str, fails: bool, seed: int) -> None:
    world = make_world(extras=["kernel queue"])
    append(world, waits=False)
    work_off(world)
    world.do(["advance", 2000, 1.0, 0])
    work_off(world)
    if fails:
        world.do(["eio", 1, True, seed])
    world.do(["queue", fault])
    append(world, waits=True)
    assert [job.is_kernels for job in world.worker.jobs] == [fault != "submit"]
    world.do(["advance", 2000, 1.0, seed])  # checks what is acknowledged
    assert world.disk.calls.aio.failed == {fault: 1}
    assert world.model.entries[-1].is_durable == (not fails and fault != "get events")
    assert world.model.entries[-1].is_durable == (not world.store._commit_log.why_refused)
    world.do(["power", seed])


def test_while_syncs_hang_nothing_is_acknowledged_and_in_the_end_nothing_taken() -> None:
    world = make_world(extras=["kernel queue"], settings={"unsynced_age_max_ms": 10_000})
    append(world, waits=False)
    world.do(["advance", 2000, 1.0, 0])
    world.do(["hang", True])
    append(world, waits=True)
    world.do(["advance", 20_000, 0.9, 0])
    assert not world.model.entries[-1].is_durable
    assert "is too slow" in world.store._commit_log.why_refused
    world.do(["hang", False])
    world.do(["advance", 2000, 0.9, 0])
    assert world.store.flushed == world.store.log_end
    assert not world.store._commit_log.why_refused


def test_stopping_waits_for_what_runs() -> None:
    bench = Bench()
    found = bench.sync(0)
    bench.queue.stop()
    assert (bench.durable(0), found) == (b"data", [])
    assert bench.clock.getDelayedCalls() == []
