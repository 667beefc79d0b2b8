"""Topics as administrators see them: what their queues hold, who consumes them, which are the system's.

Codes 202, 300, 303 and 305.
"""

from __future__ import annotations

from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.queue_views import QueueViews
from mqbroker.broker.topics import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.admin_bodies import GroupList, QueryConsumeTimeSpanBody, TopicStatsTable
from mqbroker.wire.bodies import TopicConfig, TopicList
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    decode_header,
)


class TopicViewProcessor:
    """Looks at topics, queue by queue."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerRegistry,
        views: QueueViews,
        walks: Walks,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._views = views
        self._walks = walks

    def register_on(self, table: HandlerTable) -> None:
        bounded = self._walks.bounded
        table.register(RequestCode.GET_TOPIC_STATS_INFO, bounded(self.topic_stats))
        table.register(RequestCode.QUERY_CONSUME_TIME_SPAN, bounded(self.time_spans))
        table.register(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.consumed_by)
        table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics)

    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    async def topic_stats(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """What each queue of a topic holds, and when its newest message was stored."""
        topic = self._topic(decode_header(GetTopicStatsInfoRequestHeader, request.ext_fields).topic)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            await self._walks.step()
            queue = self._views.name(topic.topic_name, queue_id)
            table[queue] = await self._views.content(topic.topic_name, queue_id)
        return RemotingCommand.response(request, body=await self._walks.written(TopicStatsTable(table)))

    async def time_spans(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """When each queue's oldest, newest and last consumed messages were stored, and how long the next waits."""
        header = decode_header(QueryConsumeTimeSpanRequestHeader, request.ext_fields)
        topic = self._topic(header.topic)
        spans = []
        for queue_id in range(topic.write_queue_nums):
            await self._walks.step()
            spans.append(await self._views.span(header.group, topic.topic_name, queue_id))
        return RemotingCommand.response(request, body=await self._walks.written(QueryConsumeTimeSpanBody(spans)))

    def consumed_by(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """The groups that subscribe to a topic now, and those that have offsets in it."""
        topic = decode_header(QueryTopicConsumeByWhoRequestHeader, request.ext_fields).topic
        groups = frozenset([*self._consumers.groups_subscribed(topic), *self._offsets.groups_of(topic)])
        return RemotingCommand.response(request, body=GroupList(groups).to_json())

    def system_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=TopicList(frozenset(self._topics.system_names)).to_json())
