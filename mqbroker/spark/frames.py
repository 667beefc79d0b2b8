"""Data frames of topics without Spark's data sources in Python, which PySpark 3.5 lacks: the readers and the writer of
`source` and `sink`, called from `mapInArrow`.

`stream` keeps a log of its own in the checkpoint directory, as Spark does: the offsets of a batch are written to
``offsets/N`` before it runs, and ``commits/N`` when it is done. After a kill, batch N runs again with the same offsets.
The directory is one of any file system that Spark's driver reaches.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mqbroker.spark.errors import BadOption
from mqbroker.spark.foreach import QUERY_ID, texts_of

#: How many batches the log of a stream keeps.
_KEPT = 100
_WRITTEN = "partition int, sent bigint, found bigint"


def read(spark: Any, columns: str | None = None, **options: Any) -> Any:
    """A data frame of what `spark.read.format("rocketmq").schema(columns).options(**options).load()` reads.

    Its offsets are fixed now. Raises BadOption, BadSchema, DataLoss, and errors of the client.
    """
    from mqbroker.spark.options import parse_options
    from mqbroker.spark.source import BatchReader

    parsed = parse_options(texts_of(options), streaming=False)
    reader = BatchReader(parsed, _schema(columns, parsed))
    return _frame(spark, reader, reader.partitions())


def stream(
    spark: Any,
    process: Callable[[Any, int], None],
    *,
    checkpoint: str,
    columns: str | None = None,
    available_now: bool = False,
    trigger_s: float = 1.0,
    **options: Any,
) -> None:
    """Call `process` with a data frame of new messages and the number of the batch, again and again.

    It is as `writeStream.foreachBatch(process)`: a batch whose call did not return, or raised, is repeated by the next
    run with the same `checkpoint`, with the same messages and number. `available_now` returns when all that is there at
    the start is processed; else it waits `trigger_s` seconds where there is nothing new, until it is interrupted.
    Raises BadOption, BadSchema, DataLoss, errors of the client, and what `process` raises.
    """
    from mqbroker.spark.options import parse_options
    from mqbroker.spark.source import StreamReader

    parsed = parse_options(texts_of(options), streaming=True)
    reader = StreamReader(parsed, _schema(columns, parsed))
    log = _BatchLog(spark, checkpoint)
    context = spark.sparkContext
    context.setLocalProperty(QUERY_ID, log.query_id())
    try:
        if available_now:
            reader.prepareForTriggerAvailableNow()
        batch = log.last("offsets")
        is_done = batch <= log.last("commits")
        here = reader.initialOffset() if batch < 0 else log.read("offsets", batch)
        while True:
            if is_done:
                start, here = here, reader.latestOffset(here, reader.getDefaultReadLimit())
                if here == start and batch >= 0:
                    if available_now:
                        return
                    time.sleep(trigger_s)
                    continue
                batch += 1
                log.add("offsets", batch, here)
            else:
                start = log.read("offsets", batch - 1) if batch else reader.initialOffset()
            partitions = reader.partitions(start, here)
            if partitions:
                process(_frame(spark, reader, partitions), batch)
            log.add("commits", batch, {})
            is_done = True
    finally:
        context.setLocalProperty(QUERY_ID, None)


def write(frame: Any, **options: Any) -> None:
    """As `frame.write.format("rocketmq").mode("append").options(**options).save()`. Raises BadOption or BadSchema; what
    a row or a broker is at fault for is raised by Spark."""
    from mqbroker.spark.sink import BatchWriter, Done
    from mqbroker.spark.sink_options import parse_sink_options

    writer = BatchWriter(parse_sink_options(texts_of(options)), frame.schema)

    def send(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        done = writer.write(batches)
        kinds = (("partition", pa.int32()), ("sent", pa.int64()), ("found", pa.int64()))
        arrays = [pa.array([getattr(done, name)], kind) for name, kind in kinds]
        yield pa.RecordBatch.from_arrays(arrays, [name for name, _ in kinds])

    writer.commit([Done(*row) for row in frame.mapInArrow(send, _WRITTEN).collect()])


def _schema(columns: str | None, options: Any) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    from mqbroker.spark.schema import default_ddl

    return _parse_datatype_string(columns or default_ddl(options.columns))


def _frame(spark: Any, reader: Any, partitions: Sequence[Any]) -> Any:
    """The rows of `partitions`, a task for each."""
    if not partitions:
        return spark.createDataFrame([], reader.schema)

    def rows(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(partitions[number])

    return spark.range(0, len(partitions), 1, len(partitions)).mapInArrow(rows, reader.schema)


class _BatchLog:
    """Small JSON files, by Hadoop's file systems, so that the checkpoint is where Spark's own would be."""

    def __init__(self, spark: Any, directory: str) -> None:
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to Spark's file systems
        self._path = jvm.org.apache.hadoop.fs.Path
        self._to_text = jvm.org.apache.commons.io.IOUtils.toString
        self._directory = directory.rstrip("/")
        root = self._path(self._directory)
        self._files = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        for kind in ("offsets", "commits"):
            self._files.mkdirs(self._path(f"{self._directory}/{kind}"))

    def last(self, kind: str) -> int:
        """The number of the last entry; -1 without one."""
        names = [
            status.getPath().getName() for status in self._files.listStatus(self._path(f"{self._directory}/{kind}"))
        ]
        return max([int(name) for name in names if name.isdigit()], default=-1)

    def read(self, kind: str, number: int) -> Any:
        return self._load(f"{kind}/{number}")

    def add(self, kind: str, number: int, value: Any) -> None:
        """Raises BadOption if it is there: another driver runs with this checkpoint."""
        self._save(f"{kind}/{number}", value)
        self._files.delete(self._path(f"{self._directory}/{kind}/{number - _KEPT}"), False)

    def query_id(self) -> str:
        """The id of the query, which stays the same."""
        if not self._files.exists(self._path(f"{self._directory}/metadata")):
            self._save("metadata", {"id": str(uuid.uuid4())})
        return str(self._load("metadata")["id"])

    def _load(self, name: str) -> Any:
        opened = self._files.open(self._path(f"{self._directory}/{name}"))
        try:
            return json.loads(self._to_text(opened, "UTF-8"))
        finally:
            opened.close()

    def _save(self, name: str, value: Any) -> None:
        path, partial = (self._path(f"{self._directory}/{each}") for each in (name, f".{uuid.uuid4()}.tmp"))
        output = self._files.create(partial, True)
        try:
            output.write(bytearray(json.dumps(value).encode()))
        finally:
            output.close()
        if self._files.exists(path) or not self._files.rename(partial, path):
            self._files.delete(partial, False)
            raise BadOption("checkpoint", f"{self._directory}/{name} is there already: another driver runs with it")
