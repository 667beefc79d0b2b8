"""Statistics of one queue, for administrators: its offsets, how far a group is, how long messages wait."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.admin_bodies import OffsetWrapper, QueueTimeSpan, TopicOffset
from mqbroker.wire.bodies import MessageQueue


@attrs.frozen
class QueueStats:
    """Looks at queues of one broker. Times are ms since the epoch; of a message that is not there -1.

    :param broker_name: by which queues are named in answers.
    :param now: gives seconds since the epoch.
    """

    _store: MessageStore
    _offsets: OffsetTable
    _broker_name: str
    _now: Callable[[], float]

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    async def offsets(self, topic: str, queue_id: int) -> TopicOffset:
        """What a queue holds, and when its newest message was stored: 0 where it never had one."""
        end = self._store.max_offset(topic, queue_id)
        newest_ms = await self._store.queries.store_timestamp(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(self._store.min_offset(topic, queue_id), end, newest_ms)

    async def progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """How far a group is, and when the last message it consumed was stored: 0 where that is not known."""
        offset = self._offsets.query(group, topic, queue_id) or 0
        consumed_ms = await self._store.queries.store_timestamp(topic, queue_id, offset - 1) if offset > 0 else 0
        return OffsetWrapper(self._store.max_offset(topic, queue_id), offset, max(0, consumed_ms))

    async def time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        """The times of a queue for a group; for one without offsets as if it began at the oldest message."""
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
