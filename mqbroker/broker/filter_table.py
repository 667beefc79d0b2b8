"""The SQL92 filters of consumer groups (config/consumerFilter.json), and the bit maps computed from them.

Heartbeats register filters. A filter whose group is gone is kept as dead for `filterDataCleanTimeSpan`, and bit maps of
messages are still computed for it. Compiling an expression blocks the reactor for some 4 to 15 us per character, so the
rate is limited for each connection. The rules for replacing filters are those of ConsumerFilterManager of 4.9.7, bit
maps those of its CommitLogDispatcherCalcBitMap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.errors import BadExpression, Refused
from mqbroker.filter import Expression, compile_expression
from mqbroker.filter.bloom import BloomData, BloomFilter
from mqbroker.remoting.handlers import IConnection
from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilters,
    FilterDataMapByTopic,
    SubscriptionData,
)
from mqbroker.wire.codes import ResponseCode

log = Logger()


#: The burst allowed to a connection: about a quarter of a second of compilation.
CHARACTERS_AT_ONCE = 65_536
CHARACTERS_PER_SECOND = 4_096

#: Called with the length of an expression in characters before it is compiled. Raises Refused.
Charge = Callable[[int], None]
SQL92 = "SQL92"
#: Expression types that mean tags joined by ||.
TAG_KINDS = (None, "", "TAG")
#: Filters kept at most, since clients register them.
FILTERS_MAX = 10_000
#: Characters of all their expressions, each of which takes some 300 bytes of memory when compiled.
FILTER_CHARACTERS_MAX = 1024 * 1024
#: Characters of the file's expressions compiled at start, some 4 us each; the others are compiled when needed.
CHARACTERS_AT_START = 262_144
#: Filters that were alive in the file are taken to have died this long before the start.
_DEAD_BEFORE_START_MS = 30_000


class CompileRateLimit:
    """Limits the characters that a connection may have compiled.

    :param now: returns seconds of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: By connection: the allowance left, and the time of its last update.
        self._left: WeakKeyDictionary[IConnection, tuple[float, float]] = WeakKeyDictionary()

    def of(self, connection: IConnection) -> Charge:
        """Return the charge function for expressions of `connection`."""
        return partial(self._charge, connection)

    def _charge(self, connection: IConnection, characters: int) -> None:
        now = self._now()
        left, since = self._left.get(connection, (CHARACTERS_AT_ONCE, now))
        left = min(CHARACTERS_AT_ONCE, left + (now - since) * CHARACTERS_PER_SECOND)
        if characters > left:
            remark = (
                f"filter expressions come too fast: {characters} characters more, where a connection may bring "
                f"{CHARACTERS_PER_SECOND} new ones a second; try again later"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._left[connection] = left - characters, now


def compile_kind(kind: str | None, text: str, charge: Charge | None = None) -> Expression:
    """Compile an expression of a type other than tags. Raises BadExpression, and what `charge` raises."""
    if kind != SQL92:
        raise BadExpression(f"{str(kind)[:80]!r} is not a type of expressions; use {SQL92}")
    if not text:
        raise BadExpression("the expression is empty")
    return compile_expression(text, charge)


@attrs.frozen
class ConsumerFilter:
    """One group's filter of one topic. `is_read` is False while the expression is a stand-in that matches all."""

    topic: str
    group: str
    expression: Expression
    client_version: int
    born_ms: int
    dead_ms: int
    bloom: BloomData
    is_read: bool = True

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class FilterTable:
    """Filters by topic and group. `now` returns seconds of the clock that gives messages their store times."""

    def __init__(self, file: JsonFile, now: Callable[[], float], bloom: BloomFilter, clean_after_ms: int) -> None:
        """Load the table. Raises StoreDamaged."""
        self.bloom = bloom
        self._file = file
        self._now = now
        self._clean_after_ms = clean_after_ms
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        #: The topics for which each group has filters.
        self._topics: dict[str, set[str]] = {}
        self._count = 0
        self._characters = 0
        #: By topic and group: the hash of the last invalid filter that was logged.
        self._told: dict[tuple[str, str], int] = {}
        self._left_at_start = CHARACTERS_AT_START
        loaded = file.load(partial(ConsumerFilters.from_json, dialect_bytes_max=None))
        if loaded is not None:
            self._load(loaded)

    def get(self, topic: str, group: str, charge: Charge | None = None) -> ConsumerFilter | None:
        """The filter, compiled if necessary; None without one. Raises what `charge` raises."""
        known = self._known(topic, group)
        return known if known is None or known.is_read else self._read(known, charge)

    def _known(self, topic: str, group: str) -> ConsumerFilter | None:
        of_topic = self._filters.get(topic)
        return of_topic.get(group) if of_topic is not None else None

    def of_topic(self, topic: str) -> list[ConsumerFilter]:
        """All filters of a topic, dead or alive, compiled or not."""
        return list(self._filters.get(topic, {}).values())

    def bit_maps_of(self, topic: str) -> Callable[[bytes], bytes] | None:
        """Return the function from a message's property bytes to its bit map; None if no group filters the topic. Used
        with `enableCalcFilterBitMap`."""
        masks = [(one.expression.pick, one.bloom.mask) for one in self.of_topic(topic)]
        if not masks:
            return None
        written = self.bloom.bit_map

        def bit_map(properties: bytes) -> bytes:
            bits, messages = 0, (properties,)
            for pick, mask in masks:
                if pick(messages, 1):
                    bits |= mask
            return written(bits)

        return bit_map

    # Registration by clients

    def register_group(
        self, group: str, subscriptions: Iterable[SubscriptionData], charge: Charge | None = None
    ) -> None:
        """Register a group's subscriptions from a heartbeat; its filters of other topics die.

        Expressions that `charge` refuses are left to later heartbeats.
        """
        topics = set()
        refusals = []
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if subscription.expression_type not in TAG_KINDS and subscription.sub_string:
                try:
                    self._register(group, subscription, charge)
                except Refused as why:
                    refusals.append(why.remark)
        if refusals:
            line = "expressions of {group} that a later heartbeat compiles: {n}, because {why}"
            log.info(line, n=len(refusals), group=group, why=refusals[0])
        for topic in self._topics.get(group, set()) - topics:
            self._kill(topic, group)

    def _is_news(self, group: str, topic: str, text: str) -> bool:
        """Whether the invalid filter `text` was not logged yet: each heartbeat contains it again."""
        if len(self._told) >= FILTERS_MAX:
            self._told.clear()
        known, self._told[topic, group] = self._told.get((topic, group)), hash(text)
        return known != hash(text)

    def group_gone(self, group: str) -> None:
        """Called when the last consumer of a group is gone: its filters die."""
        for topic in list(self._topics.get(group, ())):
            self._kill(topic, group)

    def _register(self, group: str, subscription: SubscriptionData, charge: Charge | None) -> None:
        topic, version = subscription.topic, subscription.sub_version
        known = self._known(topic, group)
        if known is not None and version <= known.client_version:
            if version == known.client_version and known.is_dead:
                self._put(attrs.evolve(known, dead_ms=0))
            return
        kind, text = subscription.expression_type, subscription.sub_string
        if known is not None and known.expression.text == text and kind == SQL92:
            self._put(attrs.evolve(known, client_version=version, dead_ms=0))
            return
        try:
            expression = compile_kind(kind, text, charge)
        except BadExpression as why:
            if self._is_news(group, topic, text):
                log.warn("the filter of {group} for {topic} cannot be read: {why}",
                         group=group, topic=topic, why=str(why))  # fmt: skip
            if known is not None:  # refuse its pulls instead of using the former filter
                self._remove(known)
            return
        more = len(text) - (0 if known is None else len(known.expression.text))
        if (known is None and self._count >= FILTERS_MAX) or self._characters + max(0, more) > FILTER_CHARACTERS_MAX:
            if self._is_news(group, topic, text):
                log.error("the filter of {group} for {topic} is ignored: only {n} of {size} characters were found",
                          group=group, topic=topic, n=self._count, size=self._characters)  # fmt: skip
            if known is not None:
                self._remove(known)
            return
        self._told.pop((topic, group), None)
        log.info("the filter of {group} for {topic} is: {text}", group=group, topic=topic, text=expression.text)
        bloom = self.bloom.of(f"{group}#{topic}")
        self._put(ConsumerFilter(topic, group, expression, version, self._now_ms(), 0, bloom))

    def _kill(self, topic: str, group: str) -> None:
        known = self._filters[topic][group]
        if not known.is_dead:
            self._put(attrs.evolve(known, dead_ms=self._now_ms()))

    def _put(self, one: ConsumerFilter) -> None:
        of_topic = self._filters.setdefault(one.topic, {})
        former = of_topic.get(one.group)
        self._count += former is None
        self._characters += len(one.expression.text) - (0 if former is None else len(former.expression.text))
        of_topic[one.group] = one
        self._topics.setdefault(one.group, set()).add(one.topic)
        self._file.is_dirty = True

    def _remove(self, one: ConsumerFilter) -> None:
        of_topic, topics = self._filters[one.topic], self._topics[one.group]
        del of_topic[one.group]
        if not of_topic:
            del self._filters[one.topic]
        topics.discard(one.topic)
        if not topics:
            del self._topics[one.group]
        self._count -= 1
        self._characters -= len(one.expression.text)
        self._file.is_dirty = True

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    # The file

    def clean(self) -> None:
        """Remove filters that died longer ago than `filterDataCleanTimeSpan`."""
        long_ago = self._now_ms() - self._clean_after_ms
        for one in [one for of_topic in self._filters.values() for one in of_topic.values()]:
            if one.is_dead and one.dead_ms <= long_ago:
                log.info("the filter of {group} for {topic} expired: removed", group=one.group, topic=one.topic)
                self._remove(one)

    def persist(self) -> Deferred[bool]:
        """Remove old dead filters, and write the file if anything changed; fires True when it is on the disk."""
        self.clean()
        return self._file.save_changes(lambda: self.snapshot().to_json())

    def snapshot(self) -> ConsumerFilters:
        return ConsumerFilters(
            {
                topic: FilterDataMapByTopic({one.group: filter_data(one) for one in of_topic.values()}, topic)
                for topic, of_topic in self._filters.items()
            }
        )

    def _load(self, loaded: ConsumerFilters) -> None:
        """Load the file's filters, all as dead, since no client is connected; none if the bit map shape changed."""
        found: list[ConsumerFilter] = []
        characters = 0
        for of_topic in loaded.filter_data_by_topic.values():
            for data in of_topic.group_filter_data.values():
                bits = data.bloom_filter_data
                bloom = BloomData(tuple(bits.bit_pos), bits.bit_num) if bits is not None else None
                if bloom is None or not self.bloom.is_valid(bloom):
                    log.info(
                        "bit maps have other parameters than in {path}: its bits are ignored", path=self._file.path
                    )
                    return
                characters += len(data.expression)
                has_room = len(found) < FILTERS_MAX and characters <= FILTER_CHARACTERS_MAX
                one = self._loaded(data, bloom) if has_room else None
                if one is not None:
                    found.append(one)
        for one in found:
            self._put(one)
        # When they died must be written: where no filter changes, the next start would have them die anew.
        self._file.is_dirty = any(
            not data.dead_time
            for of_topic in loaded.filter_data_by_topic.values()
            for data in of_topic.group_filter_data.values()
        )

    def _loaded(self, data: ConsumerFilterData, bloom: BloomData) -> ConsumerFilter | None:
        is_read = True
        try:
            expression = compile_kind(data.expression_type, data.expression, self._charge_start)
        except _TooManyForAStart:
            is_read, expression = False, Expression(data.expression, lambda: True)
        except BadExpression as why:
            self._log_unreadable(data.topic, data.consumer_group, why)
            return None
        dead_ms = data.dead_time or max(data.born_time, self._now_ms() - _DEAD_BEFORE_START_MS)
        return ConsumerFilter(
            data.topic, data.consumer_group, expression, data.client_version, data.born_time, dead_ms, bloom, is_read
        )

    def _charge_start(self, characters: int) -> None:
        if characters > self._left_at_start:
            raise _TooManyForAStart
        self._left_at_start -= characters

    def _read(self, one: ConsumerFilter, charge: Charge | None) -> ConsumerFilter | None:
        """Compile the expression of a filter from the file; if it is invalid, remove the filter and return None."""
        try:
            expression = compile_kind(SQL92, one.expression.text, charge)
        except BadExpression as why:
            self._log_unreadable(one.topic, one.group, why)
            self._remove(one)
            return None
        read = attrs.evolve(one, expression=expression, is_read=True)
        self._filters[one.topic][one.group] = read
        return read

    def _log_unreadable(self, topic: str, group: str, why: BadExpression) -> None:
        log.error("{path}: the filter of {group} for {topic} cannot be read: {why}",
                  path=self._file.path, group=group, topic=topic, why=str(why))  # fmt: skip


class _TooManyForAStart(Exception):
    """An expression left uncompiled at a start."""


def filter_data(one: ConsumerFilter) -> ConsumerFilterData:
    """A filter in the form it has in the file."""
    return ConsumerFilterData(
        consumer_group=one.group,
        topic=one.topic,
        expression=one.expression.text,
        expression_type=SQL92,
        born_time=one.born_ms,
        dead_time=one.dead_ms,
        client_version=one.client_version,
        bloom_filter_data=BloomFilterData(list(one.bloom.positions), one.bloom.bit_count),
        dead=one.is_dead,
    )
