"""Filters that Spark pushes down to a batch: which ranges are read because of them. No I/O, and no import of PySpark.

Filters come as objects of Spark's classes, which are told by the names of these. A filter that is handled exactly is
not evaluated again; one of a time or of a unique key narrows what is read, and is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from mqbroker.client.subscription import Sql, subscribe_to
from mqbroker.errors import MQError
from mqbroker.spark.offsets import QueueRange
from mqbroker.spark.schema import PROPERTY_PREFIX, Column, is_kafka
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, Prop
from mqbroker.wire.properties import split_keys

#: How far the clock of a broker may have gone back.
CLOCK_STEP_MS = 60_000

_KAFKA = {"offset": "queueOffset", "timestamp": "storeTimestamp", "topic": "topic", "key": "keys"}
#: Columns whose equal values are found by the index, and whether they are unique keys.
_INDEXED = {
    "uniqKey": True,
    PROPERTY_PREFIX + Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: True,
    "keys": False,
    PROPERTY_PREFIX + Prop.KEYS: False,
}
#: Keys of a filter that are looked up at most; with more of them the queues are read.
_LOOKUPS_MAX = 32
_QUEUE_PARTS: Mapping[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}
_TYPES: Mapping[str, type] = {"topic": str, "brokerName": str, "queueId": int, "queueOffset": int, "tags": str}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda left, right: left == right,
    "EqualNullSafe": lambda left, right: left == right,
    "GreaterThan": lambda left, right: left > right,
    "GreaterThanOrEqual": lambda left, right: left >= right,
    "LessThan": lambda left, right: left < right,
    "LessThanOrEqual": lambda left, right: left <= right,
    "In": lambda left, right: left in right,
    "StringStartsWith": lambda left, right: left.startswith(right),
    "IsNotNull": lambda left, right: True,
}
_EQUALS = ("EqualTo", "EqualNullSafe", "In")


#: A text that means the same in SQL92 on every broker.
_plain_text = re.compile(r"[A-Za-z0-9 _.:/@+-]+").fullmatch


@attrs.define
class Pushed:
    """What pushed filters ask for: offsets from `low` up to, but without, `high`, and of `offsets` if these are given;
    queues that all of `tests` accept; `tags`; in `lookups` keys of which a message has one, each with whether they are
    unique ones; properties by `sql`; and times of storing from `since_ms` to `until_ms`, inclusive."""

    low: int = 0
    high: int = 2**63 - 1
    offsets: frozenset[int] | None = None
    tests: list[Callable[[MessageQueue], bool]] = attrs.field(factory=list)
    tags: frozenset[str] | None = None
    lookups: list[tuple[frozenset[str], bool]] = attrs.field(factory=list)
    sql: list[str] = attrs.field(factory=list)
    since_ms: int | None = None
    until_ms: int | None = None

    def push(self, found: Any, columns: Mapping[str, Column], *, may_filter: bool) -> bool:
        """Take a filter on `columns`, as far as that is possible; returns whether it need not be evaluated again.
        `may_filter` says whether brokers may be asked for tags and properties."""
        kind = type(found).__name__
        path: tuple[str, ...] = getattr(found, "attribute", ())
        if len(path) != 1 or kind not in _COMPARISONS:
            return False
        column = columns.get(path[0].lower())
        name = "" if column is None else column.name
        if is_kafka(columns):
            name = _KAFKA.get(name, "")
        value: Any = getattr(found, "value", None)
        if name == "storeTimestamp":
            self._take_time(kind, value)
            return False
        if name in _INDEXED and kind in _EQUALS:
            self._take_keys(value if kind == "In" else [value], is_unique=_INDEXED[name])
        if name.startswith(PROPERTY_PREFIX) and kind in _EQUALS and may_filter:
            self._take_property(name.removeprefix(PROPERTY_PREFIX), value if kind == "In" else [value])
        if name not in _TYPES or (name == "tags" and not may_filter):
            return False
        if kind == "IsNotNull":
            return name != "tags"
        values: list[Any] = list(value) if kind == "In" else [value]
        if not all(type(each) is _TYPES[name] for each in values):
            return False
        if name == "tags":
            return kind in _EQUALS and self._take_tags(values)
        if name == "queueOffset":
            self._take_offsets(kind, values)
        else:
            self._take_queues(name, kind, value)
        return True

    def _take_queues(self, name: str, kind: str, value: Any) -> None:
        part, compare = _QUEUE_PARTS[name], _COMPARISONS[kind]
        self.tests.append(lambda queue: compare(part(queue), value))

    def _take_offsets(self, kind: str, values: Sequence[int]) -> None:
        if kind in _EQUALS:
            self.offsets = frozenset(values) if self.offsets is None else self.offsets & frozenset(values)
        elif kind.startswith("Greater"):
            self.low = max(self.low, values[0] + (kind == "GreaterThan"))
        else:
            self.high = min(self.high, values[0] + (kind == "LessThanOrEqual"))

    def _take_tags(self, values: Sequence[str]) -> bool:
        """Whether brokers can be asked for exactly these."""
        tags = frozenset(values)
        try:
            if not tags or subscribe_to("", " || ".join(sorted(tags)), 0).tags_set != tags:
                return False
        except MQError:
            return False
        self.tags = tags if self.tags is None else self.tags & tags
        return True

    def _take_keys(self, values: Any, *, is_unique: bool) -> None:
        """Look up a key of each value; Spark compares the others."""
        keys = frozenset(_key_in(value, is_unique=is_unique) for value in values)
        if keys and "" not in keys and len(keys) <= _LOOKUPS_MAX:
            self.lookups.append((keys, is_unique))

    def _take_property(self, name: str, values: Any) -> None:
        if not all(isinstance(each, str) and _plain_text(each) for each in values):
            return
        texts = ", ".join(f"'{each}'" for each in values)
        try:
            expression = Sql(f"{name} IN ({texts})").expression
        except MQError:  # such as a name that is a word of SQL
            return
        self.sql.append(expression)

    def _take_time(self, kind: str, value: Any) -> None:
        values = value if kind == "In" else [value]
        if not isinstance(values, list) or not values:
            return
        if not all(isinstance(each, datetime) and each.tzinfo is not None for each in values):
            return
        times = [each.timestamp() * 1000 for each in values]
        if kind in _EQUALS or kind.startswith("Greater"):
            since = math.floor(min(times)) - CLOCK_STEP_MS
            self.since_ms = since if self.since_ms is None else max(since, self.since_ms)
        if kind in _EQUALS or kind.startswith("Less"):
            until = math.ceil(max(times)) + CLOCK_STEP_MS
            self.until_ms = until if self.until_ms is None else min(until, self.until_ms)

    def clip(
        self, ranges: Iterable[QueueRange], at_times: Callable[[Sequence[tuple[MessageQueue, int]]], list[int | None]]
    ) -> list[QueueRange]:
        """The parts of `ranges` that are read. `at_times` finds the first offset stored at a time or later."""
        if self.tags is not None and not self.tags:
            return []
        found = []
        for each in ranges:
            if all(test(each.queue) for test in self.tests):
                found.append(attrs.evolve(each, start=max(each.start, self.low), end=min(each.end, self.high)))
        found = [each for each in found if each.start < each.end]
        if self.since_ms is not None:
            firsts = at_times([(each.queue, max(0, self.since_ms)) for each in found])
            found = [
                attrs.evolve(each, start=each.end if first is None else max(each.start, first))
                for each, first in zip(found, firsts, strict=True)
            ]
        if self.until_ms is not None:
            firsts = at_times([(each.queue, max(0, self.until_ms + 1)) for each in found])
            found = [
                each if first is None else attrs.evolve(each, end=min(each.end, first))
                for each, first in zip(found, firsts, strict=True)
            ]
        if self.offsets is not None:
            found = [part for each in found for part in _at(each, self.offsets)]
        return [each for each in found if each.start < each.end]


def _key_in(value: Any, *, is_unique: bool) -> str:
    """The unique key, or the first key, of a filter's value: a text or a list of keys. Empty if it has none."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = KEY_SEPARATOR.join(value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        return ""
    return value if is_unique else next(iter(split_keys(value)), "")


def at_places(
    ranges: Sequence[QueueRange],
    keys: Iterable[str],
    places: Callable[[str, str], list[tuple[MessageQueue, int]] | None],
) -> list[QueueRange]:
    """The parts of `ranges` that hold what `places` finds in a topic by one of `keys`; all of a topic where it cannot
    tell."""
    found: list[QueueRange] = []
    known = {topic: [places(topic, key) for key in sorted(keys)] for topic in {each.queue.topic for each in ranges}}
    for each in ranges:
        there = known[each.queue.topic]
        if any(some is None for some in there):
            found.append(each)
        else:
            found += _at(each, {offset for some in there for queue, offset in some or () if queue == each.queue})
    return found


def _at(whole: QueueRange, offsets: Iterable[int]) -> list[QueueRange]:
    """The parts of a range with these offsets."""
    parts: list[QueueRange] = []
    for at in sorted(offset for offset in offsets if whole.start <= offset < whole.end):
        if parts and parts[-1].end == at:
            parts[-1] = attrs.evolve(parts[-1], end=at + 1)
        else:
            parts.append(attrs.evolve(whole, start=at, end=at + 1))
    return parts
