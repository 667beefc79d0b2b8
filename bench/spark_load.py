"""Reads a topic with Spark, all columns of it, and then waits as an idle stream: python -m bench.spark_load NAME_SERVER
ROUNDS.

Prints a line of JSON for each read: rows, seconds, and seconds of CPU of the Python processes that read; and one for
the stream: percent of a core that driver, JVM and Python processes take together, and of it the JVM.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

TOPIC = "bench"
#: The JVM still compiles.
SETTLE_S = 60.0
IDLE_S = 60.0
TRIGGER = "1 second"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    name_server, rounds = sys.argv[1], int(sys.argv[2])
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def options(reader):  # type: ignore[no-untyped-def] # of a batch or of a stream
        return reader.format("rocketmq").option("nameServer", name_server).option("topic", TOPIC)

    rows = options(spark.read).load().count()
    for _ in range(rounds):
        began, before = time.monotonic(), cpu_seconds()
        options(spark.read).load().write.format("noop").mode("overwrite").save()
        seconds = time.monotonic() - began
        say(rows=rows, seconds=seconds, cpu=spent(before, cpu_seconds(), is_reader))
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = options(spark.readStream).option("startingOffsets", "latest").load().writeStream.format("noop")
        query = stream.option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER).start()
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
        say(idle_percent=100 * all_of_it / passed, jvm_percent=100 * of_jvm / passed)
        query.stop()
    spark.stop()


def say(**what: float) -> None:
    print(json.dumps(what), flush=True)


def is_reader(command: str) -> bool:
    return command.endswith("pyspark.worker")


def is_jvm(command: str) -> bool:
    return "org.apache.spark" in command


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
