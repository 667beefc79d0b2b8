"""The processes of a Spark driver, to be killed, and the moment at which a task has written."""

import time
from pathlib import Path

from mqbroker.client.blocking import PullConsumer
from tests.daemons.processes import PATIENCE_SECONDS

_WORDS = {
    "runner": "python_streaming_source_runner",
    "executor": "CoarseGrainedExecutorBackend",
    "worker": "tests.spark.worker_daemon pyspark.worker",
}

#: Why a query ends whose Python process has not started within 10 s, which no setting changes: a machine is too busy.
STARTED_LATE = "Python worker failed to connect back"


def running() -> dict[int, tuple[int, str]]:
    """Parent and command of each process of this machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent), command
    return found


def processes_below(root: int) -> dict[int, tuple[int, str]]:
    """Parent and command of each process that is below `root`, and of `root`."""
    seen = running()
    below, more = {root}, {root}
    while more:
        more = {pid for pid, (parent, _) in seen.items() if parent in more}
        below |= more
    return {pid: seen[pid] for pid in below if pid in seen}


def find_processes(driver: int, kind: str) -> list[int]:
    """Those of a driver: each "worker", "runner" of a stream's source, or "executor"."""
    processes = processes_below(driver)
    found = {pid for pid, (_, command) in processes.items() if _WORDS[kind] in command}
    if kind == "worker":
        # Of these each is a fork of another one.
        found = {pid for pid in found if processes[pid][0] in found}
    return sorted(found)


def ended_queries(path: Path) -> list[str]:
    """The errors of ended queries, one a line in the driver's file, except those that Spark could not start."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if STARTED_LATE not in line]


def wait_until_written(name_server: str, topic: str) -> None:
    """Wait until a task has stored a row in a topic, so that it has not ended or its batch is not committed."""
    with PullConsumer(name_server, "checker") as consumer:

        def stored() -> int:
            return sum(consumer.max_offset(queue) for queue in queues)

        queues = consumer.queues(topic)
        before, until = stored(), time.monotonic() + PATIENCE_SECONDS
        # With a short pause: a task that is noticed late has ended.
        while stored() == before:
            assert time.monotonic() < until, f"no row is written to {topic}"
            time.sleep(0.002)
