"""Consume queue entry: the location of a message in the log, 20 bytes.

    0  physical offset  8 | 8  size  4 | 12  tags code  8

Knows nothing of files.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from mqbroker.wire.record import RECORD_BYTES_MIN

ENTRY_BYTES = 20
ENTRY = Struct(">qiq")
SPAN = Struct(">qi")
#: Size in blank entries, which stand for no message: those before the first message of a queue that does not start at a
#: file's beginning have offset 0, as Java writes them; those of corrupt messages keep the order of offsets.
BLANK_SIZE = 0x7FFFFFFF
#: Bytes read at once to find a file's end: a page, and some more, as the last writes before a crash may reach the disk
#: in any order.
LOOK_ENTRIES = 4096 // ENTRY_BYTES
BEHIND_ENTRIES = 256
_ZEROS = bytes((LOOK_ENTRIES + BEHIND_ENTRIES) * ENTRY_BYTES)
_NO_ENTRY = bytes(ENTRY_BYTES)


@functools.cache
def entries_struct(count: int) -> Struct:
    """`count` entries as one flat tuple; callers ask for a bounded range of counts only."""
    return Struct(">" + "qiq" * count)


@functools.cache
def places_struct(count: int) -> Struct:
    """As `entries_struct`, without the tags codes."""
    return Struct(">" + "qi8x" * count)


class QueueEnd(NamedTuple):
    """State of a queue at a clean stop, so that a start need not read its files.

    `first`: the offset of its first file's first entry. `modified_ms`: when the last file was written to. `last` and
    `oldest`: physical offset and size of the newest entry, and of that at `min_offset`."""

    first: int
    files: int
    modified_ms: int
    min_offset: int
    max_offset: int
    last: tuple[int, int]
    oldest: tuple[int, int]


def span_at(data: bytes, at: int) -> tuple[int, int]:
    """Physical offset and size in the entry `at`; size 0 if there is none."""
    place = at * ENTRY_BYTES
    if place + ENTRY_BYTES > len(data):
        return 0, 0
    found: tuple[int, int] = SPAN.unpack_from(data, place)
    return found


def is_entry(data: bytes) -> bool:
    """Whether these fields are an entry, of a message or blank."""
    return span_at(data, 0)[1] > 0


def is_blank(offset: int, size: int) -> bool:
    """Whether an entry is a blank before the first message of its queue."""
    return not offset and size == BLANK_SIZE


def are_zeros(data: bytes) -> bool:
    """Whether the entries that `find_newest` read are all zeros."""
    return data == _ZEROS[: len(data)]


def find_newest(read: Callable[[int, int], bytes], entries_max: int) -> tuple[int, int, bytes, tuple[int, int]]:
    """Find where the entries of a file with room for `entries_max` end; `read(at, count)` returns their bytes.

    Returns the number of the first entry of the last read, the count of entries from it on, the bytes read, and
    physical offset and size of the file's first entry. A file with few entries is read once. Raises OSError.
    """
    low, high = 0, min(LOOK_ENTRIES, entries_max)
    data = read(low, high + BEHIND_ENTRIES)
    oldest = span_at(data, 0)
    if span_at(data, high - 1)[1] > 0:
        while high < entries_max and is_entry(read(high - 1, 1)):
            low, high = high, min(2 * high, entries_max)
        while high - low > LOOK_ENTRIES:
            middle = (low + high) // 2
            low, high = (middle, high) if is_entry(read(middle - 1, 1)) else (low, middle)
        data = read(low, high - low + BEHIND_ENTRIES)
    return low, _count_entries(data, high - low), data, oldest


def _count_entries(data: bytes, most: int) -> int:
    """Count the leading entries, up to `most`. Hot at a start with many queues."""
    count = -(-data.find(_NO_ENTRY) // ENTRY_BYTES)  # an entry and its successor never have as many zeros in a row
    if count <= most and are_zeros(data[count * ENTRY_BYTES :]):
        sizes = places_struct(count).unpack_from(data)[1::2]
        if min(sizes, default=1) > 0:
            return count
    return bisect.bisect_left(range(most), True, key=lambda at: span_at(data, at)[1] <= 0)


def ends_below(physical_end: int) -> Callable[[int, int], bool]:
    """Whether a message, given by physical offset and size, ends at or below `physical_end` of the log."""
    return lambda offset, size: offset + size % BLANK_SIZE <= physical_end


def search_entries(
    entry: Callable[[int], tuple[int, int, int]],
    newest: int,
    is_below: Callable[[int, int], bool],
    low: int,
    high: int,
    lost_are_below: bool,
) -> int:
    """Binary search for the first number in low..high whose `entry` is not below. Lost entries, which do not point
    below the physical offset `newest`, are ignored."""
    while low < high:
        at = middle = (low + high) // 2
        physical_offset, size, _ = entry(at)
        while not (size >= RECORD_BYTES_MIN and 0 <= physical_offset <= newest) and at + 1 < high:
            at += 1
            physical_offset, size, _ = entry(at)
        is_known = size >= RECORD_BYTES_MIN and 0 <= physical_offset <= newest
        if is_below(physical_offset, size) if is_known else lost_are_below:
            low = at + 1
        elif lost_are_below and at > middle:
            return at
        else:
            high = middle
    return low
