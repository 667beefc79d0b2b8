"""Offsets of a group that consumes now, set back or forth and looked at through its consumers: codes 222 and 223."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mqbroker.broker.client_calls import ClientCalls
from mqbroker.broker.clients import Client, ConsumerGroup, ConsumerRegistry
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.queue_views import QueueViews
from mqbroker.broker.topics import TopicTable
from mqbroker.errors import MQError, Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.walks import Walks
from mqbroker.wire.admin_bodies import GetConsumerStatusBody, MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader, decode_header
from mqbroker.wire.versions import V3_0_7_SNAPSHOT, old_version_name

log = Logger()

STATUS_TIMEOUT_MS = 5_000
#: As a time: the end of the queue.
TO_THE_END = -1


class OffsetResetProcessor:
    """Tells consumers where to go on, and asks them where they are."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerRegistry,
        views: QueueViews,
        walks: Walks,
        calls: ClientCalls,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._views = views
        self._walks = walks
        self._calls = calls

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self._walks.bounded(self.reset))
        table.register(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.status)

    # 222

    async def reset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Have the consumers of a group go on at messages of a time; without force no queue is moved forward.

        They do it and commit by themselves; the answer tells the offsets they were given.
        """
        header = decode_header(ResetOffsetRequestHeader, request.ext_fields)
        log.info("{peer} resets {header}", peer=connection.remote_addr, header=header)
        table = await self._table(header)
        group = self._consumers.group(header.group)
        if group is None:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        _refuse_old(group)
        told = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
        )
        written = await self._walks.written(ResetOffsetBody(table))
        data = await self._walks.written(_for_c(table)) if request.language == LanguageCode.CPP else written
        for consumer in list(group.clients):
            consumer.invoke_oneway(RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, data))
        return RemotingCommand.response(request, body=written)

    async def _table(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            await self._walks.step()
            offset = self._offsets.query(header.group, header.topic, queue_id)
            if offset is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            if header.timestamp == TO_THE_END:
                wanted = self._views.end(header.topic, queue_id)
            else:
                wanted = await self._views.offset_by_time(header.topic, queue_id, header.timestamp)
            table[self._views.name(header.topic, queue_id)] = wanted if header.is_force else min(wanted, offset)
        return table

    # 223

    async def status(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Where each consumer of a group, or the one that clientAddr names by its id, is in its queues of a topic.

        Those that do not answer in time are left out.
        """
        header = decode_header(GetConsumerStatusRequestHeader, request.ext_fields)
        group = self._consumers.group(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        _refuse_old(group)
        asked = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        wanted = (header.client_addr or "").strip()
        told: dict[str, dict[MessageQueue, int]] = {}
        await gatherResults(
            [
                Deferred.fromCoroutine(self._ask(at, client, asked, told))
                for at, client in group.clients.items()
                if wanted in ("", client.client_id)
            ]
        )
        return RemotingCommand.response(request, body=GetConsumerStatusBody(consumer_table=told).to_json())

    async def _ask(
        self,
        connection: IConnection,
        client: Client,
        header: GetConsumerStatusRequestHeader,
        told: dict[str, dict[MessageQueue, int]],
    ) -> None:
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
        try:
            answer = await self._calls.call(connection, command, STATUS_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                told[client.client_id] = GetConsumerStatusBody.from_json(answer.body).message_queue_table
        except MQError as error:
            log.warn("{client} does not tell its offsets: {why}", client=client.client_id, why=str(error))


def _refuse_old(group: ConsumerGroup) -> None:
    for client in group.clients.values():
        if client.version < V3_0_7_SNAPSHOT:
            remark = f"the client does not support this feature. version={old_version_name(client.version)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)


def _for_c(table: dict[MessageQueue, int]) -> ResetOffsetBodyForC:
    return ResetOffsetBodyForC(
        [MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, at) for queue, at in table.items()]
    )
