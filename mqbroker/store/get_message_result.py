"""What a get may come to. Only values."""

from __future__ import annotations

import enum
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from mqbroker.store.commitlog import Pieces
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.property_filter import IPropertyFilter


class GetMessageStatus(enum.Enum):
    """Outcomes of a get, by the names of the Java broker.

    Two are never told: a queue that was never written to has no message, so that there is no NO_MATCHED_LOGIC_QUEUE,
    nor has the Java broker one to tell; and OFFSET_FOUND_NULL, with which that passes over the rest of a consume queue
    file that is not there: here the store does not open without it.
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetMessageResult(NamedTuple):
    """`pieces` together are `count` records.

    `suggest_slave`: what was looked at last is so far behind that it counts as on the disk.
    """

    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: Pieces
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    suggest_slave: bool


class Get(NamedTuple):
    """What is asked for: messages of `queue` from `offset` on, all where both filters are None."""

    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int | None
    tags_codes: AbstractSet[int] | None
    property_filter: IPropertyFilter | None = None


def outside(offset: int, low: int, high: int) -> GetMessageResult:
    """The answer to who asks for an offset that is not within low..high, what a queue holds."""
    if high == 0:
        return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, 0, [], 0, False)
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, False)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, False)
    return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, False)
