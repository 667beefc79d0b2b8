"""The whole demo, with real daemons, a broker that is killed, and Spark where it is there."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqbroker_demo.spark_process import what_is_missing
from tests.daemons.processes import PATIENCE_SECONDS, Process, wait_for

pytestmark = pytest.mark.daemons


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `mq demo` on text of a few hundred lines; it is ended with the test."""
    text = tmp_path / "text"
    (text / "more").mkdir(parents=True)
    (text / "one.txt").write_bytes(b"".join(b"line %d of one\n" % n for n in range(700)))
    (text / "more" / "two words.txt").write_bytes("größer als nichts\n\n\r\n\tletzte\n".encode() * 50 + b"end")
    processes: list[Process] = []

    def start_demo(*args: str) -> Process:
        folder = tmp_path / f"run{len(processes)}"
        folder.mkdir()
        processes.append(Process(folder, ["-m", "mqbroker.cli", "demo", str(text), *args]))
        return processes[-1]

    yield start_demo
    for process in processes:
        process.end()


def total(output: str) -> list[str]:
    """The cells of the table's last row."""
    return next(line.split("\t") for line in output.splitlines() if line.startswith("total\t"))


def pids(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", output)]


def assert_all_ended(output: str) -> None:
    assert pids(output)
    for pid in pids(output):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nothing_is_lost_when_a_broker_is_killed(start: Callable[..., Process]) -> None:
    demo = start("--no-spark")
    assert demo.wait(PATIENCE_SECONDS) == 0, demo.out + demo.err
    assert total(demo.out) == ["total", "901", "901", "901", "-", "3,001", "3,001", "-", "equal"]
    assert "killed broker-b" in demo.out
    assert "broker-b is back on" in demo.out
    assert_all_ended(demo.out)
    work = re.search(r"work directory (\S+)", demo.out)
    assert work is not None
    assert not Path(work[1]).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_that_was_started(start: Callable[..., Process], number: signal.Signals) -> None:
    demo = start("--no-spark")
    demo.wait_for_line("running: namesrv")
    demo.signal(number)
    assert demo.wait() == 130
    assert "Traceback" not in demo.err
    assert_all_ended(demo.out)


@pytest.mark.spark
@pytest.mark.skipif(what_is_missing() is not None, reason=f"no Spark: {what_is_missing()}")
def test_spark_counts_the_same(start: Callable[..., Process]) -> None:
    demo = start()
    try:
        demo.wait(PATIENCE_SECONDS)
    finally:
        if demo._process.poll() is None:
            demo.signal(signal.SIGTERM)
    assert demo.wait() == 0, demo.out + demo.err
    assert total(demo.out) == ["total", "901", "901", "901", "901", "3,001", "3,001", "3,001", "equal"]
    assert_all_ended(demo.out)
    wait_for(lambda: not of_this_run(demo), "the end of Spark's processes")


def of_this_run(demo: Process) -> list[str]:
    """Processes that still have the run's work directory in their command line."""
    work = re.search(r"work directory (\S+)", demo.out)
    assert work is not None
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if work[1].encode() in command:
            found.append(f"{entry.parent.name}: {command[:200]!r}")
    return found
