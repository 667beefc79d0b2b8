"""Where a stream stands: its positions, and what tells whether messages were lost since. No I/O.

The JSON of `offsets` has these keys beside the topics, with objects of topic, broker and queue as the offsets have:

``#last``
    The last message before each position, as [commitLogOffset, storeTimestamp in ms]. If another message is there
    later, the topic was created again, though offsets alone do not show it.
``#from``
    Where a batch starts in queues that lost messages: not where the previous one ended. A repeated batch starts there.
``#skipped``
    Number of messages skipped since the query was new.
``#bytes``
    About how many bytes of stored records were planned since then: each queue's messages are taken to be as long as the
    last one of a batch.
``#left``
    Number of messages that a limit left in each queue, only before PySpark 4.2, which does not ask for the ends of the
    queues.

The checkpoints of earlier versions lack them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from mqbroker.spark.errors import DataLoss
from mqbroker.spark.offsets import Mark, Positions, QueueRange, describe, flatten, from_json, plan_stream, to_json
from mqbroker.wire.bodies import MessageQueue

LAST, FROM, SKIPPED, BYTES, LEFT = "#last", "#from", "#skipped", "#bytes", "#left"

T = TypeVar("T")


@attrs.frozen
class StreamOffset:
    """The `positions` of a stream; `last`, `resumed` (``#from``), `skipped` and `left` of its queues; and `size`,
    bytes."""

    positions: Positions
    last: Mapping[MessageQueue, Mark] = attrs.field(factory=dict)
    resumed: Positions = attrs.field(factory=dict)
    skipped: Positions = attrs.field(factory=dict)
    size: int = 0
    left: Positions = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark: equal offsets are equal texts."""
        found: dict[str, Any] = {}
        if self.last:
            found[LAST] = _nested(self.last, lambda mark: [mark.log_offset, mark.store_ms])
        if self.resumed:
            found[FROM] = to_json(self.resumed)
        if self.skipped:
            found[SKIPPED] = to_json(self.skipped)
        if self.size:
            found[BYTES] = self.size
        if self.left:
            found[LEFT] = to_json(self.left)
        return found | to_json(self.positions)

    @staticmethod
    def from_json(value: Any) -> StreamOffset:
        """The inverse of `to_json`, and of earlier versions' `to_json`. Raises ValueError that names the fault."""
        positions = _counts(value, "the offset")
        last = {queue: _mark(pair) for queue, pair in _named(LAST, flatten, value).items()}
        resumed, skipped, left = (_named(key, _counts, value) for key in (FROM, SKIPPED, LEFT))
        size = value.get(BYTES, 0)
        if type(size) is not int:
            raise ValueError(f"{BYTES} is not a number of bytes but {repr(size)[:80]}")
        return StreamOffset(positions, last, resumed, skipped, size, left)

    def start_after(self, losses: list[DataLoss]) -> StreamOffset:
        """Where the next batch starts: here, but beyond what was lost."""
        resumed = {loss.queue: loss.resume for loss in losses if loss.resume is not None}
        skipped = dict(self.skipped)
        for loss in losses:
            if loss.first is not None and loss.resume is not None:
                skipped[loss.queue] = skipped.get(loss.queue, 0) + max(0, loss.resume - loss.first)
        last = {queue: mark for queue, mark in self.last.items() if queue not in resumed}
        return StreamOffset(self.positions | resumed, last, resumed, skipped, self.size)


def plan(start: StreamOffset, end: StreamOffset, initial: Positions | None) -> list[QueueRange]:
    """The ranges between two offsets, as `plan_stream`, each with its last message if that is known."""
    ranges = plan_stream(start.positions | end.resumed, end.positions, initial)
    return [attrs.evolve(each, last=end.last.get(each.queue)) for each in ranges]


def _nested(values: Mapping[MessageQueue, T], encode: Callable[[T], Any]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in sorted(values):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = encode(values[queue])
    return found


def _named(key: str, read: Callable[[Any], dict[MessageQueue, T]], value: Mapping[str, Any]) -> dict[MessageQueue, T]:
    try:
        return read(value.get(key, {}))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _counts(value: Any, what: str = "a count") -> Positions:
    found = from_json(value)
    for queue, number in found.items():
        if not 0 <= number < 2**63:
            raise ValueError(f"{what} of {describe(queue)} is {str(number)[:80]}")
    return found


def _mark(pair: Any) -> Mark:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair)):
        raise ValueError(f"{LAST}: {repr(pair)[:80]} is not [commitLogOffset, storeTimestamp]")
    return Mark(*pair)
