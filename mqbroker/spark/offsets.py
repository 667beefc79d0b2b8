"""Positions in queues, their JSON form, the meaning of `startingOffsets` and `endingOffsets`, and the ranges that a
query reads. No I/O.

    {"orders": {"broker-a": {"0": 123, "1": 130}, "broker-b": {"0": 7}}}

An offset is the next one to be read, so an end is exclusive. Spark compares offsets as JSON text: the keys are always
in the same order. In options -2 means the earliest message and -1 the end of the queue.

A stream's first batch reads nothing: it only makes Spark write down where the stream starts, so that a restart inside
the first batch with rows starts at the same place. A queue that appears later is treated the same way: it is added to
the offsets at its first message, and read from the next batch on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import attrs

from mqbroker.client.subscription import Sql
from mqbroker.spark.errors import BadOption, DataLoss, Loss
from mqbroker.wire.bodies import MessageQueue

EARLIEST = -2
LATEST = -1

Positions = dict[MessageQueue, int]

#: Digits of a queue's number.
_DIGITS_MAX = 10

#: Topics do not contain this character: keys that begin with it are what `progress` stores beside the offsets.
NOT_A_TOPIC = "#"

_EXAMPLE = '{"orders":{"broker-a":{"0":23,"1":-2}}}'
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@attrs.frozen
class Bounds:
    """Offsets of a queue: from `first` up to, but without, `end`."""

    first: int
    end: int


def _order(queue: MessageQueue) -> tuple[str, str, int]:
    """The sort key of queues: the order is their own, several times as fast."""
    return queue.topic, queue.broker_name, queue.queue_id


def to_json(positions: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The JSON object of `positions`, in canonical order."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions, key=_order):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return found


def from_json(value: Any) -> Positions:
    """The inverse of `to_json`. What a stream records beside its offsets is left out. Raises ValueError that names the
    fault."""
    found = flatten(value)
    for queue, offset in found.items():
        if type(offset) is not int:
            shown = repr(offset)[:80]
            raise ValueError(
                f"offset {shown} of queue {queue.queue_id} of broker {queue.broker_name!r} is not an integer"
            )
    return found


def read_json(text: str | bytes) -> Any:
    """The value of an option in JSON. Raises ValueError, also if a name occurs twice, because only one would count."""
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    if len(counts) < len(pairs):
        raise ValueError(f"{counts.most_common(1)[0][0][:80]!r} is there twice")
    return dict(pairs)


def flatten(value: Any) -> dict[MessageQueue, Any]:
    """The value of each queue in an object of topics, brokers and queues. Raises ValueError that names the fault."""
    found = {}
    for topic, brokers in _items(value, "the whole"):
        if topic.startswith(NOT_A_TOPIC):
            continue
        for broker, queues in _items(brokers, f"topic {topic!r}"):
            for queue_id, each in _items(queues, f"broker {broker!r} of topic {topic!r}"):
                is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _DIGITS_MAX
                if not is_number or (queue_id[0] == "0" and queue_id != "0"):
                    raise ValueError(f"queue {queue_id[:80]!r} of broker {broker!r} is not a number")
                found[MessageQueue(topic, broker, int(queue_id))] = each
    return found


def _items(value: Any, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{what[:200]} is not an object but {json.dumps(value)[:80]}")
    return value.items()


@attrs.frozen
class OffsetSpec:
    """An offsets option: `given` for some queues, `default` (EARLIEST or LATEST) for all others.

    With `time_ms`, or `times` of some queues, it is the first message stored then or later, and if there is none,
    `if_no_message` (None: an error). With `is_committed` it is the offset that the group has committed.
    """

    option: str
    default: int
    given: Mapping[MessageQueue, int] = attrs.field(factory=dict)
    time_ms: int | None = None
    times: Mapping[MessageQueue, int] = attrs.field(factory=dict)
    if_no_message: int | None = None
    is_committed: bool = False

    @property
    def named(self) -> Set[MessageQueue]:
        """The queues that the option names."""
        return self.given.keys() | self.times.keys()

    def has_latest(self) -> bool:
        """Whether a position depends on when it is asked for."""
        if self.is_committed or self.if_no_message is not None:
            return True
        return (self.default == LATEST and self.time_ms is None) or LATEST in self.given.values()

    def resolve(self, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        """The position in each queue of `bounds`, without regard to times and committed offsets.

        Raises BadOption on a queue that does not exist or an offset beyond its end, DataLoss on one that is deleted.
        """
        self.check_exist(self.given, bounds)
        return {queue: self._position(queue, bound) for queue, bound in bounds.items()}

    def check_exist(self, queues: Iterable[MessageQueue], bounds: Mapping[MessageQueue, Bounds]) -> None:
        """Raises BadOption on a queue that does not exist."""
        for queue in queues:
            if queue not in bounds:
                there = json.dumps(to_json(dict.fromkeys(bounds, LATEST)), separators=(",", ":"))
                raise BadOption(self.option, f"{describe(queue)} does not exist; these do: {there}")

    def _position(self, queue: MessageQueue, bound: Bounds) -> int:
        offset = self.given.get(queue, self.default)
        if offset == EARLIEST:
            return bound.first
        if offset == LATEST:
            return bound.end
        if offset > bound.end:
            raise BadOption(self.option, f"{offset} is beyond the end of {describe(queue)}, which is {bound.end}")
        if offset < bound.first:
            details = f"{self.option} says {offset}, the first one left is {bound.first}"
            raise DataLoss(Loss.AGED_OUT, queue, details, offset, bound.first)
        return offset

    def without_lost(self, bounds: Mapping[MessageQueue, Bounds]) -> tuple[OffsetSpec, list[DataLoss]]:
        """This, with deleted messages left out, and what was left out."""
        given, losses = dict(self.given), []
        for queue, offset in self.given.items():
            if queue in bounds and 0 <= offset < bounds[queue].first:
                details = f"{self.option} says {offset}, the first one left is {bounds[queue].first}"
                losses.append(DataLoss(Loss.AGED_OUT, queue, details, offset, bounds[queue].first))
                given[queue] = EARLIEST
        return attrs.evolve(self, given=given), losses


def parse_offsets(option: str, text: str, default: int, topics: Sequence[str], words: Iterable[str]) -> OffsetSpec:
    """Read the value of an offsets option: one of `words`, or JSON for queues of `topics`. Raises BadOption."""
    words = tuple(words)
    right = f"{' or '.join(repr(word) for word in words)}, or JSON like {_EXAMPLE}"
    if text.strip().lower() in words:
        return OffsetSpec(option, _WORDS[text.strip().lower()])
    try:
        given = from_json(read_json(text))
    except ValueError as error:
        raise BadOption(option, f"{text[:200]!r} is not {right}: {error}") from None
    allowed = {_WORDS[word] for word in words}
    for queue, offset in given.items():
        if topics and queue.topic not in topics:
            raise BadOption(option, f"topic {queue.topic!r} is not among those read: {', '.join(topics)}")
        if offset < 0 and offset not in allowed:
            meanings = " or ".join(f"{_WORDS[word]} for {word}" for word in words)
            raise BadOption(option, f"{offset} for {describe(queue)}: an offset is 0 or more, {meanings}")
    return OffsetSpec(option, default, given)


def time_text(ms: int) -> str:
    """A time in messages to users."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec='milliseconds')} ({ms} ms)"


