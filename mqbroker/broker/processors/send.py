"""Sending: codes 10, 310 and 320 - from request bytes to record to answer bytes.

`SendProcessor.take_v2` is the hot path of the broker: all sends that one read brought become one append and one write.
What is usual goes straight through; whatever is not - a new topic, a retry, a delay, a missing field - takes the slower
`_unusual`, one message at a time, where the rules are spelled out. The remarks are SendMessageProcessor's of 4.9.7.
An answer SUCCESS means: appended to the log; and, under SYNC_FLUSH unless the message says WAIT=false, on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from struct import Struct

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.groups import GroupTable
from mqbroker.broker.topics import TopicTable
from mqbroker.config import BrokerSettings
from mqbroker.errors import FlushTimedOut, MQError, Refused, StoreError
from mqbroker.remoting.handlers import IConnection, RawRequest, failure_response
from mqbroker.store.commitlog import Appended, NewMessage
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.batch import BadBatch, decode_batch
from mqbroker.wire.codes import (
    DLQ_PREFIX,
    NO_SEND_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    VERSION,
    Perm,
    Prop,
    RequestCode,
    ResponseCode,
    SysFlag,
)
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.frame import JSON
from mqbroker.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2, decode_header
from mqbroker.wire.names import check_topic
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, decode_properties, reencode_properties

log = Logger()

#: Queues of a dead letter topic.
DLQ_QUEUES = 1
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

_LENGTHS = Struct(">II")

#: Numbers as producers write them. One lookup tells that a text is one, and which; others are read with more care.
_SMALL = {str(n): n for n in range(1024)}


class SendProcessor:
    """Takes sends, appends them, answers them.

    :param store_host: 8 or 20 bytes, this broker's address as message ids keep it.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        settings: BrokerSettings,
        store_host: bytes,
        rng: Random,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._rng = rng
        # A record must fit into one segment, whatever its properties are.
        self._body_bytes_max = min(settings.store.max_message_size, settings.store.mapped_file_size_commit_log // 2)
        self._sync = settings.store.flush_disk_type == "SYNC_FLUSH"
        self._delay_level_max = len(settings.store.message_delay_level.split())
        self._msg_id_prefix = store_host.hex().upper()
        self._answer = _answer_template(settings)
        self._prefixes: dict[int, str] = {}
        # Topic name to (encoded name, queues, sys flag bits): only topics that a plain send may go to at once.
        self._plain_topics: dict[str, tuple[bytes, int, int]] = {}
        self._cluster = f"{Prop.CLUSTER}\x01{settings.broker_cluster_name}"
        topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str) -> None:
        self._plain_topics.pop(name, None)

    # --- the hot path

    def take_v2(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_MESSAGE_V2 requests. Fields that a plain send has no use for are not looked at."""
        plain_topics = self._plain_topics
        born_host = connection.remote_host
        host_flag = SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0
        body_bytes_max = self._body_bytes_max
        cluster = self._cluster
        small = _SMALL
        messages: list[NewMessage] = []
        pending: list[_Pending] = []
        waits = False
        for request in requests:
            ext, opaque, flag, body, serialize_type = request
            try:
                topic, queues, topic_flags = plain_topics[ext["b"]]
                queue_id = small[ext["e"]]
                born_timestamp = ext["g"]
                properties = ext["i"]
                if (
                    queue_id >= queues
                    or len(body) > body_bytes_max
                    or serialize_type != JSON
                    or len(born_timestamp) > 18
                    or not (born_timestamp.isascii() and born_timestamp.isdecimal())
                    or ext.get("m", "false") != "false"
                    or "DELAY\x01" in properties
                    or "TRAN_MSG\x01" in properties
                ):
                    raise ValueError
                properties, wait = _without_wait(properties)
                # Of two properties of one name the later counts, for Java's readers as for ours.
                stored = f"{properties}\x02{cluster}".encode() if properties else cluster.encode()
                message = (
                    topic,
                    queue_id,
                    small[ext["h"]],
                    small[ext["f"]] | topic_flags | host_flag,
                    int(born_timestamp),
                    born_host,
                    small[ext.get("j", "0")],
                    0,
                    body,
                    stored,
                )
                if len(stored) > PROPERTIES_BYTES_MAX or message[3] & _UNUSUAL_FLAGS:
                    raise ValueError
            except (KeyError, ValueError, TypeError):
                waits |= self._unusual(RequestCode.SEND_MESSAGE_V2, request, connection, messages, pending)
                continue
            waits |= wait
            pending.append((len(messages), 1, queue_id, opaque, flag, None))
            messages.append(message)
        return self._append(messages, pending, waits)

    def take_v1(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_MESSAGE requests, whose field names are long; few clients send them."""
        return self._take_slowly(RequestCode.SEND_MESSAGE, requests, connection)

    def take_batch(self, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        """Answer a run of SEND_BATCH_MESSAGE requests."""
        return self._take_slowly(RequestCode.SEND_BATCH_MESSAGE, requests, connection)

    def _take_slowly(self, code: int, requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
        messages: list[NewMessage] = []
        pending: list[_Pending] = []
        waits = False
        for request in requests:
            waits |= self._unusual(code, request, connection, messages, pending)
        return self._append(messages, pending, waits)

    def _append(self, messages: list[NewMessage], pending: list[_Pending], waits: bool) -> bytes | Deferred[bytes]:
        if not messages:
            return self._answers([], pending)
        try:
            appended = self._store.append(messages)
        except StoreError as error:
            return self._answers([], pending, refusal=_store_refusal(error))
        if not (waits and self._sync):
            return self._answers(appended, pending)

        def late(failure: Failure) -> bytes:
            # The messages are stored; only their being on the disk is not confirmed.
            error = failure.value
            if isinstance(error, FlushTimedOut):
                return self._answers(appended, pending, code=ResponseCode.FLUSH_DISK_TIMEOUT)
            if not isinstance(error, StoreError):
                failure.raiseException()
            return self._answers([], pending, refusal=_store_refusal(error))

        last = appended[-1]
        durable = self._store.durable(last[0] + last[2])
        return durable.addCallbacks(lambda _: self._answers(appended, pending), late)

    def _answers(
        self,
        appended: Sequence[Appended],
        pending: list[_Pending],
        code: int = ResponseCode.SUCCESS,
        refusal: Refused | None = None,
    ) -> bytes:
        """The frames that answer `pending`, in one piece; latin-1 keeps the length bytes as they are."""
        template = self._answer
        id_prefix = self._msg_id_prefix
        prefixes = self._prefixes
        parts: list[str] = []
        for first, count, queue_id, opaque, flag, ready in pending:
            if flag & ONEWAY_FLAG:
                continue
            if ready is not None:
                parts.append(ready.decode("latin-1"))
                continue
            if refusal is not None:
                request = RemotingCommand(0, opaque=opaque)
                parts.append(encode_command(failure_response(request, refusal)).decode("latin-1"))
                continue
            record = appended[first]
            if count == 1:
                ids = f"{id_prefix}{record[0]:016X}"
            else:
                ids = ",".join([f"{id_prefix}{a[0]:016X}" for a in appended[first : first + count]])
            header = template % (code, queue_id, ids, record[1], opaque)
            length = len(header)
            prefix = prefixes.get(length)
            if prefix is None:
                prefix = prefixes[length] = _LENGTHS.pack(length + 4, length).decode("latin-1")
            parts += (prefix, header)
        return "".join(parts).encode("latin-1")

    # --- everything that is not usual

    def _unusual(
        self,
        code: int,
        request: RawRequest,
        connection: IConnection,
        messages: list[NewMessage],
        pending: list[_Pending],
    ) -> bool:
        """Check one send by all rules; add its messages or its refusal. Returns whether it waits for the disk."""
        ext, opaque, flag, body, serialize_type = request
        command = RemotingCommand(code, ext, body, opaque=opaque, flag=flag, serialize_type=serialize_type)
        try:
            header = _read_header(code, ext)
            new, queue_id, wait = self._check(header, code, body, connection)
        except Exception as error:
            pending.append((0, 0, 0, opaque, flag, encode_command(failure_response(command, error))))
            return False
        pending.append((len(messages), len(new), queue_id, opaque, flag, None))
        messages.extend(new)
        return wait

    def _check(
        self, header: SendMessageRequestHeader, code: int, body: bytes, connection: IConnection
    ) -> tuple[list[NewMessage], int, bool]:
        name, queue_id, topic_flags = self._target(header, connection)
        is_batch = header.batch or code == RequestCode.SEND_BATCH_MESSAGE
        if len(body) > self._body_bytes_max:
            raise _too_large(len(body), self._body_bytes_max)
        sys_flag = header.sys_flag | topic_flags | (SysFlag.BORN_HOST_V6 if len(connection.remote_host) == 20 else 0)
        properties = decode_properties((header.properties or "").encode())
        wait = properties.pop(Prop.WAIT_STORE_MSG_OK, "true").lower() != "false"
        properties[Prop.CLUSTER] = self._settings.broker_cluster_name
        if sys_flag & SysFlag.TRANSACTION_MASK or properties.get(Prop.TRANSACTION_PREPARED, "").lower() == "true":
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending transaction message is forbidden",
            )
        base = _Base(header, sys_flag, connection.remote_host)
        if is_batch:
            return self._batch(base, name, queue_id, body, properties), queue_id, wait
        stored_name, stored_queue = self._divert(header, properties, name, queue_id)
        message = base.message(stored_name, stored_queue, header.flag, body, stored_properties(properties))
        return [message], queue_id, wait

    def _batch(self, base: _Base, name: str, queue_id: int, body: bytes, shared: dict[str, str]) -> list[NewMessage]:
        """The messages of a batch; `shared`, the properties of the batch itself, are added to those of each."""
        if name.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch may not be sent to a retry topic")
        try:
            entries = decode_batch(body)
        except BadBatch as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None
        messages = []
        for entry in entries:
            properties = decode_properties(entry.properties)
            if Prop.DELAY_TIME_LEVEL in properties or Prop.DELAY_TIME_LEVEL in shared:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: a batch cannot be delayed")
            properties.pop(Prop.WAIT_STORE_MSG_OK, None)
            stored = stored_properties(properties | shared)
            messages.append(base.message(name, queue_id, entry.flag, entry.body, stored))
        if not messages:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: the batch is empty")
        return messages

    def _target(self, header: SendMessageRequestHeader, connection: IConnection) -> tuple[str, int, int]:
        """(topic, queue, flags) the send goes to, by the topic's rules; the topic is made where that is allowed."""
        settings = self._settings
        if not settings.broker_permission & Perm.WRITE:
            remark = f"the broker[{settings.broker_ip1}] sending message is forbidden"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        name = check_topic(header.topic)
        if name in NO_SEND_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics.create_for_send(name, header.default_topic, header.default_topic_queue_nums)
        if topic is None and name.startswith(RETRY_PREFIX):
            topic = self._topics.create_internal(name, 1)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        if not topic.perm & Perm.WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        if header.queue_id >= queues:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic} Producer: {connection.remote_addr}",
            )
        flags = SysFlag.MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0
        if not name.startswith(RETRY_PREFIX):
            self._plain_topics[name] = name.encode(), queues, flags
        queue_id = header.queue_id if header.queue_id >= 0 else self._rng.randrange(max(1, topic.write_queue_nums))
        return name, queue_id, flags

    def _divert(
        self, header: SendMessageRequestHeader, properties: dict[str, str], name: str, queue_id: int
    ) -> tuple[str, int]:
        """Where the message is stored: its topic, the dead letter topic of its group, or the schedule topic."""
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
                properties.pop(Prop.DELAY_TIME_LEVEL, None)
                name = DLQ_PREFIX + group_name
                self._topics.create_internal(name, DLQ_QUEUES)
                queue_id = self._rng.randrange(DLQ_QUEUES)
        return delayed(properties, name, queue_id, self._delay_level_max)


