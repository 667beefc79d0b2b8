"""The rules of sending: the message, topic and queue of a send request, or its refusal.

Plain sends are checked by the compiled module to the same effect, see `plain_sends`. Rules and remarks are
SendMessageProcessor's and TopicConfigManager's of 4.9.7. Stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.system_topics import (
    copy_room,
    delay_level,
    delayed_target,
    half_target,
    refuse_timers,
    waits,
)
from mqbroker.broker.topic_table import TopicTable, describe_topic, how_to_add_queues
from mqbroker.errors import LmqQueuesExceeded, MessageRefused, MultiDispatchRefused, Refused
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.batch import BadBatch, decode_batch
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import (
    DLQ_PREFIX,
    FAQ,
    NO_SEND_TOPICS,
    RETRY_PREFIX,
    Perm,
    Prop,
    RequestCode,
    ResponseCode,
    SysFlag,
    TopicSysFlag,
)
from mqbroker.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqbroker.wire.names import LMQ_PREFIX, TOPIC_LENGTH_MAX, check_topic
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, decode_properties, reencode_properties
from mqbroker.wire.record import BLANK_BYTES_MIN, HEADS, RECORD_BYTES_MIN, V6, NewMessage

_LMQ_EXCEEDED = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
    "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
#: Bytes of a record without body, topic and properties, at most.
_HEAD_BYTES_MAX = HEADS[V6].size + 3
#: Queues of a dead letter topic.
DLQ_QUEUES = 1


#: Both have the same fields, of which one has short names on the wire.
SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2

#: Queues of a topic that the compiled path knows at most.
PLAIN_QUEUES_MAX = 1024


def _topic_flags(topic: TopicConfig) -> int:
    return SysFlag.MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0


class SendRules:
    """Checks sends against topics, groups and limits; creates topics if that is allowed.

    :param now: returns seconds since the epoch.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        live: LiveSettings,
        rng: Random,
        now: Callable[[], float],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._live = live
        self._rng = rng
        self._now = now
        settings = live.current
        # A record must fit into one segment, whatever its properties are.
        segment_bytes = settings.store.mapped_file_size_commit_log
        self.body_bytes_max = min(settings.store.max_message_size, segment_bytes // 2)
        # Of body, topic and properties; a copy may have another topic.
        self._message_bytes_max = segment_bytes - _HEAD_BYTES_MAX - BLANK_BYTES_MIN - TOPIC_LENGTH_MAX
        self.delay_level_max = settings.store.delay_level_count
        #: Topics of the compiled path: encoded name -> (queues, sys flag bits, the queues that were sent to).
        self.plain_targets: dict[bytes, tuple[int, int, list[Any]]] = {}
        topics.on_change.append(self._topic_changed)
        topics.on_order.append(self._topic_changed)
        live.follow(
            lambda _: self.forget_plain_topics(),
            *("brokerPermission", "rejectTransactionMessage", "startAcceptSendRequestTimeStamp"),
        )

    def saved(self) -> Deferred[bool] | None:
        """Fires when topics that a check created are on disk; None if they are already. Messages of a topic that is
        lost cannot be found."""
        return self._topics.saved()

    def refusal(self, error: MessageRefused) -> Refused:
        """The refusal for a message that the store refused."""
        return message_refusal(error, self._live.current.store.max_message_size)

    def _topic_changed(self, name: str) -> None:
        self.plain_targets.pop(name.encode(), None)

    def forget_plain_topics(self) -> None:
        """Have the topics of the compiled path checked by all rules again."""
        self.plain_targets.clear()

    def check(
        self, header: SendHeader, code: int, body: bytes, connection: IConnection
    ) -> tuple[list[NewMessage], int, bool]:
        """(messages to store, queue of the response, whether the response waits for the disk). Raises Refused.

        Topics are created last, so that a refused send leaves none.
        """
        new: list[TopicConfig] = []
        checked = self._check(header, code, body, connection, new)
        for topic in new:
            self._topics.create(topic)
        if new and new[0].topic_name == header.topic:
            self._take_plainly(new[0])
        return checked

    def _check(
        self, header: SendHeader, code: int, body: bytes, connection: IConnection, new: list[TopicConfig]
    ) -> tuple[list[NewMessage], int, bool]:
        """`check`, with the topics to create added to `new`."""
        name, queue_id, topic_flags = self._target(header, connection, new)
        is_batch = header.batch or code == RequestCode.SEND_BATCH_MESSAGE
        if len(body) > self.body_bytes_max:
            raise illegal(self.body_bytes_max, f"msg body length {len(body)}B, ")
        sys_flag = header.sys_flag | topic_flags | (SysFlag.BORN_HOST_V6 if len(connection.remote_host) == 20 else 0)
        properties = decode_properties((header.properties or "").encode())
        if is_batch:
            return self._batch(header, name, queue_id, sys_flag, body, properties, connection)
        stored_name, stored_queue = self._dead_letter(header, properties, name, queue_id, new)
        stored_name, stored_queue, sys_flag, wait = self._divert(
            properties, header.producer_group, stored_name, stored_queue, sys_flag, is_dead=stored_name != name
        )
        # What a Java consumer cannot send back it sends here itself, with more properties than it had.
        room = 0 if name.startswith(RETRY_PREFIX) else copy_room(properties)
        stored = self._stored_properties(properties, len(body), room)
        message = _message(header, connection, stored_name, stored_queue, header.flag, sys_flag, body, stored)
        return [message], queue_id, wait

    def _stored_properties(self, properties: dict[str, str], body_bytes: int, room: int) -> bytes:
        """The bytes for a record, beside which `room` bytes are left in it. Raises Refused if they are too many."""
        encoded = reencode_properties(properties)
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise illegal(self.body_bytes_max, f"msg properties length {len(encoded)}B, ")
        if len(encoded) + room > PROPERTIES_BYTES_MAX:
            found = f"msg properties length {len(encoded)}B, {room}B must stay free for delays and retries, "
            raise illegal(self.body_bytes_max, found)
        if body_bytes + len(encoded) + room > self._message_bytes_max:
            found = f"body and properties of {body_bytes + len(encoded)}B do not fit mappedFileSizeCommitLog, "
            raise illegal(self.body_bytes_max, found)
        return encoded

    def _divert(
        self, properties: dict[str, str], group: str, name: str, queue_id: int, sys_flag: int, *, is_dead: bool
    ) -> tuple[str, int, int, bool]:
        """(topic, queue, sys flag, whether the response waits) of a message, delayed and half ones in their system
        topics; a dead letter is not delayed. `properties` become those that are stored. Raises Refused."""
        is_half, wait = self._prepare(properties, sys_flag)
        refuse_timers(properties)
        is_delayed = delay_level(properties) > 0
        if wait is not None and (is_half or is_delayed):  # the Java broker stores it in these, and in batches
            properties[Prop.WAIT_STORE_MSG_OK] = wait
        if is_half:
            sys_flag &= ~SysFlag.TRANSACTION_MASK
            name, queue_id = half_target(properties, group, name, queue_id)
        elif is_delayed and not is_dead:
            name, queue_id = delayed_target(properties, name, queue_id, self.delay_level_max)
        return name, queue_id, sys_flag, waits(wait)

    def _prepare(self, properties: dict[str, str], sys_flag: int, *, is_batch: bool = False) -> tuple[bool, str | None]:
        """(whether they are of a half message, the value of WAIT, which is taken out). Raises Refused if it may not be
        one."""
        wait = properties.pop(Prop.WAIT_STORE_MSG_OK, None)
        properties[Prop.CLUSTER] = self._live.current.broker_cluster_name
        is_half = properties.get(Prop.TRANSACTION_PREPARED, "").lower() == "true"
        if (is_half and (is_batch or self._live.current.reject_transaction_message)) or (
            not is_half and sys_flag & SysFlag.TRANSACTION_MASK
        ):
            remark = f"the broker[{self._live.current.broker_ip1}] sending transaction message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        return is_half, wait

    def _batch(
        self,
        header: SendHeader,
        name: str,
        queue_id: int,
        sys_flag: int,
        body: bytes,
        shared: dict[str, str],
        connection: IConnection,
    ) -> tuple[list[NewMessage], int, bool]:
        """The messages of a batch; `shared`, the properties of the batch itself, are added to those of each."""
        _, wait = self._prepare(shared, sys_flag, is_batch=True)
        if wait is not None:
            shared[Prop.WAIT_STORE_MSG_OK] = wait
        if name.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch may not be sent to a retry topic")
        try:
            entries = decode_batch(body, self.body_bytes_max // RECORD_BYTES_MIN)
        except BadBatch as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None
        messages = []
        size = 0
        for entry in entries:
            properties = decode_properties(entry.properties)
            if delay_level(properties) > 0 or delay_level(shared) > 0:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: a batch cannot be delayed")
            properties |= shared
            refuse_timers(properties)
            stored = self._stored_properties(properties, len(entry.body), copy_room(properties))
            # As in Java the records have a bound, not what was sent: each gets the properties of the batch.
            size += RECORD_BYTES_MIN + len(name) + len(entry.body) + len(stored)
            if size > self.body_bytes_max:
                raise illegal(self.body_bytes_max, f"records of a batch of {len(body)}B are longer than that, ")
            messages.append(_message(header, connection, name, queue_id, entry.flag, sys_flag, entry.body, stored))
        if not messages:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: the batch is empty")
        return messages, queue_id, waits(wait)

    def _target(self, header: SendHeader, connection: IConnection, new: list[TopicConfig]) -> tuple[str, int, int]:
        """(topic, queue, flags) of a send, by the topic's rules; the topic is added to `new` if it may be created."""
        known = self.plain_targets.get(header.topic.encode())
        if known is not None and 0 <= header.queue_id < known[0]:
            return header.topic, header.queue_id, known[1]
        settings = self._live.current
        if self._now() * 1000 < settings.start_accept_send_request_timestamp_ms:
            until = _moment(settings.start_accept_send_request_timestamp_ms)
            raise Refused(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        topic = self._topics.get(header.topic)
        # A producer learns within half a minute that the broker is read-only. Sends until then are accepted, as some
        # producers ignore responses; only ordered messages must not reach a broker that is being drained.
        if not settings.broker_permission & Perm.WRITE and topic is not None and topic.order:
            remark = f"the broker[{settings.broker_ip1}] sending message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        name = check_topic(header.topic)
        if name in NO_SEND_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if topic is None:
            unit_flag = unit_topic_flag(header.unit_mode, name.startswith(RETRY_PREFIX))
            queues_wanted = header.default_topic_queue_nums
            topic = self._topics.for_send(name, header.default_topic, queues_wanted, unit_flag)
            if topic is None and name.startswith(RETRY_PREFIX):
                topic = self._topics.internal(name, 1, unit_flag)
            if topic is None:
                why = f", and is not created with {queues_wanted} queues" if queues_wanted <= 0 else ""
                remark = f"topic[{name}] not exist{why}, apply first please!{FAQ}"
                raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
            new.append(topic)
        if not topic.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        # As in Java a topic of 0 write queues takes sends to the queues that are only read, but has none to choose.
        if header.queue_id >= queues or (header.queue_id < 0 and topic.write_queue_nums <= 0):
            hint = "" if topic.write_queue_nums > 0 else f": it has no write queues, {how_to_add_queues(name)}"
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {describe_topic(topic)} "
                f"Producer: {connection.remote_addr}{hint}",
            )
        if not new:
            self._take_plainly(topic)
        queue_id = header.queue_id if header.queue_id >= 0 else self._rng.randrange(topic.write_queue_nums)
        return name, queue_id, _topic_flags(topic)

    def _take_plainly(self, topic: TopicConfig) -> None:
        """Let the compiled path take sends to a topic that passed all rules and is saved."""
        name = topic.topic_name
        if not name.startswith((RETRY_PREFIX, LMQ_PREFIX)) and self._topics.saved() is None:
            queues = max(topic.write_queue_nums, topic.read_queue_nums)
            self.plain_targets[name.encode()] = queues, _topic_flags(topic), [None] * min(queues, PLAIN_QUEUES_MAX)

    def _dead_letter(
        self, header: SendHeader, properties: dict[str, str], name: str, queue_id: int, new: list[TopicConfig]
    ) -> tuple[str, int]:
        """The message's topic, or the dead letter topic of its group, which is added to `new` if it must be created."""
        if name.startswith(RETRY_PREFIX):
            group_name = name.removeprefix(RETRY_PREFIX)
            group = self._groups.find(group_name)
            if group is None:
                remark = f"subscription group not exist, {group_name} {FAQ}"
                raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
            times_max = group.retry_max_times
            if header.max_reconsume_times is not None:
                times_max = header.max_reconsume_times
            if (header.reconsume_times or 0) >= times_max:
                name = DLQ_PREFIX + group_name
                dead_letters = self._topics.internal(name, DLQ_QUEUES)
                if dead_letters is not self._topics.get(name):
                    new.append(dead_letters)
                queue_id = self._rng.randrange(DLQ_QUEUES)
        return name, queue_id


def _message(
    header: SendHeader,
    connection: IConnection,
    topic: str,
    queue_id: int,
    flag: int,
    sys_flag: int,
    body: bytes,
    properties: bytes,
) -> NewMessage:
    born = header.born_timestamp, connection.remote_host
    return topic.encode(), queue_id, flag, sys_flag, *born, header.reconsume_times or 0, 0, body, properties


def unit_topic_flag(unit_mode: bool, is_retry: bool) -> int:
    """The flags of a topic that is created for a client in unit mode."""
    if not unit_mode:
        return 0
    return TopicSysFlag.UNIT_SUB if is_retry else TopicSysFlag.UNIT


def _moment(timestamp_ms: int) -> str:
    """Local time as the Java broker writes it; milliseconds if it is out of range."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000)
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{timestamp_ms % 1000:03d}"


def message_refusal(error: MessageRefused, body_bytes_max: int) -> Refused:
    """The Java broker's code and remark for a message that its store refuses."""
    if isinstance(error, LmqQueuesExceeded):
        return Refused(ResponseCode.SYSTEM_ERROR, _LMQ_EXCEEDED)
    if isinstance(error, MultiDispatchRefused):
        return Refused(ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR {error}")
    return illegal(body_bytes_max)


def illegal(body_bytes_max: int, found: str = "") -> Refused:
    """The refusal for a message that exceeds a limit; `found` is its value, if known."""
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. {found}"
        f"msg body length limit {body_bytes_max}B, msg properties length limit 32KB.",
    )
