"""A Spark driver that copies a topic from its end on to Parquet files, and is held at two moments of its first batch:
when it knows where it starts, until the file ``go`` is there, and when that batch is planned, for ever.

Arguments as of `kills_driver`, of which the target is not written to. The files ``started`` and ``planned`` tell that
it is held. With "once" it is not held.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqbroker.spark.source import RocketMQDataSource, StreamReader
from tests.daemons.processes import PATIENCE_SECONDS
from tests.spark.session import session_environment, start_session

#: Names the directory to the process that plans a query.
FOLDER = "MQBROKER_HELD"


class HeldSource(RocketMQDataSource):
    """Format "held": as "rocketmq", but held."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamReader(self, schema: Any) -> StreamReader:
        made = super().streamReader(schema)
        return HeldReader(made._options, made.schema)


class HeldReader(StreamReader):
    """A reader that is held."""

    def latestOffset(self, *given: Any) -> dict[str, Any]:
        self.initialOffset()
        hold("started", "go")
        return super().latestOffset(*given)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        found = super().partitions(start, end)
        hold("planned", "never")
        return found


def hold(name: str, until: str) -> None:
    """Create the file `name`, and wait for another one."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        Path(folder, name).touch()
        while not Path(folder, until).exists():
            time.sleep(0.02)


def main() -> None:
    name_server, source, _, folder, scratch, mode = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    if mode != "once":
        os.environ[FOLDER] = folder
    spark = start_session(scratch)
    spark.dataSource.register(HeldSource)
    copies = f"{folder}/copies"
    messages = spark.readStream.format("held").options(nameServer=name_server, topic=source).load()
    writer = messages.writeStream.format("parquet").option("checkpointLocation", f"{folder}/files")
    if mode != "once":
        writer.start(copies).awaitTermination()
    # The first run may be one batch that is repeated.
    for _ in range(2):
        assert writer.trigger(availableNow=True).start(copies).awaitTermination(PATIENCE_SECONDS)
    rows = spark.read.parquet(copies).selectExpr("queueId", "queueOffset", "CAST(body AS STRING)").collect()
    Path(folder, "copied.json").write_text(json.dumps(sorted(map(list, rows))))


if __name__ == "__main__":
    main()
