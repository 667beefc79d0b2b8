"""Whether a message is what a consumer wants by an expression: by the bit map of its queue entry's unit, which may rule
it out, then by its properties. The rules are those of ExpressionMessageFilter and its sister for retries of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from mqbroker.broker.filters import ConsumerFilter
from mqbroker.filter import Expression
from mqbroker.filter.bloom import BloomData
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.matching import IMatching
from mqbroker.store.properties import find_property

_RETRY_TOPIC = b"RETRY_TOPIC\x01"


@implementer(IMatching)
class ExpressionMatching:
    """By an expression, and the bits of the consumer that has it.

    :param bloom: None where bit maps say nothing of it, as of an expression that a pull brought along.
    :param born_ms: bit maps of messages from then on were computed with it.
    """

    def __init__(self, expression: Expression, bloom: BloomData | None = None, born_ms: int = 0) -> None:
        #: Hot: the expression's own function.
        self.matches: Callable[[bytes], bool] = expression.matches
        self._mask = bloom.mask if bloom is not None else 0
        self._map_bytes = bloom.bit_count // 8 if bloom is not None else 0
        self._born_ms = born_ms

    @classmethod
    def of(cls, registered: ConsumerFilter) -> ExpressionMatching:
        return cls(registered.expression, registered.bloom, registered.born_ms)

    def may_match(self, unit: ExtUnit) -> bool:
        bit_map = unit.bit_map
        if not self._mask or len(bit_map) != self._map_bytes or unit.store_timestamp_ms <= self._born_ms:
            return True
        return not self._mask & ~int.from_bytes(bit_map, "little")


@implementer(IMatching)
class RetryMatching:
    """For a group's retry topic: by what it wants of the topic that a message was first in, where that is filtered.

    :param find: the group's filter of a topic.
    """

    def __init__(self, find: Callable[[str], ConsumerFilter | None]) -> None:
        self._find = find

    def may_match(self, unit: ExtUnit) -> bool:
        return True

    def matches(self, properties: bytes) -> bool:
        topic = find_property(properties, _RETRY_TOPIC)
        wanted = self._find(topic.decode("utf-8", "replace")) if topic else None
        return wanted is None or wanted.expression.matches(properties)
