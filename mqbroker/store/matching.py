"""What a get asks of messages beyond their tags codes. The store knows bytes; what is wanted of them is the asker's."""

from __future__ import annotations

from zope.interface import Interface

from mqbroker.store.consumequeue_ext import ExtUnit


class IMatching(Interface):
    """Says which messages are wanted. Must not wait, nor raise."""

    def may_match(unit: ExtUnit) -> bool:
        """Whether the message of a unit of the extension may be wanted, going by what stands there."""

    def matches(properties: bytes) -> bool:
        """Whether the message with these property bytes is wanted."""
