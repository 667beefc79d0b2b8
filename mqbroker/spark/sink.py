"""The writers of the data source, as called by Spark.

A writer is made on the driver, pickled, and writes in Python workers; what that needs is imported there. `commit` and
`abort` run on another writer, in another process: `abort` while tasks of the same write may still start, and `commit`
perhaps twice. Both only log, as each task has its rows acknowledged before it ends.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from pyspark import TaskContext
from pyspark.sql.types import StructType

from mqbroker.errors import MQError
from mqbroker.spark import api
from mqbroker.spark.errors import BadOption, needed_by_workers
from mqbroker.spark.sink_options import Guarantee, SinkColumns, SinkOptions, choose_sink_columns

log = logging.getLogger(__name__)

_ROWS_TOGETHER = 10_000


@attrs.define
class Done(api.WriterCommitMessage):
    """What a task has written."""

    partition: int
    sent: int
    found: int


class BatchWriter(api.DataSourceArrowWriter):
    """Writes a data frame. Unique keys differ from one write to the next, unless `writeId` names it."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises BadOption or BadSchema."""
        self._options = options
        self._columns = _columns(schema, options)
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Done:
        """Send the rows of a partition. Raises BadRow, NotWritten, and errors of the client."""
        try:
            return _write(self._options, self._columns, self._write_id, iterator)
        except MQError as error:
            # Spark prints the traceback: a short one.
            raise error.with_traceback(None) from None

    def commit(self, messages: Sequence[Done | None]) -> None:
        """Log what was written."""
        _log_written("a write", messages)

    def abort(self, messages: Sequence[Done | None]) -> None:
        """Log that the write has failed; the rows that were sent stay."""
        log.warning("a write failed; rows that were acknowledged stay in the topic")


class StreamWriter(api.DataSourceStreamWriter):
    """Writes the micro-batches of a query. Unique keys are those of query and batch, so that a batch that is repeated
    has the same."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises BadOption or BadSchema."""
        self._options = options
        self._schema = schema
        self._columns = _columns(schema, options)

    def write(self, iterator: Iterator[Any]) -> Done:
        """As BatchWriter's."""
        try:
            batches = iterator if api.HAS_ARROW_STREAMS else _batches(iterator, self._schema)
            query = self._options.write_id or _local_property("sql.streaming.queryId")
            write_id = f"{query}/{_local_property('streaming.sql.batchId')}"
            return _write(self._options, self._columns, write_id, batches)
        except MQError as error:
            raise error.with_traceback(None) from None

    def commit(self, messages: Sequence[Done | None], batchId: int) -> None:
        """Log what was written."""
        _log_written(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[Done | None], batchId: int) -> None:
        """Log that a batch has failed; the rows that were sent stay."""
        log.warning("batch %d failed; rows that were acknowledged stay in the topic", batchId)


def refuse_overwriting(*, is_stream: bool) -> None:
    """Raises BadOption."""
    if is_stream:
        why = (
            "complete writes all rows again with each batch, and messages cannot be replaced; use append, or "
            "foreachBatch(mqbroker.spark.foreach_batch(...)) with update"
        )
        raise BadOption("outputMode", why)
    raise BadOption("mode", "overwrite is not supported, because messages stay in a topic; use append")


def _columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    return choose_sink_columns(((field.name, field.dataType.simpleString()) for field in schema.fields), options)


def _local_property(name: str) -> str:
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else None) or ""


def _write(options: SinkOptions, columns: SinkColumns, write_id: str, batches: Iterator[Any]) -> Done:
    context = TaskContext.get()
    partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    is_once = options.guarantee is Guarantee.EFFECTIVELY_ONCE
    if is_once and _local_property("spark.speculation") == "true":
        raise BadOption(
            "guarantee",
            "effectively-once is not possible with spark.speculation=true, because two attempts of a task write at "
            "once: turn that off, or use at-least-once",
        )
    with needed_by_workers():
        from mqbroker.client.identity import local_ip
        from mqbroker.spark.connections import sender_for
        from mqbroker.spark.packing import FreshIds, Packer, RowIds
        from mqbroker.spark.writing import TaskWriter, queues_at_start
        from mqbroker.wire.ids import UniqIdSource

    sender = sender_for(options)
    if is_once:
        ids: Any = RowIds(write_id, partition)
    else:
        salt = random.SystemRandom().getrandbits(32)
        ids = FreshIds(UniqIdSource(local_ip(options.name_servers), salt & 0xFFFF, salt, time.time))
    packer = Packer(
        columns=columns,
        topic=options.topic,
        batch_bytes=options.batch_bytes,
        partition=partition,
        write_id=write_id,
        ids=ids,
        queues=queues_at_start(sender, options, time.monotonic, time.sleep),
        now_ms=lambda: int(time.time() * 1000),
    )
    written = TaskWriter(packer, sender, options, attempt, time.monotonic, time.sleep).write(batches)
    return Done(partition, written.sent, written.found)


def _batches(rows: Iterator[Any], schema: StructType) -> Iterator[Any]:
    """Rows as record batches."""
    import pyarrow as pa

    arrow_schema: Any = api.arrow_schema_of(schema)
    some: list[Any] = []

    def batch() -> Any:
        columns = zip(*some, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(_plain(values), field.type) for values, field in zip(columns, arrow_schema, strict=True)],
            schema=arrow_schema,
        )

    for row in rows:
        some.append(tuple(row))
        if len(some) == _ROWS_TOGETHER:
            yield batch()
            some.clear()
    if some:
        yield batch()


def _plain(values: Sequence[Any]) -> list[Any]:
    """Rows within rows as Arrow takes them."""
    as_dict: Callable[[Any], Any] = lambda each: each.asDict() if hasattr(each, "asDict") else each  # noqa: E731
    return [[as_dict(one) for one in each] if isinstance(each, list) else each for each in values]


def _log_written(what: str, messages: Sequence[Done | None]) -> None:
    done = [message for message in messages if isinstance(message, Done)]
    sent, found = sum(each.sent for each in done), sum(each.found for each in done)
    log.info("%s of %d partitions: %d rows sent, %d were already there", what, len(messages), sent, found)
