"""How far all groups are in all their topics: code 317."""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.queue_views import QueueViews
from mqbroker.broker.topics import TopicTable
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.admin_bodies import ConsumeStats, ConsumeStatsList, OffsetWrapper
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetConsumeStatsInBrokerHeader, decode_header


class BrokerConsumeStatsProcessor:
    """Looks at the offsets of each group, topic by topic.

    :param broker_addr: by which the broker is named in the answer.
    :param consume_tps: how many messages of a topic (second) a group (first) is given per second.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        consumers: ConsumerRegistry,
        views: QueueViews,
        walks: Walks,
        broker_addr: str,
        consume_tps: Callable[[str, str], float],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._views = views
        self._walks = walks
        self._broker_addr = broker_addr
        self._consume_tps = consume_tps

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_BROKER_CONSUME_STATS, self._walks.bounded(self.consume_stats))

    async def consume_stats(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Of each group in the table; with isOrder only its ordered topics.

        Topics that a group online has left, and topics that are no more, are left out.
        """
        is_order = decode_header(GetConsumeStatsInBrokerHeader, request.ext_fields).is_order
        topics = self._offsets.topics_by_group()
        found: list[dict[str, list[ConsumeStats]]] = []
        behind = 0
        for group in list(self._groups.snapshot().subscription_group_table):
            stats = []
            for name in topics.get(group, []):
                topic = self._topics.get(name)
                if topic is None or (is_order and not topic.order) or self._consumers.has_left(group, name):
                    continue
                stats.append(await self._stats_of(group, topic))
                behind += sum(map(_behind, stats[-1].offset_table.values()))
            found.append({group: stats})
        body = await self._walks.written(ConsumeStatsList(found, self._broker_addr, behind))
        return RemotingCommand.response(request, body=body)

    async def _stats_of(self, group: str, topic: TopicConfig) -> ConsumeStats:
        table = {}
        name = topic.topic_name
        for queue_id in range(topic.write_queue_nums):
            await self._walks.step()
            table[self._views.name(name, queue_id)] = await self._views.progress(group, name, queue_id)
        return ConsumeStats(table, self._consume_tps(group, name))


def _behind(progress: OffsetWrapper) -> int:
    """How many messages a group has before it. Any offset may be committed: one behind the end of a queue makes the sum
    no smaller, and never one that no long holds."""
    return max(0, progress.broker_offset - progress.consumer_offset)
