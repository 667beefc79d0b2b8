"""The lock: first of all acts, one holder at a time, known to Java."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqbroker.errors import StoreLocked
from mqbroker.store.layout import lock_file
from tests.store.harness import Bench, message, stop, tree

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_opening_is_refused_by_path_and_process_and_touches_nothing(bench: Bench) -> None:
    store = bench.open()
    store.append([message()])
    before = tree(bench.root)
    with pytest.raises(StoreLocked) as raised:
        bench.open()
    assert raised.value.path == str(bench.root / "lock")
    assert f"process {os.getpid()} has it open" in str(raised.value)
    assert tree(bench.root) == before
    # The failed attempt did not take the lock away from the holder.
    with pytest.raises(StoreLocked):
        bench.open()
    stop(store)
    bench.opened.remove(store)
    assert bench.open().max_offset("T", 0) == 1


def test_a_lock_as_java_takes_it_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match=f"process {holder.pid} has it open"):
            lock_file(str(path))
        holder.communicate()
    lock_file(str(path)).release()
    assert path.read_bytes() == b"lock\n%d\n" % os.getpid()


def test_java_is_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file(str(path))
    assert subprocess.run(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.DEVNULL, capture_output=True
    ).returncode
    held.release()
    held.release()
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_a_store_that_cannot_be_opened_is_not_left_locked(bench: Bench) -> None:
    (bench.root / "commitlog").mkdir(parents=True)
    foreign = bench.root / "commitlog" / "notes.txt"
    foreign.write_text("mine")
    for _ in range(2):
        with pytest.raises(Exception, match=r"notes.txt is damaged at byte 0: not a segment"):
            bench.open()
    assert foreign.read_text() == "mine"
    assert not (bench.root / "abort").exists()
