"""Slow consumers: groups that lag too far behind are disabled if disableConsumeIfConsumerReadSlowly is set.

A group that lags by more than the machine's memory makes the broker read from the disk all the time. Rule and setting
are those of BrokerController.protectBroker of 4.9.7, which measures by the last pull; here it is the committed offset.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.store.message_store import MessageStore

log = Logger()

#: The interval between checks, as in the Java broker.
CHECK_SECONDS = 180.0


@attrs.frozen
class SlowConsumers:
    """Checks the committed offsets of the connected groups."""

    _store: MessageStore
    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _consumers: ConsumerRegistry
    _live: LiveSettings
    _tasks: CooperativeTasks

    def check(self) -> Deferred[None] | None:
        """Disable groups that are too far behind; fires when all were checked, None if the check is switched off."""
        if not self._live.current.disable_consume_if_consumer_read_slowly:
            return None
        looked = Deferred.fromCoroutine(self._check_all())
        return looked.addErrback(lambda failure: log.failure("the check for slow consumers failed", failure))

    async def _check_all(self) -> None:
        for name in self._consumers.names():
            live = self._consumers.group(name)
            group = self._groups.find(name)
            if live is None or group is None or not group.consume_enable:
                continue
            try:
                behind = await self._bytes_behind(name, list(live.subscriptions))
            except Exception:  # of one group: the others are checked
                log.failure("the offsets of {group} cannot be checked", group=name)
                continue
            if behind > self._live.current.consumer_fallbehind_threshold:
                log.warn(
                    "[PROTECT_BROKER] the consumer[{group}] consume slowly, {behind} bytes, disable it",
                    group=name,
                    behind=behind,
                )
                self._groups.put(attrs.evolve(group, consume_enable=False))

    async def _bytes_behind(self, group: str, topics: list[str]) -> int:
        """The bytes of the log from the oldest message that the group has yet to read."""
        behind = 0
        for name in topics:
            topic = self._topics.get(name)
            # Only queues with an offset: a topic may have thousands that no group reads.
            for queue_id, offset in self._offsets.by_queue(group, name).items():
                await self._tasks.step()
                queues = topic.read_queue_nums if topic is not None else 0
                if queue_id >= queues or offset >= self._store.max_offset(name, queue_id):
                    continue
                at = await self._store.queries.physical_offset(name, queue_id, offset)
                if at >= 0:
                    behind = max(behind, self._store.log_end - at)
        return behind
