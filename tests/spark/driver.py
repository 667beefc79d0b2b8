"""A Spark driver to be killed: it streams a topic to Parquet files until then.

Arguments: name server, topic, checkpoint directory, sink directory, directory for Spark's own files.
"""

import os
import sys
from typing import Any

import mqbroker.spark
from mqbroker.spark import api
from tests.daemons.processes import PATIENCE_SECONDS
from tests.spark.session import session_environment, start_session


def copy_to_files(
    spark: Any, name_server: str, topic: str, checkpoint: str, sink: str, *, available_now: bool = False
) -> None:
    """Stream a topic into Parquet files: until the process ends, or `available_now`. Spark's own sink commits each
    batch in a log of its own; PySpark 3.5 has no source for it, and there a repeated batch replaces its files."""
    options: dict[str, Any] = {"nameServer": name_server, "topic": topic}

    def keep(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{sink}/batch={batch}")

    if not api.HAS_SOURCES:
        mqbroker.spark.stream(
            spark, keep, checkpoint=checkpoint, trigger_s=0.02, available_now=available_now, **options
        )
        return
    messages = spark.readStream.format("rocketmq").options(**options).load()
    writer = messages.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    if available_now:
        assert writer.trigger(availableNow=True).start(sink).awaitTermination(PATIENCE_SECONDS)
    else:
        writer.start(sink).awaitTermination()


def main() -> None:
    name_server, topic, checkpoint, sink, scratch = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    copy_to_files(start_session(scratch), name_server, topic, checkpoint, sink)


if __name__ == "__main__":
    main()
