"""One job from topic to topic through a stateful query, of which processes are killed ten times, and the answer that is
computed without Spark."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

pytest.importorskip("pyspark", minversion="4.0")
pytest.importorskip("pyarrow")

from mqbroker.client.blocking import PullConsumer
from mqbroker.spark.java import JavaMissing, find_java
from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.spark.processes import ended_queries, find_processes, wait_until_written
from tests.spark.session import SOURCE, class_archive_options
from tests.spark.test_spark import Cluster, cluster, publish  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

#: More of them at will; and messages before each. A batch has 40.
KILLS = int(os.environ.get("MQBROKER_SPARK_KILLS", "10"))
SEED = int(os.environ.get("MQBROKER_SPARK_SEED", "43"))
EACH = 80


@attrs.define
class Job:
    """A driver that can be killed and started again, and its files."""

    cluster: Cluster
    folder: Path
    driver: "subprocess.Popen[bytes] | None" = None

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def start(self) -> None:
        where = [self.cluster.name_server, "Numbers", "Totals", str(self.folder / "checkpoint")]
        with open(self.folder / "output", "ab") as output:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.totals_driver", *where, str(self.folder / "scratch")],
                cwd=SOURCE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def planned(self) -> int:
        """The last batch that is planned; -1 before the first."""
        return max((int(path.name) for path in (self.folder / "checkpoint/offsets").glob("[0-9]*")), default=-1)

    def wait_until_planned(self, batch: int) -> None:
        def is_planned() -> bool:
            assert self.driver is not None
            assert self.driver.poll() is None, f"the driver ended by itself: {self.output[-5000:]}"
            return self.planned() >= batch

        wait_for(is_planned, f"batch {batch} is planned", PATIENCE_SECONDS)

    def wait_until_done(self, numbers: int) -> None:
        """Wait until a batch is committed with which all numbers are read."""

        def is_done() -> bool:
            batch = self.planned()
            positions = json.loads((self.folder / f"checkpoint/offsets/{batch}").read_text().splitlines()[-1])
            is_read = sum(positions["Numbers"]["broker-a"].values()) == numbers
            return is_read and (self.folder / f"checkpoint/commits/{batch}").exists()

        wait_for(is_done, f"{numbers} numbers are read", PATIENCE_SECONDS)

    def kill(self, victim: str, pause_s: float | None) -> None:
        """Kill the driver, the source's runner, or all workers: after a pause, or when rows of a batch are written."""
        assert self.driver is not None
        pid = self.driver.pid
        found = [] if victim == "driver" else wait_for(lambda: find_processes(pid, victim), victim, PATIENCE_SECONDS)
        if pause_s is None:
            wait_until_written(self.cluster.name_server, "Totals")
        else:
            time.sleep(pause_s)
        if victim == "driver":
            self.end()
        for each in found:
            # An idle worker may have ended by itself.
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def end(self) -> None:
        """Kill all that is left."""
        if self.driver is not None and self.driver.returncode is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:  # noqa: F811
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    # Made before a driver needs it, which has a limited time to start.
    class_archive_options()
    (tmp_path / "scratch").mkdir()
    job = Job(cluster, tmp_path)
    yield job
    job.end()
    # Shown where the test fails.
    print(job.output[-10000:])


def written(cluster: Cluster, topic: str) -> list[list[tuple[int, ...]]]:  # noqa: F811
    """The bodies of each queue, in order."""
    with PullConsumer(cluster.name_server, "checker") as consumer:
        found = []
        for queue in consumer.queues(topic):
            at, rows = 0, []
            while at < consumer.max_offset(queue):
                pulled = consumer.pull(queue, at)
                rows += [tuple(map(int, message.body.split())) for message in pulled.messages]
                at = pulled.next_offset
            found.append(rows)
        return found


def test_a_job_of_which_processes_are_killed_has_the_answer_of_one_that_is_not(job: Job) -> None:
    random_pauses = random.Random(SEED)
    numbers = 0

    def publish_more() -> None:
        nonlocal numbers
        publish(job.cluster, "Numbers", EACH, numbers)
        numbers += EACH

    for _ in range(2):
        publish_more()
    job.start()
    # So that the topic of totals is there: only the first batch may be empty.
    job.wait_until_planned(2)
    for n in range(KILLS):
        # A driver takes longest to start again: it is killed once in ten times.
        victim = "driver" if n % 10 == 5 else ("worker", "runner")[n % 2]
        before = job.planned()
        publish_more()
        job.wait_until_planned(before + 1)
        job.kill(victim, None if n % 4 in (0, 1) else random_pauses.random() / 2)
        if victim == "driver":
            job.start()
    job.wait_until_done(numbers)
    job.end()
    wanted = {key: (key, len(some), sum(some)) for key in range(7) if (some := range(key, numbers, 7))}
    seen: dict[int, list[tuple[int, ...]]] = {}
    for rows in written(job.cluster, "Totals"):
        for row in rows:
            seen.setdefault(row[0], []).append(row)
    assert {key: rows[-1] for key, rows in seen.items()} == wanted
    for rows in seen.values():
        # Each batch has been written once, in order: a count never goes back, and never comes twice.
        counts = [row[1] for row in rows]
        assert counts == sorted(set(counts))
    # What is repeated by Spark itself does not end a query; only without its runner it cannot go on.
    ended = ended_queries(job.folder / "scratch" / "ended")
    assert len(ended) <= KILLS // 2, ended
