"""The Spark part of the demo, in a process of its own: a streaming query that counts lines and words by file.

It reads one JSON line, {"name_server", "topic", "checkpoint"}, begins, and writes JSON lines: {"event": "session"},
{"event": "counts", "rows", "files": {file: [lines, words]}} whenever they change, {"event": "failed", "why"}. It ends
when it is told to, by a signal or the end of its input. Messages may come twice: a line counts once, by its key.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import IO, Any

#: How often a query that fails is started again; it goes on where its checkpoint says.
RESTARTS_MAX = 3
#: For how many looks a result waits for its number of rows.
HELD_BACK_MAX = 8
_POLL_S = 0.25
_TABLE = "counts"


def main() -> None:
    """Run until the input ends."""
    # Only our lines may go where the reader expects them; what Spark prints goes with the errors.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spark = make_session(sys.argv[1])
    say(out, event="session")
    told = json.loads(sys.stdin.readline())
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    Counting(spark, told, out).run(ended)
    # Whoever started us ends the Java process with us; an ordered stop takes seconds and saves nothing.
    os._exit(0)


def _wait_for_end(ended: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    ended.set()


def say(out: IO[str], **event: object) -> None:
    """Write an event for who started the job."""
    out.write(json.dumps(event) + "\n")
    out.flush()


def make_session(scratch: str) -> Any:
    """A small and quick session on two cores and loopback, with its files below `scratch`."""
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Short-lived: quick to start matters more than fast later.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("mq demo")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Counting:
    """The query, kept going, and its result, told when it changes."""

    def __init__(self, spark: Any, told: dict[str, str], out: IO[str]) -> None:
        self._spark = spark
        self._told = told
        self._out = out
        self._batches: dict[tuple[str, int], int] = {}
        self._last: dict[str, list[int]] = {}
        self._held_back = 0

    def run(self, ended: threading.Event) -> None:
        """Return when `ended` is set, or the query has failed for good."""
        query = self._start()
        restarts = 0
        while not ended.wait(_POLL_S):
            error = query.exception()
            if error is not None:
                if restarts == RESTARTS_MAX:
                    say(self._out, event="failed", why=str(error).strip().splitlines()[0])
                    return
                restarts += 1
                query = self._start()
            self._tell(query)

    def _start(self) -> Any:
        from pyspark.sql import functions as f

        messages = (
            self._spark.readStream.format("rocketmq")
            .option("nameServer", self._told["name_server"])
            .option("topic", self._told["topic"])
            .option("startingOffsets", "earliest")
            .schema("keys ARRAY<STRING>, body BINARY")
            .load()
        )
        lines = messages.select(
            f.col("keys")[0].alias("file"),
            f.col("keys")[1].alias("line"),
            # A word is what blanks separate, here as where the files are counted.
            f.regexp_count(f.col("body").cast("string"), f.lit(r"\S+")).alias("words"),
        )
        counts = (
            lines.dropDuplicates(["line"])
            .groupBy("file")
            .agg(f.count(f.lit(1)).alias("lines"), f.sum("words").alias("words"))
        )
        return (
            counts.writeStream.outputMode("complete")
            .format("memory")
            .queryName(_TABLE)
            .option("checkpointLocation", self._told["checkpoint"])
            .trigger(processingTime="500 milliseconds")
            .start()
        )

    def _tell(self, query: Any) -> None:
        for progress in query.recentProgress:
            self._batches[str(progress["runId"]), progress["batchId"]] = progress["numInputRows"]
        found = self._spark.sql(f"SELECT file, lines, words FROM {_TABLE}").collect()
        files = {row["file"]: [row["lines"], row["words"]] for row in found}
        rows = sum(self._batches.values())
        # The table is there a little before the progress that says from how many rows it was made.
        behind = rows < sum(lines for lines, _ in files.values())
        if files != self._last and (not behind or self._held_back == HELD_BACK_MAX):
            self._last = files
            self._held_back = 0
            say(self._out, event="counts", rows=rows, files=files)
        elif files != self._last:
            self._held_back += 1


if __name__ == "__main__":
    main()
