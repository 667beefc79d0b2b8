"""Resolves a pull to a message filter, by the subscription in the pull itself or by its group's.

The checks, their order and remarks are those of PullMessageProcessor of 4.9.7, and expressions match as in its
ExpressionMessageFilter and ExpressionForRetryMessageFilter, except for invalid ones: a Java broker takes an invalid
expression in a pull to match everything; here it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

import attrs
from zope.interface import implementer

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.filter_table import TAG_KINDS, CompileRateLimit, ConsumerFilter, FilterTable, compile_kind
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.errors import BadExpression, MQError, Refused
from mqbroker.filter import Expression
from mqbroker.filter.bloom import BloomData
from mqbroker.remoting.handlers import IConnection
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.property_filter import IPropertyFilter
from mqbroker.wire.bodies import SubscriptionData, SubscriptionGroupConfig
from mqbroker.wire.codes import FAQ, RETRY_PREFIX, PullSysFlag, ResponseCode
from mqbroker.wire.headers import PullMessageRequestHeader
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import find_property

ALL = "*"
TAGS_MAX = 1024
_KEPT_LENGTH_MAX = 256
_RETRY_TOPIC = b"RETRY_TOPIC\x01"
#: Terms evaluated in one get, some 15 ms; and messages in one get where each may have another expression.
TERMS_AT_ONCE = 20_000
_RETRIES_AT_ONCE = 100


def parse_subscription(topic: str, expression: str | None, kind: str | None) -> SubscriptionData:
    """Parse an expression as FilterAPI of 4.9.7 does. Raises MQError if it names no tag, or more than TAGS_MAX.

    An expression of a kind other than TAG is returned unparsed, with its kind.
    """
    if kind not in (None, "", "TAG"):
        return SubscriptionData(topic, expression or "", expression_type=kind)
    text = (expression or "").strip()
    if text in ("", ALL):
        return SubscriptionData(topic, ALL)
    tags, codes = _tags(text) if len(text) <= _KEPT_LENGTH_MAX else _read_tags(text)
    return SubscriptionData(topic, text, tags, codes)


def _read_tags(text: str) -> tuple[frozenset[str], frozenset[int]]:
    tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
    if not tags or len(tags) > TAGS_MAX:
        raise MQError(f"{text[:80]!r} must name 1 to {TAGS_MAX} tags, joined by ||")
    return tags, frozenset(java_hash(tag) for tag in tags)


#: Cached, since pulls repeat the same expressions.
_tags = lru_cache(maxsize=1024)(_read_tags)


@implementer(IPropertyFilter)
class ExpressionFilter:
    """Filters by an expression and, before reading messages, by the consumer's bits in their bit maps.

    :param bloom: the consumer's bits; None if bit maps do not cover the expression, as for one sent in a pull.
    :param born_ms: bit maps of messages stored after this time cover the expression.
    """

    def __init__(self, expression: Expression, bloom: BloomData | None = None, born_ms: int = 0) -> None:
        #: Hot: the expression's own function.
        self.pick: Callable[[Sequence[bytes], int], list[int]] = expression.pick
        self.most_at_once = max(1, TERMS_AT_ONCE // expression.size)
        self._mask = bloom.mask if bloom is not None else 0
        self._map_bytes = bloom.bit_count // 8 if bloom is not None else 0
        self._born_ms = born_ms

    @classmethod
    def of(cls, registered: ConsumerFilter) -> ExpressionFilter:
        return cls(registered.expression, registered.bloom, registered.born_ms)

    def may_match(self, unit: ExtUnit) -> bool:
        bit_map = unit.bit_map
        if not self._mask or len(bit_map) != self._map_bytes or unit.store_timestamp_ms <= self._born_ms:
            return True
        return not self._mask & ~int.from_bytes(bit_map, "little")


@implementer(IPropertyFilter)
class RetryFilter:
    """Filters a group's retry topic by the group's filter of a message's original topic, if it has one.

    :param find: returns the group's filter of a topic. If it raises Refused, since compiling would take too long,
        messages of that topic match, as they did on first delivery.
    """

    def __init__(self, find: Callable[[str], ConsumerFilter | None]) -> None:
        self._find = find
        self.most_at_once = _RETRIES_AT_ONCE

    def may_match(self, unit: ExtUnit) -> bool:
        return True

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        wanted = (place for place, properties in enumerate(messages) if self._is_wanted(properties))
        return list(islice(wanted, most))

    def _is_wanted(self, properties: bytes) -> bool:
        topic = find_property(properties, _RETRY_TOPIC)
        try:
            wanted = self._find(topic.decode("utf-8", "replace")) if topic else None
        except Refused:
            return True
        return wanted is None or bool(wanted.expression.pick((properties,), 1))


class MessageFilter(NamedTuple):
    """The filter of a pull; all messages match if both are None."""

    tags_codes: AbstractSet[int] | None
    property_filter: IPropertyFilter | None


def not_supported(kind: str | None) -> Refused:
    """Return the error for expressions that the broker does not support."""
    remark = f"The broker does not support consumer to filter message by {str(kind)[:80]}"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)


@attrs.frozen
class SubscriptionResolver:
    """Resolves the subscription of a pull to a message filter."""

    _consumers: ConsumerRegistry
    _filters: FilterTable
    _rate_limit: CompileRateLimit
    _live: LiveSettings

    def resolve(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, connection: IConnection
    ) -> MessageFilter:
        """Return the filter for a pull of an existing group. Raises Refused."""
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            if header.expression_type not in TAG_KINDS:
                return MessageFilter(None, self._brought(header, connection))
            subscription = None if header.subscription == ALL else _parsed(header)
        else:
            subscription = self._registered(header, group)
            if subscription.expression_type not in TAG_KINDS:
                return MessageFilter(None, self._filter(header, subscription))
        property_filter = self._retries(header, connection) if self._live.current.filter_support_retry else None
        if subscription is None or subscription.sub_string == ALL or subscription.class_filter_mode:
            return MessageFilter(None, property_filter)
        return MessageFilter(subscription.code_set, property_filter)

    def _brought(self, header: PullMessageRequestHeader, connection: IConnection) -> IPropertyFilter:
        """Return the filter for an expression in the pull itself."""
        if not header.subscription:
            raise _not_parsed()
        if not self._live.current.enable_property_filter:
            raise not_supported(header.expression_type)
        try:
            charge = self._rate_limit.of(connection)
            return ExpressionFilter(compile_kind(header.expression_type, header.subscription, charge))
        except BadExpression:
            raise _not_parsed() from None

    def _registered(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> SubscriptionData:
        live = self._consumers.known(header.consumer_group)
        if live is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and live.message_model == "BROADCASTING":
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        wanted = live.subscriptions.get(header.topic)
        if wanted is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if wanted.sub_version < header.sub_version:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return wanted

    def _filter(self, header: PullMessageRequestHeader, subscription: SubscriptionData) -> IPropertyFilter | None:
        """Return the filter for a group's registered expression."""
        found = self._filters.get(header.topic, header.consumer_group)
        if found is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if found.client_version < header.sub_version:
            remark = "the consumer's consumer filter data not latest"
            raise Refused(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        if not self._live.current.enable_property_filter:
            raise not_supported(subscription.expression_type)
        return None if subscription.class_filter_mode else ExpressionFilter.of(found)

    def _retries(self, header: PullMessageRequestHeader, connection: IConnection) -> IPropertyFilter | None:
        """Return the filter of a retry topic, by the group's filters of original topics; None for other topics."""
        if not header.topic.startswith(RETRY_PREFIX):
            return None
        group, charge = header.topic[len(RETRY_PREFIX) :], self._rate_limit.of(connection)
        return RetryFilter(partial(self._filters.get, group=group, charge=charge))


def _parsed(header: PullMessageRequestHeader) -> SubscriptionData:
    try:
        return parse_subscription(header.topic, header.subscription, header.expression_type)
    except MQError:
        raise _not_parsed() from None


def _not_parsed() -> Refused:
    return Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
