"""The demo from its first process to its last: who starts when, which broker is killed when, what is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from mqbroker_demo.cluster import BROKERS, Cluster, wait_until
from mqbroker_demo.corpus import Corpus
from mqbroker_demo.report import Comparison, Steps, compare
from mqbroker_demo.spark_process import SparkCount, SparkFailed
from mqbroker_demo.traffic import Publisher, Readers, create_topic

PUBLISH, CONSUME, COUNT = "publish", "consume", "count in Spark"

#: Who is killed when this part of the lines is acknowledged, and comes back when that part is.
VICTIM = BROKERS[1]
KILL_AT = 0.55
RESTART_AT = 0.75

#: How long nothing may change before what is missing counts as lost, and how long Spark may take to count anything.
STALL_PATIENCE_S = 30.0
SPARK_PATIENCE_S = 120.0


@attrs.frozen
class Outcome:
    """What came of it; `notes` are lines for the user."""

    comparison: Comparison
    notes: tuple[str, ...]


async def run_story(corpus: Corpus, directory: Path, steps: Steps, *, with_spark: bool) -> Outcome:
    """Run it in `directory`, which exists and is empty. Raises MQError; ends whatever it started."""
    cluster = Cluster(directory)
    spark: SparkCount | None = None
    try:
        if with_spark:
            # First, since Java takes longest; the daemons start beside it.
            spark = SparkCount(directory, lambda done: steps.at(COUNT, done))
            await spark.start()
        await cluster.start()
        daemons = (cluster.namesrv, *cluster.brokers.values())
        steps.say("running: " + ", ".join(f"{daemon.name} {daemon.address} (pid {daemon.pid})" for daemon in daemons))
        await create_topic(cluster.namesrv.address, [broker.address for broker in cluster.brokers.values()])
        if spark is not None:
            spark.begin(cluster.namesrv.address)
        return await _Run(corpus, cluster, spark, steps).run()
    finally:
        try:
            if spark is not None:
                spark.close()
            await cluster.stop()
        finally:
            # A second Ctrl-C ends the wait for an ordered stop, but leaves nothing running.
            cluster.kill()


class _Run:
    """What goes through the running cluster."""

    def __init__(self, corpus: Corpus, cluster: Cluster, spark: SparkCount | None, steps: Steps) -> None:
        self._corpus = corpus
        self._cluster = cluster
        self._spark = spark
        self._steps = steps
        self._total = corpus.line_count
        self._acknowledged = 0
        self._advanced = asyncio.Event()
        address = cluster.namesrv.address
        self._publisher = Publisher(address, self._published)
        self._readers = Readers(address, lambda done: steps.at(CONSUME, done))

    async def run(self) -> Outcome:
        for name in (PUBLISH, CONSUME, *([COUNT] if self._spark is not None else [])):
            self._steps.add(name, self._total)
        try:
            await self._readers.start()
            await self._publisher.start()
            await self._publish()
            await _until_whole(lambda: self._readers.consumed.distinct, self._total)
            await self._wait_for_spark()
        finally:
            await self._publisher.close()
            await self._readers.close()
        return self._outcome()

    def _published(self, acknowledged: int) -> None:
        self._steps.at(PUBLISH, acknowledged)
        self._acknowledged = acknowledged
        self._advanced.set()

    async def _publish(self) -> None:
        """One half; then, once Spark is at work too, the other half, in the course of which a broker is killed."""
        lines = list(self._corpus.lines())
        half = len(lines) // 2
        await self._publisher.publish(lines[:half])
        await self._spark_at_work()
        breaking = asyncio.create_task(self._kill_and_restart())
        try:
            await self._publisher.publish(lines[half:])
            await breaking
        finally:
            breaking.cancel()

    async def _spark_at_work(self) -> None:
        spark = self._spark
        if spark is None:
            return
        self._steps.say("half is published; the rest waits until Spark has started and counts")
        await wait_until(lambda: spark.lines > 0 or spark.failed is not None, SPARK_PATIENCE_S)

    async def _kill_and_restart(self) -> None:
        victim = self._cluster.brokers[VICTIM]
        await self._reached(KILL_AT)
        pid = victim.pid
        victim.kill()
        self._steps.say(f"killed {VICTIM} (pid {pid}) with SIGKILL; sends go to the other broker")
        await self._reached(RESTART_AT)
        began = time.monotonic()
        await victim.start()
        seconds = time.monotonic() - began
        self._steps.say(f"{VICTIM} is back on {victim.address} with its data after {seconds:.1f} s (pid {victim.pid})")

    async def _reached(self, part: float) -> None:
        while self._acknowledged < int(self._total * part):
            self._advanced.clear()
            await self._advanced.wait()

    async def _wait_for_spark(self) -> None:
        spark = self._spark
        if spark is not None:
            await _until_whole(lambda: spark.lines, self._total, lambda: spark.failed is not None)
            if spark.failed is not None and spark.lines < self._total:
                raise SparkFailed(f"the Spark query did not work: {spark.failed}. Spark's log is {spark.log}")

    def _outcome(self) -> Outcome:
        comparison = compare(
            self._corpus.plain_count(),
            self._publisher.acknowledged.counts(),
            self._readers.consumed.counts(),
            self._spark.files if self._spark is not None else None,
        )
        return Outcome(comparison, tuple(self._notes()))

    def _notes(self) -> list[str]:
        publisher, consumed = self._publisher, self._readers.consumed
        sent = ", ".join(f"{count:,} on {broker}" for broker, count in sorted(publisher.by_broker.items()))
        shares = " and ".join(f"{share:,}" for share in self._readers.shares)
        notes = [
            f"published {publisher.acknowledged.distinct:,} lines, {sent}; {publisher.retried:,} retried",
            f"the two consumers got {shares} messages: {consumed.distinct:,} lines, {consumed.duplicates:,} duplicates"
            " (delivery is at least once)",
        ]
        if self._spark is not None:
            twice = self._spark.rows - self._spark.lines
            notes.append(f"Spark read {self._spark.rows:,} messages: {self._spark.lines:,} lines, {twice:,} duplicates")
        return notes


async def _until_whole(count: Callable[[], int], total: int, failed: Callable[[], bool] = lambda: False) -> None:
    """Return when `count()` reaches `total`, when it `failed`, or when nothing has changed for long."""
    last = -1
    while last < (now := count()) < total and not failed():
        last = now
        await wait_until(lambda: count() > last or failed(), STALL_PATIENCE_S)  # noqa: B023
