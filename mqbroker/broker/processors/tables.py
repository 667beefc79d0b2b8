"""Whole tables, as slaves and administrators ask for them: codes 21, 43, 45 and 201. Long ones are written in turns."""

from __future__ import annotations

from mqbroker.broker.delay import DelayService
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.topics import TopicTable
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand


class TablesProcessor:
    """Shows what is in the files of a broker."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, offsets: OffsetTable, delay: DelayService, walks: Walks
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._walks = walks

    def register_on(self, table: HandlerTable) -> None:
        bounded = self._walks.bounded
        table.register(RequestCode.GET_ALL_TOPIC_CONFIG, bounded(self.all_topics))
        table.register(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, bounded(self.all_groups))
        table.register(RequestCode.GET_ALL_CONSUMER_OFFSET, bounded(self.all_offsets))
        table.register(RequestCode.GET_ALL_DELAY_OFFSET, self.all_delay_offsets)

    async def all_topics(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=await self._walks.written(self._topics.snapshot()))

    async def all_groups(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=await self._walks.written(self._groups.snapshot()))

    async def all_offsets(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=await self._walks.written(self._offsets.snapshot()))

    def all_delay_offsets(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._delay.snapshot().to_json())
