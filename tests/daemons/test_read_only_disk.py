"""A store on a file system that is mounted for reading only: it can be looked at, and a broker names it in one line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemons.permits import need
from tests.store.harness import make_bench
from tests.store.offline.stores import fill, picture

MOUNT = "mount -t tmpfs tmpfs {0}.rw && cp -a {1}/. {0}.rw && mount --bind {0}.rw {0} && mount -o remount,bind,ro {0}"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a module inside a mount namespace in which `store` is a whole store that can only be read."""
    store = tmp_path / "store"
    for path in (store, tmp_path / "store.rw"):
        path.mkdir()
    made = make_bench(tmp_path / "made")
    fill(made, 5)
    mount = MOUNT.format(store, made.root)
    need("a read-only mount", ["unshare", "-m", "sh", "-c", f"{mount} && ! touch {store}/x 2>/dev/null"])

    def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "-", sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    return run_module


def test_it_can_be_checked_and_printed(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    checked = run("mqbroker.cli", "store", "check", store)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "result     clean")
    dumped = run("mqbroker.cli", "store", "dump", store)
    assert (dumped.returncode, len(dumped.stdout.splitlines())) == (0, 5)
    planned = run("mqbroker.cli", "store", "repair", store)
    assert (planned.returncode, planned.stdout.splitlines()[-1]) == (0, "nothing to do")


def test_a_repair_says_in_one_line_that_it_cannot_be_written(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    ended = run("mqbroker.cli", "store", "repair", str(tmp_path / "store"), "--write")
    assert ended.returncode == 1
    assert "Read-only file system" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_broker_says_in_one_line_that_it_cannot_be_written(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(f"storePathRootDir={tmp_path}/store\nlistenPort=0\nhaListenPort=0\nbindAddress=127.0.0.1\n")
    ended = run("mqbroker.daemons.broker", "-c", str(settings), "--log-file", str(tmp_path / "log"))
    assert ended.returncode != 0
    why = "Read-only file system; a broker must be able to write there: correct the mount or the permissions"
    assert ended.stderr.startswith(f"mqbroker: {tmp_path}/store/lock: {why}")
    assert len(ended.stderr.splitlines()) == 1
    assert picture(tmp_path / "store").keys() == {str(tmp_path / "store")}  # nothing was mounted out here
