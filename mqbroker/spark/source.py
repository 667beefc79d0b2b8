"""The data source, and its readers for batches and streams, as called by Spark; its writers are in `sink`.

Spark creates readers in several processes and pickles them; a reader connects on first use. Planning
happens on the driver, from offsets; `read` runs in Python workers, and what it needs is imported there.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from functools import partial, wraps
from types import FrameType
from typing import Any, TypeVar, cast

import attrs
from pyspark.sql.types import StructType

from mqbroker.client.subscription import Sql
from mqbroker.errors import MQError
from mqbroker.spark import api
from mqbroker.spark.errors import BadCheckpoint, BadOption, DataLoss, Loss, NotReadable, needed_by_workers
from mqbroker.spark.limits import SAMPLE, backlog, limit_bytes
from mqbroker.spark.losses import LossLog, fetch_marks, fetch_sizes, read_batches, refuse_loss
from mqbroker.spark.offsets import (
    EARLIEST,
    Mark,
    OffsetSpec,
    Positions,
    QueueRange,
    TopicBounds,
    cap,
    farthest,
    find_losses,
    limit_rows,
    plan_batch,
    split_ranges,
    to_json,
)
from mqbroker.spark.options import SourceOptions, parse_options
from mqbroker.spark.progress import StreamOffset, plan
from mqbroker.spark.pushdown import Pushed, at_places
from mqbroker.spark.reading import Expected, RetryDeadline, can_filter, fetch_all_bounds, fetch_bounds
from mqbroker.spark.schema import choose_columns, default_ddl
from mqbroker.spark.sink import BatchWriter, StreamWriter, refuse_overwriting
from mqbroker.spark.sink_options import parse_sink_options
from mqbroker.spark.starting import ask_patiently, find_positions, settle_committed
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)

#: At a start a user waits, and the address may be wrong.
_NAME_SERVER_TIMEOUT_S = 1.0


F = TypeVar("F", bound=Callable[..., Any])


def shallow(method: F) -> F:
    """Raise errors of `method` without the frames below it: Spark prints the traceback, which hides the sentence."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except MQError as error:
            raise error.with_traceback(None) from None

    return cast(F, call)


class RocketMQDataSource(api.DataSource):
    """Format "rocketmq": the messages of one or several topics."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @shallow
    def schema(self) -> str:
        """All columns. Raises BadOption, so that users learn of errors early."""
        return default_ddl(parse_options(self.options, streaming=None).columns)

    @shallow
    def reader(self, schema: StructType) -> BatchReader:
        """Raises BadOption or BadSchema."""
        reader = PushdownReader if _pushes_filters() else BatchReader
        return reader(parse_options(self.options, streaming=False), schema)

    @shallow
    def streamReader(self, schema: StructType) -> StreamReader:
        """Raises BadOption or BadSchema."""
        return StreamReader(parse_options(self.options, streaming=True), schema)

    @shallow
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Raises BadOption or BadSchema."""
        if overwrite:
            refuse_overwriting(is_stream=False)
        return BatchWriter(parse_sink_options(self.options), schema)

    @shallow
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Raises BadOption or BadSchema."""
        if overwrite:
            refuse_overwriting(is_stream=True)
        return StreamWriter(parse_sink_options(self.options), schema)


def _pushes_filters() -> bool:
    """Whether Spark asks for a reader to push filters to. It fails every read by one that could take them while
    `spark.sql.python.filterPushdown.enabled` is false, and only its calling module tells."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - Python has no other way to the caller
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == "pyspark.sql.worker.data_source_pushdown_filters":
            return True
        frame = frame.f_back
    return False


