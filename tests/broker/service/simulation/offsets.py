"""The offset that consumers commit in runs of a group: what each broker may have of it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.message_store import MessageStore
from tests.broker.service.group import Replica
from tests.store.simulation.model import require

#: How old the offsets may be that a broker has after a kill: they are written each 5 s.
OFFSETS_AGE_S = 6.0
#: Where the queue ended when a replica looked at that to lower its offsets.
QUEUE_ENDS: WeakKeyDictionary[OffsetTable, int] = WeakKeyDictionary()


def note_queue_end(offsets: OffsetTable, max_of: Any) -> None:
    """In place of `OffsetTable.lower_to`: that, and a note of what it was told, which must be so by the log."""
    store: MessageStore = max_of.__self__
    end = max_of("T", 0)
    store.dispatch_now()
    require(max_of("T", 0) == end, "offsets are lowered to the end of a queue that is whole", f"{end}")
    QUEUE_ENDS[offsets] = end
    LOWER_TO(offsets, max_of)


LOWER_TO = OffsetTable.lower_to


class Offsets:
    """The offset that consumers have committed, at one broker. It goes back only with messages that were cut off, of
    which none was acknowledged, and when the process ends before it has written it."""

    def __init__(self) -> None:
        self._parts: object = None
        self._at_least = 0
        #: (time, offset) each time that it changed.
        self._seen: list[tuple[float, int]] = []

    def look(self, replica: Replica, now: float, queue_end: int) -> None:
        parts = replica.parts
        if parts is None:
            return
        offset = parts.offsets.query("CG", "T", 0) or 0
        if parts is not self._parts:
            # Since the broker was started, messages may have come that are not those that were consumed.
            begun_at = QUEUE_ENDS.pop(parts.offsets, replica.store.max_offset("T", 0))
            self._parts, self._at_least = parts, min(self._at_least, begun_at, queue_end)
        what = f"{offset} at broker {replica.replica_id} after {self._at_least}"
        require(offset >= self._at_least, "offsets of consumers never go back", what)
        self._at_least = offset
        if not self._seen or self._seen[-1][1] != offset:
            self._seen.append((now, offset))

    def ended(self, now: float) -> None:
        """The process ended without a stop: what it wrote last is there."""
        self._parts = None
        written = [row for row in self._seen if row[0] < now - OFFSETS_AGE_S][-1:]
        since = [row for row in self._seen if row[0] >= now - OFFSETS_AGE_S]
        self._at_least = min(offset for _, offset in [*written, *since]) if written else 0
