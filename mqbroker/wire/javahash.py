"""`String.hashCode` of Java, on which consume queues and index files rely."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Return the 32-bit signed hash Java computes over the UTF-16 code units of `text`."""
    if text.isascii():
        units: list[int] | bytes = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]
    h = 0
    for unit in units:
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h