class BatchReader(api.DataSourceReader):
    """Reads between two offsets of each queue, both fixed before the first message is read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self.schema = schema
        self._columns = _columns(options, schema)
        self._pushed = Pushed()

    @shallow
    def partitions(self) -> list[Any]:
        """One for each queue with messages to read. Raises BadOption, DataLoss, or the client's errors."""
        options = self._options
        seen = _bounds_at_start(options, _named(options))
        starts, losses = _find(options, options.starting, seen)
        ends, beyond = _find(options, options.ending, seen)
        for loss in _up_to_ends(losses, beyond):
            LossLog(options.data_loss_to)(loss)
        # A time may be that of a message that was stored since the bounds were asked for.
        starts, ends = (
            {queue: min(at, seen.bounds[queue].end) for queue, at in positions.items()} for positions in (starts, ends)
        )
        ranges = plan_batch(starts, ends, options.ending.option)
        client = _client(options)
        ranges = self._pushed.clip(ranges, client.at_times)
        if options.index_lookup:
            deadline = _deadline(options)

            def find(topic: str, key: str, is_unique: bool) -> Any:
                return ask_patiently(
                    lambda: client.places(topic, key, is_unique=is_unique), deadline, f"the index of topic {topic}"
                )

            for keys, is_unique in self._pushed.lookups:
                ranges = at_places(ranges, keys, partial(find, is_unique=is_unique))
        if self._pushed.sql and self._options.expression is None:
            expression = Sql(" AND ".join(self._pushed.sql))
            if can_filter(client, ranges, expression):
                # Spark has pickled the reader by now, so that its options would change nothing.
                ranges = [attrs.evolve(each, expression=expression) for each in ranges]
        return _partitions(options, ranges)

    def read(self, partition: Any) -> Iterator[Any]:
        return _read(self._options, self._columns, self.schema, partition)


class PushdownReader(BatchReader):
    """As `BatchReader`, where the session lets filters be pushed down."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Yields those that Spark must still evaluate."""
        columns, may_filter = self._options.columns, self._options.expression is None
        left = [each for each in filters if not self._pushed.push(each, columns, may_filter=may_filter)]
        if self._pushed.tags:
            self._options = attrs.evolve(self._options, expression=" || ".join(sorted(self._pushed.tags)))
        yield from left