def describe(queue: MessageQueue) -> str:
    """A queue's name in messages to users."""
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"


@attrs.frozen
class Mark:
    """Tells a message from another one at the same offset: where it is in the broker's log, and its time of storing."""

    log_offset: int
    store_ms: int
    #: Bytes of its stored record; 0 if that is not known.
    size: int = attrs.field(default=0, eq=False)


@attrs.frozen
class QueueRange:
    """The range of one Spark partition: from `start` up to, but without, `end`; `last` marks its last message, and
    `number` is that of the queue among those of its topic. Brokers filter it by `expression` if options give none."""

    queue: MessageQueue
    start: int
    end: int
    last: Mark | None = None
    number: int = attrs.field(default=0, eq=False)
    expression: Sql | None = None


@attrs.frozen
class TopicBounds:
    """The brokers' responses: `bounds` of the queues that responded, and the `queues` that are listed and chosen.

    A broker that is down is in neither; its queues are waited for. `all_queues` has those that are not chosen, too.
    """

    queues: Set[MessageQueue]
    bounds: Mapping[MessageQueue, Bounds]
    all_queues: Set[MessageQueue] = attrs.field(default=attrs.Factory(lambda self: self.queues, takes_self=True))

    def silent(self) -> list[MessageQueue]:
        """The listed queues that did not respond."""
        return sorted(self.queues - self.bounds.keys())

    def absent(self, positions: Positions) -> list[MessageQueue]:
        """The queues of `positions` that did not respond, or are not listed because their broker or topic is not."""
        if positions.keys() <= self.bounds.keys():
            return []
        return sorted(queue for queue in positions.keys() - self.bounds.keys() if not self.is_missing(queue))

    def is_missing(self, queue: MessageQueue) -> bool:
        """Whether the queue's broker is listed for the topic, but the queue is not."""
        # Triggers ask for each of thousands of queues: those that are listed are not compared with all others.
        return queue not in self.all_queues and any(
            (other.topic, other.broker_name) == (queue.topic, queue.broker_name) for other in self.all_queues
        )


