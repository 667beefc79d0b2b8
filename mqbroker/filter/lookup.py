"""Finding one property among a message's, in their bytes where they are bytes: most are not asked for.

A value found in bytes stays bytes, since reading a number from them is quicker than from text; `text_of` decodes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mqbroker.wire.properties import decode_properties

#: What stands between a name and its value, and behind that where another pair follows.
VALUE_BEGIN, PAIR_END = b"\x01", b"\x02"


class Named(Protocol):
    """Properties by name."""

    def get(self, name: str, /) -> str | None: ...


#: A message's properties, as they stand in its record or by name.
Properties = bytes | Named
Found = bytes | str | None


def finder(name: str) -> Callable[[Properties], Found]:
    """What finds a property: the value that `decode_properties` would give, None where there is none. Hot."""
    mark = name.encode() + VALUE_BEGIN
    mark_bytes = len(mark)

    def find(properties: Properties) -> Found:
        if not isinstance(properties, bytes):
            return properties.get(name)
        at = properties.rfind(mark)
        if at < 0:
            return None
        if not at or properties[at - 1] == PAIR_END[0]:
            end = properties.find(PAIR_END, at)
            value = properties[at + mark_bytes :] if end < 0 else properties[at + mark_bytes : end]
            if value:
                return value
        text = decode_properties(properties).get(name)  # the end of a longer name, or of a value, or no value
        return None if text is None else text.encode()

    return find


def text_of(found: Found) -> str | None:
    """A value as the string it is."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found
