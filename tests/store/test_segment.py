"""Segments made ahead of time, and when that did not work out."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from mqbroker.store.disk import IMappedFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.segment import SegmentSource, segment_path
from tests.fakes import FaultyDisk, FaultyFile, SteppedWorker
from tests.store.harness import make_bench, message, stop, turns

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
    assert made.source.acquire(SIZE).path == segment_path(str(made.root), SIZE)
    assert (made.root / f"{SIZE:020d}").stat().st_ino == inode


def test_a_segment_needed_before_it_is_ready_is_made_at_once(made: Made) -> None:
    made.source.prepare(SIZE)
    file = made.source.acquire(SIZE)
    file.buffer[0:4] = b"data"
    made.worker.step()  # sees that it is not wanted any more
    assert made.names() == [f"{SIZE:020d}"]
    assert (made.root / f"{SIZE:020d}").read_bytes()[:4] == b"data"
    made.source.prepare(2 * SIZE)
    made.worker.step()
    assert made.names() == [f"{SIZE:020d}", f"{2 * SIZE:020d}"]


@pytest.mark.parametrize("moment", ["before it is there", "while names are synced"])
def test_a_name_that_is_made_while_names_are_synced_waits_for_the_next_sync(
    made: Made, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The worker syncs names at any moment of the reactor's."""
    source = made.source
    source.acquire(0)
    if moment == "before it is there":
        create = made.disk.create_mapped

        def create_after_a_sync(path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
            source.sync_names()
            return create(path, size, keep_open=keep_open)

        monkeypatch.setattr(made.disk, "create_mapped", create_after_a_sync)
        source.acquire(SIZE)
    else:
        sync = made.disk.sync_directory

        def sync_before_another(path: str) -> None:
            sync(path)
            monkeypatch.setattr(made.disk, "sync_directory", sync)
            source.acquire(SIZE)

        # The segment before it is synced by `acquire` itself: the sync that is met is the worker's.
        monkeypatch.setattr(source, "sync_names", lambda: None)
        monkeypatch.setattr(made.disk, "sync_directory", sync_before_another)
        SegmentSource.sync_names(source)
        monkeypatch.undo()
    assert source.has_new_names
    made.disk.faults.synced_directories.clear()
    source.sync_names()
    assert made.disk.faults.synced_directories == {str(made.root)}
    assert not source.has_new_names


@pytest.mark.parametrize("when", ["while it is written", "when it is whole"])
def test_a_segment_made_in_vain_is_let_go_of_by_the_worker(
    made: Made, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The reactor would be busy for long with giving back the pages of a large one."""
    closed: list[str] = []
    close = FaultyFile.close
    monkeypatch.setattr(FaultyFile, "close", lambda file: closed.append(file.path) or close(file))
    made.source.prepare(SIZE)
    function, result = made.worker.waiting.pop()
    if when == "when it is whole":
        file = function()
        made.source.acquire(SIZE)
        result.callback(file)
        assert closed == []
        made.worker.step()
    else:
        write = FaultyFile.write_zeros
        monkeypatch.setattr(FaultyFile, "write_zeros", lambda *args: made.source.acquire(SIZE) and write(*args))
        result.callback(function())
        assert made.worker.waiting == []
    assert closed == [segment_path(str(made.root), SIZE)]


def test_a_half_made_segment_is_replaced_and_its_maker_writes_elsewhere(made: Made) -> None:
    made.source.prepare(SIZE)
    function, result = made.worker.waiting.pop()
    taken: list[object] = []

    class Watching(FaultyDisk):
        def sync_directory(self, path: str) -> None:
            # The worker has written zeros but not told yet; the reactor cannot wait.
            file = made.source.acquire(SIZE)
            file.buffer[0:4] = b"data"
            taken.append(file)

    function.__self__._disk = Watching()  # type: ignore[attr-defined]
    result.callback(function())
    assert (made.root / f"{SIZE:020d}").read_bytes()[:4] == b"data"
    assert made.source.acquire(2 * SIZE) is not taken[0]


def test_a_maker_that_fails_once_its_segment_was_replaced_does_not_remove_the_new_one(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[IMappedFile] = []

    def replace(file: FaultyFile) -> None:  # a file is synced by its name, which may be gone just then
        taken.append(made.source.acquire(SIZE))
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", file.path)

    monkeypatch.setattr(FaultyFile, "sync_apart", replace)
    made.source.prepare(SIZE)
    with capturedLogs() as events:
        made.worker.step()
    assert [file.size for file in taken] == [SIZE]
    assert made.names() == [f"{SIZE:020d}"]
    assert [event for event in events if event["log_level"].name == "warn"] == []


def test_no_room_leaves_nothing_behind(made: Made) -> None:
    made.disk.faults.room = SIZE - 1
    made.source.prepare(SIZE)
    made.worker.step()
    assert made.names() == []
    with pytest.raises(OSError) as raised:
        made.source.acquire(SIZE)
    assert raised.value.errno == errno.ENOSPC
    assert made.names() == []
    made.disk.faults.room = SIZE
    made.source.acquire(SIZE)
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


class PinnedFiles:
    """Which files of a directory are kept in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self.error: OSError | None = None
        pinned = self

        def pin(file: FaultyFile) -> None:
            if pinned.error is not None:
                raise pinned.error
            pinned.names.add(Path(file.path).name)

        monkeypatch.setattr(FaultyFile, "pin", pin)
        monkeypatch.setattr(FaultyFile, "unpin", lambda file: pinned.names.discard(Path(file.path).name))


def test_warm_segments_are_kept_in_memory_while_they_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = PinnedFiles(monkeypatch)
    bench = make_bench(tmp_path / "store", mapped_file_size_commit_log=8192, warm_maped_file_enable=True)
    store = bench.open()
    store.start()
    assert pinned.names == {f"{0:020d}"}
    store.append([message(body=b"x" * 5000)])
    turns(bench.clock, 1)
    assert pinned.names == {f"{0:020d}", f"{8192:020d}"}
    store.append([message(body=b"x" * 5000)])
    assert pinned.names == {f"{8192:020d}"}
    stop(store)


def test_segments_are_not_kept_in_memory_unless_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = PinnedFiles(monkeypatch)
    store = make_bench(tmp_path / "store").open()
    stop(store)
    assert pinned.names == set()


def test_a_limit_on_locked_memory_is_said_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = PinnedFiles(monkeypatch)
    pinned.error = OSError(errno.ENOMEM, "Cannot allocate memory")
    bench = make_bench(tmp_path / "store", warm_maped_file_enable=True)
    with capturedLogs() as events:
        store = bench.open()
    assert ["ulimit -l" in event["log_format"] for event in events if event["log_level"].name == "warn"] == [True]
    store.append([message()])
    stop(store)


class WatchedDisk(OsDisk):
    """Notes when files are created by which thread; the worker's goes on only once the other has come to `reached`."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.reached = threading.Event()
        self.order: list[tuple[str, str]] = []

    def create_mapped(self, path: str, size: int, *, keep_open: bool = False) -> IMappedFile:
        who = threading.current_thread().name
        self.order.append((who, "begins"))
        if who == "worker":
            self.began.set()
            assert self.reached.wait(60)
        else:
            self.reached.set()
        try:
            return super().create_mapped(path, size, keep_open=keep_open)
        finally:
            self.order.append((who, "ends"))


class WatchedLock:
    def __init__(self, lock: Any, on_wait: Callable[[], None]) -> None:
        self._lock, self._on_wait = lock, on_wait

    def __enter__(self) -> None:
        self._on_wait()
        self._lock.acquire()

    def __exit__(self, *why: object) -> None:
        self._lock.release()


class OneThread:
    """A worker that runs its one job on a thread."""

    _result: Any = None

    def run(self, job: Callable[[], Any]) -> Deferred[Any]:
        def work() -> None:
            try:
                self._result = job()
            except OSError:
                self._result = Failure()

        self._thread = threading.Thread(target=work, name="worker")
        self._thread.start()
        self._done: Deferred[Any] = Deferred()
        return self._done

    def finish(self) -> None:
        """Wait for the job, and report how it ended."""
        self._thread.join()
        self._done.callback(self._result)


def test_a_segment_is_not_made_again_while_the_worker_makes_it(tmp_path: Path) -> None:
    disk, worker = WatchedDisk(), OneThread()
    source = SegmentSource(disk, worker, str(tmp_path), SIZE)  # type: ignore[arg-type]
    source.prepare(SIZE)
    assert disk.began.wait(60)
    job: Any = source._job
    job._making = WatchedLock(job._making, disk.reached.set)
    file = source.acquire(SIZE)
    worker.finish()
    me = threading.current_thread().name
    assert disk.order == [("worker", "begins"), ("worker", "ends"), (me, "begins"), (me, "ends")]
    assert (tmp_path / f"{SIZE:020d}").stat().st_size == SIZE
    file.close()
