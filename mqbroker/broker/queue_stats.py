"""Statistics of one queue for administration: its offsets, a group's progress, how long messages wait."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.admin_bodies import OffsetWrapper, QueueTimeSpan, TopicOffset
from mqbroker.wire.bodies import MessageQueue


@attrs.frozen
class QueueStats:
    """Statistics of the queues of one broker. Times are ms since the epoch, or -1 for a missing message.

    :param broker_name: the broker name of queues in responses.
    :param now: returns seconds since the epoch.
    """

    _store: MessageStore
    _offsets: OffsetTable
    _broker_name: str
    _now: Callable[[], float]

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    async def offsets(self, topic: str, queue_id: int) -> TopicOffset:
        """The offsets of a queue, and the store time of its newest message: 0 if it never had one."""
        end = self._store.max_offset(topic, queue_id)
        newest_ms = await self._store.queries.store_timestamp(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(self._store.min_offset(topic, queue_id), end, newest_ms)

    async def progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """A group's progress, and the store time of the last message it consumed: 0 if unknown."""
        offset = self._offsets.query(group, topic, queue_id) or 0
        consumed_ms = await self._store.queries.store_timestamp(topic, queue_id, offset - 1) if offset > 0 else 0
        return OffsetWrapper(self._store.max_offset(topic, queue_id), offset, max(0, consumed_ms))

    async def time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        """The time span of a queue for a group. A group without offsets is taken to start at the oldest message."""
        store, queries = self._store, self._store.queries
        start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        oldest_ms = await queries.earliest_timestamp(topic, queue_id)
        newest_ms = await queries.store_timestamp(topic, queue_id, end - 1)
        offset = self._offsets.query(group, topic, queue_id) or 0
        consumed_ms = await queries.store_timestamp(topic, queue_id, offset - 1) if offset > 0 else oldest_ms
        waits_ms = 0
        if offset < end:
            next_ms = await queries.store_timestamp(topic, queue_id, max(offset, start))
            waits_ms = max(0, int(self._now() * 1000) - next_ms) if next_ms >= 0 else 0
        return QueueTimeSpan(self.queue(topic, queue_id), oldest_ms, newest_ms, consumed_ms, waits_ms)
