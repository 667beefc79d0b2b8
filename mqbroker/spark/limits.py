"""How much of a stream's backlog a batch takes. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from mqbroker.spark.errors import BadOption
from mqbroker.spark.offsets import Positions
from mqbroker.wire.bodies import MessageQueue

#: Messages of each queue that are read to learn their size.
SAMPLE = 8

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_duration = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)").fullmatch


@attrs.frozen
class Limits:
    """Limits of a batch; None: no limit. A trigger with fewer than `min_offsets` messages waits for more, for
    `max_delay_s` at most."""

    max_bytes: int | None
    min_offsets: int | None
    max_delay_s: float

    def waits(self, start: Positions, end: Positions, waited_s: float) -> bool:
        """Whether a batch from `start` to `end` is too small yet."""
        if self.min_offsets is None or waited_s >= self.max_delay_s:
            return False
        return 0 < sum(backlog(start, end).values()) < self.min_offsets


def parse_duration(option: str, text: str) -> float:
    """Seconds of a duration such as "15m". Raises BadOption."""
    found = _duration(text.lower())
    if found is None:
        raise BadOption(option, f"{text[:80]!r} is not a duration; use a number and ms, s, m, h or d, such as 15m")
    return int(found[1]) * _UNITS_S[found[2]]


def backlog(start: Positions, end: Positions) -> dict[MessageQueue, int]:
    """The number of messages of each queue that advances; queues that are new at `end` have none yet."""
    return {queue: end[queue] - at for queue, at in start.items() if end.get(queue, at) > at}


def limit_bytes(start: Positions, end: Positions, size: int, message_bytes: Mapping[MessageQueue, float]) -> Positions:
    """Advance towards `end` by about `size` bytes: each queue by its share, and by at least one message."""
    waiting = backlog(start, end)
    total = sum(count * message_bytes.get(queue, 0) for queue, count in waiting.items())
    if total <= size:
        return end
    share = size / total
    return end | {queue: start[queue] + max(1, int(count * share)) for queue, count in waiting.items()}
