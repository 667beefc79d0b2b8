"""A Spark driver whose Python writers are killed: the first attempt of each task is, when all its rows are acknowledged
and Spark has not heard of it.

Arguments: name server, topic, guarantee, number of rows, directory for Spark's own files, and whether tasks are run
speculatively.
"""

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


def main() -> None:
    name_server, topic, guarantee, rows, scratch, speculation = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.speculation={speculation} " + os.environ["PYSPARK_SUBMIT_ARGS"]
    spark = start_session(scratch, "local[2,4]")
    # Tasks find the class in this module under its own name.
    from tests.spark import sink_driver

    spark.dataSource.register(sink_driver.KilledSource)
    frame = spark.range(int(rows)).repartition(3).selectExpr("CAST(id AS STRING) AS body")
    writer = frame.write.format("rocketmq-killed").mode("append")
    writer.options(nameServer=name_server, topic=topic, guarantee=guarantee).save()


if __name__ == "__main__":
    main()
