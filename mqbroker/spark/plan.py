"""Which offsets a query reads: a batch's ranges, and how far each trigger of a stream goes. No I/O.

A stream's first batch reads nothing: it only makes Spark write down where the stream starts, so that a restart inside
the first batch with rows starts at the same place. A queue that appears later is treated alike: it enters the offsets
at its first message, and is read from the batch after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import attrs

from mqbroker.spark.errors import BadOption, DataLoss, Loss
from mqbroker.spark.offsets import Bounds, Positions, describe
from mqbroker.wire.bodies import MessageQueue


@attrs.frozen
class QueueRange:
    """What one Spark partition reads: from `start` up to, but without, `end`."""

    queue: MessageQueue
    start: int
    end: int


@attrs.frozen
class Sighting:
    """What brokers said of the topics: `bounds` of the queues that answered, and the `queues` that are listed.

    A broker that is down is in neither; its queues are waited for.
    """

    queues: Set[MessageQueue]
    bounds: Mapping[MessageQueue, Bounds]

    def silent(self) -> list[MessageQueue]:
        """The queues that are listed and did not answer."""
        return sorted(self.queues - self.bounds.keys())

    def lacks(self, queue: MessageQueue) -> bool:
        """True where the queue's broker is listed for the topic, and the queue is not."""
        brokers = {(q.topic, q.broker_name) for q in self.queues}
        return queue not in self.queues and (queue.topic, queue.broker_name) in brokers


def plan_batch(starts: Positions, ends: Positions) -> list[QueueRange]:
    """The ranges of a batch that hold something. Raises BadOption where one would end before it starts."""
    for queue, start in starts.items():
        if start > ends[queue]:
            raise BadOption("endingOffsets", f"{ends[queue]} is before the start, {start}, of {describe(queue)}")
    return [QueueRange(queue, starts[queue], ends[queue]) for queue in sorted(starts) if starts[queue] < ends[queue]]


def plan_stream(start: Positions, end: Positions, initial: Positions | None) -> list[QueueRange]:
    """The ranges between two offsets of a stream. Raises DataLoss where a queue is left out or goes back.

    `initial` is where this process would start the query. Where that is `start` it may be the first batch, once more:
    then `end` is the start that an earlier process wrote down, maybe of other queues, and there is nothing to read.
    """
    for queue, offset in start.items() if start != initial else ():
        if queue not in end:
            raise DataLoss(Loss.QUEUE_GONE, queue, f"read up to {offset}")
        if end[queue] < offset:
            raise DataLoss(Loss.CUT_SHORT, queue, f"read up to {offset}, asked to read up to {end[queue]}")
    return [
        QueueRange(queue, start[queue], end[queue])
        for queue in sorted(end)
        if queue in start and start[queue] < end[queue]
    ]


def advance(start: Positions, sighting: Sighting) -> Positions:
    """Where a stream that stands at `start` can go: to the end of each queue. Raises DataLoss.

    The queues of brokers that do not answer stay where they are.
    """
    _check_stream(start, sighting)
    found = dict(start)
    for queue, bound in sighting.bounds.items():
        found[queue] = bound.end if queue in start else bound.first
    return found


def _check_stream(start: Positions, sighting: Sighting) -> None:
    for queue, offset in start.items():
        if sighting.lacks(queue):
            raise DataLoss(Loss.QUEUE_GONE, queue, f"read up to {offset}")
        bound = sighting.bounds.get(queue)
        if bound is None:
            continue
        if offset > bound.end:
            raise DataLoss(Loss.CUT_SHORT, queue, f"read up to {offset}, it ends at {bound.end}")
        if offset < bound.first:
            raise DataLoss(Loss.AGED_OUT, queue, f"read up to {offset}, the first one left is {bound.first}")


def cap(start: Positions, end: Positions, target: Positions) -> Positions:
    """`end`, but not beyond `target`; a queue that `target` lacks stays where it is, or out."""
    return {
        queue: max(start[queue], min(offset, target.get(queue, start[queue]))) if queue in start else offset
        for queue, offset in end.items()
        if queue in start or queue in target
    }


def limit_rows(start: Positions, end: Positions, rows: int) -> Positions:
    """Go from `start` towards `end` by `rows`: each queue by 1 at least, the rest in proportion to what waits there."""
    backlog = {queue: end[queue] - start[queue] for queue in start if end[queue] > start[queue]}
    total = sum(backlog.values())
    if total <= rows:
        return end
    rest, more = max(0, rows - len(backlog)), max(1, total - len(backlog))
    shares = {queue: 1 + rest * (waiting - 1) // more for queue, waiting in backlog.items()}
    longest = max(backlog, key=lambda queue: backlog[queue] - shares[queue])
    shares[longest] = min(backlog[longest], shares[longest] + max(0, rows - sum(shares.values())))
    return {queue: start[queue] + shares[queue] if queue in shares else offset for queue, offset in end.items()}