def plan_batch(starts: Positions, ends: Positions, option: str = "endingOffsets") -> list[QueueRange]:
    """The non-empty ranges of a batch. Raises BadOption if one would end before it starts; `option` sets the end."""
    for queue, start in starts.items():
        if start > ends[queue]:
            raise BadOption(option, f"{ends[queue]} is before the start, {start}, of {describe(queue)}")
    return _ranges(starts, ends)


def split_ranges(ranges: list[QueueRange], min_partitions: int, max_records: int) -> list[QueueRange]:
    """`ranges`, cut into at least `min_partitions` parts of at most `max_records` messages, if there are as many.

    The lengths of a range's parts differ by one message at most; the last part has the range's mark.
    """
    total = sum(each.end - each.start for each in ranges)
    found = []
    for each in ranges:
        count = each.end - each.start
        parts = min(count, max(1, -(-count // max_records), -(-count * min_partitions // total)))
        cuts = [each.start + count * n // parts for n in range(parts + 1)]
        found += [attrs.evolve(each, start=low, end=high, last=None) for low, high in pairwise(cuts)]
        found[-1] = attrs.evolve(found[-1], last=each.last)
    return found


def plan_stream(start: Positions, end: Positions, initial: Positions | None) -> list[QueueRange]:
    """The ranges between two offsets of a stream. Raises DataLoss if a queue is missing or goes back.

    `initial` is where this process would start the query. If that equals `start` it may be a repeated first batch: then
    `end` is the start that an earlier process recorded, possibly of other queues, and there is nothing to read.
    """
    for queue, offset in start.items() if start != initial else ():
        if queue not in end:
            raise DataLoss(Loss.QUEUE_GONE, queue, f"read up to {offset}")
        if end[queue] < offset:
            raise DataLoss(Loss.CUT_SHORT, queue, f"read up to {offset}, asked to read up to {end[queue]}")
    return _ranges(start, end)


def _ranges(start: Positions, end: Positions) -> list[QueueRange]:
    both = sorted(start.keys() & end.keys())
    counts: Counter[str] = Counter()
    numbers = {}
    for queue in sorted(end):
        numbers[queue] = counts[queue.topic]
        counts[queue.topic] += 1
    return [
        QueueRange(queue, start[queue], end[queue], number=numbers[queue])
        for queue in both
        if start[queue] < end[queue]
    ]


def advance(start: Positions, seen: TopicBounds) -> Positions:
    """The farthest end of a stream at `start`: the end of each queue. Raises DataLoss.

    The queues of brokers that do not respond stay at their positions.
    """
    for loss in find_losses(start, seen):
        raise loss
    return farthest(start, seen)


def farthest(start: Positions, seen: TopicBounds) -> Positions:
    """As `advance`, unchecked: queues that do not exist stay at their positions, too."""
    found = dict(start)
    for queue, bound in seen.bounds.items():
        found[queue] = bound.end if queue in start else bound.first
    return found


def find_losses(start: Positions, seen: TopicBounds) -> Iterator[DataLoss]:
    """What a stream at `start` has lost. A queue that was cut short resumes at its first message: if it was created
    again, all of its messages are new."""
    for queue, offset in start.items():
        if seen.is_missing(queue):
            yield DataLoss(Loss.QUEUE_GONE, queue, f"read up to {offset}", offset)
        bound = seen.bounds.get(queue)
        if bound is None:
            continue
        if offset > bound.end:
            details = f"read up to {offset}, it ends at {bound.end}"
            yield DataLoss(Loss.CUT_SHORT, queue, details, None, bound.first)
        if offset < bound.first:
            details = f"read up to {offset}, the first one left is {bound.first}"
            yield DataLoss(Loss.AGED_OUT, queue, details, offset, bound.first)


def cap(start: Positions, end: Positions, target: Positions) -> Positions:
    """`end` limited to `target`; a queue that `target` lacks keeps its position, or is left out."""
    return {
        queue: max(start[queue], min(offset, target.get(queue, start[queue]))) if queue in start else offset
        for queue, offset in end.items()
        if queue in start or queue in target
    }


def limit_rows(start: Positions, end: Positions, rows: int) -> Positions:
    """Advance from `start` towards `end` by `rows`: each queue by at least 1, the rest in proportion to its backlog."""
    backlog = {queue: end[queue] - start[queue] for queue in start if end[queue] > start[queue]}
    total = sum(backlog.values())
    if total <= rows:
        return end
    rest, more = max(0, rows - len(backlog)), max(1, total - len(backlog))
    shares = {queue: 1 + rest * (waiting - 1) // more for queue, waiting in backlog.items()}
    longest = max(backlog, key=lambda queue: backlog[queue] - shares[queue])
    shares[longest] = min(backlog[longest], shares[longest] + max(0, rows - sum(shares.values())))
    return {queue: start[queue] + shares[queue] if queue in shares else offset for queue, offset in end.items()}
