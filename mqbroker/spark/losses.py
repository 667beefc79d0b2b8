"""Lost messages: reads that continue at the next message, and the record of what was skipped.

Each skipped range is logged, and with `dataLossTo` a file of one JSON object is added to that directory. Its name is
made of the range, so that a repeated task replaces its own file, and `spark.read.json(directory)` has each range once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import attrs

from mqbroker.client.messages import PullStatus
from mqbroker.client.subscription import Sql
from mqbroker.config.system import open_new
from mqbroker.errors import MQError
from mqbroker.spark.errors import BadOption, DataLoss, Loss
from mqbroker.spark.offsets import Mark, Positions, QueueRange
from mqbroker.spark.reading import Chunk, PullSource, RetryDeadline, Want, read_chunks, read_filtered
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.record import BadRecord, decode_record

log = logging.getLogger(__name__)

OnLoss = Callable[[DataLoss], None]


def refuse_loss(loss: DataLoss) -> None:
    """What `failOnDataLoss=true` does."""
    raise loss


@attrs.frozen
class LossLog:
    """Logs what was skipped, and adds it to `directory` if that is set."""

    directory: str | None

    def __call__(self, loss: DataLoss) -> None:
        """Raises BadOption if the directory cannot be written."""
        first, end = loss.first, loss.resume
        count = None if first is None or end is None else end - first
        q = loss.queue
        log.warning(
            "skipped: topic %s, broker %s, queue %d, from %s to %s, %s messages: %s: %s (%s)",
            q.topic,
            q.broker_name,
            q.queue_id,
            "?" if first is None else first,
            "?" if end is None else end,
            "an unknown number of" if count is None else count,
            loss.loss.name,
            loss.loss.value,
            loss.details,
        )
        if self.directory is not None:
            row = {
                "topic": q.topic,
                "brokerName": q.broker_name,
                "queueId": q.queue_id,
                "fromOffset": first,
                "toOffset": end,
                "count": count,
                "kind": loss.loss.name,
                "details": loss.details,
                "noticedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            self._write(self.directory, row)

    def _write(self, directory: str, row: dict[str, Any]) -> None:
        identity = [row[name] for name in ("topic", "brokerName", "queueId", "fromOffset", "toOffset", "kind")]
        if row["fromOffset"] is None:  # what is not known by its range is known by its text
            identity.append(row["details"])
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        # Spark ignores files whose names begin with a dot.
        partial = os.path.join(directory, f".{name}.{os.getpid()}")
        try:
            os.makedirs(directory, exist_ok=True)
            with os.fdopen(open_new(partial), "w", encoding="utf-8") as file:
                json.dump(row, file)
                file.write("\n")
            os.replace(partial, os.path.join(directory, f"{name}.json"))
        except OSError as error:
            raise BadOption("dataLossTo", f"{directory}: {error.strerror}") from None


def mark_of(data: bytes, at: int = 0) -> tuple[int, Mark]:
    """The queue offset and the mark of the record at `at`. Raises BadRecord."""
    record = decode_record(data, at, check_crc=False)
    return record.queue_offset, Mark(record.physical_offset, record.store_timestamp, record.store_size)


def fetch_marks(source: PullSource, positions: Positions) -> dict[MessageQueue, Mark]:
    """The marks of the messages before `positions`, by one pull each. Queues that do not respond are left out."""
    wants = [(queue, offset - 1, 1) for queue, offset in positions.items() if offset > 0]
    found = {}
    for queue, body in _found(source, wants).items():
        try:
            at, mark = mark_of(body)
        except BadRecord:
            continue
        if at == positions[queue] - 1:
            found[queue] = mark
    return found


def fetch_sizes(source: PullSource, wants: Sequence[Want]) -> dict[MessageQueue, float]:
    """The mean size of the records that each pull finds. Queues that do not respond are left out."""
    from mqbroker.spark.decode import record_starts

    found = {}
    for queue, body in _found(source, wants).items():
        try:
            found[queue] = len(body) / max(1, len(record_starts(body)))
        except BadRecord:
            continue
    return found


def _found(source: PullSource, wants: Sequence[Want]) -> dict[MessageQueue, bytes]:
    """What a pull of each queue finds, all at once."""
    if not wants:
        return {}
    try:
        answers = source.fetch_ahead(wants).finish()
    except MQError as error:
        log.info("the messages of %d queues could not be read: %s", len(wants), error)
        return {}
    return {
        queue: answer.body
        for (queue, _, _), answer in zip(wants, answers, strict=True)
        if not isinstance(answer, MQError) and answer.status is PullStatus.FOUND
    }


def read_batches(
    source: PullSource,
    todo: QueueRange,
    pull_batch: int,
    deadline: RetryDeadline,
    decode: Callable[[Chunk], Iterator[Any]],
    on_loss: OnLoss,
    expression: str | Sql | None = None,
) -> Generator[Any, None, None]:
    """Yield what `decode` makes of all records of `todo`, in order: Arrow batches, with a row for each record; with an
    `expression`, of the records that match it.

    `on_loss` is called with what is lost; unless it raises, the read continues behind that. A corrupt record is found
    by pulls of ever smaller ranges, and it alone is skipped. Raises as `read_chunks` does.
    """
    pending = [todo]
    while pending:
        part = pending.pop()
        at, end = part.start, part.end
        try:
            read = read_chunks if expression is None else partial(read_filtered, expression=expression)
            with closing(read(source, part, pull_batch, deadline)) as chunks:
                for chunk in chunks:
                    end = chunk.end
                    if end == todo.end:
                        _check_last(chunk, todo, on_loss)
                    # Rows of a filtered chunk do not tell how far it was read: all of it counts, or nothing.
                    for found in decode(chunk) if expression is None else list(decode(chunk)):
                        yield found
                        at += found.num_rows
                    at = chunk.end
        except BadRecord as error:
            loss = DataLoss(Loss.CORRUPT, todo.queue, f"from {at} to {end}: {error}")
        except DataLoss as error:
            loss = error
        else:
            continue
        if loss.first is None and end - at > 1 and on_loss is not refuse_loss:
            middle = (at + end) // 2
            rest = [(end, part.end), (middle, end), (at, middle)]
        else:
            first = at if loss.first is None else min(max(at, loss.first), part.end)
            resume = min(part.end, max(first + 1, loss.resume or 0))
            on_loss(attrs.evolve(loss, first=first, resume=resume))
            rest = [(resume, part.end), (at, first)]
        deadline.renew()
        pending += [attrs.evolve(todo, start=low, end=high) for low, high in rest if low < high]


def _check_last(chunk: Chunk, todo: QueueRange, on_loss: OnLoss) -> None:
    """Compare the last message of the range with the one that was there when it was planned."""
    if todo.last is None or not chunk.records:
        return
    from mqbroker.spark.decode import record_starts

    offset, mark = mark_of(chunk.records, int(record_starts(chunk.records)[-1]))
    if offset == todo.end - 1 and mark != todo.last:
        on_loss(DataLoss(Loss.RECREATED, todo.queue, f"{offset} was {todo.last}, and is {mark}"))
