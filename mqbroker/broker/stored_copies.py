"""Finds the messages of a queue that were stored as copies of others, by the field of their records that names those.

A delayed message's copy and a half message that was put back have there -1 - n, where n is the physical offset of the
former record; a committed message has n, as in Java, whose brokers and clients do not use the field otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqbroker.store.get_message_result import GetMessageStatus
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.record import BadRecord, RawRecord, decode_raw

log = Logger()

#: Copies and queues that are remembered, at most: about 100 MB.
COPIES_MAX = 1_000_000
QUEUES_MAX = 10_000
#: Maximum clock difference between the broker that stored the copies and the one that searches for them.
SKEW_MS = 60_000
_READ_MAX = 32
#: Reads of resident messages in one iteration of the reactor.
_TURN_READS = 8


def origin(physical_offset: int) -> int:
    """The prepared offset in a copy's record; never 0, which marks a record that is not a copy."""
    return -1 - physical_offset


async def read_queue(
    store: MessageStore, clock: IReactorTime, topic: str, queue_id: int, offset: int
) -> AsyncIterator[RawRecord]:
    """The messages of a queue from `offset` on; unreadable ones are skipped. Raises StoreError."""
    reads = 0
    while True:
        found = store.get(topic, queue_id, offset, _READ_MAX)
        if isinstance(found, Deferred):
            found = await found
        if found.status is not GetMessageStatus.FOUND or found.next_offset <= offset:
            return
        data, at = memoryview(b"".join(found.pieces)), 0
        while at < len(data):
            try:
                record = decode_raw(data, at)
            except BadRecord:
                break
            yield record
            at += record.size
        offset = found.next_offset
        reads += 1
        if reads % _TURN_READS == 0:
            await deferLater(clock, 0)


@attrs.define(eq=False)
class StoredCopies:
    """The copies of delayed messages in the log below `end`: those from before a start."""

    _store: MessageStore
    _clock: IReactorTime
    end: int
    #: By queue: from which store time on (ms) it was read, and the physical offsets of the messages copied.
    _by_queue: dict[tuple[str, int], tuple[float, set[int]]] = attrs.field(init=False, factory=dict)
    _count: int = attrs.field(init=False, default=0)

    async def of_queue(self, topic: str, queue_id: int, since_ms: float) -> set[int]:
        """The physical offsets of the messages of which the queue has copies that were stored since `since_ms`, or up
        to a minute before. Raises StoreError."""
        since_ms -= SKEW_MS
        known = self._by_queue.get((topic, queue_id))
        if known is not None and known[0] <= since_ms:
            return known[1]
        if self._count >= COPIES_MAX or len(self._by_queue) >= QUEUES_MAX:
            self._by_queue.clear()
            self._count = 0
        found = set[int]()
        begin = await self._store.queries.offset_by_time(topic, queue_id, max(0, int(since_ms)))
        async for record in read_queue(self._store, self._clock, topic, queue_id, begin):
            if record.physical_offset >= self.end or len(found) >= COPIES_MAX:
                break
            if record.prepared_offset < 0:
                found.add(origin(record.prepared_offset))
        self._by_queue[topic, queue_id] = since_ms, found
        self._count += len(found)
        return found
