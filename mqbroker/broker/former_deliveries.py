"""Finds the delayed messages that a former process or master delivered after the offsets were written that this broker
started with: by their copies in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twisted.internet.interfaces import IReactorTime

from mqbroker.broker.delay_cursors import Cursor, Level
from mqbroker.broker.stored_copies import SKEW_MS, StoredCopies
from mqbroker.broker.system_topics import NoRealTarget, real_target
from mqbroker.broker.topic_table import halved
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.record import RawRecord


class FormerDeliveries:
    """The deliveries from before it was created. `levels`: the present ones."""

    def __init__(self, store: MessageStore, clock: IReactorTime, levels: Mapping[int, Level]) -> None:
        self._levels = levels
        self._copies: StoredCopies | None = StoredCopies(store, clock, store.log_end)
        #: Messages that were delivered before are due by this time.
        self._until_ms = clock.seconds() * 1000 + SKEW_MS

    async def among(self, records: list[RawRecord], level: Level, cursor: Cursor, since_ms: float) -> set[int]:
        """Which of `records`, the next ones of a cursor, were delivered: their physical offsets. All are due at
        `since_ms` or later. Raises StoreError."""
        copies = self._copies
        if copies is None or not cursor.is_unchecked:
            return set()
        # What comes after these messages is due after them, unless it is not compared yet or could not be split off.
        is_later = since_ms > self._until_ms and level.compared >= level.first_new and not cursor.is_joined
        if is_later or records[0].physical_offset >= copies.end:
            cursor.is_unchecked = False
            self._forget(self._levels.values())
            return set()
        found = set[int]()
        for record in records:
            try:
                topic, queue_id = real_target(record.properties)
            except NoRealTarget:
                continue
            for possible in halved(queue_id):
                if record.physical_offset in await copies.of_queue(topic.decode(), possible, since_ms):
                    found.add(record.physical_offset)
                    break
        return found

    def _forget(self, levels: Iterable[Level]) -> None:
        """Forget the copies if no cursor, and no part that may get one, has messages from before the start."""
        if not any(each.compared < each.first_new or any(c.is_unchecked for c in each.cursors) for each in levels):
            self._copies = None
