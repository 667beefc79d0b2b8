"""Directories a broker must not take for its store: each is named in one clear error, and stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mqbroker.errors import MQError, StoreDamaged, StoreError, StoreLocked, StoreUnknown, StoreUnwritable
from mqbroker.store.layout import lock_file
from mqbroker.store.os_disk import OsDisk
from tests.store.harness import SMALL, Bench, message, now, stop, turns
from tests.store.offline.stores import check, picture

SEGMENT = SMALL["mapped_file_size_commit_log"]


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * SEGMENT:020d}"


def fill(bench: Bench) -> None:
    """Four segments, queues of two files, and an index; stopped."""
    store = bench.open()
    store.append([message(body=b"%05d" % number * 600) for number in range(150)])
    store.start()
    turns(bench.clock, 1)
    stop(store)
    bench.opened.clear()


def unchanged(root: Path) -> dict[str, object]:
    """All but the lock, which says who was there last, and what is changed by its making."""
    return {path: state[1:] for path, state in picture(root).items() if path not in (str(root), str(root / "lock"))}


def later_record(root: Path) -> None:
    """Put a record of 5.x at the end of the log, which looks torn to whoever does not know it."""
    end = check(root).totals.log_end
    with open(log_file(root, end // SEGMENT), "r+b") as file:
        file.seek(end % SEGMENT)
        file.write(b"\0\0\0\x80\xda\xa3\x20\xab")
    (root / "abort").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda root: (root / "dledger-n0").mkdir(), StoreUnknown, "DLedger"),
        (lambda root: (root / "timerwheel").write_bytes(b""), StoreUnknown, "timer wheel"),
        (lambda root: (root / "consumequeue/CURRENT").write_bytes(b""), StoreUnknown, "RocksDB"),
        (later_record, StoreUnknown, r"a record of RocketMQ 5\.x"),
        (lambda root: log_file(root, 1).unlink(), StoreDamaged, "is missing: restore it"),
        (lambda root: (root / "commitlog/core.5").write_bytes(b""), StoreDamaged, "not a segment.*mq store check"),
        (lambda root: (root / "commitlog/lost").mkdir(), StoreDamaged, "not a segment"),
        (lambda root: (root / "consumequeue/x").write_bytes(b""), StoreDamaged, "not a directory of a topic.*move"),
        (lambda root: (root / "consumequeue/T/x").mkdir(), StoreDamaged, "not a directory of a queue.*move"),
        (lambda root: (root / "consumequeue/T/7").write_bytes(b""), StoreDamaged, "not a directory of a queue"),
        (lambda root: (root / "consumequeue/T/0/x").write_bytes(b""), StoreDamaged, "not a consume queue file"),
        (lambda root: (root / "consumequeue/T/0" / f"{0:020d}").unlink() or (root / "consumequeue/T/0" / f"{1:020d}")
         .write_bytes(bytes(2000)), StoreDamaged, "not a consume queue file"),
        (lambda root: (root / "consumequeue/T/0" / f"{0:020d}").write_bytes(b"short"), StoreDamaged, "5 bytes"),
        (lambda root: (shutil.rmtree(root / "index"), (root / "index").write_bytes(b"")), StoreUnknown, "index is no"),
    ],
)  # fmt: skip
def test_a_spoiled_store_is_named_and_left_as_it_is(
    bench: Bench, spoil: Callable[[Path], object], error: type[StoreError], says: str
) -> None:
    fill(bench)
    spoil(bench.root)
    before = unchanged(bench.root)
    with pytest.raises(error, match=says) as raised:
        bench.open()
    assert "\n" not in str(raised.value)
    assert str(bench.root) in str(raised.value)
    after = unchanged(bench.root)
    after.pop(str(bench.root / "abort"), None)
    before.pop(str(bench.root / "abort"), None)
    assert after == before


def test_a_directory_of_something_else_is_not_made_a_store(bench: Bench) -> None:
    (bench.root / "Documents").mkdir(parents=True)
    before = picture(bench.root)
    with pytest.raises(StoreUnknown, match=r"holds Documents/ and nothing of a store; set storePathRootDir"):
        bench.open()
    assert picture(bench.root) == before


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ("commitlog", f"{0:020d}"), ("consumequeue/T/0", f"{0:020d}"), ("index", r"\d{17}"), ("config", "topics.json"),
    ],
)  # fmt: skip
def test_a_directory_within_a_store_is_not_made_one(bench: Bench, inner: str, name: str) -> None:
    fill(bench)
    (bench.root / "config").mkdir(exist_ok=True)
    (bench.root / "config" / "topics.json").write_text("{}")
    before = unchanged(bench.root)
    with pytest.raises(StoreUnknown, match=f"{name} belongs into a directory of a store; set storePathRootDir to the"):
        attrs.evolve(bench, root=bench.root / inner).open()
    assert unchanged(bench.root) == before


@pytest.mark.parametrize("name", [".hidden", "lost+found"])
def test_what_a_file_system_puts_there_is_no_matter(bench: Bench, name: str) -> None:
    (bench.root / name).mkdir(parents=True)
    (bench.root / "broker.log").write_bytes(b"")
    assert bench.open().log_end == 0


def test_a_file_is_no_store(bench: Bench) -> None:
    bench.root.write_bytes(b"")
    with pytest.raises(StoreUnknown, match="not a directory"):
        bench.open()


def test_another_brokers_store_is_named_with_its_process(bench: Bench) -> None:
    fill(bench)
    lock = lock_file(str(bench.root / "lock"))
    before = picture(bench.root)
    try:
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} has it open; stop that first"):
            bench.open()
    finally:
        lock.release()
    assert picture(bench.root) == before


@pytest.mark.parametrize("code", [30, 13])
def test_a_disk_that_may_only_be_read_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    fill(bench)
    before = picture(bench.root)

    def refuse(self: OsDisk, path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(type(bench.disk), "lock", refuse)
    with pytest.raises(StoreUnwritable, match=f"{os.strerror(code)}; a broker must be able to write there"):
        bench.open()
    assert picture(bench.root) == before


def test_a_foreign_file_beside_the_index_is_passed_over(bench: Bench) -> None:
    fill(bench)
    (bench.root / "index" / "00-readme").write_bytes(b"mine")
    index = {path.name for path in (bench.root / "index").iterdir()}
    store = bench.open()
    assert len(now(store).query("T", "7F0000010A2C18B4AAC27D0000000001", 10, 0, 1 << 60)) == 10
    stop(store)
    assert {path.name for path in (bench.root / "index").iterdir()} == index


def test_the_daemon_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "store" / "dledger-n0").mkdir(parents=True)
    settings = tmp_path / "broker.conf"
    settings.write_text(f"storePathRootDir={tmp_path}/store\nlistenPort=0\nhaListenPort=0\nbindAddress=127.0.0.1\n")
    before = picture(tmp_path / "store")
    ended = subprocess.run(
        [sys.executable, "-m", "mqbroker.daemons.broker", "-c", str(settings), "--log-file", str(tmp_path / "log")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode != 0
    assert ended.stderr.startswith(f"mqbroker: {tmp_path}/store is not a store of 4.9: dledger-n0/ is the log of a")
    assert len(ended.stderr.splitlines()) == 1
    assert picture(tmp_path / "store") == before


def test_each_error_is_one_of_ours() -> None:
    assert issubclass(StoreUnknown, StoreError)
    assert issubclass(StoreError, MQError)
