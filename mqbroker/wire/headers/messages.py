"""Headers of sends, pulls and transactions."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.headers.coding import Header, Int, Long, decode_header, wire


@attrs.define(kw_only=True)
class SendMessageRequestHeader(Header):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int | None = None
    bname: str | None = None


@attrs.define(kw_only=True)
class SendMessageRequestHeaderV2(Header):
    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queue_nums: Int = wire("d")
    queue_id: Int = wire("e")
    sys_flag: Int = wire("f")
    born_timestamp: Long = wire("g")
    flag: Int = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: Int | None = wire("j", default=None)
    unit_mode: bool = wire("k", default=False)
    max_reconsume_times: Int | None = wire("l", default=None)
    batch: bool = wire("m", default=False)
    bname: str | None = wire("n", default=None)


def is_short_send_header(code: int, ext_fields: Mapping[str, str]) -> bool:
    """Whether a send of `code` has SendMessageRequestHeaderV2: a batch has, unless its fields show otherwise."""
    if code == RequestCode.SEND_BATCH_MESSAGE:
        return "producerGroup" not in ext_fields
    return code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2)


def send_topic_key(code: int, ext_fields: Mapping[str, str]) -> str:
    """The field that has the topic in a send of `code`."""
    return "b" if is_short_send_header(code, ext_fields) else "topic"


def read_send_header(code: int, ext_fields: Mapping[str, str]) -> SendMessageRequestHeader | SendMessageRequestHeaderV2:
    """Decode either form of the header of a send of `code`. Raises Refused as `decode_header`."""
    if is_short_send_header(code, ext_fields):
        return decode_header(SendMessageRequestHeaderV2, ext_fields)
    return decode_header(SendMessageRequestHeader, ext_fields)


@attrs.define(kw_only=True)
class SendMessageResponseHeader(Header):
    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None


@attrs.define(kw_only=True)
class ReplyMessageRequestHeader(Header):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Long


@attrs.define(kw_only=True)
class ConsumerSendMsgBackRequestHeader(Header):
    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    bname: str | None = None


@attrs.define(kw_only=True)
class PullMessageRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    bname: str | None = None


@attrs.define(kw_only=True)
class PullMessageResponseHeader(Header):
    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


@attrs.define(kw_only=True)
class QueryMessageRequestHeader(Header):
    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long


@attrs.define(kw_only=True)
class QueryMessageResponseHeader(Header):
    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@attrs.define(kw_only=True)
class ViewMessageRequestHeader(Header):
    offset: Long


@attrs.define(kw_only=True)
class EndTransactionRequestHeader(Header):
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None


@attrs.define(kw_only=True)
class CheckTransactionStateRequestHeader(Header):
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@attrs.define(kw_only=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    msg_id: str | None = None
