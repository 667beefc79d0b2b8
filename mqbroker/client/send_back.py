"""Messages that a member could not consume, sent back to have the broker deliver them again."""

from __future__ import annotations

import logging

import attrs

from mqbroker.client.errors import DELAY_LEVEL_MAX, NoBrokerForTopic
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import Net, checked
from mqbroker.client.options import PushOptions, milliseconds
from mqbroker.client.routes import Routes
from mqbroker.client.send import STATUSES
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP, RETRY_PREFIX, Prop, RequestCode, SysFlag
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.compression import compress_body
from mqbroker.wire.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2
from mqbroker.wire.properties import encode_properties

log = logging.getLogger(__name__)

#: How often a message that is not consumed comes again by default.
_ATTEMPTS_MAX = 16


#: The property that says why a program has given a message up.
REASON = "DEAD_LETTER_REASON"
_REASON_LENGTH_MAX = 1000


def with_reason(message: ReceivedMessage, reason: str) -> ReceivedMessage:
    """The message with a reason for which it becomes a dead letter."""
    text = reason[:_REASON_LENGTH_MAX].translate({1: " ", 2: " "}).encode(errors="replace").decode()
    return attrs.evolve(message, properties={**message.properties, REASON: text})


class SendBack:
    """Sends messages back for a member of `group`."""

    def __init__(self, net: Net, routes: Routes, group: str, options: PushOptions) -> None:
        self._net = net
        self._routes = routes
        self._group = group
        self._attempts_max = _ATTEMPTS_MAX if options.max_reconsume_times < 0 else options.max_reconsume_times
        self._timeout_ms = milliseconds("request_timeout_s", options.request_timeout_s)

    async def __call__(self, message: ReceivedMessage, delay_level: int) -> None:
        """Have the broker deliver a message again. If it does not respond, or refuses, a copy is sent to the group's
        retry topic at any broker. Raises the first error if that fails too.

        A dead letter with a reason is sent as a copy first, as brokers accept no properties for messages sent back.
        """
        if delay_level < 0 and REASON in message.properties:
            try:
                await self._send_anew(message, delay_level)
            except MQError as error:
                log.info("%s becomes a dead letter without its reason: %s", message.msg_id, error)
            else:
                return
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._attempts_max,
            bname=message.queue.broker_name,
        )
        try:
            addr = await self._routes.address(message.queue, master_only=True)
            request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            checked(await self._net.invoke(addr, request, self._timeout_ms))
        except MQError as error:
            try:
                await self._send_anew(message, delay_level)
            except MQError as second:
                log.info("%s was not accepted as a new message either: %s", message.msg_id, second)
                raise error from None
            log.info("%s is sent to the retry topic as a new message: %s", message.msg_id, error)

    async def _send_anew(self, message: ReceivedMessage, delay_level: int) -> None:
        retry_topic = RETRY_PREFIX + self._group
        route = await self._routes.get(retry_topic)
        if not route.publish_queues:
            raise NoBrokerForTopic(retry_topic, "none lets it be written")
        others = [queue for queue in route.publish_queues if queue.broker_name != message.queue.broker_name]
        queue = self._net.rng.choice(others or route.publish_queues)
        times = max(0, message.reconsume_times)  # a sender may have set any number
        if delay_level < 0 or times >= self._attempts_max:
            request = retry_request(message, queue, times, times, 3)
        else:
            # Brokers count differently here: a message becomes a dead letter after this many deliveries.
            level = delay_level or 3 + times
            request = retry_request(message, queue, times + 1, self._attempts_max + 1, level)
        addr = await self._routes.address(queue, master_only=True)
        answer = await self._net.invoke(addr, request, self._timeout_ms)
        if answer.code not in STATUSES:
            raise Refused(answer.code, answer.remark or "")


def retry_request(
    message: ReceivedMessage, queue: MessageQueue, times: int, times_max: int, delay_level: int
) -> RemotingCommand:
    """The request that sends a copy of a received message to its group's retry topic, as redelivered `times` times:
    ConsumeMessageOrderlyService.sendMessageBack of 4.9.7 and others. With `times` equal to `times_max` the broker makes
    it a dead letter."""
    properties = {**message.properties, Prop.RETRY_TOPIC: message.topic}
    properties.setdefault(Prop.ORIGIN_MESSAGE_ID, message.msg_id)
    properties[Prop.DELAY_TIME_LEVEL] = str(min(delay_level, DELAY_LEVEL_MAX))
    properties.pop(Prop.TRANSACTION_PREPARED, None)
    body, sys_flag = message.body, message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    if message.body_error is None and sys_flag & SysFlag.COMPRESSED:
        body, sys_flag = compress_body(body)
    header = SendMessageRequestHeaderV2(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=message.born_timestamp_ms,
        flag=message.flag,
        properties=encode_properties(properties).decode(),
        reconsume_times=times,
        max_reconsume_times=times_max,
        bname=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
