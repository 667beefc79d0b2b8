"""A Spark driver whose Python writers are killed: the first attempt of each task is, when all its rows are acknowledged
and Spark has not heard of it. It writes to one topic with each guarantee, and to one more where tasks are run
speculatively, in one JVM.

Arguments: name server, number of rows, and directory for Spark's own files. Prints JSON: by topic the error of its
write, or null.
"""

import json
import os
import signal
import sys
from typing import Any

from pyspark import TaskContext

from mqbroker.spark.source import RocketMQDataSource
from tests.spark.session import session_environment, start_session


class KilledSource(RocketMQDataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq-killed"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return Killed(super().writer(schema, overwrite))


def _killed_writer() -> Any:
    from mqbroker.spark.sink import BatchWriter

    class KilledWriter(BatchWriter):
        def __init__(self, writer: BatchWriter) -> None:
            self.__dict__.update(writer.__dict__)

        def write(self, iterator: Any) -> Any:
            done = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

    return KilledWriter


Killed = _killed_writer()


def write(spark: Any, name_server: str, topic: str, guarantee: str, rows: int) -> str | None:
    """Returns the error."""
    # Tasks find the class in this module under its own name.
    from tests.spark import sink_driver

    spark.dataSource.register(sink_driver.KilledSource)
    frame = spark.range(rows).repartition(3).selectExpr("CAST(id AS STRING) AS body")
    writer = frame.write.format("rocketmq-killed").mode("append")
    try:
        writer.options(nameServer=name_server, topic=topic, guarantee=guarantee).save()
    except Exception as error:
        return str(error)
    return None


def main() -> None:
    name_server, rows, scratch = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    # Each task has four attempts.
    spark = start_session(scratch, "local[2,4]")
    errors = {
        topic: write(spark, name_server, topic, guarantee, int(rows))
        for topic, guarantee in (("Killed-2", "at-least-once"), ("Killed-1", "effectively-once"))
    }
    spark.stop()
    spark = start_session(scratch, "local[2,4]", {"spark.speculation": "true"})
    errors["Speculative"] = write(spark, name_server, "Speculative", "effectively-once", int(rows))
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
