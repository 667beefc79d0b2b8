"""Moving the tags codes of new queue entries into units of the extension, when that is kept.

The store time of a unit, and what its bit map is made from, are read from the record in the log. Must never know what a
tags code or a bit map means.
"""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.store.consumequeue import ConsumeQueue
from mqbroker.store.consumequeue_ext import ADDRESS_MAX, ConsumeQueueExt
from mqbroker.store.logview import ILogView
from mqbroker.wire.record import property_bytes, store_timestamp_at

#: Makes the bit map of a message from its property bytes. Must not raise.
BitMap = Callable[[bytes], bytes]


def extend_entries(
    log: ILogView,
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    pending: list[int],
    unextended: set[tuple[ConsumeQueue, int]],
    bit_map: BitMap | None = None,
) -> None:
    """Write a unit for each entry, given as physical offset, size, tags code, ..., and put its address in the tags
    code's place. Those that have an address already keep it; one that has no place in the extension, or is among
    `unextended` by its physical offset, keeps its code.

    Raises OSError; called again it goes on where it stopped.
    """
    for at in range(2, len(pending), 3):
        code = pending[at]
        if code > ADDRESS_MAX and (not unextended or (queue, pending[at - 2]) not in unextended):
            found = log.view(pending[at - 2])
            timestamp_ms = -1 if found is None else store_timestamp_at(*found)
            bits = b""
            if bit_map is not None:
                bits = bit_map(property_bytes(*found, pending[at - 1]) if found is not None else b"")
            address = ext.put(code, timestamp_ms, bits)
            if address is not None:
                pending[at] = address
