"""The real disk and worker: what the interfaces promise, a full file system, threads."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from zope.interface.verify import verifyObject

from mqbroker.store.disk import DiskSpace, IDisk, ILockedFile, IMappedFile
from mqbroker.store.os_disk import FOLIO_BYTES, OsDisk
from mqbroker.store.worker import InlineWorker, IWorker, SerialWorker, ThreadWorker
from tests.fakes import FaultyDisk, SteppedWorker

FULL_DISK = """
import sys
from twisted.internet.task import Clock
from mqbroker.config import StoreSettings
from mqbroker.errors import StoreUnwritable
from mqbroker.store import open_store
from mqbroker.store.os_disk import FOLIO_BYTES, OsDisk
from mqbroker.store.worker import InlineWorker

settings = StoreSettings(
    store_path_root_dir=sys.argv[1], mapped_file_size_commit_log=1024 * 1024, max_hash_slot_num=100, max_index_num=400,
    disk_space_warning_level_ratio=100, disk_free_bytes_min=0, clean_file_forcibly_enable=False,
)
clock = Clock()
store = open_store(settings, disk=OsDisk(), clock=clock, worker=InlineWorker(), store_host=bytes(8))
store.start()
count = 0
try:
    while True:
        row = (b"T", count % 50, 0, 0, 0, bytes(8), 0, 0, b"x" * 1000, b"KEYS\\x01k%d" % count)
        store.append([row] * 10)
        count += 10
        clock.advance(0.1)
        if store._commit_log.why_refused:
            raise StoreUnwritable(store._commit_log.why_refused)
except StoreUnwritable as error:
    print(count, error)
