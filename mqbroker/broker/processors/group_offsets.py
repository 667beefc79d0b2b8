"""How far groups are, and offsets taken over from one group by another: codes 208, 308 and 314."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.queue_views import QueueViews
from mqbroker.broker.topics import TopicTable
from mqbroker.config.kinds import LONG_MAX
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.admin_bodies import ConsumeStats, QueryCorrectionOffsetBody
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryCorrectionOffsetHeader,
    decode_header,
)
from mqbroker.wire.names import check_group, is_lmq

log = Logger()


class GroupOffsetsProcessor:
    """Looks at the offsets of groups topic by topic.

    :param consume_tps: how many messages of a topic (second) a group (first) is given per second.
    """

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerRegistry,
        views: QueueViews,
        walks: Walks,
        consume_tps: Callable[[str, str], float],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._views = views
        self._walks = walks
        self._consume_tps = consume_tps

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_CONSUME_STATS, self._walks.bounded(self.consume_stats))
        table.register(RequestCode.QUERY_CORRECTION_OFFSET, self._walks.bounded(self.correction_offsets))
        table.register(RequestCode.CLONE_GROUP_OFFSET, self._walks.bounded(self.clone_offsets))

    async def consume_stats(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """How far a group is in the queues of one topic, or of all that it has offsets in.

        Topics that a group online has left, and topics that are no more, are left out.
        """
        header = decode_header(GetConsumeStatsRequestHeader, request.ext_fields)
        group = header.consumer_group
        table = {}
        tps = 0.0
        for name in self._topics_meant(header.topic, group):
            topic = self._topics.get(name)
            if topic is None or self._consumers.has_left(group, name):
                continue
            for queue_id in range(topic.read_queue_nums):
                await self._walks.step()
                table[self._views.name(name, queue_id)] = await self._views.progress(group, name, queue_id)
            tps += self._consume_tps(group, name)
        return RemotingCommand.response(request, body=await self._walks.written(ConsumeStats(table, tps)))

    def _topics_meant(self, topic: str | None, group: str) -> list[str]:
        return [topic] if topic and not topic.isspace() else self._offsets.topics_of(group)

    async def correction_offsets(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """By queue the least offset of the groups of a topic but those in filterGroups, of messages still there.

        Where the compared group is before it, or nobody has one, it is 2**63 - 1: nothing to correct.
        """
        header = decode_header(QueryCorrectionOffsetHeader, request.ext_fields)
        left_out = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in set(self._offsets.groups_of(header.topic)) - left_out:
            for queue_id, offset in self._offsets.by_queue(group, header.topic).items():
                await self._walks.step()
                if offset >= self._views.start(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self._offsets.by_queue(header.compare_group, header.topic).items():
            if least.get(queue_id, LONG_MAX) > offset:
                least[queue_id] = LONG_MAX
        return RemotingCommand.response(request, body=await self._walks.written(QueryCorrectionOffsetBody(least)))

    async def clone_offsets(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Let one group stand where another does, in one topic or in all that it has offsets in."""
        header = decode_header(CloneGroupOffsetRequestHeader, request.ext_fields)
        source, target = header.src_group, header.dest_group
        if not is_lmq(target):
            check_group(target)
        for name in self._topics_meant(header.topic, source):
            await self._walks.step()
            if self._topics.get(name) is None or (not header.offline and self._consumers.has_left(source, name)):
                continue
            log.info("{group} is put where {source} is in {topic}", group=target, source=source, topic=name)
            self._offsets.clone(source, target, name)
        return RemotingCommand.response(request)
