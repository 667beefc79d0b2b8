"""The bit maps of messages, computed when they enter their queues (`enableCalcFilterBitMap`): which of the filters of
their topic match them. As CommitLogDispatcherCalcBitMap of 4.9.7 does, whose maps have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.broker.filters import FilterTable


class BitMaps:
    """Makes them."""

    def __init__(self, filters: FilterTable) -> None:
        self._filters = filters

    def of_topic(self, topic: str) -> Callable[[bytes], bytes] | None:
        """What makes the map of a message of a topic from its property bytes; None where nobody filters the topic."""
        filters = self._filters.of_topic(topic)
        if not filters:
            return None
        masks = [(one.expression.pick, one.bloom.mask) for one in filters]
        written = self._filters.bloom.bit_map

        def bit_map(properties: bytes) -> bytes:
            bits, messages = 0, (properties,)
            for pick, mask in masks:
                if pick(messages, 1):
                    bits |= mask
            return written(bits)

        return bit_map
