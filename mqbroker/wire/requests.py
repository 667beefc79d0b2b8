"""The table of requests: for each code its header class, the permissions it needs, and how it is served.

A server cannot register a handler for a code without a row, or for one that only clients answer. The list in
docs/reference/requests.rst is printed from this one (`python -m tests.protocol_page`). Source: RequestCode of 4.9.7
and the processors that answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

import attrs

from mqbroker.wire import headers as h
from mqbroker.wire.access import (
    ACCOUNT,
    ADMINISTRATOR,
    GROUP,
    GROUP_IF_NAMED,
    HALF_MESSAGE,
    HEARTBEAT,
    LOCK,
    PEER,
    REPLY,
    SEND,
    SEND_BACK,
    STORED_MESSAGE,
    TOPIC,
    TOPIC_AND_GROUP,
    TOPIC_AND_GROUP_IF_NAMED,
    Demand,
)
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import FRAME_BYTES_MAX
from mqbroker.wire.headers import Header
from mqbroker.wire.long_bodies import LONG_BODY_BYTES_MAX

#: The longest body of most requests, in bytes: many have none, the others lists of settings.
BODY_BYTES_MAX: Final = 64 * 1024


class WaitQueue(Enum):
    """The queue of Java's BrokerFastFailure that a request would wait in: each has a time-out setting."""

    SEND = auto()
    PULL = auto()
    HEARTBEAT = auto()
    TRANSACTION = auto()


@attrs.frozen
class Request:
    """Properties of all requests of one code.

    :param header: class of its extFields; None if it has none.
    :param demand: what the sender needs; None if no server answers it.
    :param read_only: it changes nothing but, with a pull, a committed offset. No client of 4.9 sends it oneway; if one
        does, nothing is done, as no response is wanted.
    :param body_bytes_max: maximum body in bytes. Bodies below LONG_BODY_BYTES_MAX take some 30 ms to decode. The others
        are messages, are decoded in steps, or come from a broker.
    :param wait_queue: None if it may wait without bound.
    :param new_work: it is refused by a stopping broker; commits, unregistrations and queries are served to the end.
    :param to_clients: brokers send it to clients.
    """

    header: type[Header] | None
    demand: Demand | None
    read_only: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    wait_queue: WaitQueue | None = None
    new_work: bool = False
    to_clients: bool = False


def _send(header: type[Header]) -> Request:
    return Request(header, SEND, body_bytes_max=FRAME_BYTES_MAX, wait_queue=WaitQueue.SEND, new_work=True)


def _reply(header: type[Header]) -> Request:
    return Request(header, REPLY, body_bytes_max=FRAME_BYTES_MAX, new_work=True)


def _to_clients(header: type[Header], *, read_only: bool = False, body_bytes_max: int = BODY_BYTES_MAX) -> Request:
    return Request(header, None, read_only, body_bytes_max, to_clients=True)


