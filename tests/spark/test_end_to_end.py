"""One job from topic to topic through a stateful query, killed several times, and the answer computed without Spark."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.client.blocking import PullConsumer
from mqbroker.spark.java import JavaMissing, find_java
from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.spark.session import SOURCE
from tests.spark.test_spark import Cluster, cluster, publish  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

#: More of them at will; and messages before each. A batch has 40.
KILLS = int(os.environ.get("MQBROKER_SPARK_KILLS", "2"))
EACH = 160


def start(cluster: Cluster, folder: Path, mode: str) -> "subprocess.Popen[bytes]":  # noqa: F811
    arguments = [cluster.name_server, "Numbers", "Totals", str(folder / "checkpoint"), str(folder / "scratch"), mode]
    with open(folder / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.totals_driver", *arguments],
            cwd=SOURCE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


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


def test_a_job_that_is_killed_has_the_answer_of_one_that_is_not(cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    random_pauses, offsets = random.Random(43), tmp_path / "checkpoint" / "offsets"
    (tmp_path / "scratch").mkdir()
    numbers = 0
    for _ in range(KILLS):
        publish(cluster, "Numbers", EACH, numbers)
        numbers += EACH
        before = max([int(path.name) for path in offsets.glob("[0-9]*")], default=-1)
        planned = offsets / str(before + 2)
        driver = start(cluster, tmp_path, "on")
        try:
            wait_for(lambda: driver.poll() is not None or planned.exists(), f"{planned}", PATIENCE_SECONDS)  # noqa: B023
            assert driver.poll() is None, (tmp_path / "output").read_text()[-5000:]
            # Anywhere in a batch: while it is planned, read, written or committed.
            time.sleep(random_pauses.random())
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert start(cluster, tmp_path, "once").wait(PATIENCE_SECONDS) == 0, (tmp_path / "output").read_text()[-5000:]
    wanted = {key: (key, len(some), sum(some)) for key in range(7) if (some := range(key, numbers, 7))}
    seen: dict[int, list[tuple[int, ...]]] = {}
    for rows in written(cluster, "Totals"):
        for row in rows:
            seen.setdefault(row[0], []).append(row)
    assert {key: rows[-1] for key, rows in seen.items()} == wanted
    for rows in seen.values():
        # Each batch has been written once, in order: a count never goes back, and never comes twice.
        counts = [row[1] for row in rows]
        assert counts == sorted(set(counts))
