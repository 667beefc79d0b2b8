"""The property filter of a get: an expression over message properties, which the store passes as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from zope.interface import Attribute, Interface

from mqbroker.store.consumequeue_ext import ExtUnit


class IPropertyFilter(Interface):
    """Selects messages. Its methods must not block or raise."""

    most_at_once: int = Attribute("how many messages one get may look at: nobody else is served meanwhile")

    def may_match(unit: ExtUnit) -> bool:
        """Whether the message of an extension unit may be wanted."""

    def pick(messages: Sequence[bytes], most: int) -> list[int]:
        """The indexes of the first `most` (at least one) wanted messages, given the property bytes of each. Hot."""
