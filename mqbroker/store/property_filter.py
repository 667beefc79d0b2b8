"""The property filter of a get: an expression over message properties, which the store passes as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from zope.interface import Attribute, Interface

from mqbroker.store.consumequeue_ext import ExtUnit


class IPropertyFilter(Interface):
    """Says which messages are wanted. Must not wait, nor raise."""

    most_at_once: int = Attribute("how many messages one get may look at: nobody else is served meanwhile")

    def may_match(unit: ExtUnit) -> bool:
        """Whether the message of a unit of the extension may be wanted, going by what stands there."""

    def pick(messages: Sequence[bytes], most: int) -> list[int]:
        """Which of some messages, of each of which the property bytes are given, are wanted: their places in order, of
        the first `most` (at least one) that are. Hot."""
