"""The extFields of every request and response of 4.9.7, one frozen class for each, named as in Java.

A field's name on the wire is its camelCase form unless `wire(...)` says otherwise. A field without a default must be
there; Java's nullable fields default to None and its primitive ones to 0 or false, as Java reads them.
`decode_header` checks presence, type and range; `encode_header` leaves out what is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode

# The same Python type: the name in an annotation says which range is checked on decoding.
Int = int
Long = int


class Header:
    """What all header classes are; it adds nothing."""


H = TypeVar("H", bound=Header)


def wire(key: str, **more: Any) -> Any:
    """A field whose name on the wire is `key`."""
    return attrs.field(metadata={"key": key}, **more)


@attrs.frozen(kw_only=True)
class AddWritePermOfBrokerRequestHeader(Header):
    broker_name: str


@attrs.frozen(kw_only=True)
class AddWritePermOfBrokerResponseHeader(Header):
    add_topic_count: Int


@attrs.frozen(kw_only=True)
class CheckTransactionStateRequestHeader(Header):
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@attrs.frozen(kw_only=True)
class CheckTransactionStateResponseHeader(Header):
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int


@attrs.frozen(kw_only=True)
class CloneGroupOffsetRequestHeader(Header):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@attrs.frozen(kw_only=True)
class ConsumeMessageDirectlyResultRequestHeader(Header):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@attrs.frozen(kw_only=True)
class ConsumerSendMsgBackRequestHeader(Header):
    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    bname: str | None = None


@attrs.frozen(kw_only=True)
class CreateAccessConfigRequestHeader(Header):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


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
class DeleteAccessConfigRequestHeader(Header):
    access_key: str


@attrs.frozen(kw_only=True)
class DeleteKVConfigRequestHeader(Header):
    namespace: str
    key: str


@attrs.frozen(kw_only=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    group_name: str
    remove_offset: bool = False


@attrs.frozen(kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(Header):
    topic: str
    cluster_name: str | None = None


@attrs.frozen(kw_only=True)
class DeleteTopicRequestHeader(Header):
    topic: str


@attrs.frozen(kw_only=True)
class EndTransactionRequestHeader(Header):
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None


@attrs.frozen(kw_only=True)
class EndTransactionResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class GetAllProducerInfoRequestHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class GetAllTopicConfigResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class GetBrokerAclConfigResponseHeader(Header):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@attrs.frozen(kw_only=True)
class GetBrokerClusterAclConfigResponseHeader(Header):
    plain_access_configs: str


@attrs.frozen(kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    version: str


@attrs.frozen(kw_only=True)
class GetConsumeStatsInBrokerHeader(Header):
    is_order: bool


@attrs.frozen(kw_only=True)
class GetConsumeStatsRequestHeader(Header):
    consumer_group: str
    topic: str | None = None


@attrs.frozen(kw_only=True)
class GetConsumerConnectionListRequestHeader(Header):
    consumer_group: str


@attrs.frozen(kw_only=True)
class GetConsumerListByGroupRequestHeader(Header):
    consumer_group: str


@attrs.frozen(kw_only=True)
class GetConsumerListByGroupResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class GetConsumerRunningInfoRequestHeader(Header):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@attrs.frozen(kw_only=True)
class GetConsumerStatusRequestHeader(Header):
    topic: str
    group: str
    client_addr: str | None = None


@attrs.frozen(kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(Header):
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.frozen(kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    timestamp: Long


@attrs.frozen(kw_only=True)
class GetKVConfigRequestHeader(Header):
    namespace: str
    key: str


@attrs.frozen(kw_only=True)
class GetKVConfigResponseHeader(Header):
    value: str | None = None


@attrs.frozen(kw_only=True)
class GetKVListByNamespaceRequestHeader(Header):
    namespace: str


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
class GetProducerConnectionListRequestHeader(Header):
    producer_group: str


@attrs.frozen(kw_only=True)
class GetRouteInfoRequestHeader(Header):
    topic: str
    accept_standard_json_only: bool | None = None


@attrs.frozen(kw_only=True)
class GetTopicStatsInfoRequestHeader(Header):
    topic: str


@attrs.frozen(kw_only=True)
class GetTopicsByClusterRequestHeader(Header):
    cluster: str


@attrs.frozen(kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    consumer_group: str


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class PullMessageResponseHeader(Header):
    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


@attrs.frozen(kw_only=True)
class PutKVConfigRequestHeader(Header):
    namespace: str
    key: str
    value: str


@attrs.frozen(kw_only=True)
class QueryConsumeQueueRequestHeader(Header):
    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


@attrs.frozen(kw_only=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    topic: str
    group: str


@attrs.frozen(kw_only=True)
class QueryConsumerOffsetRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int
    bname: str | None = None


@attrs.frozen(kw_only=True)
class QueryConsumerOffsetResponseHeader(Header):
    offset: Long


@attrs.frozen(kw_only=True)
class QueryCorrectionOffsetHeader(Header):
    filter_groups: str | None = None
    compare_group: str
    topic: str


@attrs.frozen(kw_only=True)
class QueryDataVersionRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@attrs.frozen(kw_only=True)
class QueryDataVersionResponseHeader(Header):
    changed: bool


@attrs.frozen(kw_only=True)
class QueryMessageRequestHeader(Header):
    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long


@attrs.frozen(kw_only=True)
class QueryMessageResponseHeader(Header):
    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@attrs.frozen(kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(Header):
    topic: str


@attrs.frozen(kw_only=True)
class RegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int | None = None


@attrs.frozen(kw_only=True)
class RegisterBrokerResponseHeader(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@attrs.frozen(kw_only=True)
class RegisterFilterServerRequestHeader(Header):
    filter_server_addr: str


@attrs.frozen(kw_only=True)
class RegisterFilterServerResponseHeader(Header):
    broker_name: str
    broker_id: Long


@attrs.frozen(kw_only=True)
class RegisterMessageFilterClassRequestHeader(Header):
    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int = wire("classCRC")


@attrs.frozen(kw_only=True)
class RegisterOrderTopicRequestHeader(Header):
    topic: str
    order_topic_string: str


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class ResetOffsetRequestHeader(Header):
    topic: str
    group: str
    timestamp: Long
    is_force: bool


@attrs.frozen(kw_only=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    msg_id: str | None = None


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


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class SendMessageResponseHeader(Header):
    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None


@attrs.frozen(kw_only=True)
class UnRegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@attrs.frozen(kw_only=True)
class UnregisterClientRequestHeader(Header):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@attrs.frozen(kw_only=True)
class UnregisterClientResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class UpdateConsumerOffsetRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long
    bname: str | None = None


@attrs.frozen(kw_only=True)
class UpdateConsumerOffsetResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    global_white_addrs: str
    acl_file_full_path: str


@attrs.frozen(kw_only=True)
class ViewBrokerStatsDataRequestHeader(Header):
    stats_name: str
    stats_key: str


@attrs.frozen(kw_only=True)
class ViewMessageRequestHeader(Header):
    offset: Long


@attrs.frozen(kw_only=True)
class ViewMessageResponseHeader(Header):
    """It has no fields."""


@attrs.frozen(kw_only=True)
class WipeWritePermOfBrokerRequestHeader(Header):
    broker_name: str


@attrs.frozen(kw_only=True)
class WipeWritePermOfBrokerResponseHeader(Header):
    wipe_topic_count: Int


_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_PLAIN_DIGITS = 10
_RANGES = {"Int": _INT32, "Long": _INT64}
_integer = re.compile(r"[+-]?[0-9]{1,20}").fullmatch
# field, name on the wire, kind, whether that is a number, whether it must be there
_Plan = list[tuple[str, str, str, bool, bool]]
_plans: dict[type[Header], _Plan] = {}


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _plan(cls: type[Header]) -> _Plan:
    """What there is to know of each field of `cls`, in order."""
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = []
        for field in attrs.fields(cls):  # type: ignore[arg-type]
            kind = str(field.type).split(" ")[0]
            key = field.metadata.get("key") or camel_case(field.name)
            plan.append((field.name, key, kind, kind in _RANGES, field.default is attrs.NOTHING))
    return plan


def decode_header(cls: type[H], ext_fields: Mapping[str, str]) -> H:
    """Read a header. Raises Refused(SYSTEM_ERROR), naming the field, where one is missing or not of its type."""
    values: dict[str, Any] = {}
    for name, key, kind, is_number, is_required in _plan(cls):
        text = ext_fields.get(key)
        if text is None:
            if is_required:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is null")
        elif is_number:
            if len(text) < _PLAIN_DIGITS and text.isdigit() and text.isascii():  # nearly all; in no range's way
                values[name] = int(text)
            else:
                values[name] = _decode_integer(key, text, kind)
        elif kind == "str":
            values[name] = text
        else:
            values[name] = text.lower() == "true"
    return cls(**values)


def _decode_integer(key: str, text: str, kind: str) -> int:
    low, high = _RANGES[kind]
    if not _integer(text) or not low <= (value := int(text)) <= high:
        bits = 32 if kind == "Int" else 64
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is not a {bits}-bit integer: {text[:40]!r}")
    return value


def encode_header(header: Header) -> dict[str, str]:
    """Return the extFields of `header`."""
    ext: dict[str, str] = {}
    for name, key, kind, _, _ in _plan(type(header)):
        value = getattr(header, name)
        if value is None:
            continue
        if kind == "bool":
            ext[key] = "true" if value else "false"
        else:
            ext[key] = str(value) if kind == "str" else str(int(value))
    return ext
