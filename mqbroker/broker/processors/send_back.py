"""Messages that a consumer could not consume: code 36.

They are stored again in the retry topic of the group, delayed more each time, and after the group's maximum in its dead
letter topic. Source of the rules: SendMessageProcessor.asyncConsumerSendMsgBack of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mqbroker.access.rights import IRights
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.processors.send_rules import DLQ_QUEUES, delayed, stored_properties, unit_topic_flag
from mqbroker.broker.topics import TopicTable
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused, StoreError
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import SubscriptionGroupConfig
from mqbroker.wire.codes import DLQ_PREFIX, FAQ, RETRY_PREFIX, Perm, Prop, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader, decode_header
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.record import Record, decode_record, encode_host

#: The delay level of the first retry: 10 s.
FIRST_RETRY_LEVEL = 3


class SendBackProcessor:
    """Stores messages again for their group."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        settings: BrokerSettings,
        rng: Random,
        on_stored: Callable[[str, str], None],
        rights: IRights,
    ) -> None:
        """`on_stored` is called with group and topic of each message that is stored again."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._delay_level_max = len(settings.store.message_delay_level.split())
        self._rng = rng
        self._on_stored = on_stored
        self._rights = rights

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    async def send_back(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(ConsumerSendMsgBackRequestHeader, request.ext_fields)
        group = self._groups.find(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group} {FAQ}"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not self._settings.broker_permission & Perm.WRITE:
            remark = f"the broker[{self._settings.broker_ip1}] sending message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        if group.retry_queue_nums <= 0:
            return RemotingCommand.response(request)
        data = await self._store.queries.record(header.offset)
        if data is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        self._rights.check_record(request.code, request.ext_fields, request.body, connection, data)
        self._store_again(decode_record(data), header, group)
        return RemotingCommand.response(request)

    def _store_again(
        self, record: Record, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
    ) -> None:
        properties = dict(record.properties)
        properties.setdefault(Prop.RETRY_TOPIC, record.topic)
        properties.setdefault(Prop.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
        times_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        if record.reconsume_times >= times_max or header.delay_level < 0:
            name, queues, unit_flag = DLQ_PREFIX + group.group_name, DLQ_QUEUES, 0
            properties.pop(Prop.DELAY_TIME_LEVEL, None)
        else:
            name, queues = RETRY_PREFIX + group.group_name, group.retry_queue_nums
            unit_flag = unit_topic_flag(header.unit_mode, is_retry=True)
            level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
            properties[Prop.DELAY_TIME_LEVEL] = str(min(level, self._delay_level_max))
        topic = self._topics.create_internal(name, queues, unit_flag)
        if not topic.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        stored_name, queue_id = delayed(properties, name, self._rng.randrange(queues), self._delay_level_max)
        message = (
            stored_name.encode(),
            queue_id,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            encode_host(record.born_host),
            record.reconsume_times + 1,
            0,
            record.body,
            stored_properties(properties, self._settings.store.max_message_size),
        )
        try:
            self._store.append([message])
        except StoreError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {error}") from None
        self._on_stored(header.group, properties[Prop.RETRY_TOPIC])