_ROWS: dict[Code, Request] = {
    Code.SEND_MESSAGE: _send(h.SendMessageRequestHeader),
    Code.PULL_MESSAGE: Request(
        h.PullMessageRequestHeader, TOPIC_AND_GROUP, read_only=True, wait_queue=WaitQueue.PULL, new_work=True
    ),
    Code.QUERY_MESSAGE: Request(h.QueryMessageRequestHeader, TOPIC, read_only=True),
    Code.QUERY_CONSUMER_OFFSET: Request(h.QueryConsumerOffsetRequestHeader, TOPIC_AND_GROUP, read_only=True),
    Code.UPDATE_CONSUMER_OFFSET: Request(h.UpdateConsumerOffsetRequestHeader, TOPIC_AND_GROUP),
    Code.UPDATE_AND_CREATE_TOPIC: Request(h.CreateTopicRequestHeader, ADMINISTRATOR),
    Code.GET_ALL_TOPIC_CONFIG: Request(None, PEER, read_only=True),
    Code.UPDATE_BROKER_CONFIG: Request(None, ADMINISTRATOR),
    Code.GET_BROKER_CONFIG: Request(None, ADMINISTRATOR, read_only=True),
    Code.GET_BROKER_RUNTIME_INFO: Request(None, ACCOUNT, read_only=True),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Request(h.SearchOffsetRequestHeader, TOPIC, read_only=True),
    Code.GET_MAX_OFFSET: Request(h.GetMaxOffsetRequestHeader, TOPIC, read_only=True),
    Code.GET_MIN_OFFSET: Request(h.GetMinOffsetRequestHeader, TOPIC, read_only=True),
    Code.GET_EARLIEST_MSG_STORETIME: Request(h.GetEarliestMsgStoretimeRequestHeader, TOPIC, read_only=True),
    Code.VIEW_MESSAGE_BY_ID: Request(h.ViewMessageRequestHeader, STORED_MESSAGE, read_only=True),
    Code.HEART_BEAT: Request(None, HEARTBEAT, body_bytes_max=LONG_BODY_BYTES_MAX, wait_queue=WaitQueue.HEARTBEAT),
    Code.UNREGISTER_CLIENT: Request(h.UnregisterClientRequestHeader, GROUP_IF_NAMED),
    Code.CONSUMER_SEND_MSG_BACK: Request(
        h.ConsumerSendMsgBackRequestHeader, SEND_BACK, wait_queue=WaitQueue.SEND, new_work=True
    ),
    Code.END_TRANSACTION: Request(h.EndTransactionRequestHeader, HALF_MESSAGE, wait_queue=WaitQueue.TRANSACTION),
    Code.GET_CONSUMER_LIST_BY_GROUP: Request(h.GetConsumerListByGroupRequestHeader, GROUP, read_only=True),
    Code.CHECK_TRANSACTION_STATE: _to_clients(h.CheckTransactionStateRequestHeader, body_bytes_max=FRAME_BYTES_MAX),
    Code.NOTIFY_CONSUMER_IDS_CHANGED: _to_clients(h.NotifyConsumerIdsChangedRequestHeader),
    Code.LOCK_BATCH_MQ: Request(None, LOCK, body_bytes_max=LONG_BODY_BYTES_MAX),
    Code.UNLOCK_BATCH_MQ: Request(None, LOCK, body_bytes_max=LONG_BODY_BYTES_MAX),
    Code.GET_ALL_CONSUMER_OFFSET: Request(None, PEER, read_only=True),
    Code.GET_ALL_DELAY_OFFSET: Request(None, PEER, read_only=True),
    Code.CHECK_CLIENT_CONFIG: Request(None, ACCOUNT, read_only=True, body_bytes_max=256 * 1024),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: Request(h.CreateAccessConfigRequestHeader, ADMINISTRATOR),
    Code.DELETE_ACL_CONFIG: Request(h.DeleteAccessConfigRequestHeader, ADMINISTRATOR),
    Code.GET_BROKER_CLUSTER_ACL_INFO: Request(None, ADMINISTRATOR, read_only=True),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Request(h.UpdateGlobalWhiteAddrsConfigRequestHeader, ADMINISTRATOR),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: Request(None, ADMINISTRATOR, read_only=True),
    Code.PUT_KV_CONFIG: Request(h.PutKVConfigRequestHeader, ADMINISTRATOR),
    Code.GET_KV_CONFIG: Request(h.GetKVConfigRequestHeader, ACCOUNT, read_only=True),
    Code.DELETE_KV_CONFIG: Request(h.DeleteKVConfigRequestHeader, ADMINISTRATOR),
    Code.REGISTER_BROKER: Request(h.RegisterBrokerRequestHeader, PEER, body_bytes_max=FRAME_BYTES_MAX),
    Code.UNREGISTER_BROKER: Request(h.UnRegisterBrokerRequestHeader, PEER),
    Code.GET_ROUTEINFO_BY_TOPIC: Request(h.GetRouteInfoRequestHeader, ACCOUNT, read_only=True),
    Code.GET_BROKER_CLUSTER_INFO: Request(None, ACCOUNT, read_only=True),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Request(None, ADMINISTRATOR),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Request(None, PEER, read_only=True),
    Code.GET_TOPIC_STATS_INFO: Request(h.GetTopicStatsInfoRequestHeader, ACCOUNT, read_only=True),
    Code.GET_CONSUMER_CONNECTION_LIST: Request(h.GetConsumerConnectionListRequestHeader, ACCOUNT, read_only=True),
    Code.GET_PRODUCER_CONNECTION_LIST: Request(h.GetProducerConnectionListRequestHeader, ACCOUNT, read_only=True),
    Code.WIPE_WRITE_PERM_OF_BROKER: Request(h.WipeWritePermOfBrokerRequestHeader, ADMINISTRATOR),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Request(None, ACCOUNT, read_only=True),
    Code.DELETE_SUBSCRIPTIONGROUP: Request(h.DeleteSubscriptionGroupRequestHeader, ADMINISTRATOR),
    Code.GET_CONSUME_STATS: Request(h.GetConsumeStatsRequestHeader, ACCOUNT, read_only=True),
    Code.DELETE_TOPIC_IN_BROKER: Request(h.DeleteTopicRequestHeader, ADMINISTRATOR),
    Code.DELETE_TOPIC_IN_NAMESRV: Request(h.DeleteTopicFromNamesrvRequestHeader, ADMINISTRATOR),
    Code.GET_KVLIST_BY_NAMESPACE: Request(h.GetKVListByNamespaceRequestHeader, ACCOUNT, read_only=True),
    Code.RESET_CONSUMER_CLIENT_OFFSET: _to_clients(h.ResetOffsetRequestHeader, body_bytes_max=FRAME_BYTES_MAX),
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _to_clients(h.GetConsumerStatusRequestHeader, read_only=True),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Request(h.ResetOffsetRequestHeader, ADMINISTRATOR),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Request(h.GetConsumerStatusRequestHeader, ACCOUNT, read_only=True),
    Code.GET_TOPICS_BY_CLUSTER: Request(h.GetTopicsByClusterRequestHeader, ACCOUNT, read_only=True),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Request(h.QueryTopicConsumeByWhoRequestHeader, ACCOUNT, read_only=True),
    Code.QUERY_CONSUME_TIME_SPAN: Request(h.QueryConsumeTimeSpanRequestHeader, ACCOUNT, read_only=True),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Request(None, ACCOUNT, read_only=True),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Request(None, ACCOUNT, read_only=True),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Request(None, ADMINISTRATOR),
    Code.GET_CONSUMER_RUNNING_INFO: Request(
        h.GetConsumerRunningInfoRequestHeader, ACCOUNT, read_only=True, to_clients=True
    ),
    Code.QUERY_CORRECTION_OFFSET: Request(h.QueryCorrectionOffsetHeader, ACCOUNT, read_only=True),
    Code.CONSUME_MESSAGE_DIRECTLY: Request(
        h.ConsumeMessageDirectlyResultRequestHeader, ADMINISTRATOR, body_bytes_max=FRAME_BYTES_MAX, to_clients=True
    ),
    Code.SEND_MESSAGE_V2: _send(h.SendMessageRequestHeaderV2),
    Code.GET_UNIT_TOPIC_LIST: Request(None, ACCOUNT, read_only=True),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Request(None, ACCOUNT, read_only=True),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Request(None, ACCOUNT, read_only=True),
    Code.CLONE_GROUP_OFFSET: Request(h.CloneGroupOffsetRequestHeader, ADMINISTRATOR),
    Code.VIEW_BROKER_STATS_DATA: Request(h.ViewBrokerStatsDataRequestHeader, ACCOUNT, read_only=True),
    Code.CLEAN_UNUSED_TOPIC: Request(None, ADMINISTRATOR),
    Code.GET_BROKER_CONSUME_STATS: Request(h.GetConsumeStatsInBrokerHeader, ACCOUNT, read_only=True),
    Code.UPDATE_NAMESRV_CONFIG: Request(None, ADMINISTRATOR),
    Code.GET_NAMESRV_CONFIG: Request(None, ADMINISTRATOR, read_only=True),
    Code.SEND_BATCH_MESSAGE: _send(h.SendMessageRequestHeaderV2),
    Code.QUERY_CONSUME_QUEUE: Request(h.QueryConsumeQueueRequestHeader, TOPIC_AND_GROUP_IF_NAMED, read_only=True),
    Code.QUERY_DATA_VERSION: Request(h.QueryDataVersionRequestHeader, PEER),
    Code.RESUME_CHECK_HALF_MESSAGE: Request(h.ResumeCheckHalfMessageRequestHeader, ADMINISTRATOR),
    Code.SEND_REPLY_MESSAGE: _reply(h.SendMessageRequestHeader),
    Code.SEND_REPLY_MESSAGE_V2: _reply(h.SendMessageRequestHeaderV2),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: _to_clients(h.ReplyMessageRequestHeader, body_bytes_max=FRAME_BYTES_MAX),
    Code.ADD_WRITE_PERM_OF_BROKER: Request(h.AddWritePermOfBrokerRequestHeader, ADMINISTRATOR),
    Code.GET_ALL_PRODUCER_INFO: Request(None, ACCOUNT, read_only=True),
    Code.DELETE_EXPIRED_COMMITLOG: Request(None, ADMINISTRATOR),
    Code.SWITCH_GROUP_MASTER: Request(None, ADMINISTRATOR),
    Code.REMOVE_GROUP_MEMBER: Request(None, ADMINISTRATOR),
}

