"""All processes of a running job are killed in turn: Python workers, the streams' Python runners, executors, the driver
and the broker. What has been copied is then compared with the topic, message by message.

The driver is killed in batch 0, where a stream that starts at the end of a topic has its start, and when a batch has
stored rows that are not committed; so are workers and an executor.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

# Spark has no queries in Python before that; test_versions kills the drivers of 3.5.
pytest.importorskip("pyspark", minversion="4.0")
pytest.importorskip("pyarrow")

from mqbroker.client.blocking import PullConsumer
from mqbroker.spark.java import JavaMissing, find_java
from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.spark.processes import ended_queries, find_processes, processes_below, running, wait_until_written
from tests.spark.session import SOURCE, class_archive_options
from tests.spark.test_spark import Cluster, Publishing, cluster, publish  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

#: More kills, and others, at will. One more, of the driver, ends the job.
KILLS = int(os.environ.get("MQBROKER_SPARK_KILLS", "5"))
SEED = int(os.environ.get("MQBROKER_SPARK_SEED", "43"))
VICTIMS = ("driver", "worker", "executor", "broker", "runner")
#: Those that are killed while they write to a topic, the first time of each; then by chance.
WRITERS = ("worker", "executor")
QUERIES = ("files", "topic")


@attrs.define
class Job:
    """A driver that can be killed and started again, and its files."""

    cluster: Cluster
    folder: Path
    moments: random.Random
    program: str = "tests.spark.kills_driver"
    lives: int = 0
    driver: "subprocess.Popen[bytes] | None" = None

    @property
    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output*")))

    def start(self, mode: str = "on") -> "subprocess.Popen[bytes]":
        self.lives += 1
        scratch = self.folder / f"scratch{self.lives}"
        scratch.mkdir()
        arguments = [self.cluster.name_server, "Source", "Target", str(self.folder), str(scratch), mode]
        with (self.folder / f"output{self.lives}").open("wb") as output:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", self.program, *arguments],
                cwd=SOURCE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self.driver

    def batches(self) -> dict[str, int]:
        """The last batch of each query that was planned; -1 before the first."""
        return {
            query: max((int(path.name) for path in (self.folder / query / "offsets").glob("[0-9]*")), default=-1)
            for query in QUERIES
        }

    def starts(self, query: str) -> dict[str, int]:
        """Where batch 0 of a query begins, by queue."""
        offsets = json.loads((self.folder / query / "offsets" / "0").read_text().splitlines()[-1])
        found: dict[str, int] = offsets["Source"]["broker-a"]
        return found

    def wait_until_planned(self, wanted: dict[str, int]) -> None:
        """Wait until each query has planned this batch."""

        def is_planned() -> bool:
            assert self.driver is not None
            assert self.driver.poll() is None, f"the driver ended by itself: {self.output[-5000:]}"
            now = self.batches()
            return all(now[query] >= batch for query, batch in wanted.items())

        wait_for(is_planned, f"batches {wanted} are planned", PATIENCE_SECONDS)

    def kill(self, victim: str, *, writes: bool) -> None:
        """Kill one of these processes, which must be there; if it `writes`, all workers, of which one does."""
        if victim == "broker":
            self.cluster.broker.end()
            time.sleep(self.moments.random())
            self.cluster.restart_broker()
        elif victim == "driver":
            self.kill_driver()
            self.start()
        else:
            found = wait_for(lambda: self._find(victim), f"a {victim}", PATIENCE_SECONDS)
            if writes:
                wait_until_written(self.cluster.name_server, "Target")
            for pid in found if writes and victim == "worker" else [self.moments.choice(found)]:
                # An idle worker may have ended by itself.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill_driver(self, *, writes: bool = False) -> None:
        """Kill the Python process and the JVM; the others end by themselves, as on machines of their own."""
        assert self.driver is not None
        processes = processes_below(self.driver.pid)
        if writes:
            wait_until_written(self.cluster.name_server, "Target")
        for pid, (parent, _) in processes.items():
            if self.driver.pid in (pid, parent):
                os.kill(pid, signal.SIGKILL)
        self.driver.wait()
        wait_for(lambda: not processes.keys() & running().keys(), "the executors end", PATIENCE_SECONDS)

    def end(self) -> None:
        """Kill all that is left."""
        if self.driver is not None:
            for pid in processes_below(self.driver.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.driver.wait()

    def _find(self, victim: str) -> list[int]:
        assert self.driver is not None
        return find_processes(self.driver.pid, victim)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:  # noqa: F811
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    # Made before a driver needs it, which has a limited time to start.
    class_archive_options()
    job = Job(cluster, tmp_path, random.Random(SEED))
    yield job
    job.end()
    # Shown where the test fails.
    print(job.output[-10000:])


def messages_of(cluster: Cluster, topic: str) -> list[tuple[int, int, str]]:  # noqa: F811
    """Queue, offset and text of all messages of a topic, as a consumer pulls them."""
    found = []
    with PullConsumer(cluster.name_server, "checker") as consumer:
        for queue in consumer.queues(topic):
            at = 0
            while at < consumer.max_offset(queue):
                pulled = consumer.pull(queue, at)
                found += [(queue.queue_id, message.queue_offset, message.body.decode()) for message in pulled.messages]
                at = pulled.next_offset
    return sorted(found)


def test_a_job_of_which_everything_is_killed_neither_loses_nor_repeats(cluster: Cluster, job: Job) -> None:  # noqa: F811
    publish(cluster, "Source", 20)
    others = [victim for victim in VICTIMS if victim != "driver"]
    victims = ["driver", *job.moments.sample(others, len(others))]
    while len(victims) < KILLS:
        victims += job.moments.sample(VICTIMS, len(VICTIMS))
    victims = victims[:KILLS]
    job.start()
    # The first one in batch 0, of a query that starts at the end of the topic.
    planned = dict.fromkeys(QUERIES, 0)
    with Publishing(cluster, "Source") as publishing:
        for n, victim in enumerate(victims):
            job.wait_until_planned(planned)
            if not n:  # Spark keeps the offsets of the last hundred batches
                starts = {query: job.starts(query) for query in QUERIES}
            writes = victim in WRITERS and (victim not in victims[:n] or job.moments.random() < 0.5)
            if not writes:
                time.sleep(job.moments.choice((0, 0.1, 1)) * job.moments.random())
            job.kill(victim, writes=writes)
            publishing.wait_for_more(50)
            planned = {query: batch + 2 for query, batch in job.batches().items()}
        job.wait_until_planned(planned)
        job.kill_driver(writes=True)
    assert job.start("once").wait(2 * PATIENCE_SECONDS) == 0, job.output[-5000:]

    sent = messages_of(cluster, "Source")
    assert publishing.sent <= set(sent)
    wanted = {}
    for query in QUERIES:
        wanted[query] = [row for row in sent if row[1] >= starts[query][str(row[0])]]
        assert len(wanted[query]) >= 50 * KILLS
    assert [tuple(row) for row in json.loads((job.folder / "copied.json").read_text())] == wanted["files"]
    copies = Counter(text for _, _, text in messages_of(cluster, "Target"))
    assert copies == Counter(f"{queue} {offset} {text}" for queue, offset, text in wanted["topic"])
    # What is repeated by Spark itself does not end a query; only without its runner it cannot go on.
    ended = ended_queries(job.folder / "ended")
    assert len(ended) <= victims.count("runner"), ended


def test_messages_that_come_in_before_the_first_batch_of_a_killed_query_are_not_missed(
    cluster: Cluster,  # noqa: F811
    job: Job,
) -> None:
    publish(cluster, "Source", 5)
    before = set(messages_of(cluster, "Source"))
    job.program = "tests.spark.held_driver"
    job.start()
    wait_for((job.folder / "started").exists, "the query knows where it starts", PATIENCE_SECONDS)
    publish(cluster, "Source", 20)
    (job.folder / "go").touch()
    wait_for((job.folder / "planned").exists, "the first batch is planned", PATIENCE_SECONDS)
    assert job.batches()["files"] == 0
    job.end()
    publish(cluster, "Source", 20)
    assert job.start("once").wait(2 * PATIENCE_SECONDS) == 0, job.output[-5000:]

    copied = [tuple(row) for row in json.loads((job.folder / "copied.json").read_text())]
    assert copied == sorted(set(messages_of(cluster, "Source")) - before)
