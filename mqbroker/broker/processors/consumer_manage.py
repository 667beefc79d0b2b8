"""Who consumes and from where: codes 14, 15, 38, and the queue locks of orderly consumers, 41 and 42."""

from __future__ import annotations

from mqbroker.broker.clients import ConsumerRegistry, check_client_id
from mqbroker.broker.locks import QueueLocks
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.topics import TopicTable
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_header,
)
from mqbroker.wire.names import check_group, check_topic, is_lmq

QUEUE_ID_MAX = 65_535
BROKER_NAME_LENGTH_MAX = 255


class ConsumerManageProcessor:
    """Answers consumers about their group."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        offsets: OffsetTable,
        locks: QueueLocks,
        topics: TopicTable,
        store: MessageStore,
    ) -> None:
        self._consumers = consumers
        self._offsets = offsets
        self._locks = locks
        self._topics = topics
        self._store = store

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.list_consumers)
        table.register(RequestCode.UPDATE_CONSUMER_OFFSET, self.update_offset)
        table.register(RequestCode.QUERY_CONSUMER_OFFSET, self.query_offset)
        table.register(RequestCode.LOCK_BATCH_MQ, self.lock)
        table.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def list_consumers(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(GetConsumerListByGroupRequestHeader, request.ext_fields)
        group = self._consumers.group(header.consumer_group)
        if group is None:
            remark = f"no consumer for this group, {header.consumer_group}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        body = GetConsumerListByGroupResponseBody(group.client_ids()).to_json()
        return RemotingCommand.response(request, body=body)

    def update_offset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Commit an offset, for a topic there is. A queue that is no more may still be committed to."""
        header = decode_header(UpdateConsumerOffsetRequestHeader, request.ext_fields)
        if not is_lmq(header.consumer_group):
            check_group(header.consumer_group)
        topic = self._topics.get(header.topic)
        if topic is None:
            check_topic(header.topic)
        if topic is None or not 0 <= header.queue_id <= QUEUE_ID_MAX or header.commit_offset < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"no offset {header.commit_offset} can be committed for queue {header.queue_id} of {header.topic}: "
                + ("the topic does not exist here" if topic is None else "the numbers are out of range"),
            )
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response(request)

    async def query_offset(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """The committed offset; for a group without one 0, while the queue's first message is still recent."""
        header = decode_header(QueryConsumerOffsetRequestHeader, request.ext_fields)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            if await self._first_message_is_gone_or_cold(header.topic, header.queue_id):
                remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)
            offset = 0
        return RemotingCommand.response(request, header=QueryConsumerOffsetResponseHeader(offset=offset))

    async def _first_message_is_gone_or_cold(self, topic: str, queue_id: int) -> bool:
        return self._store.min_offset(topic, queue_id) > 0 or await self._store.is_far(topic, queue_id, 0)

    def lock(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """Lock queues for one client of a group; the answer lists those it holds now."""
        wanted = _checked(request.body)
        locked = self._locks.lock(wanted.consumer_group, wanted.client_id, wanted.mq_set)
        return RemotingCommand.response(request, body=LockBatchResponseBody(locked).to_json())

    def unlock(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        wanted = _checked(request.body)
        self._locks.unlock(wanted.consumer_group, wanted.client_id, wanted.mq_set)
        return RemotingCommand.response(request)


def _checked(body: bytes) -> LockBatchRequestBody:
    """The queues to lock or unlock, with what is kept of them checked."""
    wanted = LockBatchRequestBody.from_json(body)
    check_group(wanted.consumer_group)
    check_client_id(wanted.client_id)
    for queue in wanted.mq_set:
        check_topic(queue.topic)
        if not 0 <= queue.queue_id <= QUEUE_ID_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no topic has a queue {queue.queue_id}")
        if len(queue.broker_name) > BROKER_NAME_LENGTH_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the broker name is too long")
    return wanted