def delayed(properties: dict[str, str], name: str, queue_id: int, level_max: int) -> tuple[str, int]:
    """Where a message with these properties is stored; a delayed one keeps its real topic and queue in them.

    Level n of `messageDelayLevel` is queue n-1 of the schedule topic.
    """
    text = properties.get(Prop.DELAY_TIME_LEVEL)
    if text is None:
        return name, queue_id
    if not text.isdecimal() or len(text) > 9:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: delay level {text[:20]!r} is not a number"
        )
    level = min(int(text), level_max)
    if level == 0:
        return name, queue_id
    properties[Prop.DELAY_TIME_LEVEL] = str(level)
    properties[Prop.REAL_TOPIC] = name
    properties[Prop.REAL_QUEUE_ID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1


#: (first message, how many, queue, opaque, flag, frame where it is answered already)
_Pending = tuple[int, int, int, int, int, bytes | None]

_UNUSUAL_FLAGS = SysFlag.TRANSACTION_MASK


@attrs.frozen
class _Base:
    """What all messages of one send share."""

    header: SendMessageRequestHeader
    sys_flag: int
    born_host: bytes

    def message(self, topic: str, queue_id: int, flag: int, body: bytes, properties: bytes) -> NewMessage:
        header = self.header
        times = header.reconsume_times or 0
        return (
            topic.encode(),
            queue_id,
            flag,
            self.sys_flag,
            header.born_timestamp,
            self.born_host,
            times,
            0,
            body,
            properties,
        )


def _read_header(code: int, ext: dict[str, str]) -> SendMessageRequestHeader:
    """Either form of the header; a batch comes in the short one unless its fields say otherwise."""
    if code == RequestCode.SEND_MESSAGE_V2 or (code == RequestCode.SEND_BATCH_MESSAGE and "a" in ext):
        v2 = decode_header(SendMessageRequestHeaderV2, ext)
        return SendMessageRequestHeader(**attrs.asdict(v2))
    return decode_header(SendMessageRequestHeader, ext)


def stored_properties(properties: dict[str, str]) -> bytes:
    """The bytes for a record. Raises Refused where there are too many."""
    encoded = reencode_properties(properties)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal, its properties are {len(encoded)} bytes, {PROPERTIES_BYTES_MAX} at most",
        )
    return encoded


