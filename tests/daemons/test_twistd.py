"""What the daemons have twistd do: which reactor it runs, where it writes, and when it comes back."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.daemons.processes import DEADLINE_SECONDS, SOURCE, Process, ask, wait_for

pytestmark = pytest.mark.daemons

#: Runs twistd; the reactor's class goes to the file "reactor" before it runs.
TWISTD = """
import sys
from twisted.application import app
run_reactor = app.runReactorWithLogging

def noted(config, oldstdout, oldstderr, profiler, reactor):
    with open("reactor", "w") as file:
        file.write(type(reactor).__name__)
    run_reactor(config, oldstdout, oldstderr, profiler, reactor)

app.runReactorWithLogging = noted
sys.argv[0] = "twistd"
from twisted.scripts.twistd import run
run()
"""


def settings(tmp_path: Path) -> list[str]:
    return [
        f"--option={key}={value}"
        for key, value in {
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "storePathRootDir": tmp_path / "store",
            "mappedFileSizeCommitLog": 1024 * 1024,
            "maxHashSlotNum": 100,
            "maxIndexNum": 400,
        }.items()
    ]


@pytest.mark.parametrize("wanted", ["BusyPollReactor", "PollReactor"])
def test_the_reactor_is_that_of_the_console_scripts_unless_another_is_asked_for(
    start: Callable[..., Process], tmp_path: Path, wanted: str
) -> None:
    chosen = ["--reactor=poll"] if wanted == "PollReactor" else []
    process = start("-c", TWISTD, "-n", *chosen, "mqbroker", "--ports-file=ports.json", *settings(tmp_path))
    port = process.wait_for_port()
    assert ask(port, RequestCode.GET_MAX_OFFSET, topic="TBW102", queueId=0).code == ResponseCode.SUCCESS
    assert (process.folder / "reactor").read_text() == wanted
    process.signal(signal.SIGTERM)
    process.wait()


def test_it_stops_in_order_when_it_is_told_to_before_the_reactor_runs(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    early = TWISTD.replace(
        "    run_reactor(", "    import os, signal\n    os.kill(os.getpid(), signal.SIGTERM)\n    run_reactor("
    )
    process = start(
        "-c", early, "-n", "--pidfile=early.pid", "mqbroker", "--ports-file=ports.json", *settings(tmp_path)
    )
    assert process.wait() == 0
    assert not {"early.pid", "ports.json"} & {path.name for path in process.folder.iterdir()}
    assert not (tmp_path / "store" / "abort").exists()


class Background:
    """Daemons in the background, all in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ROCKETMQ", "NAMESRV"))}
        environment = {**inherited, "HOME": str(self.folder), "PYTHONPATH": f"{SOURCE}:{self.folder}"}
        command = [sys.executable, "-c", TWISTD, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )

    def stop(self, *names: str) -> None:
        """End the daemons with these pid files."""
        for name in names:
            pid_file = self.folder / name
            if pid_file.exists():
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
                wait_for(lambda file=pid_file: not file.exists(), f"end of {name}")


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    folder = tmp_path / "background"
    folder.mkdir()
    background = Background(folder)
    yield background
    background.stop("namesrv.pid", "mqbroker.pid", "twistd.pid")


def test_both_daemons_run_in_one_directory(background: Background, tmp_path: Path) -> None:
    assert background.start("namesrv", *settings(tmp_path)[:2]).returncode == 0
    assert background.start("mqbroker", *settings(tmp_path)).returncode == 0
    names = {path.name for path in background.folder.iterdir()}
    assert {"namesrv.pid", "mqbroker.pid", "namesrv.log", "mqbroker.log"} <= names
    assert not {"twistd.pid", "twistd.log"} & names


def test_a_pid_file_that_twistd_is_told_counts(background: Background, tmp_path: Path) -> None:
    assert background.start("--pidfile=twistd.pid", "-l", "my.log", "namesrv", *settings(tmp_path)[:2]).returncode == 0
    names = {path.name for path in background.folder.iterdir()}
    assert {"twistd.pid", "my.log"} <= names
    assert not {"namesrv.pid", "namesrv.log"} & names


def test_it_comes_back_when_it_serves(background: Background, tmp_path: Path) -> None:
    started = background.start("mqbroker", "--ports-file=ports.json", *settings(tmp_path))
    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
    assert (background.folder / "ports.json").exists()
    assert "boot success" in (background.folder / "mqbroker.log").read_text()
    background.stop("mqbroker.pid")
    assert not (background.folder / "ports.json").exists()


def test_a_locked_store_ends_it_in_the_background_too(background: Background, tmp_path: Path) -> None:
    assert background.start("mqbroker", *settings(tmp_path)).returncode == 0
    holder = (background.folder / "mqbroker.pid").read_text()
    second = background.start("--pidfile=second.pid", "-l", "second.log", "mqbroker", *settings(tmp_path))
    assert second.returncode == 1
    has_it = f"process {holder} has it open; stop that first: each broker has a directory of its own"
    why = f"{tmp_path}/store/lock is locked: {has_it}"
    assert second.stderr == f"{why}\n"
    assert "Traceback" not in (background.folder / "second.log").read_text()
    wait_for(lambda: not (background.folder / "second.pid").exists(), "end of the second")


def test_one_that_is_killed_while_it_starts_is_no_success(background: Background, tmp_path: Path) -> None:
    killing = "import os, signal\nfrom mqbroker.broker.broker_service import BrokerService\n\n"
    killing += "def start(self):\n    os.kill(os.getpid(), signal.SIGKILL)\n\nBrokerService.startService = start\n\n"
    (background.folder / "killing.py").write_text(killing + "def observer():\n    return lambda event: None\n")
    started = background.start("--logger=killing.observer", "mqbroker", *settings(tmp_path))
    assert (started.returncode, started.stderr) == (1, "it ended before it had started: its log may say why\n")
    (background.folder / "mqbroker.pid").unlink()
