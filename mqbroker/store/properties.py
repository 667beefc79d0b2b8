"""Finding the few properties the store looks at in a record's property bytes, without decoding all of them."""

from __future__ import annotations

from mqbroker.wire.properties import decode_properties

_PAIR_END = 2


def find_property(properties: bytes, mark: bytes) -> bytes:
    """The value after `mark`, which is a name and the byte 1; empty where there is none.

    As in Java the last pair of a name counts.
    """
    at = properties.rfind(mark)
    if at < 0:
        return b""
    if at and properties[at - 1] != _PAIR_END:  # the end of a longer name, or of a value
        name = mark[:-1].decode()
        return decode_properties(properties).get(name, "").encode()
    at += len(mark)
    end = properties.find(b"\x02", at)
    return properties[at:end] if end >= 0 else properties[at:]
