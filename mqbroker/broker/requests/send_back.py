"""Messages that a consumer failed to consume and sends back: code 36.

They are stored again in the retry topic of the group, delayed more each time, and after the group's maximum in its dead
letter topic. Source of the rules: SendMessageProcessor.asyncConsumerSendMsgBack of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
from twisted.logger import Logger

from mqbroker.access.accounts import IAccessControl
from mqbroker.broker.broker_stats import BrokerStats
from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.requests.send_rules import DLQ_QUEUES, unit_topic_flag
from mqbroker.broker.system_topics import delayed_target, stored_again
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MessageRefused, Refused, StoreError
from mqbroker.remoting.handlers import Call, answers
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import SubscriptionGroupConfig
from mqbroker.wire.codes import DLQ_PREFIX, FAQ, RETRY_PREFIX, Perm, Prop, RequestCode, ResponseCode
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader
from mqbroker.wire.ids import offset_message_id
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, reencode_properties
from mqbroker.wire.record import Record, decode_record

log = Logger()

#: Properties that a retry has not: it is for one group, and is not put again in the other queues that the message was
#: put in; and its delay is a level, for which 5.3 drops its other delays.
_DROPPED = (
    Prop.INNER_MULTI_DISPATCH,
    Prop.INNER_MULTI_QUEUE_OFFSET,
    Prop.TIMER_DELAY_SEC,
    Prop.TIMER_DELAY_MS,
    Prop.TIMER_DELIVER_MS,
)
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
    #: Returns why nothing may be stored for now; None where it always may be.
    why_refused: Callable[[], str] | None = None

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
        if self.why_refused is not None and (why := self.why_refused()):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {why}")
        self._store_again(decode_record(data), header, group)

    def _store_again(
        self, record: Record, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
    ) -> None:
        delay_level_max = self.live.current.store.delay_level_count
        if record.reconsume_times < 0:  # as its producer said: it would have 2^31 tries more, each without a delay
            record = attrs.evolve(record, reconsume_times=0)
        former = {name: value for name, value in record.properties.items() if name not in _DROPPED}
        added = {
            Prop.RETRY_TOPIC: record.topic,
            Prop.ORIGIN_MESSAGE_ID: offset_message_id(record.store_host, record.physical_offset),
        } | former
        added[Prop.WAIT_STORE_MSG_OK] = "false"
        times_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        try:
            if record.reconsume_times >= times_max or header.delay_level < 0:
                self._append_dead(record, group, former, added)
            else:
                level = min(header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times, delay_level_max)
                try:
                    self._append_retry(record, group, added, level, header.unit_mode)
                except MessageRefused as error:
                    log.error(
                        "a message of {topic} cannot be scheduled for another attempt by {group}, and becomes a dead "
                        "letter: {why}",
                        topic=record.topic, group=group.group_name, why=str(error),
                    )  # fmt: skip
                    self._append_dead(record, group, former, added)
        except StoreError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {error}") from None
        self.stats.sent_back(header.group, added[Prop.RETRY_TOPIC])

    def _append_retry(
        self, record: Record, group: SubscriptionGroupConfig, properties: dict[str, str], level: int, unit_mode: bool
    ) -> None:
        """Store the next try. Raises StoreError: MessageRefused if there is no room for the properties that it needs,
        as in messages of a Java broker, which accepts such; Refused."""
        properties = properties | {Prop.DELAY_TIME_LEVEL: str(level)}
        name, flag = RETRY_PREFIX + group.group_name, unit_topic_flag(unit_mode, is_retry=True)
        queue_id = self._choose_queue(name, group.retry_queue_nums, flag)
        target = delayed_target(properties, name, queue_id, self.live.current.store.delay_level_count)
        self._append(record, target, reencode_properties(properties))

    def _append_dead(
        self, record: Record, group: SubscriptionGroupConfig, former: dict[str, str], added: dict[str, str]
    ) -> None:
        """Store a dead letter, with the `added` properties or, if these are too many, the `former` ones, which fit.
        Raises StoreError and Refused."""
        name = DLQ_PREFIX + group.group_name
        queue_id = self._choose_queue(name, DLQ_QUEUES, 0)
        stored = b""
        for properties in (added | {Prop.DELAY_TIME_LEVEL: "0"}, former):
            stored = reencode_properties(properties)
            if len(stored) <= PROPERTIES_BYTES_MAX:
                break
        self._append(record, (name, queue_id), stored)

    def _choose_queue(self, name: str, queues: int, flag: int) -> int:
        """A queue of the topic, which is created or extended if it must be. Raises Refused if nothing may be sent to
        it."""
        topic = self.topics.internal(name, queues, flag)
        if not topic.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        self.topics.create_internal(name, queues, flag, has_message=True)
        return self.rng.randrange(topic.read_queue_nums)

    def _append(self, record: Record, target: tuple[str, int], properties: bytes) -> None:
        name, queue_id = target
        self.store.append([stored_again(record, name.encode(), queue_id, properties, more_reconsumed=1)])
