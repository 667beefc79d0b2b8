"""Requests about consumer groups: settings, members, consumption progress.

Codes 38, 200, 201, 207, 208, 300 and 317.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.queue_stats import QueueStats
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Call, answers
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import ConsumeStats, ConsumeStatsList, GroupList, OffsetWrapper
from mqbroker.wire.bodies import (
    QUEUES_MAX,
    GetConsumerListByGroupResponseBody,
    MessageQueue,
    SubscriptionGroupConfig,
)
from mqbroker.wire.codes import RequestCode, ResponseCode

log = Logger()


@attrs.frozen
class GroupRequests:
    """Settings, members and offsets of groups."""

    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerRegistry
    stats: BrokerStats
    tasks: CooperativeTasks

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    async def put_group(self, call: Call[None]) -> None:
        """Create or change a group. The response waits until it is on disk."""
        group = SubscriptionGroupConfig.from_json(call.request.body)
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            remark = f"{group.retry_queue_nums} retry queues: it must be 0 to {QUEUES_MAX}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self.groups.put(group)
        await self.groups.when_saved()

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    async def delete_group(self, call: Call[h.DeleteSubscriptionGroupRequestHeader]) -> None:
        """Delete a group's settings, and with removeOffset its offsets; SUCCESS if it does not exist."""
        name = call.header.group_name
        log.info("{peer} deletes group {name}", peer=call.connection.remote_addr, name=name)
        self.groups.remove(name)
        if call.header.remove_offset:
            self.offsets.remove_group(name)
        self.stats.group_removed(name)
        await self.groups.when_saved()

    @answers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, bounded=True)
    async def all_groups(self, call: Call[None]) -> bytes:
        return await self.tasks.written(self.groups.snapshot())

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def list_consumers(self, call: Call[h.GetConsumerListByGroupRequestHeader]) -> GetConsumerListByGroupResponseBody:
        group = self.consumers.known(call.header.consumer_group)
        if group is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {call.header.consumer_group}")
        return GetConsumerListByGroupResponseBody(group.client_ids())

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def consumed_by(self, call: Call[h.QueryTopicConsumeByWhoRequestHeader]) -> GroupList:
        """The groups that subscribe to a topic now, and those that have offsets in it."""
        topic = call.header.topic
        return GroupList(frozenset([*self.consumers.groups_subscribed(topic), *self.offsets.groups_of(topic)]))


@attrs.frozen
class ConsumeStatsRequests:
    """Consumption progress of groups by topic, without topics that were deleted, or that an online group has left.

    :param broker_addr: the broker's address in the response.
    """

    groups: GroupTable
    topics: TopicTable
    offsets: OffsetTable
    consumers: ConsumerRegistry
    queues: QueueStats
    stats: BrokerStats
    tasks: CooperativeTasks
    broker_addr: str

    @answers(RequestCode.GET_CONSUME_STATS, bounded=True)
    async def of_group(self, call: Call[h.GetConsumeStatsRequestHeader]) -> bytes:
        """One group in the queues of one topic, or of all topics that it has offsets in."""
        group, named = call.header.consumer_group, call.header.topic
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for name in [named] if named and not named.isspace() else self.offsets.topics_of(group):
            topic = self.topics.get(name)
            if topic is not None and not self.consumers.has_left(group, name):
                table |= await self._progress(group, name, topic.read_queue_nums)
                tps += self.stats.group_get_tps(group, name)
        return await self.tasks.written(ConsumeStats(table, tps))

    @answers(RequestCode.GET_BROKER_CONSUME_STATS, bounded=True)
    async def of_broker(self, call: Call[h.GetConsumeStatsInBrokerHeader]) -> bytes:
        """Each group in the table; with isOrder only its ordered topics."""
        topics = self.offsets.topics_by_group()
        found: list[dict[str, list[ConsumeStats]]] = []
        behind = 0
        for group in self.groups.names():
            stats = []
            for name in topics.get(group, []):
                topic = self.topics.get(name)
                if topic is None or (call.header.is_order and not topic.order) or self.consumers.has_left(group, name):
                    continue
                table = await self._progress(group, name, topic.write_queue_nums)
                stats.append(ConsumeStats(table, self.stats.group_get_tps(group, name)))
                # Any offset may be committed: one behind the end of a queue must not reduce the sum.
                behind += sum(max(0, each.broker_offset - each.consumer_offset) for each in table.values())
            found.append({group: stats})
        return await self.tasks.written(ConsumeStatsList(found, self.broker_addr, behind))

    async def _progress(self, group: str, topic: str, queue_count: int) -> dict[MessageQueue, OffsetWrapper]:
        table = {}
        for queue_id in range(queue_count):
            await self.tasks.step()
            table[self.queues.queue(topic, queue_id)] = await self.queues.progress(group, topic, queue_id)
        return table