class StreamReader(api.DataSourceStreamReader, api.SupportsTriggerAvailableNow):
    """Reads from trigger to trigger. Spark keeps the offsets; `plan` has the rules by which a restart continues."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self.schema = schema
        self._columns = _columns(options, schema)
        self._initial: Positions | None = None
        self._initial_marks: Mapping[MessageQueue, Mark] = {}
        self._anchored = False
        #: The query's offset, if Spark has told it. On a restart it asks first for the partitions between an
        #: offset and the same one; a new query is asked for its latest offset first.
        self._here: dict[str, Any] | None = None
        #: The offset from which a batch was last planned, as Spark gave it, and decoded.
        self._parsed: tuple[dict[str, Any], StreamOffset] | None = None
        self._target: Positions | None = None
        #: Whether the first positions of a run may include brokers that are away.
        self._expects_earlier = False
        self._seen: Positions | None = None
        self._planned_at: float | None = None
        self._silent: list[MessageQueue] = []
        #: Queues whose last message was compared since this process began to read them.
        self._compared: set[MessageQueue] = set()
        self._gone: set[MessageQueue] = set()

    @shallow
    def initialOffset(self) -> dict[str, Any]:
        """The start of a query without a checkpoint. Spark calls it twice, and must get the same."""
        if self._initial is None:
            # Without an empty first batch, a repeated first batch has rows of all its queues.
            is_repeated = self._here is not None and not self._begins_empty()
            repeated = _offset(self._here).positions.keys() if is_repeated else frozenset()
            seen = _bounds_at_start(self._options, _named(self._options) | repeated)
            initial, losses = _find(self._options, self._options.starting, seen)
            self._skip(losses)
            self._initial_marks = self._marks_before(initial)
            self._initial, self._seen = initial, farthest(initial, seen)
        return StreamOffset(self._initial, self._initial_marks).to_json()

    @shallow
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch. Raises DataLoss."""
        is_older = start is None
        if start is None:
            self._anchored = self._anchored or not self._begins_empty()
            start, limit = self._here or self.initialOffset(), self.getDefaultReadLimit()
        if self._parsed is None or self._parsed[0] != start:  # an idle stream is always at the same place
            self._parsed = start, _offset(start)
        here = self._parsed[1]
        self._report(here.positions)
        if here.positions == self._initial and not self._anchored:
            return start
        if self._target is not None and self._expects_earlier:
            self._expects_earlier = False
            self._target = self._wait_for_earlier(here.positions, self._target)
        client = _client(self._options)
        topics = _topics(client, self._options, _deadline(self._options))
        seen = fetch_bounds(
            client,
            topics,
            _deadline(self._options),
            selection=self._options.selection,
            may_be_gone=not self._options.fail_on_data_loss,
        )
        self._warn_silent(sorted({*seen.silent(), *seen.absent(here.positions)}))
        losses = self._find_losses(here, seen)
        self._skip(losses)
        begin = here.start_after(losses)
        self._seen = end = farthest(begin.positions, seen)
        if self._target is not None:
            end = cap(begin.positions, end, self._target)
        if isinstance(limit, api.ReadMaxRows):
            end = limit_rows(begin.positions, end, limit.max_rows)
        if not losses and self._is_too_small(begin.positions, end):
            return start
        end = self._limit_bytes(begin.positions, end)
        if end == here.positions and not begin.resumed:
            return start
        moved = {queue: offset for queue, offset in end.items() if offset != begin.positions.get(queue)}
        marks = self._marks_before(moved)
        counts = {queue: moved[queue] - begin.positions.get(queue, seen.bounds[queue].first) for queue in marks}
        size = begin.size + sum(count * marks[queue].size for queue, count in counts.items())
        # Without the mark of a queue that moved, its next batch is not compared: the former mark is of another message.
        last = {queue: mark for queue, mark in begin.last.items() if queue not in moved} | marks
        left = _left(end, self._seen) if is_older else {}
        return attrs.evolve(begin, positions=end, last=last, size=size, left=left).to_json()

    def _is_too_small(self, start: Positions, end: Positions) -> bool:
        """Whether a batch waits for more messages. What is available now does not."""
        now = time.monotonic()
        if self._planned_at is None:
            self._planned_at = now
        if self._target is None and self._options.limits.waits(start, end, now - self._planned_at):
            return True
        if start != end:
            self._planned_at = now
        return False

    def _limit_bytes(self, start: Positions, end: Positions) -> Positions:
        size = self._options.limits.max_bytes
        if size is None:
            return end
        wants = [(queue, start[queue], min(count, SAMPLE)) for queue, count in backlog(start, end).items()]
        return limit_bytes(start, end, size, fetch_sizes(_client(self._options), wants))

    def _begins_empty(self) -> bool:
        """Whether the first batch of a new query is empty, so that its end records where the query starts.

        Before PySpark 4.2 a run of what is available is one batch, which should be empty only if it has to be.
        """
        return api.TELLS_START or self._options.starting.has_latest()

    def _find_losses(self, here: StreamOffset, seen: TopicBounds) -> list[DataLoss]:
        losses = {loss.queue: loss for loss in find_losses(here.positions, seen)}
        doubtful = {
            queue: here.positions[queue]
            for queue, bound in seen.bounds.items()
            if queue in here.last
            and queue not in losses
            and bound.first < here.positions[queue] <= bound.end
            and (bound.end > here.positions[queue] or queue not in self._compared)
        }
        marks = self._marks_before(doubtful)
        self._compared |= marks.keys()
        for queue, mark in marks.items():
            if mark != here.last[queue]:
                details = (
                    f"read up to {here.positions[queue]}; the message before was {here.last[queue]}, and is {mark}"
                )
                losses[queue] = DataLoss(Loss.RECREATED, queue, details, None, seen.bounds[queue].first)
        return list(losses.values())

    def _skip(self, losses: list[DataLoss]) -> None:
        """Record the losses. Raises the first one if the query must not continue."""
        for loss in losses:
            if self._options.fail_on_data_loss:
                raise loss
            if loss.loss is Loss.QUEUE_GONE and loss.queue in self._gone:
                continue
            LossLog(self._options.data_loss_to)(loss)
        self._gone = {loss.queue for loss in losses if loss.loss is Loss.QUEUE_GONE}

    def _marks_before(self, positions: Positions) -> dict[MessageQueue, Mark]:
        return fetch_marks(_client(self._options), positions)

    def _warn_silent(self, queues: list[MessageQueue]) -> None:
        """Triggers come many times a second: log changes only."""
        if queues != self._silent:
            self._silent = queues
            if queues:
                log.warning(
                    "not read now, because their brokers do not respond or the name server does not list them: "
                    "queues of %s",
                    _counts(queues),
                )
            else:
                log.warning("all queues are read again")

    def getDefaultReadLimit(self) -> Any:
        rows = self._options.max_offsets_per_trigger
        return api.ReadAllAvailable() if rows is None else api.ReadMaxRows(rows)

    @shallow
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run."""
        # Which queues must exist is known with the positions: after a restart the options do not tell.
        seen = _bounds_at_start(self._options, may_be_gone=True)
        self._target = {queue: bound.end for queue, bound in seen.bounds.items()}
        self._expects_earlier = True

    def _wait_for_earlier(self, positions: Positions, target: Positions) -> Positions:
        """`target`, with the ends of queues whose brokers were away when it was fixed: their messages count, too.

        Raises NotReadable if the broker stays away, unless the query continues after data loss."""
        away = {queue.broker_name for queue in positions} - {queue.broker_name for queue in target}
        if not away:
            return target
        may_be_gone = not self._options.fail_on_data_loss
        try:
            seen = _bounds_at_start(self._options, brokers=away, may_be_gone=may_be_gone)
        except NotReadable as error:
            if not may_be_gone:
                raise
            log.warning("this run reads without brokers that were read before: %s", error)
            return target
        return target | {queue: bound.end for queue, bound in seen.bounds.items() if queue.broker_name in away}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The last known ends of the queues, for the query's progress."""
        return None if self._seen is None else to_json(self._seen)

    @shallow
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        """One for each queue that advances between the two offsets."""
        # The plan is in Spark's log already: also that of a first batch that is repeated after a restart.
        self._anchored = True
        self._parsed = None  # the reader is pickled for the tasks
        self._here = end
        first, last = _offset(start), _offset(end)
        if not self._begins_empty() and (added := last.positions.keys() - first.positions.keys()):
            # The end of a first batch has queues that appeared after the start: they are read from their first message.
            bounds = _bounds_at_start(self._options, _named(self._options) | added).bounds
            firsts = {queue: bounds[queue].first for queue in added if queue in bounds}
            first = attrs.evolve(first, positions=first.positions | firsts)
        ranges = plan(first, last, self._initial)
        return _partitions(self._options, ranges)

    def read(self, partition: Any) -> Iterator[Any]:
        return _read(self._options, self._columns, self.schema, partition)

    @shallow
    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets; brokers get them for tools that show the lag."""
        self._report(_offset(end).positions)

    def _report(self, positions: Positions) -> None:
        if self._options.commits:
            _client(self._options).report(positions)

    def stop(self) -> None:
        """Does nothing: Spark ends the process."""


def _offset(value: Any) -> StreamOffset:
    """An offset from Spark's checkpoint. Raises BadCheckpoint."""
    try:
        return StreamOffset.from_json(value)
    except ValueError as error:
        why = f"an offset is not of this source, or damaged: {error}; use a new checkpointLocation and startingOffsets"
        raise BadCheckpoint("of the query", why) from None


