"""The JSON bodies of administration: where topics and groups stand, and what is asked of consumers through the broker.

Read and written as those of `mqbroker.wire.bodies`. Source of names and types: common/admin and common/protocol/body
of 4.9.7.
"""

from __future__ import annotations

import attrs

from mqbroker.wire.bodies import Body, MessageQueue, SubscriptionData
from mqbroker.wire.headers import wire


@attrs.frozen
class TopicOffset(Body):
    """What a queue holds; when its newest message was stored, ms, 0 where it has none."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@attrs.frozen
class TopicStatsTable(Body):
    offset_table: dict[MessageQueue, TopicOffset] = attrs.field(factory=dict)


@attrs.frozen
class OffsetWrapper(Body):
    """How far a queue and a group in it are; when the last message that was consumed was stored, ms."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


@attrs.frozen
class ConsumeStats(Body):
    """A group's offsets, and the messages per second it is given."""

    offset_table: dict[MessageQueue, OffsetWrapper] = attrs.field(factory=dict)
    consume_tps: float = 0.0


@attrs.frozen
class ConsumeStatsList(Body):
    """Of each group of a broker the offsets, topic by topic; how many messages all of them are behind."""

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
    """By queue id the least offset of the groups asked for, 2**63 - 1 where the compared group is behind it."""

    correction_offsets: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen
class ResetOffsetBody(Body):
    offset_table: dict[MessageQueue, int] = attrs.field(factory=dict)


@attrs.frozen
class MessageQueueForC(Body):
    """A queue with an offset, as clients in C++ read it: they know no objects as keys."""

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
    """One entry of a consume queue. `eval`: whether its filter bits let it pass for the group asked about."""

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
