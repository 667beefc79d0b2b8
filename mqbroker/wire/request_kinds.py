"""What requests are like, by code: which only ask, and how long their bodies may be. Only tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.frame import FRAME_BYTES_MAX


def _asks_only() -> frozenset[RequestCode]:
    code = RequestCode
    return frozenset(
        {
            code.PULL_MESSAGE, code.QUERY_MESSAGE, code.QUERY_CONSUMER_OFFSET, code.GET_ALL_TOPIC_CONFIG,
            code.GET_BROKER_CONFIG, code.GET_BROKER_RUNTIME_INFO, code.SEARCH_OFFSET_BY_TIMESTAMP, code.GET_MAX_OFFSET,
            code.GET_MIN_OFFSET, code.GET_EARLIEST_MSG_STORETIME, code.VIEW_MESSAGE_BY_ID,
            code.GET_CONSUMER_LIST_BY_GROUP, code.GET_ALL_CONSUMER_OFFSET, code.GET_ALL_DELAY_OFFSET,
            code.CHECK_CLIENT_CONFIG, code.GET_BROKER_CLUSTER_ACL_INFO, code.GET_BROKER_CLUSTER_ACL_CONFIG,
            code.GET_KV_CONFIG, code.GET_ROUTEINFO_BY_TOPIC, code.GET_BROKER_CLUSTER_INFO,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, code.GET_TOPIC_STATS_INFO, code.GET_CONSUMER_CONNECTION_LIST,
            code.GET_PRODUCER_CONNECTION_LIST, code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, code.GET_CONSUME_STATS,
            code.GET_KVLIST_BY_NAMESPACE, code.GET_CONSUMER_STATUS_FROM_CLIENT,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, code.GET_TOPICS_BY_CLUSTER, code.QUERY_TOPIC_CONSUME_BY_WHO,
            code.QUERY_CONSUME_TIME_SPAN, code.GET_SYSTEM_TOPIC_LIST_FROM_NS, code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            code.GET_CONSUMER_RUNNING_INFO, code.QUERY_CORRECTION_OFFSET, code.GET_UNIT_TOPIC_LIST,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST, code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, code.VIEW_BROKER_STATS_DATA,
            code.GET_BROKER_CONSUME_STATS, code.GET_NAMESRV_CONFIG, code.QUERY_CONSUME_QUEUE,
            code.GET_ALL_PRODUCER_INFO,
        }
    )  # fmt: skip


#: Requests that change nothing but, with a pull, a committed offset. No client of 4.9 sends them as one-way requests:
#: who does wants no answer, and so there is nothing to do.
ASKS_ONLY: Final = _asks_only()

#: How long the body of a request may be that is in no table here. Most have none, and the others are lists of settings.
BODY_BYTES_MAX: Final = 64 * 1024

#: Bodies whose length has other bounds: messages; tables that are read in steps; what brokers tell our own clients.
_UNBOUNDED = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.REGISTER_BROKER,
)

#: By code: each takes some 30 ms to read. A subscription is 100 to 200 bytes of a heartbeat, a queue 60 of a lock.
BODIES_BYTES_MAX: Final[Mapping[int, int]] = MappingProxyType(
    {
        **dict.fromkeys(_UNBOUNDED, FRAME_BYTES_MAX),
        RequestCode.HEART_BEAT: 512 * 1024,
        RequestCode.LOCK_BATCH_MQ: 256 * 1024,
        RequestCode.UNLOCK_BATCH_MQ: 256 * 1024,
        RequestCode.CHECK_CLIENT_CONFIG: 256 * 1024,
    }
)