#: Requests to servers, and brokers' requests to clients, by code.
REQUESTS: Final[Mapping[int, Request]] = MappingProxyType({int(code): request for code, request in _ROWS.items()})

_NOBODY = "4.9 neither sends nor answers it"

#: Codes without a row, and the reason: nothing of 4.9.7 answers them.
UNANSWERED: Final[Mapping[Code, str]] = MappingProxyType(
    {
        Code.QUERY_BROKER_OFFSET: _NOBODY,
        Code.GET_TOPIC_CONFIG_LIST: _NOBODY,
        Code.GET_TOPIC_NAME_LIST: _NOBODY,
        Code.TRIGGER_DELETE_FILES: f"{_NOBODY}; DELETE_EXPIRED_COMMITLOG does it",
        Code.SUSPEND_CONSUMER: _NOBODY,
        Code.RESUME_CONSUMER: _NOBODY,
        Code.RESET_CONSUMER_OFFSET_IN_CONSUMER: f"{_NOBODY}; RESET_CONSUMER_CLIENT_OFFSET does it",
        Code.RESET_CONSUMER_OFFSET_IN_BROKER: f"{_NOBODY}; INVOKE_BROKER_TO_RESET_OFFSET does it",
        Code.ADJUST_CONSUMER_THREAD_POOL: _NOBODY,
        Code.WHO_CONSUME_THE_MESSAGE: _NOBODY,
        Code.REGISTER_FILTER_SERVER: "4.9 has no filter servers; SQL92 filters in the broker took their place",
        Code.REGISTER_MESSAGE_FILTER_CLASS: "4.9 has no filter servers",
    }
)


def demand_of(code: int) -> Demand:
    """The permissions that `code` needs. Raises ValueError if no server answers it."""
    request = REQUESTS.get(code)
    if request is None or request.demand is None:
        raise ValueError(
            f"code {code} has no row of a server's in mqbroker.wire.requests, so its permission is unknown"
        )
    return request.demand


def codes_where(test: Callable[[Request], object]) -> list[int]:
    """The codes whose row satisfies `test`."""
    return [code for code, request in REQUESTS.items() if test(request)]
