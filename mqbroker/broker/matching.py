"""Whether a message is what a consumer wants by an expression: by the bit map of its queue entry's unit, which may rule
it out, then by its properties. The rules are those of ExpressionMessageFilter and its sister for retries of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from zope.interface import implementer

from mqbroker.broker.filters import ConsumerFilter
from mqbroker.errors import Refused
from mqbroker.filter import Expression
from mqbroker.filter.bloom import BloomData
from mqbroker.store.consumequeue_ext import ExtUnit
from mqbroker.store.matching import IMatching
from mqbroker.wire.properties import find_property

_RETRY_TOPIC = b"RETRY_TOPIC\x01"
#: Terms that one get asks of messages, some 15 ms; and messages, where each may be asked those of another expression.
TERMS_AT_ONCE = 20_000
_RETRIES_AT_ONCE = 100


@implementer(IMatching)
class ExpressionMatching:
    """By an expression, and the bits of the consumer that has it.

    :param bloom: None where bit maps say nothing of it, as of an expression that a pull brought along.
    :param born_ms: bit maps of messages from then on were computed with it.
    """

    def __init__(self, expression: Expression, bloom: BloomData | None = None, born_ms: int = 0) -> None:
        #: Hot: the expression's own function.
        self.pick: Callable[[Sequence[bytes], int], list[int]] = expression.pick
        self.most_at_once = max(1, TERMS_AT_ONCE // expression.size)
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

    :param find: the group's filter of a topic. Where it raises Refused, since it would take too long, a message of that
        topic is wanted, as it was when it came first.
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
