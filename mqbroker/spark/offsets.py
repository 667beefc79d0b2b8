"""Positions in queues, their JSON form, and what `startingOffsets` and `endingOffsets` mean. No I/O.

    {"orders": {"broker-a": {"0": 123, "1": 130}, "broker-b": {"0": 7}}}

An offset is the next one to be read, so an end is exclusive. Spark compares offsets as JSON text: the keys are always
in the same order. In options -2 stands for the earliest message and -1 for the end of the queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mqbroker.spark.errors import BadOption, DataLoss, Loss
from mqbroker.wire.bodies import MessageQueue

EARLIEST = -2
LATEST = -1

Positions = dict[MessageQueue, int]

_EXAMPLE = '{"orders":{"broker-a":{"0":23,"1":-2}}}'
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@attrs.frozen
class Bounds:
    """What a queue holds: from offset `first` up to, but without, `end`."""

    first: int
    end: int


def to_json(positions: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The JSON object of `positions`, in the order that all of them have."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return found


def from_json(value: Any) -> Positions:
    """The inverse of `to_json`. Raises ValueError saying what is not as it must be."""
    found: Positions = {}
    for topic, brokers in _items(value, "the whole"):
        for broker, queues in _items(brokers, f"topic {topic!r}"):
            for queue_id, offset in _items(queues, f"broker {broker!r} of topic {topic!r}"):
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise ValueError(f"queue {queue_id!r} of broker {broker!r} is not a number")
                if type(offset) is not int:
                    raise ValueError(f"offset {offset!r} of queue {queue_id} of broker {broker!r} is not an integer")
                found[MessageQueue(topic, broker, int(queue_id))] = offset
    return found


def _items(value: Any, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object but {json.dumps(value)[:80]}")
    return value.items()


@attrs.frozen
class OffsetSpec:
    """What an option says: `given` for some queues, `default` (EARLIEST or LATEST) for all others."""

    option: str
    default: int
    given: Mapping[MessageQueue, int] = attrs.field(factory=dict)

    def resolve(self, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        """The position in each queue of `bounds`.

        Raises BadOption on a queue that does not exist or an offset beyond its end, DataLoss on one that is deleted.
        """
        for queue in self.given:
            if queue not in bounds:
                there = json.dumps(to_json(dict.fromkeys(bounds, LATEST)), separators=(",", ":"))
                raise BadOption(self.option, f"{describe(queue)} does not exist; these do: {there}")
        return {queue: self._position(queue, bound) for queue, bound in bounds.items()}

    def _position(self, queue: MessageQueue, bound: Bounds) -> int:
        offset = self.given.get(queue, self.default)
        if offset == EARLIEST:
            return bound.first
        if offset == LATEST:
            return bound.end
        if offset > bound.end:
            raise BadOption(self.option, f"{offset} is beyond the end of {describe(queue)}, which is {bound.end}")
        if offset < bound.first:
            raise DataLoss(Loss.AGED_OUT, queue, f"{self.option} says {offset}, the first one left is {bound.first}")
        return offset


def parse_offsets(option: str, text: str, default: int, topics: Iterable[str], words: Iterable[str]) -> OffsetSpec:
    """Read the value of an offsets option: one of `words`, or JSON for queues of `topics`. Raises BadOption."""
    words = tuple(words)
    right = f"{' or '.join(repr(word) for word in words)}, or JSON like {_EXAMPLE}"
    if text.strip().lower() in words:
        return OffsetSpec(option, _WORDS[text.strip().lower()])
    try:
        given = from_json(json.loads(text))
    except ValueError as error:
        raise BadOption(option, f"{text!r} is not {right}: {error}") from None
    allowed = {_WORDS[word] for word in words}
    for queue, offset in given.items():
        if queue.topic not in topics:
            raise BadOption(option, f"topic {queue.topic!r} is not among those read: {', '.join(topics)}")
        if offset < 0 and offset not in allowed:
            meanings = " or ".join(f"{_WORDS[word]} for {word}" for word in words)
            raise BadOption(option, f"{offset} for {describe(queue)}: an offset is 0 or more, {meanings}")
    return OffsetSpec(option, default, given)


def describe(queue: MessageQueue) -> str:
    """How messages to users name a queue."""
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
