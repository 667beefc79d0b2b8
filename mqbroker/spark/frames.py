"""Data frames of topics without Spark's data sources in Python, which PySpark 3.5 lacks: the readers and the writer of
`source` and `sink`, called from `mapInArrow`.

`stream` keeps a log of its own in the checkpoint directory, as Spark does: the offsets of a batch are written to
``offsets/N`` before it runs, and ``commits/N`` when it is done. After a kill, batch N runs again with the same offsets.
`checkpoint` has the rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mqbroker.spark.errors import BadOption
from mqbroker.spark.foreach import QUERY_ID, texts_of

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
    Raises BadOption, BadSchema, BadCheckpoint, DataLoss, errors of the client, and what `process` raises.
    """
    from mqbroker.spark.checkpoint import BatchLog, HadoopFiles
    from mqbroker.spark.options import parse_options
    from mqbroker.spark.source import StreamReader

    context = getattr(spark, "sparkContext", None)
    if context is None:
        raise BadOption(
            "checkpoint",
            "mqbroker.spark.stream keeps it through the JVM of the driver, which Spark Connect does not reach; use "
            'readStream.format("rocketmq") and writeStream.foreachBatch',
        )
    parsed = parse_options(texts_of(options), streaming=True)
    reader = StreamReader(parsed, _schema(columns, parsed))
    log = BatchLog.open(HadoopFiles(spark, checkpoint), checkpoint)
    context.setLocalProperty(QUERY_ID, log.query_id)
    try:
        drive(
            reader,
            log,
            lambda partitions, batch: process(_frame(spark, reader, partitions), batch),
            time.sleep,
            available_now=available_now,
            trigger_s=trigger_s,
        )
    finally:
        context.setLocalProperty(QUERY_ID, None)


def drive(
    reader: Any,
    log: Any,
    process: Callable[[Sequence[Any], int], None],
    sleep: Callable[[float], None],
    *,
    available_now: bool,
    trigger_s: float,
) -> None:
    """Spark's part of a stream: call `process` with the partitions of each batch, from where `log` is."""
    if available_now:
        reader.prepareForTriggerAvailableNow()
    here = reader.initialOffset() if log.batch < 0 else log.offset(log.batch)
    while True:
        if log.is_done:
            start, here = here, reader.latestOffset(here, reader.getDefaultReadLimit())
            if here == start and log.batch >= 0:
                if available_now:
                    return
                sleep(trigger_s)
                continue
            log.plan(here)
        else:
            start = log.offset(log.batch - 1) if log.batch else reader.initialOffset()
        partitions = reader.partitions(start, here)
        if partitions:
            process(partitions, log.batch)
        log.commit()


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