def _left(end: Positions, seen: Positions) -> Positions:
    """The number of messages left in each queue after a batch."""
    return {queue: at - end[queue] for queue, at in seen.items() if at > end[queue]}


def _partitions(options: SourceOptions, ranges: list[QueueRange]) -> list[Any]:
    parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    return [api.InputPartition(part) for part in parts]


def _columns(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    fields = ((field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)
    return choose_columns(fields, options.columns)


def _deadline(options: SourceOptions) -> RetryDeadline:
    return RetryDeadline(options.retry_timeout_ms / 1000, time.monotonic, time.sleep)


def _named(options: SourceOptions) -> Set[MessageQueue]:
    """The queues that options name."""
    return options.starting.named | options.ending.named | options.selection.queues


def _bounds_at_start(
    options: SourceOptions,
    queues: Set[MessageQueue] = frozenset(),
    *,
    brokers: Set[str] = frozenset(),
    may_be_gone: bool = False,
) -> TopicBounds:
    """The bounds of all queues. Waits for the expected brokers: those of the options and of `queues`, and `brokers`.
    With `may_be_gone`, topics without a route are left out."""
    soon = RetryDeadline(min(options.retry_timeout_ms / 1000, _NAME_SERVER_TIMEOUT_S), time.monotonic, time.sleep)
    selection = options.selection
    expected = Expected(options.expect_brokers | brokers, queues)
    client, deadline = _client(options), _deadline(options)
    topics = _topics_at_start(client, options, soon, deadline)
    seen = fetch_all_bounds(client, topics, deadline, soon, expected, selection, may_be_gone=may_be_gone)
    log.info("queues at the start: %s", _counts(seen.queues))
    return seen


def _counts(queues: Iterable[MessageQueue]) -> str:
    """The number of queues of each topic on each broker, in one short line."""
    counts = Counter(f"{queue.topic} on {queue.broker_name}" for queue in queues)
    return "; ".join(f"{where}: {count}" for where, count in sorted(counts.items()))


def _topics(client: Any, options: SourceOptions, deadline: RetryDeadline) -> Sequence[str]:
    """The topics that are read now."""
    if options.selection.pattern is None:
        return options.topics
    return options.selection.matching(*ask_patiently(client.topics, deadline, "the list of topics"))


def _topics_at_start(
    client: Any, options: SourceOptions, soon: RetryDeadline, deadline: RetryDeadline
) -> Sequence[str]:
    """As `_topics`; waits while a name server lists no topic at all, as when the only broker restarts. Raises BadOption
    if a batch has none."""
    selection = options.selection
    if selection.pattern is None:
        return options.topics
    while True:
        listed, internal = ask_patiently(client.topics, soon, "the list of topics")
        topics = selection.matching(listed, internal)
        is_any = bool(listed or internal)
        if topics or (is_any and options.is_stream):
            return topics
        more = "" if is_any else ": it lists none, as no broker is registered"
        why = BadOption("subscribePattern", f"{selection.pattern!r} matches no topic that the name server lists{more}")
        if is_any and not options.expect_brokers:
            raise why
        deadline.wait(why)


def _find(options: SourceOptions, spec: OffsetSpec, seen: TopicBounds) -> tuple[Positions, list[DataLoss]]:
    """The positions of `spec`; and what was lost before them, if the query continues after data loss."""
    OffsetSpec("assign", EARLIEST).check_exist(options.selection.queues, seen.bounds)
    client, deadline = _client(options), _deadline(options)
    spec = settle_committed(spec, seen.bounds, client, deadline)
    losses: list[DataLoss] = []
    if not options.fail_on_data_loss:
        spec, losses = spec.without_lost(seen.bounds)
    return find_positions(spec, seen.bounds, client, deadline), losses


def _up_to_ends(losses: list[DataLoss], beyond: list[DataLoss]) -> Iterator[DataLoss]:
    """What a batch has lost: the `losses` after its starts, each extended to the end of the batch if that is lost, too
    (`beyond`). A queue that is only in `beyond` has lost an unknown number of messages up to its end."""
    ends = {loss.queue: loss for loss in beyond}
    for loss in losses:
        end = ends.pop(loss.queue, loss)
        yield loss if end is loss else attrs.evolve(loss, resume=max(loss.first or 0, end.first or 0))
    for end in ends.values():
        yield attrs.evolve(end, first=None, resume=end.first)


def _client(options: SourceOptions) -> Any:
    from mqbroker.spark.connections import client_for

    return client_for(options)


def _read(options: SourceOptions, columns: tuple[str, ...], schema: StructType, partition: Any) -> Iterator[Any]:
    """Yield the record batches of one range. For a plan without ranges, Spark passes a partition of None; 4.0 and 4.1
    pass None."""
    if partition is None or partition.value is None:
        return
    todo: QueueRange = partition.value
    with needed_by_workers():
        from mqbroker.spark.decode import decode_chunk

    arrow_schema = api.arrow_schema_of(schema)
    on_loss = refuse_loss if options.fail_on_data_loss else LossLog(options.data_loss_to)
    # Spark may stop early, as with limit(); pulls in flight are abandoned now, not at garbage collection.
    with closing(
        read_batches(
            _client(options),
            todo,
            options.pull_batch,
            _deadline(options),
            lambda chunk: decode_chunk(chunk, columns, arrow_schema, options.namespace),
            on_loss,
            options.expression or todo.expression,
        )
    ) as batches:
        try:
            yield from batches
        except MQError as error:
            raise error.with_traceback(None) from None
