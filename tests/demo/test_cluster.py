"""The demo's processes: their environment, their end, and what is said of one that does not start."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from mqbroker.daemons.process import python_command
from mqbroker_demo.cluster import Cluster, Daemon, DaemonFailed, child_environ, end_group, spawn, wait_until


def test_the_users_settings_do_not_reach_the_daemons() -> None:
    environ = {"NAMESRV_ADDR": "prod:9876", "ROCKETMQ_BROKER_NAME": "x", "PATH": "/bin", "PYTHONPATH": "/mine"}
    found = child_environ(environ)
    assert found["PATH"] == "/bin"
    assert set(found) == {"PATH", "PYTHONPATH"}
    assert found["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]


def test_another_package_of_the_name_in_the_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqbroker").mkdir()
    (tmp_path / "mqbroker" / "__init__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    process = spawn(python_command("mqbroker.cli", "--version"), tmp_path / "log", child_environ(os.environ))
    assert process.wait() == 0
    assert "mq, version" in (tmp_path / "log").read_text()


def test_a_daemon_that_ends_at_its_start_is_told_with_its_last_line(tmp_path: Path) -> None:
    daemon = Daemon("broker-x", "mqbroker.daemons.broker", tmp_path, {"brokerName": "a/b"})
    with pytest.raises(DaemonFailed, match=r"broker-x ended with 1 at its start: .*brokerName"):
        asyncio.run(daemon.start())
    assert daemon.pid is None
    asyncio.run(daemon.stop())


def test_what_was_never_started_is_stopped_all_the_same(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asyncio.run(cluster.stop())
    cluster.kill()


def test_a_group_ends_with_its_leader(tmp_path: Path) -> None:
    """The leader ends on the signal, its child ignores it; both are gone afterwards."""
    child = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    leader = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = spawn([sys.executable, "-c", leader], tmp_path / "log", os.environ, piped=True)
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    try:
        end_group(process)
        assert process.returncode is not None
        assert asyncio.run(wait_until(lambda: is_gone(child_pid), 5))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child_pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """A zombie that nobody has waited for counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