def _too_large(size: int, limit: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. msg body length {size}B, "
        f"msg body length limit {limit}B, msg properties length limit 32KB.",
    )


def _store_refusal(error: MQError) -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {error}")


def _without_wait(properties: str) -> tuple[str, bool]:
    """(properties without WAIT and without a separator at the end, whether WAIT is not false).

    Raises ValueError where finding it takes more than a look.
    """
    at = properties.find("WAIT\x01")
    if at < 0:
        return properties.rstrip("\x02"), True
    if (at and properties[at - 1] != "\x02") or properties.find("WAIT\x01", at + 5) >= 0:
        raise ValueError
    end = properties.find("\x02", at)
    value = properties[at + 5 :] if end < 0 else properties[at + 5 : end]
    properties = properties[:at] + ("" if end < 0 else properties[end + 1 :])
    return properties.rstrip("\x02"), value.lower() != "false"


def _answer_template(settings: BrokerSettings) -> str:
    """A SUCCESS answer's header, to be filled with (code, queue id, message ids, queue offset, opaque)."""
    region = settings.region_id.replace("%", "%%")
    trace = "true" if settings.trace_on else "false"
    return (
        '{"code":%d,"extFields":{"queueId":"%d","TRACE_ON":"' + trace + '","MSG_REGION":"' + region + '",'
        '"msgId":"%s","queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
        f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
    )
