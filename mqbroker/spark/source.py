"""The data source, and its readers for batches and streams, as called by Spark; its writers are in `sink`.

Spark creates readers in several processes and pickles them; a reader connects on first use. Planning
happens on the driver, from offsets; `read` runs in Python workers, and what it needs is imported there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mqbroker.errors import MQError
from mqbroker.spark.errors import PySparkTooOld
from mqbroker.spark.offsets import (
    Positions,
    QueueRange,
    TopicBounds,
    advance,
    cap,
    describe,
    from_json,
    limit_rows,
    plan_batch,
    plan_stream,
    to_json,
)
from mqbroker.spark.options import SourceOptions, parse_options
from mqbroker.spark.reading import RetryDeadline, fetch_all_bounds, fetch_bounds, read_chunks
from mqbroker.spark.schema import choose_columns, default_ddl
from mqbroker.spark.sink import BatchWriter, StreamWriter, refuse_overwriting
from mqbroker.spark.sink_options import parse_sink_options
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)

#: At a start a user waits, and the address may be wrong.
_START_TIMEOUT_S = 10.0


class RocketMQDataSource(DataSource):
    """Format "rocketmq": the messages of one or several topics."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        """All columns. Raises BadOption, so that users learn of errors early."""
        parse_options(self.options, streaming=None)
        return default_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises BadOption or BadSchema."""
        return BatchReader(parse_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises BadOption or BadSchema."""
        return StreamReader(parse_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises BadOption or BadSchema."""
        try:
            if overwrite:
                refuse_overwriting(is_stream=False)
            return BatchWriter(parse_sink_options(self.options), schema)
        except MQError as error:
            # Spark prints the traceback: a short one.
            raise error.with_traceback(None) from None

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises BadOption or BadSchema."""
        try:
            if overwrite:
                refuse_overwriting(is_stream=True)
            return StreamWriter(parse_sink_options(self.options), schema)
        except MQError as error:
            raise error.with_traceback(None) from None


class BatchReader(DataSourceReader):
    """Reads between two offsets of each queue, both fixed before the first message is read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = _columns(schema)

    def partitions(self) -> list[InputPartition]:
        """One for each queue with messages to read. Raises BadOption, DataLoss, or the client's errors."""
        options = self._options
        seen = _bounds_at_start(options)
        ranges = plan_batch(options.starting.resolve(seen.bounds), options.ending.resolve(seen.bounds))
        return [InputPartition(found) for found in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._columns, self._schema, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from trigger to trigger. Spark keeps the offsets; `plan` has the rules by which a restart continues."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = _columns(schema)
        self._initial: Positions | None = None
        self._anchored = False
        self._target: Positions | None = None
        self._seen: Positions | None = None
        self._silent: list[MessageQueue] = []

    def initialOffset(self) -> dict[str, Any]:
        """The start of a query without a checkpoint. Spark calls it twice, and must get the same."""
        if self._initial is None:
            seen = _bounds_at_start(self._options)
            self._initial = self._options.starting.resolve(seen.bounds)
        return to_json(self._initial)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch. Raises DataLoss."""
        if start is None:
            raise PySparkTooOld("one that does not say where the query stands")
        here = from_json(start)
        if here == self._initial and not self._anchored:
            return start
        seen = fetch_bounds(_client(self._options), self._options.topics, _deadline(self._options))
        self._warn_silent(seen.silent())
        self._seen = end = advance(here, seen)
        if self._target is not None:
            end = cap(here, end, self._target)
        if isinstance(limit, ReadMaxRows):
            end = limit_rows(here, end, limit.max_rows)
        return start if end == here else to_json(end)

    def _warn_silent(self, queues: list[MessageQueue]) -> None:
        """Triggers come many times a second: log changes only."""
        if queues != self._silent:
            self._silent = queues
            names = ", ".join(describe(queue) for queue in queues)
            log.warning("not read now, as brokers do not answer: %s", names or "nothing, all answer again")

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run."""
        seen = _bounds_at_start(self._options)
        self._target = {queue: bound.end for queue, bound in seen.bounds.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The last known ends of the queues, for the query's progress."""
        return None if self._seen is None else to_json(self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each queue that advances between the two offsets."""
        # The plan is in Spark's log already: also that of a first batch that is repeated after a restart.
        self._anchored = True
        return [InputPartition(found) for found in plan_stream(from_json(start), from_json(end), self._initial)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._columns, self._schema, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark keeps the offsets."""

    def stop(self) -> None:
        """Does nothing: Spark ends the process."""


def _columns(schema: StructType) -> tuple[str, ...]:
    return choose_columns((field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)


def _deadline(options: SourceOptions) -> RetryDeadline:
    return RetryDeadline(options.retry_timeout_ms / 1000, time.monotonic, time.sleep)


def _bounds_at_start(options: SourceOptions) -> TopicBounds:
    deadline = RetryDeadline(min(options.retry_timeout_ms / 1000, _START_TIMEOUT_S), time.monotonic, time.sleep)
    return fetch_all_bounds(_client(options), options.topics, deadline)


def _client(options: SourceOptions) -> Any:
    from mqbroker.spark.connections import client_for

    return client_for(options)


def _read(
    options: SourceOptions, columns: tuple[str, ...], schema: StructType, todo: QueueRange | None
) -> Iterator[Any]:
    """Yield the record batches of one range; Spark passes None for a plan without ranges."""
    if todo is None:
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    from mqbroker.spark.decode import decode_chunk

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    chunks = read_chunks(_client(options), todo, options.pull_batch, _deadline(options))
    try:
        for chunk in chunks:
            yield from decode_chunk(chunk, columns, arrow_schema)
    finally:
        # Spark may stop early, as with limit(); pulls in flight are abandoned now, not at garbage collection.
        chunks.close()
