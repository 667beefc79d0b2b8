"""Tags codes of consume queue entries: the hash of the tag or, for a delayed message, its delivery time."""

from __future__ import annotations

from collections.abc import Sequence

from mqbroker.wire.bounded_cache import BoundedCache
from mqbroker.wire.names import java_hash
from mqbroker.wire.properties import find_property

_OF_TAG_BYTES_MAX = 4 * 1024 * 1024
_TAGS = b"TAGS\x01"
_DELAY = b"DELAY\x01"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> list[int]:
    """`1s 5s 1m 2h` -> milliseconds of level 1, 2, ... Raises ValueError."""
    try:
        return [int(level[:-1]) * _UNIT_MS[level[-1].lower()] for level in text.split()]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r}: levels are numbers with s, m, h or d, such as 1s 5m 2h") from None


class TagsCodes:
    """Computes tags codes, and caches those of tags."""

    def __init__(self, delay_levels_ms: Sequence[int]) -> None:
        #: Delay of each level, from level 1 on.
        self.delay_levels_ms = delay_levels_ms
        self._of_tag: BoundedCache[bytes, int] = BoundedCache(_OF_TAG_BYTES_MAX)

    def of(self, is_schedule: bool, properties: bytes, timestamp_ms: int) -> int:
        """The tags code of a message; in the schedule topic (`is_schedule`) the delivery time of a message stored at
        `timestamp_ms`."""
        if is_schedule:
            level = min(delay_level(properties), len(self.delay_levels_ms))
            if level > 0:
                # Of 64 bits as in Java, whatever a master or a file says of the time.
                return (timestamp_ms + self.delay_levels_ms[level - 1] + 2**63) % 2**64 - 2**63
        return self.of_its_tag(properties)

    def of_its_tag(self, properties: bytes) -> int:
        """The tags code of a message in any other topic. Hot."""
        tag = find_property(properties, _TAGS)
        code = self._of_tag.get(tag)
        if code is None:
            code = java_hash(tag.decode("utf-8", "replace"))
            self._of_tag.keep(tag, code, len(tag))
        return code


def delay_level(properties: bytes) -> int:
    """The delay level of a message's properties; 0 if none is a number."""
    try:
        return int(find_property(properties, _DELAY) or b"0")
    except ValueError:
        return 0
