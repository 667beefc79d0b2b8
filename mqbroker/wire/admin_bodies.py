"""JSON bodies of administration: offsets of topics and groups, and requests to consumers through the broker.

Source of names and types: common/admin and common/protocol/body of 4.9.7.
"""

from __future__ import annotations

import re

import attrs

from mqbroker.wire import strict_json
from mqbroker.wire.bodies import QUEUES_MAX, MessageQueue, SubscriptionData
from mqbroker.wire.body import JSON_BYTES_MAX, BadBody, Body, Int
from mqbroker.wire.headers import wire


@attrs.frozen
class TopicOffset(Body):
    """Offsets of a queue; the store time of its newest message, ms, 0 if it is empty."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@attrs.frozen
class TopicStatsTable(Body):
    offset_table: dict[MessageQueue, TopicOffset] = attrs.field(factory=dict)


def topic_bounds(body: bytes, topic: str) -> dict[int, tuple[int, int]]:
    """Of a TopicStatsTable the minimum and maximum offset of each queue of `topic`, by its id. Raises BadBody.

    Thousands of queues are read at the speed of strict JSON, into which the text is turned: each pair of a queue and
    its offsets, which are objects, into one object.
    """
    if len(body) > JSON_BYTES_MAX:
        raise BadBody(f"TopicStatsTable: {len(body)} bytes, {JSON_BYTES_MAX} at most")
    strict = body
    if b":{{" in body:
        strict = body.replace(b"}:{", b",").replace(b":{{", b":[{", 1).replace(b"}}", b"}]", 1)
    try:
        rows = strict_json.loads(strict)["offsetTable"] or []
        found = {row["queueId"]: (row["minOffset"], row["maxOffset"]) for row in rows if row["topic"] == topic}
    except (ValueError, KeyError, TypeError) as error:
        raise BadBody(f"TopicStatsTable: {error!r}") from None
    if not all(type(number) is int for queue_id, bounds in found.items() for number in (queue_id, *bounds)):
        raise BadBody("TopicStatsTable: an offset or a queue that is not an integer")
    return found


@attrs.frozen
class OffsetWrapper(Body):
    """Offsets of a queue and a group; the store time of the last consumed message, ms."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


@attrs.frozen
class ConsumeStats(Body):
    """A group's offsets, and the messages per second that it gets."""

    offset_table: dict[MessageQueue, OffsetWrapper] = attrs.field(factory=dict)
    consume_tps: float = 0.0


@attrs.frozen
class ConsumeStatsList(Body):
    """Offsets by group and topic; the total lag in messages."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = attrs.field(factory=list)
    broker_addr: str | None = None
    total_diff: int = 0


@attrs.frozen
class GroupList(Body):
    group_list: frozenset[str] = frozenset()


@attrs.frozen
class QueueTimeSpan(Body):
    """Store times, ms, of a queue's oldest, newest and last consumed message; how long the next waits, ms."""

    message_queue: MessageQueue
    min_time_stamp: int = -1
    max_time_stamp: int = -1
    consume_time_stamp: int = -1
    delay_time: int = 0


@attrs.frozen
class QueryConsumeTimeSpanBody(Body):
    consume_time_span_set: list[QueueTimeSpan] = attrs.field(factory=list)


@attrs.frozen
class QueryCorrectionOffsetBody(Body):
    """By queue id the least offset of the given groups, 2**63 - 1 if the compared group is behind it."""

    correction_offsets: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen
class ResetOffsetBody(Body):
    offset_table: dict[MessageQueue, int] = attrs.field(factory=dict)


