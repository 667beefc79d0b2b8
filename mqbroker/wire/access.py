"""Who may ask what: each request code of 4.9.7 in one class. Only tables; what a class demands is said by who serves.

A code that stands in no class here cannot be given a handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mqbroker.wire.codes import RequestCode


class Access(StrEnum):
    """What a peer must be for its request to be taken, where access is controlled."""

    #: Whoever has an account: what clients say of themselves, routes, statistics.
    PUBLIC = "public"
    #: Who may write to the topic.
    PRODUCE = "produce"
    #: Who may read the topic, and consume for the group.
    CONSUME = "consume"
    #: An administrator.
    ADMIN = "admin"
    #: Another broker or a name server.
    PEER = "peer"


def _classes() -> dict[RequestCode, Access]:
    code = RequestCode
    public = {
        code.HEART_BEAT, code.UNREGISTER_CLIENT, code.CHECK_CLIENT_CONFIG, code.GET_ROUTEINFO_BY_TOPIC,
        code.GET_BROKER_CLUSTER_INFO, code.GET_KV_CONFIG, code.GET_KVLIST_BY_NAMESPACE, code.GET_TOPICS_BY_CLUSTER,
        code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, code.GET_UNIT_TOPIC_LIST, code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, code.GET_BROKER_RUNTIME_INFO, code.GET_TOPIC_STATS_INFO,
        code.GET_CONSUME_STATS, code.GET_BROKER_CONSUME_STATS, code.VIEW_BROKER_STATS_DATA,
        code.QUERY_TOPIC_CONSUME_BY_WHO, code.QUERY_CONSUME_TIME_SPAN, code.QUERY_CORRECTION_OFFSET,
        code.GET_CONSUMER_CONNECTION_LIST, code.GET_PRODUCER_CONNECTION_LIST, code.GET_ALL_PRODUCER_INFO,
        code.GET_CONSUMER_RUNNING_INFO, code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }  # fmt: skip
    produce = {
        code.SEND_MESSAGE, code.SEND_MESSAGE_V2, code.SEND_BATCH_MESSAGE, code.SEND_REPLY_MESSAGE,
        code.SEND_REPLY_MESSAGE_V2, code.END_TRANSACTION,
    }  # fmt: skip
    consume = {
        code.PULL_MESSAGE, code.QUERY_MESSAGE, code.VIEW_MESSAGE_BY_ID, code.QUERY_CONSUME_QUEUE,
        code.QUERY_CONSUMER_OFFSET, code.UPDATE_CONSUMER_OFFSET, code.SEARCH_OFFSET_BY_TIMESTAMP,
        code.GET_MAX_OFFSET, code.GET_MIN_OFFSET, code.GET_EARLIEST_MSG_STORETIME, code.CONSUMER_SEND_MSG_BACK,
        code.GET_CONSUMER_LIST_BY_GROUP, code.LOCK_BATCH_MQ, code.UNLOCK_BATCH_MQ,
    }  # fmt: skip
    admin = {
        code.UPDATE_AND_CREATE_TOPIC, code.DELETE_TOPIC_IN_BROKER, code.DELETE_TOPIC_IN_NAMESRV,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, code.DELETE_SUBSCRIPTIONGROUP, code.UPDATE_BROKER_CONFIG,
        code.GET_BROKER_CONFIG, code.UPDATE_NAMESRV_CONFIG, code.GET_NAMESRV_CONFIG,
        code.UPDATE_AND_CREATE_ACL_CONFIG, code.DELETE_ACL_CONFIG, code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        code.GET_BROKER_CLUSTER_ACL_CONFIG, code.GET_BROKER_CLUSTER_ACL_INFO, code.PUT_KV_CONFIG,
        code.DELETE_KV_CONFIG, code.WIPE_WRITE_PERM_OF_BROKER, code.ADD_WRITE_PERM_OF_BROKER,
        code.INVOKE_BROKER_TO_RESET_OFFSET, code.CLONE_GROUP_OFFSET, code.CONSUME_MESSAGE_DIRECTLY,
        code.RESUME_CHECK_HALF_MESSAGE, code.CLEAN_EXPIRED_CONSUMEQUEUE, code.CLEAN_UNUSED_TOPIC,
        code.DELETE_EXPIRED_COMMITLOG,
    }  # fmt: skip
    peer = {
        code.REGISTER_BROKER, code.UNREGISTER_BROKER, code.QUERY_DATA_VERSION, code.GET_ALL_TOPIC_CONFIG,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, code.GET_ALL_CONSUMER_OFFSET, code.GET_ALL_DELAY_OFFSET,
    }  # fmt: skip
    classes = {
        Access.PUBLIC: public,
        Access.PRODUCE: produce,
        Access.CONSUME: consume,
        Access.ADMIN: admin,
        Access.PEER: peer,
    }
    return {member: access for access, members in classes.items() for member in members}


#: What a server may be asked.
ACCESS: Final[Mapping[RequestCode, Access]] = MappingProxyType(_classes())

#: What a broker asks its clients.
ASKED_OF_CLIENTS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)

_NOBODY = "4.9 neither sends nor answers it"

#: Numbers that no handler may have, and why: nothing of 4.9.7 answers them.
UNANSWERED: Final[Mapping[RequestCode, str]] = MappingProxyType(
    {
        RequestCode.QUERY_BROKER_OFFSET: _NOBODY,
        RequestCode.GET_TOPIC_CONFIG_LIST: _NOBODY,
        RequestCode.GET_TOPIC_NAME_LIST: _NOBODY,
        RequestCode.TRIGGER_DELETE_FILES: f"{_NOBODY}; DELETE_EXPIRED_COMMITLOG does it",
        RequestCode.SUSPEND_CONSUMER: _NOBODY,
        RequestCode.RESUME_CONSUMER: _NOBODY,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER: f"{_NOBODY}; RESET_CONSUMER_CLIENT_OFFSET does it",
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER: f"{_NOBODY}; INVOKE_BROKER_TO_RESET_OFFSET does it",
        RequestCode.ADJUST_CONSUMER_THREAD_POOL: _NOBODY,
        RequestCode.WHO_CONSUME_THE_MESSAGE: _NOBODY,
        RequestCode.REGISTER_FILTER_SERVER: "4.9 has no filter servers; SQL92 filters in the broker took their place",
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS: "4.9 has no filter servers",
    }
)


def is_classified(code: int) -> bool:
    """True where the code is in a class, or is one that clients answer: it may have a handler."""
    return code in ACCESS or code in ASKED_OF_CLIENTS
