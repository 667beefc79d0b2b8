"""Reads of what is not in memory: fetched by the worker, never touched before; and disks that cannot read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mqbroker.errors import StoreBusy, StoreError
from mqbroker.store import page_loader as module
from mqbroker.store.disk import IMappedFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.page_loader import (
    AHEAD_BYTES,
    AROUND_BYTES,
    FileRange,
    PageLoader,
    Unreadable,
)
from mqbroker.store.worker import InlineWorker
from tests.fakes import Faults, FaultyFile, SteppedWorker

# Gets


# Disks that cannot read


# Deletion


# Queries


# Bounds


def cold_file(tmp_path: Path, size: int) -> tuple[IMappedFile, Faults]:
    faults = Faults(is_cold=True)
    return FaultyFile(OsDisk().create_mapped(str(tmp_path / "file"), size), faults), faults


def test_a_few_fetches_run_and_a_bounded_number_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    worker = SteppedWorker()
    worker.at_once = False
    reads = PageLoader(worker)
    file, _ = cold_file(tmp_path, 4096)
    done: list[Unreadable] = []
    for _ in range(5):
        reads.fetch([FileRange(file, 0, 10)]).addCallback(done.append)
    assert len(worker.waiting) == 2
    with pytest.raises(StoreBusy):
        reads.fetch([FileRange(file, 0, 10)])
    while worker.waiting:
        worker.step()
    assert done == [[]] * 5
    reads.fetch([FileRange(file, 0, 10)]).addCallback(done.append)
    worker.step()
    assert len(done) == 6
    file.close()


def test_stopping_waits_for_what_runs_and_refuses_what_waits(tmp_path: Path) -> None:
    worker = SteppedWorker()
    worker.at_once = False
    reads = PageLoader(worker)
    file, _ = cold_file(tmp_path, 4096)
    done: list[Unreadable] = []
    failed: list[str] = []
    for _ in range(3):
        reads.fetch([FileRange(file, 0, 10)]).addCallbacks(
            done.append, lambda failure: failed.append(failure.getErrorMessage())
        )
    stopped: list[None] = []
    reads.stop().addCallback(stopped.append)
    assert failed == ["the store is stopping"]
    assert not stopped
    worker.step()
    worker.step()
    assert (done, stopped) == ([[], []], [None])
    with pytest.raises(StoreError):
        reads.fetch([FileRange(file, 0, 10)])
    file.close()


# Reading ahead


def test_what_is_read_from_front_to_back_is_fetched_ahead(tmp_path: Path) -> None:
    worker = SteppedWorker()
    worker.at_once = False
    reads = PageLoader(worker)
    size = 40 * 1024 * 1024
    file, faults = cold_file(tmp_path, size)
    waits = 0
    for at in range(0, 32 * 1024 * 1024, 8192):
        if not file.is_resident(at, 8192):
            waits += 1
            reads.fetch([FileRange(file, at, 8192)])
            worker.step()
        reads.touched(file, at)
        while worker.waiting:
            worker.step()
    assert waits == 2
    assert max(size for _, _, size in faults.fetches) == AHEAD_BYTES
    assert {offset for _, offset, _ in faults.fetches} > {0, AROUND_BYTES}
    file.close()


def test_what_is_read_here_and_there_is_not_fetched_ahead(tmp_path: Path) -> None:
    reads = PageLoader(InlineWorker())
    file, faults = cold_file(tmp_path, 40 * 1024 * 1024)
    for at in (30, 20, 10, 0, 15, 5):
        reads.fetch([FileRange(file, at << 20, 100)])
        reads.touched(file, at << 20)
    assert max(size for _, _, size in faults.fetches) == AROUND_BYTES
    file.close()


# The real disk


@pytest.mark.disk
def test_the_real_disk_fetches_what_was_dropped_from_memory(tmp_path: Path) -> None:
    disk = OsDisk()
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1024 * 1024)
    file = disk.open_mapped(str(path), 1024 * 1024)
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_resident(512 * 1024, 4096):
        pytest.skip("this file system keeps its files in memory")
    file.fetch(512 * 1024, 10_000)
    assert file.is_resident(512 * 1024, 10_000)
    file.close()


def test_fetching_notices_a_file_that_was_cut_off(tmp_path: Path) -> None:
    disk = OsDisk()
    path = tmp_path / "file"
    path.write_bytes(b"x" * 16384)
    file = disk.open_mapped(str(path), 16384)
    file.sync()  # what is not on the disk yet can seem to be in memory even after that
    os.truncate(path, 4096)
    file.fetch(0, 4096)
    with pytest.raises(OSError, match="cut off") as raised:
        file.fetch(0, 4097)
    assert raised.value.errno == errno.EIO
    assert not file.is_resident(8192, 10)
    assert file.is_resident(0, 10)
    file.close()
