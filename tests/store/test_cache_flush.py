"""Consume queues and the checkpoint are brought to the disk behind the log, and again where that failed."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from mqbroker.errors import StoreUnwritable
from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.store.flush import RUNNING_MAX, CacheFlusher
from mqbroker.store.worker import InlineWorker
from tests.fakes import SteppedWorker
from tests.store.harness import Bench, message, stop
from tests.store.test_flush import results


def no_room(path: str, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_consume_queues_that_could_not_be_synced_are_when_the_disk_works_again(bench: Bench, number: int) -> None:
    store = bench.open()
    store.start()
    boot = (bench.root / "abort").read_bytes()
    store.append([message()])
    bench.clock.advance(0.5)  # the log is synced
    assert store.flushed == store.log_end
    bench.disk.faults.sync_error = number
    bench.disk.faults.failing = "consumequeue"
    written: list[str] = bench.disk.faults.written
    with capturedLogs() as events:
        bench.clock.pump([0.5] * 10)
        assert not (bench.root / "checkpoint").exists()
        is_spoilt = number in (errno.EIO, errno.ENOSPC)
        # Of files that the kernel may take for written nothing is to be believed, should this process be killed now.
        assert ((bench.root / "abort").read_bytes() != boot) is is_spoilt
        image = bench.image("killed")
        store.append([message()])
        bench.disk.faults.sync_error = None
        written.clear()
        bench.clock.pump([0.5] * 3)
    assert [path for path in written if "consumequeue" in path][:1] == (
        [str(bench.root / "consumequeue" / "T" / "0" / f"{0:020d}")] if is_spoilt else []
    )
    assert decode_checkpoint((bench.root / "checkpoint").read_bytes()).queues_offset == store.log_end
    assert (bench.root / "abort").read_bytes() == boot
    told = [line for line in map(formatEvent, events) if line and "consume queues" in line]
    assert len(told) == 2
    assert "cannot be synced to the disk (trying again)" in told[0]
    assert "are synced to the disk again" in told[1]
    stop(store)
    assert not (bench.root / "abort").exists()
    assert image.open().max_offset("T", 0) == 1


def test_a_stop_while_consume_queues_cannot_be_synced_is_not_clean(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message()])
    bench.clock.advance(0.5)
    bench.disk.faults.sync_error = errno.EIO
    bench.disk.faults.failing = "consumequeue"
    bench.clock.advance(0.5)
    stop(store)
    assert (bench.root / "abort").exists()
    assert not (bench.root / "checkpoint").exists()
    bench.disk.faults.sync_error = None
    again = bench.open()
    assert again.max_offset("T", 0) == 1


def test_what_is_removed_while_it_cannot_be_synced_keeps_nothing_from_being(bench: Bench) -> None:
    store = bench.open()
    store.start()
    store.append([message("T"), message("Other")])
    bench.clock.advance(0.5)
    bench.disk.faults.sync_error = errno.EIO
    bench.disk.faults.failing = "consumequeue/T/"
    bench.clock.advance(0.5)
    removed: list[list[str]] = []
    store.remove_topics(["T"]).addCallback(removed.append)
    assert removed == [["T"]]
    bench.clock.pump([0.5] * 3)  # though the fault lasts
    assert decode_checkpoint((bench.root / "checkpoint").read_bytes()).queues_offset == store.log_end


def test_a_checkpoint_that_cannot_be_written_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it covers is on the disk: unlike a failed sync, a full disk is not the end of checkpoints."""
    store = bench.open()
    store.start()
    store.append([message()])
    with monkeypatch.context() as patched:
        patched.setattr(bench.disk, "write", no_room)
        bench.clock.pump([0.5] * 4)
        assert not (bench.root / "checkpoint").exists()
    bench.clock.pump([0.5] * 4)
    assert decode_checkpoint((bench.root / "checkpoint").read_bytes()).queues_offset == store.log_end
    stop(store)
    assert not (bench.root / "abort").exists()


def test_what_was_synced_is_not_synced_again_for_a_checkpoint_that_cannot_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open().append([message()])
    killed = bench.image("killed")
    store = killed.open()  # what it found is acknowledged once the checkpoint covers it
    store.start()
    with capturedLogs() as logs, monkeypatch.context() as patched:
        patched.setattr(killed.disk, "write", no_room)
        got = results(store.durable(store.log_end))
        killed.clock.pump([0.5] * 4)
        assert store.stats.flushes == 1
        for _ in range(2 * RUNNING_MAX):
            store.append([message()])
            killed.clock.advance(0.5)
        assert store.stats.flushes == 1 + 2 * RUNNING_MAX  # what is new is synced all the same
    assert isinstance(got[0], StoreUnwritable)
    assert store.flushed == 0
    assert len([entry for entry in logs if "not acknowledged" in (formatEvent(entry) or "")]) == 1
    killed.clock.advance(0.5)
    assert store.flushed == store.log_end
    assert store.stats.flushes == 1 + 2 * RUNNING_MAX
    stop(store)


def test_who_waits_has_the_checkpoint_written_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.open().append([message()])
    killed = bench.image("killed")
    store = killed.open()
    with monkeypatch.context() as patched:
        patched.setattr(killed.disk, "write", no_room)
        results(store.durable(store.log_end))
    assert results(store.durable(store.log_end)) == [None]
    assert store.stats.flushes == 1


def test_after_a_sync_of_very_many_files_others_get_their_turn() -> None:
    clock, begun = Clock(), list[float]()
    files = [1, 1000, 40_000, 10_000_000, 1, 1]

    def snapshot(with_index: bool) -> Any:
        begun.append(clock.seconds())
        return lambda: None, lambda result: None, files[len(begun) - 1]

    flusher = CacheFlusher(clock, InlineWorker(), 1000, 10, snapshot)
    flusher.start()
    clock.pump([0.5] * 207)
    assert begun == [1, 2, 3, 43, 103]
    assert flusher.stop().called


@pytest.mark.parametrize("runs", [False, True])
def test_a_stop_ends_where_what_is_left_cannot_be_collected(runs: bool) -> None:
    clock, worker = Clock(), SteppedWorker(at_once=False)

    def snapshot(with_index: bool) -> Any:
        if with_index:
            raise MemoryError
        return lambda: None, lambda result: None, 1

    flusher = CacheFlusher(clock, worker, 1000, 10, snapshot)
    flusher.start()
    clock.advance(1 if runs else 0)
    ended: list[Any] = []
    maybeDeferred(flusher.stop).addErrback(lambda failure: failure.check(MemoryError)).addCallback(ended.append)
    worker.work()
    assert ended == [MemoryError]


def test_a_sync_that_cannot_be_collected_is_tried_again_each_time() -> None:
    clock, turns = Clock(), iter("x-xx-")
    seen: list[str] = []

    def snapshot(with_index: bool) -> Any:
        seen.append(next(turns))
        if seen[-1] == "x":
            raise OSError(5, "Input/output error")
        return lambda: None, lambda result: None, 1

    flusher = CacheFlusher(clock, InlineWorker(), 1000, 10, snapshot)
    flusher.start()
    with capturedLogs() as events:
        clock.pump([1] * 5)
    assert "".join(seen) == "x-xx-"
    assert [formatEvent(event) for event in events] == ["consume queues cannot be synced"] * 3
