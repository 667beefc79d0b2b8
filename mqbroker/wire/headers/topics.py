"""Headers about the topics of a broker and their queues."""

from __future__ import annotations

import attrs

from mqbroker.wire.headers.coding import Header, Int, Long


@attrs.frozen(kw_only=True)
class CreateTopicRequestHeader(Header):
    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool


@attrs.frozen(kw_only=True)
class DeleteTopicRequestHeader(Header):
    topic: str


@attrs.frozen(kw_only=True)
class GetTopicStatsInfoRequestHeader(Header):
    topic: str


@attrs.frozen(kw_only=True)
class GetMaxOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.frozen(kw_only=True)
class GetMaxOffsetResponseHeader(Header):
    offset: Long


@attrs.frozen(kw_only=True)
class GetMinOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.frozen(kw_only=True)
class GetMinOffsetResponseHeader(Header):
    offset: Long


@attrs.frozen(kw_only=True)
class SearchOffsetRequestHeader(Header):
    topic: str
    queue_id: Int
    timestamp: Long
    bname: str | None = None


@attrs.frozen(kw_only=True)
class SearchOffsetResponseHeader(Header):
    offset: Long


@attrs.frozen(kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.frozen(kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    timestamp: Long


@attrs.frozen(kw_only=True)
class QueryConsumeQueueRequestHeader(Header):
    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None
