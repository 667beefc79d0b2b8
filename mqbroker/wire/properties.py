"""Message properties: `name \\x01 value` pairs joined by `\\x02`, in UTF-8.

Source: MessageDecoder of 4.9.7. A pair without a name or without a value is skipped when decoding, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqbroker.errors import MQError
from mqbroker.wire.codes import KEY_SEPARATOR

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

#: The test for a message that names queues.
DISPATCH_MARK = b"INNER_MULTI_DISPATCH\x01"

#: The record has their length in a signed 16-bit field.
PROPERTIES_BYTES_MAX = 32767


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the bytes for a record or a send request. Raises MQError if a name or value contains a separator."""
    pairs = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise MQError(f"property {name!r}: the name must not be empty, nor it or its value hold \\x01 or \\x02")
        pairs.append(f"{name}\x01{value}")
    return PROPERTY_SEPARATOR.join(pairs).encode()


def reencode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the bytes for any result of `decode_properties`: they decode to the same.

    A value may contain \\x01: only the first in a pair separates.
    """
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]).encode()


def find_property(properties: bytes, mark: bytes) -> bytes:
    """The value of one property as `decode_properties` would return it, encoded; empty if it is missing. Hot.

    `mark`: its name and the byte 1. Invalid UTF-8 in the value may be returned unchanged.
    """
    at = properties.rfind(mark)
    if at < 0:
        return b""
    if not at or properties[at - 1] == 2:
        start = at + len(mark)
        end = properties.find(b"\x02", start)
        value = properties[start:] if end < 0 else properties[start:end]
        if value:
            return value
    # The suffix of a longer name, or of a value, or a pair without a value: then an earlier pair may count.
    return decode_properties(properties).get(mark[:-1].decode(), "").encode()


def split_keys(text: str) -> list[str]:
    """The keys of a KEYS property."""
    return [key for key in text.split(KEY_SEPARATOR) if key]


def dispatch_names(properties: bytes) -> list[bytes]:
    """The queues that a message names in INNER_MULTI_DISPATCH, in which it is put beside its own."""
    text = find_property(properties, DISPATCH_MARK)
    return text.rstrip(b",").split(b",") if text.strip() and text.strip(b",") else []


def find_in_each(messages: Sequence[bytes], mark: bytes) -> list[bytes]:
    """The values of a property in each of some messages, as by `find_property`. Hot."""
    pair = b"\2" + mark
    # Without such a pair partition() returns the whole as third part. A value may be empty, or that of the first pair.
    return [
        ((found := one.rpartition(pair)[2]) is not one and found.partition(b"\2")[0]) or find_property(one, mark)
        for one in messages
    ]


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode property bytes; invalid pairs are skipped and invalid UTF-8 becomes U+FFFD, as in Java."""
    found: dict[str, str] = {}
    for pair in data.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, separator, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and separator and value:
            found[name] = value
    return found
