"""GetMessageResult, its status, and the limits of a get. Values only."""

from __future__ import annotations

import enum
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from mqbroker.config import StoreSettings
from mqbroker.store.commitlog import Pieces
from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.property_filter import IPropertyFilter

_MAX_INT = 0x7FFFFFFF


class GetMessageStatus(enum.Enum):
    """Outcomes of a get, by the names of the Java broker.

    Two of Java's are not used: NO_MATCHED_LOGIC_QUEUE, as a queue that was never written to has no messages (Java's
    broker never returns it either); and OFFSET_FOUND_NULL, with which Java skips the rest of a missing consume queue
    file: here the store does not open without it.
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

    `suggest_slave`: the last examined message is so far behind that it counts as on disk.
    """

    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: Pieces
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    suggest_slave: bool


class Get(NamedTuple):
    """A request for messages of `queue` from `offset` on; all of them if both filters are None."""

    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int | None
    tags_codes: AbstractSet[int] | None
    property_filter: IPropertyFilter | None = None


class TransferLimits:
    """Maximum messages and bytes of one get: `near` the end of the log, where messages count as resident, and `far`
    from it."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings_changed(settings)

    def settings_changed(self, settings: StoreSettings) -> None:
        """Apply changed `settings`."""
        self.near = (
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
        )
        self.far = (
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
        )

    def of(self, max_bytes: int | None, is_near: bool) -> tuple[int, int]:
        """Maximum count and bytes of a get with this `max_bytes`, or None."""
        count_limit, bytes_limit = self.near if is_near else self.far
        return count_limit, bytes_limit if max_bytes is None else max_bytes

    def are_exceeded(self, get: Get, count: int, total: int, is_near: bool) -> bool:
        """Whether a get with `count` messages is full, or would exceed its bytes with a total of `total`."""
        count_limit, bytes_limit = self.of(get.max_bytes, is_near)
        return count >= get.max_count or count >= count_limit or is_above(bytes_limit, total)


def is_above(bytes_limit: int, total: int) -> bool:
    """Whether `total` bytes of messages exceed a limit. The Java broker's sum has 32 bits: a size that overflows it is
    not that of a message, and is skipped."""
    return bytes_limit < total <= _MAX_INT


def outside(offset: int, low: int, high: int, next_offset: int = 0) -> GetMessageResult:
    """The result for an offset outside low..high, the range of a queue. Those up to `next_offset` are in the log, but
    readers do not see them yet: one that has read some of them, from another broker, waits for those that follow."""
    if high < offset <= next_offset:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, False)
    if high == 0:
        return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, 0, [], 0, False)
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, False)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, False)
    return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, False)
