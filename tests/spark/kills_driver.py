"""A Spark driver on a cluster of two executors, of which everything is killed: two queries copy a topic, one to Parquet
files and one to another topic. A query that ends is started again, and why it ended becomes a line of ``ended`` in the
directory, of JSON.

Arguments: name server, source topic, target topic, directory, directory for Spark's own files, and "once" to end when
all that is available is copied, and write what the files then have to ``copied.json`` in the directory.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.spark.session import session_environment, start_session

BODY = "concat_ws(' ', queueId, queueOffset, CAST(body AS STRING)) AS body"


@attrs.frozen
class Copies:
    """Each method starts a query."""

    spark: Any
    name_server: str
    source: str
    target: str
    folder: Path

    @property
    def files(self) -> str:
        return str(self.folder / "copies")

    def to_files(self, *, once: bool = False) -> Any:
        return self._start("files", self._read().writeStream.format("parquet").option("path", self.files), once)

    def to_topic(self, *, once: bool = False) -> Any:
        options = {"nameServer": self.name_server, "topic": self.target, "guarantee": "effectively-once"}
        writer = self._read().selectExpr(BODY).writeStream.format("rocketmq").options(**options)
        return self._start("topic", writer, once)

    def copied(self) -> list[list[Any]]:
        """Queue, offset and text of each row of the files."""
        rows = self.spark.read.parquet(self.files).selectExpr("queueId", "queueOffset", "CAST(body AS STRING)")
        return sorted(map(list, rows.collect()))

    def _read(self) -> Any:
        return self.spark.readStream.format("rocketmq").options(nameServer=self.name_server, topic=self.source).load()

    def _start(self, name: str, writer: Any, once: bool) -> Any:
        writer = writer.option("checkpointLocation", f"{self.folder}/{name}")
        return writer.trigger(availableNow=True).start() if once else writer.start()


def keep_running(runs: dict[str, Callable[[], Any]], ended: Path) -> None:
    """In this thread alone: Spark finds sinks in Python only in one that has the session."""
    queries = {name: run() for name, run in runs.items()}
    while True:
        for name, query in queries.items():
            if not query.isActive:
                with ended.open("a") as file:
                    print(json.dumps([name, str(query.exception())]), file=file)
                queries[name] = runs[name]()
        time.sleep(0.1)


def main() -> None:
    name_server, source, target, folder, scratch, mode = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    spark = start_session(scratch, "local-cluster[2,1,1024]")
    copies = Copies(spark, name_server, source, target, Path(folder))
    if mode == "once":
        for run in (copies.to_files, copies.to_topic):
            # The first may be one batch that is repeated.
            for _ in range(2):
                run(once=True).awaitTermination()
        Path(folder, "copied.json").write_text(json.dumps(copies.copied()))
        return
    keep_running({"files": copies.to_files, "topic": copies.to_topic}, Path(folder, "ended"))


if __name__ == "__main__":
    main()
