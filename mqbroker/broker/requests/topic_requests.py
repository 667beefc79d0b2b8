"""Requests about topics: creation, removal, offsets of their queues, lists.

Codes 17, 21, 202, 215, 303, 305, 306 and 316.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.queue_stats import QueueStats
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.cooperative_tasks import CooperativeTasks
from mqbroker.remoting.handlers import Call, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import QueryConsumeTimeSpanBody, TopicStatsTable
from mqbroker.wire.bodies import QUEUES_MAX, RemovedQueue, TopicConfig, TopicList, TopicsForSlave
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.names import check_topic

log = Logger()

#: Field of a request for all topics, by which a slave also gets the queues that were removed.
WITH_REMOVED_QUEUES = "withRemovedQueues"
#: Removed queues that are looked at in one step, a ms or less.
ROWS_A_STEP = 1000


@attrs.frozen
class TopicRequests:
    """Reads and changes topics and their queues."""

    topics: TopicTable
    store: MessageStore
    queues: QueueStats
    stats: BrokerStats
    tasks: CooperativeTasks

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC)
    async def put_topic(self, call: Call[h.CreateTopicRequestHeader]) -> None:
        """Create or change a topic. The response waits until it is on disk, and the name servers know it."""
        header, topics = call.header, self.topics
        name = self._own_name(header.topic)
        for queues in (header.read_queue_nums, header.write_queue_nums):
            if not 0 <= queues <= QUEUES_MAX:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{queues} queues: it must be 0 to {QUEUES_MAX}")
        kind = header.topic_filter_type
        if kind not in ("SINGLE_TAG", "MULTI_TAG"):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{kind[:40]}] value invalid")
        if not 0 <= header.perm <= 15:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the permission {header.perm} is not known: it must be 0 to 15")
        sys_flag = header.topic_sys_flag or 0
        topics.put(TopicConfig(name, header.read_queue_nums, header.write_queue_nums, header.perm, kind, sys_flag))
        await topics.when_saved()
        # The client requests the topic's route next.
        await topics.when_announced()

    def _own_name(self, name: str) -> str:
        """`name`; raises Refused if users may not create or delete such a topic."""
        if self.topics.is_system(check_topic(name)):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        return name

    # Removal

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER)
    async def delete_topic(self, call: Call[h.DeleteTopicRequestHeader]) -> None:
        """Remove a topic with its queues; SUCCESS if it does not exist. Offsets of groups stay."""
        name = self._own_name(call.header.topic)
        log.info("{peer} deletes topic {name}", peer=call.connection.remote_addr, name=name)
        self.topics.remove(name)
        await self.topics.when_saved()
        self.stats.topic_removed(name)
        await self._removed(self.store.remove_topics([name]))

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused_topics(self, call: Call[None]) -> None:
        """Remove the queues of topics that are not in the table."""
        log.info("{peer} requests the cleaning of unused topics", peer=call.connection.remote_addr)
        await self._removed(self.store.keep_only_topics(self.topics.names()))

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_empty_queues(self, call: Call[None]) -> None:
        """Remove queues whose messages have all expired."""
        log.info("{peer} requests the cleaning of empty consume queues", peer=call.connection.remote_addr)
        await self._removed(self.store.remove_empty_queues())

    async def _removed(self, removal: Deferred[list[str]]) -> None:
        try:
            removed = await removal
        except OSError as error:
            remark = f"not all files could be removed: {error}; repair the disk and try again"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from error
        for topic in removed:
            self.stats.topic_removed(topic)

    # Queries

    @answers(RequestCode.GET_ALL_TOPIC_CONFIG, bounded=True)
    async def all_topics(self, call: Call[None]) -> bytes:
        topics = self.topics.snapshot()
        if WITH_REMOVED_QUEUES not in call.request.ext_fields:
            return await self.tasks.written(topics)
        removed: list[RemovedQueue] = []
        for key, note in list(self.store.removed_queues().items()):
            if not len(removed) % ROWS_A_STEP:
                await self.tasks.step()
            removed.append(RemovedQueue(*key, *note))
        return await self.tasks.written(TopicsForSlave(topics.topic_config_table, topics.data_version, removed))

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, call: Call[None]) -> TopicList:
        return TopicList(frozenset(self.topics.system_names))

    @answers(RequestCode.GET_TOPIC_STATS_INFO, bounded=True)
    async def topic_stats(self, call: Call[h.GetTopicStatsInfoRequestHeader]) -> bytes:
        """Offsets of each queue of a topic, and the store time of its newest message."""
        topic = self._topic(call.header.topic)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            await self.tasks.step()
            table[self.queues.queue(topic.topic_name, queue_id)] = await self.queues.offsets(topic.topic_name, queue_id)
        return await self.tasks.written(TopicStatsTable(table))

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN, bounded=True)
    async def time_spans(self, call: Call[h.QueryConsumeTimeSpanRequestHeader]) -> bytes:
        """Store times of each queue's oldest, newest and last consumed messages, and the delay of the next."""
        topic = self._topic(call.header.topic)
        spans = []
        for queue_id in range(topic.write_queue_nums):
            await self.tasks.step()
            spans.append(await self.queues.time_span(call.header.group, topic.topic_name, queue_id))
        return await self.tasks.written(QueryConsumeTimeSpanBody(spans))

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic
