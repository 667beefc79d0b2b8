"""Where a query starts and ends by times, and by the offsets that a group has committed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import attrs

from mqbroker.errors import MQError
from mqbroker.spark.errors import BadOption, explained
from mqbroker.spark.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    OffsetSpec,
    Positions,
    describe,
    flatten,
    parse_offsets,
    read_json,
    time_text,
)
from mqbroker.spark.reading import RetryDeadline
from mqbroker.wire.bodies import MessageQueue

_RIGHT_TIME = "use milliseconds since 1970 or an ISO time with its zone, such as 2026-03-01T06:00:00Z"
_TIMES_EXAMPLE = '{"orders":{"broker-a":{"0":"2026-03-01T06:00:00Z"}}}'
#: Clocks of drivers and brokers differ a little.
_CLOCKS_DIFFER_MS = 60_000
#: Python refuses thousands of digits; times with fewer digits are reported as too late.
_DIGITS_MAX = 1000
_GROUP_WORDS = {"group": None, "group:earliest": EARLIEST, "group:latest": LATEST}

T = TypeVar("T")


def parse_bound(
    options: Mapping[str, str], which: str, default: int, topics: Sequence[str], now_ms: int | None = None
) -> OffsetSpec:
    """Read the options that say where a query starts or ends, by `which` of "starting" and "ending". Raises BadOption.

    `topics` are those that are read; empty if only a pattern is known.
    """
    names = [f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"]
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise BadOption(given[0], f"set one of {' and '.join(given)}: each says where the query {which[:-3]}s")
    otherwise = _otherwise(options, given) if which == "starting" else LATEST
    if not given:
        return OffsetSpec(names[-1], default)
    option = given[0]
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    latest_ms = None if otherwise is LATEST and which == "starting" else now_ms + _CLOCKS_DIFFER_MS
    if option == names[0]:
        at = _time(option, options[option], latest_ms)
        return OffsetSpec(option, default, time_ms=at, if_no_message=otherwise)
    if option == names[1]:
        times = _times(option, options[option], topics, latest_ms)
        return OffsetSpec(option, default, times=times, if_no_message=otherwise)
    word = options[option].strip().lower()
    if word in _GROUP_WORDS:
        if "consumerGroup" not in options:
            raise BadOption(
                option, f"{word!r} starts at committed offsets: set consumerGroup to the group that has them"
            )
        if which == "ending" and word == "group:earliest":
            raise BadOption(option, "a batch cannot end at the earliest message; use group or group:latest")
        return OffsetSpec(option, default if (found := _GROUP_WORDS[word]) is None else found, is_committed=True)
    words = ("earliest", "latest") if which == "starting" else ("latest",)
    return parse_offsets(option, options[option], default, topics, words)


def _otherwise(options: Mapping[str, str], given: Sequence[str]) -> int | None:
    name = "startingOffsetsByTimestampStrategy"
    text = options.get(name, "error").lower()
    if text not in ("error", "latest"):
        raise BadOption(name, f"{text[:80]!r} is neither error nor latest")
    if name in options and not any(each.endswith("Timestamp") for each in given):
        raise BadOption(
            name, "is used with startingTimestamp or startingOffsetsByTimestamp: set one, or leave this out"
        )
    return LATEST if text == "latest" else None


def _time(option: str, value: object, latest_ms: int | None) -> int:
    text = str(value).strip()
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        at = int(text)
    else:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise BadOption(option, f"{text[:80]!r} is not a time; {_RIGHT_TIME}") from None
        if found.tzinfo is None:
            raise BadOption(option, f"{text!r} has no time zone and is ambiguous; {_RIGHT_TIME}")
        at = math.ceil(found.timestamp() * 1000)
    if not 0 <= at < 2**63:
        raise BadOption(option, f"{text[:80]!r} is not a time from 1970 on; {_RIGHT_TIME}")
    if latest_ms is not None and at > latest_ms:
        todo = "leave it out to read all that is there"
        if option.startswith("starting"):
            todo = "with startingOffsetsByTimestampStrategy=latest a query starts at the end instead"
        raise BadOption(option, f"{text[:80]!r} is in the future: no message is stored then yet; {todo}")
    return at


def _times(option: str, text: str, topics: Sequence[str], latest_ms: int | None) -> dict[MessageQueue, int]:
    try:
        given = flatten(read_json(text))
    except ValueError as error:
        raise BadOption(option, f"{text[:200]!r} is not JSON like {_TIMES_EXAMPLE}: {error}") from None
    for queue in given:
        if topics and queue.topic not in topics:
            raise BadOption(option, f"topic {queue.topic!r} is not among those read: {', '.join(topics)}")
    return {queue: _time(option, value, latest_ms) for queue, value in given.items()}


class Positioned(Protocol):
    """The source of positions; errors are raised."""

    def committed(self, queues: Sequence[MessageQueue]) -> list[int | None]: ...

    def at_times(self, times: Sequence[tuple[MessageQueue, int]]) -> list[int | None]: ...


def settle_committed(
    spec: OffsetSpec, bounds: Mapping[MessageQueue, Bounds], source: Positioned, deadline: RetryDeadline
) -> OffsetSpec:
    """`spec`, with the offsets that the group has committed if it asks for them."""
    if not spec.is_committed:
        return spec
    queues = list(bounds)
    committed = ask_patiently(lambda: source.committed(queues), deadline, "the offsets that the group has committed")
    found = {queue: at for queue, at in zip(queues, committed, strict=True) if at is not None}
    return attrs.evolve(spec, given=found, is_committed=False)


def find_positions(
    spec: OffsetSpec, bounds: Mapping[MessageQueue, Bounds], source: Positioned, deadline: RetryDeadline
) -> Positions:
    """The position in each queue of `bounds`. Raises as `OffsetSpec.resolve`, and BadOption where no message is as late
    as it must be."""
    spec = settle_committed(spec, bounds, source, deadline)
    times = dict(spec.times) if spec.time_ms is None else dict.fromkeys(bounds, spec.time_ms)
    spec.check_exist(times, bounds)
    positions = spec.resolve(bounds)
    wanted = sorted(times.items())
    what = f"the messages by time, for {spec.option}"
    offsets = ask_patiently(lambda: source.at_times(wanted), deadline, what) if wanted else []
    for (queue, at), offset in zip(wanted, offsets, strict=True):
        if offset is None and spec.if_no_message is None:
            why = (
                f"{describe(queue)} has no message stored at {time_text(at)} or later; with "
                "startingOffsetsByTimestampStrategy=latest such queues are read from their end"
            )
            raise BadOption(spec.option, why)
        positions[queue] = bounds[queue].end if offset is None else offset
    return positions


def ask_patiently(ask: Callable[[], T], deadline: RetryDeadline, what: str) -> T:
    """What `ask` returns; it is called again after errors that may pass. `what` is asked for, for an error's text."""
    while True:
        try:
            return ask()
        except MQError as error:
            if not error.retriable:
                raise explained(error, what) from None
            deadline.wait(error)
