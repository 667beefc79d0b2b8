"""`mq dev`, `mq pub` and `mq sub` as a user has them: processes, pipes, signals."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.daemons.processes import DEADLINE_SECONDS, SOURCE, Process, wait_for

pytestmark = pytest.mark.daemons


@attrs.define
class Dev:
    process: Process
    name_server: str
    broker_port: str
    directory: Path

    def mq(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a client to its end."""
        return subprocess.run(
            [sys.executable, "-m", "mqbroker.cli", *args, "-n", self.name_server],
            input=stdin,
            capture_output=True,
            cwd=self.directory,
            env={"PYTHONPATH": SOURCE},
            timeout=DEADLINE_SECONDS,
            check=False,
        )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `mq` with arguments, in a directory; all are ended with the test."""
    processes: list[Process] = []

    def start_mq(*args: str, folder: Path | None = None) -> Process:
        folder = folder or tmp_path / f"process{len(processes)}"
        folder.mkdir(exist_ok=True)
        processes.append(Process(folder, ["-m", "mqbroker.cli", *args]))
        return processes[-1]

    yield start_mq
    for process in processes:
        process.end()


def ready(process: Process) -> Dev:
    process.wait_for_line("Ctrl-C ends it")
    found = re.search(r"name server +(\S+)\n +broker +127.0.0.1:(\d+)\n +data +(\S+)", process.out)
    assert found is not None, process.out
    return Dev(process, found[1], found[2], process.folder)


@pytest.fixture
def dev(start: Callable[..., Process]) -> Dev:
    return ready(start("dev", "--port", "0", "--broker-port", "0"))


def test_what_is_published_is_received_once_by_the_group(dev: Dev) -> None:
    sent = dev.mq("pub", "hello", "first")
    assert (sent.returncode, sent.stderr) == (0, b"")
    assert re.fullmatch(rb"[0-9A-F]{32}\tdev\t[0-3]\t0\n", sent.stdout)
    lines = b"".join(b"line %d\n" % n for n in range(250))
    assert dev.mq("pub", "hello", "-", "--tag", "many", stdin=lines).stdout.count(b"\n") == 250
    got = dev.mq("sub", "hello", "-g", "readers", "--count", "200")
    assert got.returncode == 0
    # The rest of it comes to the next member, and nothing twice.
    rest = dev.mq("sub", "hello", "-g", "readers", "--count", "51")
    both = got.stdout.splitlines() + rest.stdout.splitlines()
    assert (len(got.stdout.splitlines()), len(rest.stdout.splitlines())) == (200, 51)
    assert sorted(both) == sorted([b"first", *lines.splitlines()])


def test_tags_choose(dev: Dev) -> None:
    for tag in ("paid", "open", "refund"):
        assert dev.mq("pub", "orders", tag, "--tag", tag).returncode == 0
    got = dev.mq("sub", "orders", "-g", "g", "--tags", "paid || refund", "--count", "2")
    assert sorted(got.stdout.splitlines()) == [b"paid", b"refund"]


def test_a_consumer_waits_for_a_topic_and_ends_with_ctrl_c(dev: Dev, start: Callable[..., Process]) -> None:
    consumer = start("sub", "later", "-g", "g", "-n", dev.name_server)
    consumer.wait_for_line("waiting for the topic: No route info of this topic: later")
    assert dev.mq("pub", "later", "hi").returncode == 0
    wait_for(lambda: consumer.out == "hi\n", "the message")
    consumer.signal(signal.SIGINT)
    assert consumer.wait() == 0
    assert "Traceback" not in consumer.err


def test_a_reader_that_leaves_ends_the_consumer_quietly(dev: Dev) -> None:
    assert dev.mq("pub", "hello", "-", stdin=b"a\nb\nc\n").returncode == 0
    command = f"{sys.executable} -m mqbroker.cli sub hello -g g -n {dev.name_server} | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        env={"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin"},
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.stdout.splitlines() == [b"a", b"0"]
    assert ended.stderr == b""


def test_messages_stay_for_the_next_run(dev: Dev, start: Callable[..., Process]) -> None:
    assert dev.mq("pub", "hello", "kept").returncode == 0
    dev.process.signal(signal.SIGINT)
    assert dev.process.wait() == 0
    assert "stopped; the messages stay in mq-data" in dev.process.out
    again = ready(start("dev", "--port", "0", "--broker-port", "0", folder=dev.directory))
    assert again.mq("sub", "hello", "-g", "g", "--count", "1").stdout == b"kept\n"


def test_in_memory_nothing_stays(start: Callable[..., Process]) -> None:
    dev = ready(start("dev", "--memory", "--port", "0", "--broker-port", "0"))
    found = re.search(r"data +(\S+) ", dev.process.out)
    assert found is not None
    assert Path(found[1]).is_dir()
    assert dev.process.stop() == 0
    assert not Path(found[1]).exists()
    assert not (dev.directory / "mq-data").exists()


def test_a_directory_in_use_names_the_process(dev: Dev, start: Callable[..., Process]) -> None:
    second = start("dev", "--data", str(dev.directory / "mq-data"))
    assert second.wait() == 1
    assert f"is locked by pid {dev.process.pid}" in second.err
    assert "Traceback" not in second.err


@pytest.mark.parametrize("which", ["name server", "broker"])
def test_a_port_in_use_names_it_and_what_would_do(dev: Dev, start: Callable[..., Process], which: str) -> None:
    taken = dev.name_server.rpartition(":")[2] if which == "name server" else dev.broker_port
    option, other = ("--port", "--broker-port") if which == "name server" else ("--broker-port", "--port")
    second = start("dev", option, taken, other, "0")
    assert second.wait() == 1
    assert f"port {taken} on 127.0.0.1, for the {which}, is taken" in second.err
    assert f"mq dev {option} {int(taken) + 1}" in second.err
    assert "Traceback" not in second.err
    # It let go of everything: the same directory serves at once.
    ready(start("dev", "--port", "0", "--broker-port", "0", folder=second.folder))
