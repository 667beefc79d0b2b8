"""Requests about offsets: of queues, and committed ones; their reset, copy and correction.

Codes 14, 15, 29, 30, 31, 32, 43, 45, 222, 223, 308 and 314.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mqbroker.broker.client_registry import Client, ConsumerGroup, ConsumerRegistry
from mqbroker.broker.delay import WITH_DELIVERED, DelayOffsets, DelayService
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.queue_stats import QueueStats
from mqbroker.broker.requests.client_requests import ClientCalls
from mqbroker.broker.system_topics import QUEUE_ID_MAX
from mqbroker.broker.topic_table import TopicTable
from mqbroker.config.fields import LONG_MAX
from mqbroker.errors import MQError, Refused
from mqbroker.ha.master import Slaves
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Call, IConnection, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import (
    GetConsumerStatusBody,
    MessageQueueForC,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    read_offsets,
)
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import V3_0_7_SNAPSHOT, LanguageCode, RequestCode, ResponseCode, old_version_name
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import check_group, check_topic, is_lmq

log = Logger()


STATUS_TIMEOUT_MS = 5_000
#: Time of a reset to the end of the queue.
TO_THE_END = -1


@attrs.frozen
class OffsetRequests:
    """Offsets of queues, and committed offsets."""

    store: MessageStore
    topics: TopicTable
    offsets: OffsetTable
    delay: DelayService
    slaves: Slaves
    tasks: CooperativeTasks

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    async def search_offset(self, call: Call[h.SearchOffsetRequestHeader]) -> h.SearchOffsetResponseHeader:
        header = call.header
        offset = await self.store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return h.SearchOffsetResponseHeader(offset=offset)

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, call: Call[h.GetMaxOffsetRequestHeader]) -> h.GetMaxOffsetResponseHeader:
        return h.GetMaxOffsetResponseHeader(offset=self.store.max_offset(call.header.topic, call.header.queue_id))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, call: Call[h.GetMinOffsetRequestHeader]) -> h.GetMinOffsetResponseHeader:
        return h.GetMinOffsetResponseHeader(offset=self.store.min_offset(call.header.topic, call.header.queue_id))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    async def earliest_time(
        self, call: Call[h.GetEarliestMsgStoretimeRequestHeader]
    ) -> h.GetEarliestMsgStoretimeResponseHeader:
        timestamp = await self.store.queries.earliest_timestamp(call.header.topic, call.header.queue_id)
        return h.GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp)

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def commit(self, call: Call[h.UpdateConsumerOffsetRequestHeader]) -> None:
        """Commit an offset for an existing topic. Deleted queues are accepted."""
        header = call.header
        if not is_lmq(header.consumer_group):
            check_group(header.consumer_group)
        topic = self.topics.get(header.topic)
        if topic is None:
            check_topic(header.topic)
        if topic is None or not 0 <= header.queue_id <= QUEUE_ID_MAX or header.commit_offset < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"no offset {header.commit_offset} can be committed for queue {header.queue_id} of {header.topic}: "
                + ("the topic does not exist here" if topic is None else "the numbers are out of range"),
            )
        self.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    async def committed(self, call: Call[h.QueryConsumerOffsetRequestHeader]) -> h.QueryConsumerOffsetResponseHeader:
        """The committed offset; for a group without one 0, if the queue's first message is still resident."""
        topic, queue_id = call.header.topic, call.header.queue_id
        offset = self.offsets.query(call.header.consumer_group, topic, queue_id)
        if offset is None:
            if self.store.min_offset(topic, queue_id) > 0 or await self.store.is_far(topic, queue_id, 0):
                remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)
            offset = 0
        return h.QueryConsumerOffsetResponseHeader(offset=offset)

    @answers(RequestCode.GET_ALL_CONSUMER_OFFSET, bounded=True)
    async def all_committed(self, call: Call[None]) -> bytes:
        return await self.tasks.written(self.offsets.snapshot())

    @answers(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_of_delay_levels(self, call: Call[None]) -> DelayOffsets:
        """Only slaves send this code."""
        self.slaves.note_fetch(call.connection.remote_addr)
        return self.delay.snapshot(WITH_DELIVERED in call.request.ext_fields)


@attrs.frozen
class OffsetAdminRequests:
    """Comparison, copy and reset of committed offsets, for administrators."""

    store: MessageStore
    topics: TopicTable
    offsets: OffsetTable
    consumers: ConsumerRegistry
    queues: QueueStats
    calls: ClientCalls
    tasks: CooperativeTasks

    @answers(RequestCode.QUERY_CORRECTION_OFFSET, bounded=True)
    async def corrections(self, call: Call[h.QueryCorrectionOffsetHeader]) -> bytes:
        """By queue the least offset of a topic's groups without those in filterGroups, at or above the min offset.

        If the compared group is behind it, or there is none, it is 2**63 - 1: nothing to correct.
        """
        header = call.header
        left_out = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in set(self.offsets.groups_of(header.topic)) - left_out:
            for queue_id, offset in self.offsets.by_queue(group, header.topic).items():
                await self.tasks.step()
                if offset >= self.store.min_offset(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self.offsets.by_queue(header.compare_group, header.topic).items():
            if least.get(queue_id, LONG_MAX) > offset:
                least[queue_id] = LONG_MAX
        return await self.tasks.written(QueryCorrectionOffsetBody(least))

    @answers(RequestCode.CLONE_GROUP_OFFSET, bounded=True)
    async def clone(self, call: Call[h.CloneGroupOffsetRequestHeader]) -> None:
        """Copy one group's offsets to another, in one topic or in all that it has offsets in."""
        header = call.header
        source, target, named = header.src_group, header.dest_group, header.topic
        if not is_lmq(target):
            check_group(target)
        for topic in [named] if named and not named.isspace() else self.offsets.topics_of(source):
            await self.tasks.step()
            if self.topics.get(topic) is not None and (header.offline or not self.consumers.has_left(source, topic)):
                log.info("{group} gets the offsets of {source} in {topic}", group=target, source=source, topic=topic)
                self.offsets.clone(source, target, topic)

    # Of an online group: through its consumers

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, bounded=True)
    async def reset(self, call: Call[h.ResetOffsetRequestHeader]) -> bytes:
        """Reset the consumers of a group to a time; without force no queue is moved forward.

        The consumers commit by themselves; the response has the offsets that they were sent.
        """
        header = call.header
        log.info("{peer} resets {header}", peer=call.connection.remote_addr, header=header)
        table = await self._offsets_to_reset(header)
        group = self.consumers.group(header.group)
        if group is None:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        _refuse_old(group)
        told = h.ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
        )
        written = data = await self.tasks.written(ResetOffsetBody(table))
        if call.request.language == LanguageCode.CPP:
            queues = [MessageQueueForC(each.topic, each.broker_name, each.queue_id, at) for each, at in table.items()]
            data = await self.tasks.written(ResetOffsetBodyForC(queues))
        for consumer in list(group.clients):
            consumer.invoke_oneway(RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, data))
        return written

    async def _offsets_to_reset(self, header: h.ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        topic = self.topics.get(header.topic)
        if topic is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            await self.tasks.step()
            committed = self.offsets.query(header.group, header.topic, queue_id)
            if committed is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            if header.timestamp == TO_THE_END:
                offset = self.store.max_offset(header.topic, queue_id)
            else:
                offset = await self.store.offset_by_time(header.topic, queue_id, header.timestamp)
            table[self.queues.queue(header.topic, queue_id)] = offset if header.is_force else min(offset, committed)
        return table

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def consumer_status(self, call: Call[h.GetConsumerStatusRequestHeader]) -> GetConsumerStatusBody:
        """The offsets of each consumer of a group, or of the one whose id is clientAddr, in its queues of a topic.

        Consumers that do not respond in time are left out.
        """
        header = call.header
        group = self.consumers.group(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        _refuse_old(group)
        asked = h.GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        client_id = (header.client_addr or "").strip()
        told: dict[str, dict[MessageQueue, int]] = {}
        await gatherResults(
            [
                Deferred.fromCoroutine(self._ask_status(connection, client, asked, told))
                for connection, client in group.clients.items()
                if client_id in ("", client.client_id)
            ]
        )
        return GetConsumerStatusBody(consumer_table=told)

    async def _ask_status(
        self,
        connection: IConnection,
        client: Client,
        header: h.GetConsumerStatusRequestHeader,
        told: dict[str, dict[MessageQueue, int]],
    ) -> None:
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
        try:
            answer = await self.calls.call(connection, command, STATUS_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                told[client.client_id] = read_offsets(answer.body, GetConsumerStatusBody)
        except MQError as error:
            log.warn("{client} did not return its offsets: {why}", client=client.client_id, why=str(error))


def _refuse_old(group: ConsumerGroup) -> None:
    for client in group.clients.values():
        if client.version < V3_0_7_SNAPSHOT:
            remark = f"the client does not support this feature. version={old_version_name(client.version)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
