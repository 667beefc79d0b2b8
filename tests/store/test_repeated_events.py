"""A disk that fails and works, fills and empties again and again: each time is as the first one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mqbroker.errors import DiskFull, FlushTimedOut, StoreBusy, StoreUnwritable
from mqbroker.store import segment
from mqbroker.store.flush import LONG_S
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.segment import SegmentSource
from mqbroker.store.worker import InlineWorker
from tests.fakes import FaultyDisk, SteppedWorker
from tests.remoting.logs import Logged, log_kept
from tests.store.aging import HOUR_MS, OTHER_HOUR, a_turn, age, filled, names, space
from tests.store.harness import Bench, message, turns
from tests.store.test_flush import SlowSyncs, end_of, results
from tests.store.test_transient import Pool

ROUNDS = range(1, 4)


@pytest.fixture
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


def count(logged: Logged, text: str) -> int:
    return len([line for line in logged.lines if text in line])


# Room


@pytest.mark.usefixtures("utc")
def test_a_disk_that_fills_up_again_refuses_messages_again(make: Callable[..., Bench], logged: Logged) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, clean_file_forcibly_enable=False)
    store = filled(bench, 1)
    for number in ROUNDS:
        bench.disk.faults.space = space(91)
        for _ in range(2):
            a_turn(bench)
            with pytest.raises(DiskFull):
                store.append([message()])
        assert store.stats.is_disk_full
        bench.disk.faults.space = space(50)
        for _ in range(2):
            a_turn(bench)
            store.append([message()])
        assert not store.stats.is_disk_full
        assert count(logged, "messages are refused") == number
        assert count(logged, "messages are accepted again") == number


@pytest.mark.usefixtures("utc")
def test_a_disk_that_passes_its_threshold_again_has_old_messages_deleted_again(
    make: Callable[..., Bench], logged: Logged
) -> None:
    bench = make(delete_when_hours=OTHER_HOUR, file_reserved_time_hours=1)
    filled(bench, 9)
    for number in ROUNDS:
        left = names(bench)
        age(bench, 2 * HOUR_MS, *map(int, left[:2]))
        a_turn(bench)
        assert names(bench) == left
        bench.disk.faults.space = space(76)
        a_turn(bench)
        assert names(bench) == left[2:]
        for _ in range(2):  # nothing is old enough
            a_turn(bench)
        assert names(bench) == left[2:]
        assert count(logged, "old messages are deleted") == number
        assert count(logged, "no message is old enough to delete") == number
        bench.disk.faults.space = space(10)
        a_turn(bench)


@pytest.mark.usefixtures("utc")
def test_disks_and_files_that_fail_again_are_reported_again(
    make: Callable[..., Bench], logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(file_reserved_time_hours=1)
    filled(bench, 5)
    room = FaultyDisk.space

    def unknown(_: FaultyDisk, path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    for number in ROUNDS:
        left = names(bench)
        monkeypatch.setattr(FaultyDisk, "space", unknown)
        a_turn(bench)
        a_turn(bench)
        monkeypatch.setattr(FaultyDisk, "space", room)
        a_turn(bench)
        assert count(logged, "the free space of the disk cannot be read") == number
        assert count(logged, "the free space of the disk can be read again") == number
        age(bench, 2 * HOUR_MS, int(left[0]))
        first = f"{int(left[0]) * 131072:020d}"
        bench.disk.faults.unremovable = {first}
        bench.clock.advance((24 - bench.clock.seconds() / 3600 % 24 + 4) * 3600)  # to the hour of deletion
        age(bench, 0)
        age(bench, 2 * HOUR_MS, int(left[0]))
        for _ in range(30):
            a_turn(bench)
        assert names(bench) == left
        bench.disk.faults.unremovable = set()
        for _ in range(30):
            a_turn(bench)
        assert names(bench) == left[1:]
        assert count(logged, "cannot be deleted") == number


# Syncs


def test_a_disk_that_hangs_again_is_reported_and_messages_are_refused_again(
    make: Callable[..., Bench], logged: Logged
) -> None:
    bench = make(unsynced_age_max_ms=10_000)
    syncs = SlowSyncs(bench.clock)
    store = bench.open(syncs)
    store.start()
    for number in ROUNDS:
        store.append([message()])
        turns(bench.clock, LONG_S + 2)
        assert count(logged, "has not ended after 5 s") == number
        assert count(logged, "messages are refused") == number - 1
        turns(bench.clock, 100)
        with pytest.raises(StoreUnwritable, match="is too slow"):
            store.append([message()])
        syncs.end_all()
        turns(bench.clock, 30)
        assert count(logged, "has not ended after 5 s") == number
        assert count(logged, "a sync of the commit log to the disk took") == number
        assert count(logged, "messages are refused") == number
        assert count(logged, "messages are accepted again") == number


def test_sends_that_wait_too_long_time_out_each_time_and_those_in_between_do_not(make: Callable[..., Bench]) -> None:
    bench = make(sync_flush_timeout_ms=3000)
    store = bench.open()
    for _ in ROUNDS:
        bench.worker.at_once = False
        late = results(store.durable(end_of(store.append([message()]))))
        bench.clock.advance(2.9)
        assert late == []
        bench.clock.advance(0.1)
        assert isinstance(late[0], FlushTimedOut)
        bench.worker.at_once = True
        bench.worker.work()
        for seconds in (0, 2.9, 2.9):
            bench.clock.advance(seconds)
            bench.worker.at_once = False
            got = results(store.durable(end_of(store.append([message()]))))
            bench.clock.advance(2)
            assert got == []
            bench.worker.at_once = True
            bench.worker.work()
            assert got == [None]
        bench.clock.advance(10)


def test_each_shortage_of_descriptors_is_reported_once_and_ends(make: Callable[..., Bench], logged: Logged) -> None:
    bench = make()
    store = bench.open()
    store.start()
    for number in ROUNDS:
        bench.disk.faults.sync_error = errno.EMFILE
        for _ in range(3):
            (error,) = results(store.durable(end_of(store.append([message()]))))
            assert isinstance(error, StoreUnwritable)
            turns(bench.clock, 2)
        bench.disk.faults.sync_error = None
        turns(bench.clock, 2)
        assert results(store.durable(end_of(store.append([message()])))) == [None]
        assert count(logged, "the commit log cannot be synced to the disk now; raise the limit") == number


def test_queues_and_checkpoints_that_fail_again_are_reported_and_written_again(
    make: Callable[..., Bench], logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    store = bench.open()
    store.start()
    boot = (bench.root / "abort").read_bytes()
    write = bench.disk.write

    def no_room(path: str, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    def checkpoint() -> bytes:
        return (bench.root / "checkpoint").read_bytes()

    before = b""
    for number in ROUNDS:
        store.append([message()])
        turns(bench.clock, 0.5)
        bench.disk.faults.sync_error, bench.disk.faults.failing = errno.EIO, "consumequeue"
        turns(bench.clock, 5)
        assert (bench.root / "abort").read_bytes() != boot
        bench.disk.faults.sync_error = None
        turns(bench.clock, 5)
        assert (bench.root / "abort").read_bytes() == boot
        assert checkpoint() != before
        before = checkpoint()
        store.append([message()])
        monkeypatch.setattr(bench.disk, "write", no_room)
        turns(bench.clock, 5)
        assert checkpoint() == before
        monkeypatch.setattr(bench.disk, "write", write)
        turns(bench.clock, 5)
        assert checkpoint() != before
        before = checkpoint()
        for text in ("consume queues or index cannot be synced", "are synced to the disk again"):
            assert count(logged, text) == number
        assert count(logged, "checkpoint cannot be written") == number


# Memory and files


def test_each_lack_of_memory_for_the_pool_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    pool = Pool(tmp_path / "store", transient_store_pool_size=20, fast_fail_if_no_buffer_in_store_pool=True)
    pool.append(b"first")
    make_buffer = pool.bench.disk.make_buffer

    def no_memory(_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    for number in ROUNDS:
        batch = [b"x" * 1000] * (150 * number)  # of which each needs more buffers than the one before
        monkeypatch.setattr(pool.bench.disk, "make_buffer", no_memory)
        for _ in range(2):
            with pytest.raises(StoreBusy, match="there is no memory"):
                pool.append(*batch)
        monkeypatch.setattr(pool.bench.disk, "make_buffer", make_buffer)
        pool.append(*batch)
        turns(pool.bench.clock, 1)
        assert count(logged, "there is no memory for a buffer") == number


def test_few_messages_and_many_are_committed_in_their_times_again_and_again(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "store")
    sent = 0
    for _ in ROUNDS:
        pool.append(b"few")
        turns(pool.bench.clock, 0.19)
        assert len(pool.bodies()) == sent
        turns(pool.bench.clock, 0.02)
        assert len(pool.bodies()) == sent + 1
        pool.append(*[b"x" * 1500] * 20)
        turns(pool.bench.clock, 0.05)
        assert len(pool.bodies()) == sent + 21
        turns(pool.bench.clock, 5)
        sent += 21


def test_segments_that_cannot_be_prepared_again_are_reported_again(tmp_path: Path, logged: Logged) -> None:
    disk, worker = FaultyDisk(), SteppedWorker()
    source = SegmentSource(disk, worker, str(tmp_path), 8192)
    for number in ROUNDS:
        disk.faults.room = 0
        for _ in range(2):
            source.prepare(8192 * number)
        disk.faults.room = None
        source.prepare(8192 * number)
        source.acquire(8192 * number)
        assert count(logged, "the next segment cannot be prepared") == number
        assert count(logged, "segments are prepared again") == number


def test_a_segment_that_is_made_again_is_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a log that begins anew at the offset where it had begun before."""
    monkeypatch.setattr(segment, "FILL_BYTES", 4096)
    monkeypatch.setattr(segment, "FILL_SYNC_BYTES", 8192)
    worker = SteppedWorker()
    source = SegmentSource(FaultyDisk(), worker, str(tmp_path), 8192)
    for number in ROUNDS:
        if number == 1:
            source.prepare(0)
        worker.at_once = False
        file = source.acquire(0)
        source.use(file, None)
        source.claim(1000)
        assert len(worker.waiting) == (number > 1), "one that was prepared is filled"
        worker.at_once = True
        worker.work()
        file.close()
        shutil.move(file.path, tmp_path / f"former{number}")


