"""Messages that a consumer failed to consume and sends back: code 36.

They are stored again in the retry topic of the group, delayed more each time, and after the group's maximum in its dead
letter topic. Source of the rules: SendMessageProcessor.asyncConsumerSendMsgBack of 4.9.7.
"""

from __future__ import annotations

from random import Random

import attrs

from mqbroker.access.accounts import IAccessControl
from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_rules import DLQ_QUEUES, stored_properties, unit_topic_flag
from mqbroker.broker.system_topics import delayed_target, stored_again
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import Refused, StoreError
from mqbroker.remoting.handlers import Call, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import SubscriptionGroupConfig
from mqbroker.wire.codes import DLQ_PREFIX, FAQ, RETRY_PREFIX, Perm, Prop, RequestCode, ResponseCode
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.record import Record, decode_record

#: The delay level of the first retry: 10 s.
FIRST_RETRY_LEVEL = 3


@attrs.frozen
class SendBackRequests:
    """Stores messages that were sent back, for their group."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    live: LiveSettings
    rng: Random
    stats: BrokerStats
    rights: IAccessControl

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK)
    async def send_back(self, call: Call[ConsumerSendMsgBackRequestHeader]) -> None:
        header, request, settings = call.header, call.request, self.live.current
        group = self.groups.find(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group} {FAQ}"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not settings.broker_permission & Perm.WRITE:
            remark = f"the broker[{settings.broker_ip1}] sending message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        if group.retry_queue_nums <= 0:
            return
        data = await self.store.queries.record(header.offset)
        if data is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        self.rights.check_record(request.code, request.ext_fields, request.body, call.connection, data)
        self._store_again(decode_record(data), header, group)

    def _store_again(
        self, record: Record, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
    ) -> None:
        delay_level_max = self.live.current.store.delay_level_count
        # A retry is for one group: it is not put again in the other queues that the message was put in.
        dropped = Prop.INNER_MULTI_DISPATCH, Prop.INNER_MULTI_QUEUE_OFFSET
        properties = {name: value for name, value in record.properties.items() if name not in dropped}
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
            properties[Prop.DELAY_TIME_LEVEL] = str(min(level, delay_level_max))
        topic = self.topics.internal(name, queues, unit_flag)
        if not topic.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        stored_name, queue_id = delayed_target(
            properties, name, self.rng.randrange(topic.read_queue_nums), delay_level_max
        )
        stored = stored_properties(properties, self.live.current.store.max_message_size)
        message = stored_again(record, stored_name.encode(), queue_id, stored, more_reconsumed=1)
        self.topics.create_internal(name, queues, unit_flag)
        try:
            self.store.append([message])
        except StoreError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {error}") from None
        self.stats.sent_back(header.group, properties[Prop.RETRY_TOPIC])