assert count > 1000
assert sum(store.max_offset("T", i) for i in range(50)) + (store.log_end - store.stats.dispatched) // 1000 >= count
assert store.get("T", 0, 0, 32).count
"""


def test_the_interfaces_are_kept(tmp_path: Path) -> None:
    for disk in (OsDisk(), FaultyDisk()):
        assert verifyObject(IDisk, disk)
        assert verifyObject(IMappedFile, disk.create_mapped(str(tmp_path / type(disk).__name__), 100))
        assert verifyObject(ILockedFile, disk.lock(str(tmp_path / f"lock{type(disk).__name__}")))
    assert verifyObject(IWorker, InlineWorker())
    assert verifyObject(IWorker, SteppedWorker())


def test_a_new_file_is_sparse_until_allocated_and_cleared_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = OsDisk().create_mapped(str(path), 1024 * 1024)
    assert path.stat().st_blocks == 0
    file.allocate(0, 65536)
    assert path.stat().st_blocks * 512 >= 65536
    file.buffer[0:8] = b"12345678"
    file.buffer[65528:65536] = b"87654321"
    assert bytes(file.view[:8]) == b"12345678"
    file.clear_from(4)
    assert path.read_bytes() == b"1234".ljust(1024 * 1024, b"\0")
    with pytest.raises(TypeError):
        file.view[0] = 1
    with pytest.raises(FileExistsError):
        OsDisk().create_mapped(str(path), 100)


def test_a_new_file_has_its_size_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[list[str]] = []
    ftruncate = os.ftruncate

    def watch(fd: int, size: int) -> None:
        sized.append(os.listdir(tmp_path))
        ftruncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", watch)
    path = str(tmp_path / "file")
    file = OsDisk().create_mapped(path, 8192)
    assert sized == [[]]
    assert OsDisk().file_size(path) == 8192
    assert f" {path}\n" in Path("/proc/self/maps").read_text()
    file.close()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_file_system_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    check_creation(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.EXDEV])
def test_a_machine_where_an_open_file_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number), *arguments)

    monkeypatch.setattr(os, "link", refuse)
    check_creation(tmp_path / "file")


def check_creation(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    OsDisk().create_mapped(str(path), 8192).close()
    assert path.stat().st_size == 8192
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError) as caught:
        OsDisk().create_mapped(str(path), 100)
    assert caught.value.filename == str(path)
    assert path.stat().st_size == 8192
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("call", "passed"), [("ftruncate", 0), ("link", 0), ("open", 0), ("open", 1)])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_file_that_cannot_be_made_leaves_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, passed: int, number: int
) -> None:
    real = getattr(os, call)
    calls = iter([True] * passed)

    def fail(*arguments: Any, **options: Any) -> Any:
        if not next(calls, False):
            raise OSError(number, os.strerror(number), *arguments[: call == "open"])
        return real(*arguments, **options)

    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path / "file"
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        OsDisk().create_mapped(str(path), 8192)
    monkeypatch.undo()
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("keep_open", [False, True])
def test_bytes_stored_are_in_the_file_for_others(tmp_path: Path, keep_open: bool) -> None:
    path = tmp_path / "file"
    disk = OsDisk()
    file = disk.create_mapped(str(path), 4096, keep_open=keep_open)
    file.allocate(0, 4096)
    file.buffer[10:15] = b"hello"
    file.sync()
    view = file.view[10:15]
    file.close()
    file.close()
    assert disk.open_mapped(str(path), 4096).view[10:15] == b"hello" == view
    assert disk.file_size(str(path)) == 4096


def test_zeros_that_were_written_are_in_the_file_and_in_memory(tmp_path: Path) -> None:
    size = 3 * 1024 * 1024 + 8192  # no multiple of a piece
    file = OsDisk().create_mapped(str(tmp_path / "file"), size, keep_open=True)
    file.allocate(0, size)
    file.write_zeros(0, size)
    assert file.is_resident(0, size)
    assert bytes(file.view) == bytes(size)
    file.buffer[size - 1] = 7
    file.sync()
    assert (tmp_path / "file").read_bytes() == bytes(size - 1) + b"\x07"
    file.close()


def test_zeros_go_to_the_file_that_was_made_not_to_another_of_its_name(tmp_path: Path) -> None:
    """Who needs a segment before it is ready makes another in its place."""
    file = OsDisk().create_mapped(str(tmp_path / "file"), 8192, keep_open=True)
    (tmp_path / "file").unlink()
    (tmp_path / "file").write_bytes(b"x" * 8192)
    file.write_zeros(0, 8192)
    assert (tmp_path / "file").read_bytes() == b"x" * 8192
    file.close()


@pytest.mark.parametrize("size", [512 * 1024 + 100, 100])
def test_zeros_are_written_to_a_file_that_is_no_multiple_of_blocks(tmp_path: Path, size: int) -> None:
    file = OsDisk().create_mapped(str(tmp_path / "file"), size, keep_open=True)
    file.write_zeros(0, size)
    file.sync()
    assert (tmp_path / "file").read_bytes() == bytes(size)
    assert (tmp_path / "file").stat().st_blocks * 512 >= size
    file.close()


def test_an_error_of_writing_zeros_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk().create_mapped(str(tmp_path / "file"), 8192, keep_open=True)

    def refuse(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="file") as raised:
        file.write_zeros(0, 8192)
    assert raised.value.errno == errno.EIO
    file.close()


def test_zeros_are_written_where_told_and_nowhere_else(tmp_path: Path) -> None:
    size, start, end = 8 * FOLIO_BYTES, FOLIO_BYTES + 77, 5 * FOLIO_BYTES + 99
    (tmp_path / "file").write_bytes(b"x" * size)
    file = OsDisk().open_mapped(str(tmp_path / "file"), size)
    file.write_zeros(start, end - start)
    assert (tmp_path / "file").read_bytes() == b"x" * start + bytes(end - start) + b"x" * (size - end)
    file.close()


def test_small_files_and_directories(tmp_path: Path) -> None:
    disk = OsDisk()
    directory = str(tmp_path / "a" / "b")
    assert disk.names(directory) == []
    disk.make_directories(directory)
    disk.make_directories(directory)
    path = os.path.join(directory, "small")
    disk.write(path, b"content")
    disk.write(path, b"CON")
    assert (disk.read(path), disk.names(directory)) == (b"CONtent", ["small"])
    assert (disk.exists(path), disk.is_directory(path), disk.is_directory(directory)) == (True, False, True)
    disk.remove(path)
    disk.remove_tree(str(tmp_path / "a"))
    disk.remove_tree(str(tmp_path / "a"))
    assert not disk.exists(directory)
    assert disk.memory_bytes() > 1024 * 1024
    assert disk.boot_id() == disk.boot_id()


def test_a_full_file_system_refuses_and_kills_nobody(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    script = 'mount -t tmpfs -o size=6m none "$1" || exit 77; exec "$2" -c "$3" "$1/store"'
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(mount), sys.executable, FULL_DISK],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout


def test_the_thread_worker_runs_elsewhere_and_answers_through_the_reactor() -> None:
    pool = ThreadPool(0, 1)
    reactor = object()
    given: list[object] = []

    def defer_to_pool(*arguments: object) -> Deferred[object]:
        given.extend(arguments[:2])
        result: Deferred[object] = Deferred()
        done = threading.Event()
        pool.callInThreadWithCallback(lambda ok, value: (result.callback(value), done.set()), arguments[2])  # type: ignore[arg-type]
        assert done.wait(10)
        return result

    pool.start()
    try:
        got: list[object] = []
        ThreadWorker(defer_to_pool, reactor, pool).run(threading.get_ident).addCallback(got.append)
        assert given == [reactor, pool]
        assert got != [threading.get_ident()]
    finally:
        pool.stop()


def test_work_for_which_no_thread_can_be_started_fails() -> None:
    def defer_to_pool(*_: object) -> Deferred[object]:
        raise RuntimeError("can't start new thread")

    worker = ThreadWorker(defer_to_pool, object(), ThreadPool(0, 1))
    failed: list[Any] = []
    worker.run(threading.get_ident).addErrback(failed.append)
    assert [str(failure.value) for failure in failed] == ["can't start new thread"]


def test_the_serial_worker_has_one_thread_and_answers_through_the_reactors() -> None:
    delivered: SimpleQueue[Callable[[], object]] = SimpleQueue()
    worker = SerialWorker(lambda function, value: delivered.put(lambda: function(value)))
    assert verifyObject(IWorker, worker)
    thread = threading.Thread(target=worker.serve)
    threads: list[object] = []
    failures: list[Failure] = []

    def fail() -> None:
        raise OSError(errno.EIO, "no")

    worker.run(threading.get_ident).addCallback(threads.append)
    worker.run(fail).addErrback(failures.append)
    worker.run(threading.get_ident).addCallback(threads.append)
    worker.stop()
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert (threads, failures) == ([], [])  # nothing is told on the worker's thread
    for _ in range(3):
        delivered.get(timeout=10)()
    assert [failure.value.args[0] for failure in failures] == [errno.EIO]
    assert threads == [thread.ident, thread.ident]


def test_the_inline_worker_answers_at_once() -> None:
    got: list[int] = []
    failures: list[Failure] = []

    def fail() -> None:
        raise OSError(errno.EIO, "no")

    InlineWorker().run(lambda: 5).addCallback(got.append)
    InlineWorker().run(fail).addErrback(failures.append)
    assert got == [5]
    assert [failure.value.args[0] for failure in failures] == [errno.EIO]


@pytest.mark.disk
def test_what_was_dropped_from_memory_is_seen_and_fetched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = OsDisk().create_mapped(str(path), 1024 * 1024, keep_open=True)
    file.allocate(0, file.size)
    file.buffer[:] = b"x" * file.size
    assert file.is_resident(5000, 10_000)
    file.sync()
    file.close()
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    file = OsDisk().open_mapped(str(path), 1024 * 1024)
    if file.is_resident(0, file.size):
        pytest.skip("this file system keeps all files in memory")
    assert not file.is_resident(5000, 10_000)
    file.fetch(5000, 10_000)
    assert file.is_resident(5000, 10_000)
    assert not file.is_resident(0, file.size)


def test_bytes_written_at_an_offset_show_in_the_mapping(tmp_path: Path) -> None:
    file = OsDisk().create_mapped(str(tmp_path / "file"), 8192)
    file.allocate(0, 8192)
    file.write_at(4000, memoryview(b"y" * 200))
    assert bytes(file.view[3999:4201]) == b"\0" + b"y" * 200 + b"\0"


def test_a_pinned_file_is_locked_in_memory(tmp_path: Path) -> None:
    file = OsDisk().create_mapped(str(tmp_path / "file"), 65536)
    file.allocate(0, 65536)
    try:
        file.pin()
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
            raise
        pytest.skip(f"locking memory is not permitted here: {error}")
    assert _locked_kib(file.path) == 64
    file.unpin()
    assert _locked_kib(file.path) == 0
    file.close()


def _locked_kib(path: str) -> int:
    """Of the mappings of one file: others of this process may be locked as well."""
    _, _, entry = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return int(entry.partition("Locked:")[2].split()[0])


def test_a_file_opened_to_be_read_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"z" * 4096)
    path.chmod(0o400)
    file = OsDisk().open_mapped(str(path), 4096, read_only=True)
    assert bytes(file.view) == b"z" * 4096
    with pytest.raises(TypeError):
        file.buffer[0] = 1
    file.close()


def test_the_room_on_a_disk_is_told_as_java_counts_it(tmp_path: Path) -> None:
    space = OsDisk().space(str(tmp_path))
    usage = shutil.disk_usage(tmp_path)
    assert space.used_bytes == pytest.approx(usage.used, abs=64 * 1024 * 1024)
    assert space.available_bytes == pytest.approx(usage.free, abs=64 * 1024 * 1024)
    assert DiskSpace(75, 25).used_percent == 75
    assert DiskSpace(751, 249).used_percent == 76
    assert DiskSpace(0, 0).used_percent == 0


def test_a_rename_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    OsDisk().rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "a"}


def test_storing_a_byte_where_zeros_were_written_dirties_few_pages(tmp_path: Path) -> None:
    """A file system may cache the file by folios of many pages, which are written whole at each sync."""
    size = 64 * 1024 * 1024
    file = OsDisk().create_mapped(str(tmp_path / "segment"), size, keep_open=True)
    file.allocate(0, size)
    file.write_zeros(0, size)
    file.sync()
    places = range(size // 2, size, 4 * 1024 * 1024)
    before = dirtied_bytes()
    for place in places:
        file.buffer[place] = 1
    assert dirtied_bytes() - before <= len(places) * FOLIO_BYTES
    file.close()


def dirtied_bytes() -> int:
    """Of this process: what it has made differ from the disk. As proc(5) says of write_bytes."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError as error:
        pytest.skip(f"the system does not tell: {error}")
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes:")))
