"""Headers about topics, queues and offsets, and about groups: members, progress, requests to clients."""

from __future__ import annotations

import attrs

from mqbroker.wire.headers.coding import Header, Int, Long, wire


@attrs.define(kw_only=True)
class GetConsumerListByGroupRequestHeader(Header):
    consumer_group: str


@attrs.define(kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    consumer_group: str


@attrs.define(kw_only=True)
class UnregisterClientRequestHeader(Header):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@attrs.define(kw_only=True)
class GetConsumerConnectionListRequestHeader(Header):
    consumer_group: str


@attrs.define(kw_only=True)
class GetProducerConnectionListRequestHeader(Header):
    producer_group: str


@attrs.define(kw_only=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    group_name: str
    remove_offset: bool = False


@attrs.define(kw_only=True)
class QueryConsumerOffsetRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.define(kw_only=True)
class QueryConsumerOffsetResponseHeader(Header):
    offset: Long


@attrs.define(kw_only=True)
class UpdateConsumerOffsetRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long
    bname: str | None = None


@attrs.define(kw_only=True)
class ResetOffsetRequestHeader(Header):
    topic: str
    group: str
    timestamp: Long
    is_force: bool


@attrs.define(kw_only=True)
class CloneGroupOffsetRequestHeader(Header):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@attrs.define(kw_only=True)
class QueryCorrectionOffsetHeader(Header):
    filter_groups: str | None = None
    compare_group: str
    topic: str


@attrs.define(kw_only=True)
class GetConsumeStatsRequestHeader(Header):
    consumer_group: str
    topic: str | None = None


@attrs.define(kw_only=True)
class GetConsumeStatsInBrokerHeader(Header):
    is_order: bool


@attrs.define(kw_only=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    topic: str
    group: str


@attrs.define(kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(Header):
    topic: str


@attrs.define(kw_only=True)
class GetConsumerRunningInfoRequestHeader(Header):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@attrs.define(kw_only=True)
class GetConsumerStatusRequestHeader(Header):
    topic: str
    group: str
    client_addr: str | None = None


@attrs.define(kw_only=True)
class ConsumeMessageDirectlyResultRequestHeader(Header):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@attrs.define(kw_only=True)
class CreateTopicRequestHeader(Header):
    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool


@attrs.define(kw_only=True)
class DeleteTopicRequestHeader(Header):
    topic: str


@attrs.define(kw_only=True)
class GetTopicStatsInfoRequestHeader(Header):
    topic: str


@attrs.define(kw_only=True)
class GetMaxOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.define(kw_only=True)
class GetMaxOffsetResponseHeader(Header):
    offset: Long


@attrs.define(kw_only=True)
class GetMinOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.define(kw_only=True)
class GetMinOffsetResponseHeader(Header):
    offset: Long


@attrs.define(kw_only=True)
class SearchOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    timestamp: Long
    bname: str | None = None


@attrs.define(kw_only=True)
class SearchOffsetResponseHeader(Header):
    offset: Long


@attrs.define(kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.define(kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    timestamp: Long


@attrs.define(kw_only=True)
class QueryConsumeQueueRequestHeader(Header):
    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None
