"""Writes the archive of the classes that Spark loads: a session, and some of all that the tests do with one.

Arguments: directory for Spark's own files, and the option of the JVM. Without arguments it writes the archive of this
environment, if there is none, for all tests that follow.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from tests.spark.session import class_archive_options, session_environment, start_session


def use_everything(spark: Any, scratch: str) -> None:
    """Batches and streams, files, SQL, and a source and a sink in Python."""
    rows = spark.range(20).selectExpr("id", "CAST(id AS STRING) AS text", "array(id) AS ids", "map('a', id) AS m")
    rows.write.parquet(f"{scratch}/rows")
    stored = spark.read.parquet(f"{scratch}/rows")
    counts = stored.where("id > 3").groupBy("text").agg({"id": "sum", "*": "count"}).orderBy("text")
    counts.collect()
    stored.join(counts, "text").selectExpr("ids[0]", "m['a']").collect()
    stored.rdd.map(len).count()
    stream = spark.readStream.schema(stored.schema).parquet(f"{scratch}/rows")
    for number, (frame, mode) in enumerate(((stream, "append"), (stream.groupBy("text").count(), "update"))):
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", f"{scratch}/checkpoint{number}")
        writer = writer.foreachBatch(lambda batch, _: batch.count()).trigger(availableNow=True)
        writer.start().awaitTermination()
    if hasattr(spark, "dataSource"):
        spark.dataSource.register(_python_source())
        frame = spark.read.format("archived").load()
        frame.where("a < 2").groupBy("a").count().collect()
        frame.write.format("archived").mode("append").save()


def _python_source() -> Any:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(n) for n in range(2)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class Writer(DataSourceWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "archived"

        def schema(self) -> str:
            return "a INT"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            return Writer()

    return Source


def main() -> None:
    if len(sys.argv) == 1:
        print(class_archive_options() or "this Java writes no archive of classes")
        return
    scratch, option = sys.argv[1:]
    os.environ.update(session_environment(scratch, option))
    # Executors of their own would wait for the archive, which this writes.
    spark = start_session(scratch, more={"spark.executor.extraJavaOptions": ""})
    gateway = spark.sparkContext._gateway
    use_everything(spark, scratch)
    spark.stop()
    # The JVM writes the archive when it ends.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
