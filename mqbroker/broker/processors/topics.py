"""Topics, their queues' offsets, and groups, as clients and administrators ask for them.

Codes 17, 29, 30, 31, 32, 200, 203 and 204.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from mqbroker.broker.clients import Client, ConsumerRegistry, ProducerRegistry
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.topics import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqbroker.wire.codes import LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CreateTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    GetProducerConnectionListRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    decode_header,
)
from mqbroker.wire.names import check_topic

#: What one topic may have: each queue is a directory.
QUEUES_MAX = 65_535


def after(saved: Deferred[Any] | None, answer: RemotingCommand) -> RemotingCommand | Deferred[RemotingCommand | None]:
    """The answer, once what it tells of is saved."""
    return answer if saved is None else saved.addCallback(lambda _: answer)


class TopicsProcessor:
    """Answers from the tables and the store, and changes the tables."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        producers: ProducerRegistry,
        store: MessageStore,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers
        self._store = store

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self.put_topic)
        table.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset)
        table.register(RequestCode.GET_MAX_OFFSET, self.max_offset)
        table.register(RequestCode.GET_MIN_OFFSET, self.min_offset)
        table.register(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_time)
        table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put_group)
        table.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumer_connections)
        table.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producer_connections)

    def put_topic(
        self, request: RemotingCommand, connection: IConnection
    ) -> RemotingCommand | Deferred[RemotingCommand | None]:
        header = decode_header(CreateTopicRequestHeader, request.ext_fields)
        name = check_topic(header.topic)
        if self._topics.is_system(name):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        for queues in (header.read_queue_nums, header.write_queue_nums):
            if not 0 <= queues <= QUEUES_MAX:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{queues} queues: it must be 0 to {QUEUES_MAX}")
        if header.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            remark = f"topicFilterType = [{header.topic_filter_type[:40]}] value invalid"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if not 0 <= header.perm <= 15:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the permission {header.perm} is not known: it must be 0 to 15")
        self._topics.put(
            TopicConfig(
                name,
                header.read_queue_nums,
                header.write_queue_nums,
                header.perm,
                header.topic_filter_type,
                header.topic_sys_flag or 0,
            )
        )
        answer = after(self._topics.saved(), RemotingCommand.response(request))
        # Who has the answer asks for the topic's route next.
        told = self._topics.told()
        return answer if told is None else told.addCallback(lambda _: answer)

    async def search_offset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(SearchOffsetRequestHeader, request.ext_fields)
        offset = await self._store.queries.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return RemotingCommand.response(request, header=SearchOffsetResponseHeader(offset=offset))

    def max_offset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetMaxOffsetRequestHeader, request.ext_fields)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetMaxOffsetResponseHeader(offset=offset))

    def min_offset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetMinOffsetRequestHeader, request.ext_fields)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetMinOffsetResponseHeader(offset=offset))

    async def earliest_time(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetEarliestMsgStoretimeRequestHeader, request.ext_fields)
        timestamp = await self._store.queries.earliest_timestamp(header.topic, header.queue_id)
        return RemotingCommand.response(request, header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    def put_group(
        self, request: RemotingCommand, connection: IConnection
    ) -> RemotingCommand | Deferred[RemotingCommand | None]:
        group = SubscriptionGroupConfig.from_json(request.body)
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            remark = f"{group.retry_queue_nums} retry queues: it must be 0 to {QUEUES_MAX}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self._groups.put(group)
        return after(self._groups.saved(), RemotingCommand.response(request))

    def consumer_connections(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetConsumerConnectionListRequestHeader, request.ext_fields)
        group = self._consumers.group(header.consumer_group)
        if group is None:
            remark = f"the consumer group[{header.consumer_group}] not online"
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = ConsumerConnection(
            _connections(group.clients),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return RemotingCommand.response(request, body=body.to_json())

    def producer_connections(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetProducerConnectionListRequestHeader, request.ext_fields)
        clients = self._producers.group(header.producer_group)
        if not clients:
            remark = f"the producer group[{header.producer_group}] not exist"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return RemotingCommand.response(request, body=ProducerConnection(_connections(clients)).to_json())


def _connections(clients: dict[IConnection, Client]) -> list[Connection]:
    return [
        Connection(client.client_id, connection.remote_addr, LanguageCode(client.language).name, client.version)
        for connection, client in clients.items()
    ]
