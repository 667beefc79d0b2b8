"""Reads a topic with Spark (all columns, one, the number of messages), plans a read of many queues, runs batches of
streams, and waits as an idle stream of the topic and of many queues: python -m bench.spark_load NAME_SERVER ROUNDS.

Prints a line of JSON for each, with its name as "what". Seconds of CPU are of the Python processes that read, or, as
"all", of the driver, the JVM and all Python processes together. "worker_mib" is the most memory that a process which
reads has had.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from bench.spark import MANY, TOPIC, TRICKLE
from mqbroker.client import Message
from mqbroker.client.blocking import Producer

#: The JVM still compiles.
SETTLE_S = 60.0
IDLE_S = 60.0
BATCHES_S = 30.0
TRIGGER = "1 second"
_TICKS = os.sysconf("SC_CLK_TCK")


class Reads:
    """Reads of one session."""

    def __init__(self, spark: Any, name_server: str) -> None:
        self._spark = spark
        self._name_server = name_server

    def batch(self, topic: str, schema: str = "", **options: str) -> Any:
        reader = self._spark.read.format("rocketmq").options(nameServer=self._name_server, topic=topic, **options)
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, topic: str) -> Any:
        reader = self._spark.readStream.format("rocketmq")
        return reader.options(nameServer=self._name_server, topic=topic, startingOffsets="latest").load()

    def rate(self) -> Any:
        """Spark's own source of numbers."""
        return self._spark.readStream.format("rate").option("rowsPerSecond", "10").load()


def main() -> None:
    name_server, rounds = sys.argv[1], int(sys.argv[2])
    # As many cores as a broker beside it leaves of two.
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reads = Reads(spark, name_server)
    noop(reads.batch(TOPIC, endingOffsets=quarter_of(reads)), "quarter", 0)
    rows = reads.batch(TOPIC, "queueId INT").count()
    for _ in range(rounds):
        noop(reads.batch(TOPIC), "columns", rows)
        noop(reads.batch(TOPIC, "body BINARY"), "body", rows)
        measure("count", rows, reads.batch(TOPIC).count)
        measure("count one", rows, reads.batch(TOPIC, "queueOffset BIGINT").count)
    for _ in range(rounds):
        began = time.monotonic()
        reads.batch(MANY).rdd.getNumPartitions()
        say("plan", seconds=time.monotonic() - began)
    micro_batches(reads.rate(), "rate")
    with Trickle(name_server):
        micro_batches(reads.stream(TRICKLE), "micro-batch")
    for what, topic in (("idle", TOPIC), ("idle many", MANY)):
        idle(reads.stream(topic), what)
    spark.stop()


def quarter_of(reads: Reads) -> str:
    """The offsets at a quarter of each queue, as JSON."""
    ends = reads.batch(TOPIC, "brokerName STRING, queueId INT").groupBy("brokerName", "queueId").count().collect()
    found: dict[str, dict[str, int]] = {}
    for broker, queue, count in ends:
        found.setdefault(broker, {})[str(queue)] = count // 4
    return json.dumps({TOPIC: found})


def noop(frame: Any, what: str, rows: int) -> None:
    """Read all of a frame."""
    measure(what, rows, lambda: frame.write.format("noop").mode("overwrite").save())


def measure(what: str, rows: int, read: Callable[[], object]) -> None:
    began, before = time.monotonic(), cpu_seconds()
    read()
    seconds, now = time.monotonic() - began, cpu_seconds()
    readers = [pid for pid, command in now if is_reader(command)]
    say(
        what,
        rows=rows,
        seconds=seconds,
        cpu=spent(before, now, is_reader),
        all=spent(before, now, lambda _: True),
        worker_mib=max(map(memory_mib, readers), default=0.0),
    )


class Trickle:
    """Sends ten messages a second, as long as it is entered."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._name_server, "bench") as producer:
            while not self._stop.wait(0.1):
                producer.send(Message(TRICKLE, b"x"))


def micro_batches(frame: Any, what: str) -> None:
    """How long a batch takes that has rows, with the shortest trigger."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        found: dict[int, float] = {}
        end = time.monotonic() + BATCHES_S
        while time.monotonic() < end:
            time.sleep(0.5)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    found[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
        query.stop()
    # The first ones are those of a JVM that still compiles.
    later = [found[batch] for batch in sorted(found)][len(found) // 2 :]
    say(what, seconds=median(later) if later else float("nan"))


def idle(frame: Any, what: str) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = stream.trigger(processingTime=TRIGGER).start()
        time.sleep(SETTLE_S)
        began, before, all_of_it, of_jvm = time.monotonic(), cpu_seconds(), 0.0, 0.0
        while (passed := time.monotonic() - began) < IDLE_S:
            time.sleep(1)  # Spark ends processes that it needs no longer
            looked = time.thread_time()
            now = cpu_seconds()
            # Hundreds of files are read for it: as much work as the stream's own.
            all_of_it -= time.thread_time() - looked
            all_of_it += spent(before, now, lambda _: True)
            of_jvm += spent(before, now, is_jvm)
            before = now
        if not query.isActive:  # a stream that has failed takes nothing
            raise RuntimeError(f"the stream {what} has ended: {query.exception()}")
        say(what, percent=100 * all_of_it / passed, jvm_percent=100 * of_jvm / passed)
        query.stop()


def say(what: str, **figures: float) -> None:
    print(json.dumps({"what": what} | figures), flush=True)


def is_reader(command: str) -> bool:
    return command.endswith("pyspark.worker")


def is_jvm(command: str) -> bool:
    return "org.apache.spark" in command


def memory_mib(pid: int) -> float:
    """The most that a process has had in memory."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0.0)


def cpu_seconds() -> dict[tuple[int, str], float]:
    """CPU time of this process and all that it has started, and they, by process and command."""
    parents: dict[int, int] = {}
    seconds: dict[tuple[int, str], float] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                command = (directory / "cmdline").read_text().rstrip("\0")
            except OSError:  # it has ended
                continue
            pid = int(directory.name)
            parents[pid] = int(fields[1])
            seconds[pid, command] = (int(fields[11]) + int(fields[12])) / _TICKS

    def is_ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return {key: each for key, each in seconds.items() if is_ours(key[0])}


def spent(
    before: dict[tuple[int, str], float], now: dict[tuple[int, str], float], is_meant: Callable[[str], bool]
) -> float:
    """CPU time between two looks, of the processes that are meant by their command and have not ended."""
    return sum(seconds - before.get(key, 0.0) for key, seconds in now.items() if is_meant(key[1]))


if __name__ == "__main__":
    main()