@attrs.frozen
class MessageQueueForC(Body):
    """A queue with an offset, in the form of C++ clients, which cannot read objects as keys."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@attrs.frozen
class ResetOffsetBodyForC(Body):
    offset_table: list[MessageQueueForC] = attrs.field(factory=list)


@attrs.frozen
class GetConsumerStatusBody(Body):
    """Offsets of one client, or of several by client id."""

    message_queue_table: dict[MessageQueue, int] = attrs.field(factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = attrs.field(factory=dict)


#: Both bodies as Fastjson writes them: what is before the table of offsets; an entry, and what follows it.
_OFFSETS = re.compile(rb'\{(?:"offsetTable":|(?:"consumerTable":\{\},)?"messageQueueTable":)\{')
_OFFSET = re.compile(
    rb'\{"brokerName":"([^"\\\x00-\x1f]*+)","queueId":([0-9]{1,9}),"topic":"([^"\\\x00-\x1f]*+)"\}:(-?[0-9]{1,18})'
    rb'(,(?=\{)|\}(?:,"consumerTable":\{\})?\}\Z)'
)
#: Limit of a body that is written in another form.
_OTHER_BYTES_MAX = 1024 * 1024


def read_offsets(body: bytes, kind: type[ResetOffsetBody | GetConsumerStatusBody]) -> dict[MessageQueue, int]:
    """The offsets by queue in a body: `offset_table`, or `message_queue_table`. In the form that Fastjson writes, it is
    read many times as fast as by `from_json`, and may have as many queues as a topic; in others it may have 1 MiB.
    Raises BadBody."""
    found: dict[MessageQueue, int] = {}
    count = 0  # of entries: several may be of one queue
    begin = _OFFSETS.match(body)
    at = begin.end() if begin else 0
    try:
        while at and (entry := _OFFSET.match(body, at)):
            broker_name, queue_id, topic, offset, _ = entry.groups()
            found[MessageQueue(topic.decode(), broker_name.decode(), int(queue_id))] = int(offset)
            count += 1
            if count > QUEUES_MAX:
                raise BadBody(f"{kind.__name__}: offsets of more than {QUEUES_MAX} queues")
            if entry.end() == len(body):
                return found
            at = entry.end()
    except UnicodeDecodeError:
        pass  # `from_json` says what is wrong
    read = kind.from_json(body, _OTHER_BYTES_MAX)
    return read.offset_table if isinstance(read, ResetOffsetBody) else read.message_queue_table


@attrs.frozen
class ProcessQueueInfo(Body):
    """One queue of a consumer: the offset to commit, and cached (unconsumed) messages. Times in ms.

    `commit_offset` is -1 if unknown. "transaction" is of ordered consumption, "droped" the protocol's spelling.
    """

    commit_offset: int = -1
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: Int = 0
    cached_msg_size_in_mi_b: Int = wire("cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: Int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@attrs.frozen
class ConsumeStatus(Body):
    """A consumer's rates for one topic: times in ms, messages per second, failures within the hour."""

    pull_rt: float = wire("pullRT", default=0.0)
    pull_tps: float = wire("pullTPS", default=0.0)
    consume_rt: float = wire("consumeRT", default=0.0)
    consume_ok_tps: float = wire("consumeOKTPS", default=0.0)
    consume_failed_tps: float = wire("consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


@attrs.frozen
class ConsumerRunningInfo(Body):
    """State of one consumer. `jstack` is the stacks of its threads, one below the other."""

    properties: dict[str, str] = attrs.field(factory=dict)
    subscription_set: list[SubscriptionData] = attrs.field(factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = attrs.field(factory=dict)
    status_table: dict[str, ConsumeStatus] = attrs.field(factory=dict)
    jstack: str | None = None


@attrs.frozen
class ConsumeMessageDirectlyResult(Body):
    """A listener's result for one message: `consume_result` is a name of Java's CMResult."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0


@attrs.frozen
class ProducerInfo(Body):
    """One producer: `remote_ip` is "/address:port", `last_update_timestamp` the ms time of its last heartbeat."""

    client_id: str
    remote_ip: str = wire("remoteIP", default="")
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@attrs.frozen
class ProducerTableInfo(Body):
    """Producers by group."""

    data: dict[str, list[ProducerInfo]] = attrs.field(factory=dict)


@attrs.frozen
class ConsumeQueueData(Body):
    """One entry of a consume queue. `eval`: whether its filter bits match the given group."""

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@attrs.frozen
class QueryConsumeQueueResponseBody(Body):
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = attrs.field(factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0
