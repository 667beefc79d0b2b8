"""Very many files are synced some at a time, and no error is missed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from mqbroker.store.disk import is_shortage, sync_each
from mqbroker.store.os_disk import OsDisk
from tests.store.harness import Bench, message, stop, turns

COUNT = 200


def test_some_wait_at_a_time() -> None:
    met = threading.Barrier(4)
    disk = OsDisk()
    done: list[int] = []

    def act(item: int) -> None:
        if item < 4:
            met.wait(60)
        done.append(item)

    assert disk.together(act, range(COUNT)) == [None] * COUNT
    assert sorted(done) == list(range(COUNT))


@pytest.mark.parametrize("count", [0, 1, 15, COUNT])
def test_each_is_done_without_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    assert OsDisk().together(done.append, range(count)) == [None] * count
    assert done == list(range(count))


def test_all_that_fail_are_told() -> None:
    def sync(item: int) -> None:
        if item in (3, 99, 150):
            raise OSError(errno.EMFILE if item == 99 else errno.EIO, "no", str(item))
        if item == 7:
            raise FileNotFoundError(str(item))

    failed = sync_each(OsDisk(), sync, range(COUNT))
    assert [(item, is_shortage(error)) for item, error in failed] == [(3, False), (99, True), (150, False)]


def test_little_more_is_tried_after_one_that_failed() -> None:
    tried: list[int] = []

    def sync(item: int) -> None:
        tried.append(item)
        raise OSError(errno.EIO, "no")

    sync_each(OsDisk(), sync, range(100_000))
    assert len(tried) < 2000


def test_a_mistake_in_what_is_done_is_raised() -> None:
    def act(item: int) -> None:
        if item == 150:
            raise KeyError(item)

    with pytest.raises(KeyError):
        OsDisk().together(act, range(COUNT))


def test_all_files_whose_sync_failed_are_stored_again(make: Callable[..., Bench]) -> None:
    bench = make()
    store = bench.open()
    store.start()
    faults = bench.disk.faults
    faults.sync_error, faults.failing = errno.EIO, "consumequeue"
    for topic in ("A", "B", "C"):
        store.append([message(topic)])
    store.dispatch_now()
    turns(bench.clock, 2)
    assert (bench.root / "abort").read_bytes().startswith(b"?")
    faults.sync_error = None
    faults.written.clear()
    turns(bench.clock, 2)
    assert {path.split("/")[-3] for path in faults.written} == {"A", "B", "C"}
    assert (bench.root / "abort").read_bytes() == bench.disk.boot
    stop(store)
    assert not (bench.root / "abort").exists()
