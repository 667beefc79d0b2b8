"""A cache of values that can be had again, bounded in bytes: its keys are made from what peers send."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: A larger entry is not kept: texts that come again, such as names and tags, are shorter.
ENTRY_BYTES_MAX = 1024
#: What an entry costs besides its bytes: the objects of key and value, and its place in the table.
ENTRY_COST_BYTES = 200


class BoundedCache(dict[K, V]):
    """Values by key. Lookups are those of a dict; `keep` counts what is kept, and drops all entries rather than exceed
    `bytes_max`."""

    def __init__(self, bytes_max: int, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._entry_bytes_max = entry_bytes_max

    def keep(self, key: K, value: V, size: int) -> None:
        """Keep an entry of `size` bytes, key and value together, unless it is too large."""
        if size > self._entry_bytes_max:
            return
        self.bytes += size + ENTRY_COST_BYTES
        if self.bytes > self.bytes_max:
            self.clear()
            self.bytes = size + ENTRY_COST_BYTES
        self[key] = value

    def clear(self) -> None:
        super().clear()
        self.bytes = 0