def test_a_table_that_cannot_be_written_again_is_reported_again_and_written(tmp_path: Path, logged: Logged) -> None:
    disk = FaultyDisk()
    file = JsonFile(str(tmp_path / "config" / "table.json"), InlineWorker(), disk)
    for number in ROUNDS:
        disk.faults.synced_directories.clear()
        (tmp_path / "config").write_text("no directory")
        for _ in range(2):
            file.is_dirty = True
            assert results(file.save_changes(lambda: b"lost").addCallback(lambda _: None)) == [None]
            assert file.is_dirty
        (tmp_path / "config").unlink()
        file.retry()
        assert (tmp_path / "config" / "table.json").read_bytes() == b"lost"
        assert str(tmp_path) in disk.faults.synced_directories, "the directory is a new one"
        file.save_changes(partial(bytes, [number]))
        assert (tmp_path / "config" / "table.json").read_bytes() == bytes([number])
        assert not file.is_dirty
        assert count(logged, "table.json could not be written") == number
        assert count(logged, "is written again") == number
        shutil.rmtree(tmp_path / "config")


# Dispatch


def test_consume_queues_that_cannot_be_written_again_refuse_messages_again(
    make: Callable[..., Bench], logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    store = bench.open()
    store.start()
    create = bench.disk.create_mapped

    def no_room(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    for number in ROUNDS:
        monkeypatch.setattr(bench.disk, "create_mapped", no_room)
        store.append([message(f"T{number}")])
        turns(bench.clock, 3)
        with pytest.raises(StoreUnwritable, match="a consume queue or the index cannot be written"):
            store.append([message(f"T{number}")])
        monkeypatch.setattr(bench.disk, "create_mapped", create)
        turns(bench.clock, 3)
        assert store.max_offset(f"T{number}", 0) == 1
        assert count(logged, "dispatch is waiting for the disk, and messages are refused") == number
        assert count(logged, "dispatch continues, messages are accepted again") == number
        # Those who wait for messages have them without delay again.
        store.is_awaited_by({(f"T{number}", 0): "somebody"})
        store.append([message(f"T{number}")])
        bench.clock.advance(0)
        assert store.max_offset(f"T{number}", 0) == 2
        turns(bench.clock, 3)
