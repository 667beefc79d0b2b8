"""Who may ask what: one table from request code to what it needs, which is what is enforced and what the docs print.

A request is looked at before any handler sees it, and by the fields that its handler will use. What a message in the
store says of itself is looked at by the handler that finds it: `Demand.of_message` says what it must ask then.
Source: PlainAccessValidator.parse of 4.9.7, which looks at fewer codes; there, any account may ask the others.

A code that stands in no table here cannot be given a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import Final

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.bodies import HeartbeatData, LockBatchRequestBody
from mqbroker.wire.codes import (
    CLIENT_INNER_PRODUCER_GROUP,
    DLQ_PREFIX,
    INNER_TRACE_PRODUCER_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    RequestCode,
    ResponseCode,
)
from mqbroker.wire.headers import send_topic_key


class Permission(IntFlag):
    """What may be done with a topic, or for a group."""

    DENY = 1
    PUB = 4
    SUB = 8


PUB, SUB = Permission.PUB, Permission.SUB


@attrs.frozen
class Need:
    """A topic or a group, with one of PUB and SUB that is needed for it."""

    name: str
    permission: Permission
    is_group: bool = False

    @classmethod
    def of_topic(cls, topic: str, permission: Permission) -> Need:
        """Topics that belong to a group go by the group: whoever consumes for it may read them and write to them."""
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                return cls(topic.removeprefix(prefix), Permission.SUB, True)
        return cls(topic, permission)

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


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
    #: Another broker or a name server: one that asks from a trusted address, or with an administrator's account.
    PEER = "peer"


_Fields = Mapping[str, str]
Finder = Callable[[int, _Fields, bytes], list[Need]]


def _nothing(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return []


@attrs.frozen
class Demand:
    """What requests of one code need.

    :param find: reads what the account must have a permission for, from (code, fields, body). Raises MQError where
        they do not say it.
    :param of_message: what is needed of the topic of the message that the request is about, beside that.
    :param words: all of it, as the docs say it.
    """

    access: Access
    words: str
    find: Finder = _nothing
    of_message: Permission | None = None

    @property
    def is_of_administrators(self) -> bool:
        """Whether an account must be an administrator's."""
        return self.access in (Access.ADMIN, Access.PEER)


# --- what requests say


def _named(fields: _Fields, key: str) -> str:
    name = fields.get(key)
    if name is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is null")
    return name


def _sending(code: int, fields: _Fields, body: bytes) -> list[Need]:
    topic = _named(fields, send_topic_key(code, fields))
    # Clients write traces beside what they do with their own topics.
    return [] if topic == TRACE_TOPIC else [Need.of_topic(topic, PUB)]


def _replying(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [Need.of_topic(_named(fields, send_topic_key(code, fields)), PUB)]


def _topic(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [Need.of_topic(_named(fields, "topic"), SUB)]


def _group(key: str) -> Finder:
    return lambda code, fields, body: [Need(_named(fields, key), SUB, True)]


def _topic_and_group(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [*_topic(code, fields, body), Need(_named(fields, "consumerGroup"), SUB, True)]


def _topic_and_group_if_named(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [*_topic(code, fields, body), *_group_if_named(code, fields, body)]


def _group_if_named(code: int, fields: _Fields, body: bytes) -> list[Need]:
    group = fields.get("consumerGroup")
    return [] if group is None else [Need(group, SUB, True)]


def _lock(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [Need(LockBatchRequestBody.from_json(body).consumer_group, SUB, True)]


def _heartbeat(code: int, fields: _Fields, body: bytes) -> list[Need]:
    data = HeartbeatData.from_json(body)
    needs = [
        Need(producer.group_name, PUB, True)
        for producer in data.producer_data_set
        if not is_group_of_clients_themselves(producer.group_name)
    ]
    for consumer in data.consumer_data_set:
        needs.append(Need(consumer.group_name, SUB, True))
        needs += [Need.of_topic(subscription.topic, SUB) for subscription in consumer.subscription_data_set]
    return needs


def is_group_of_clients_themselves(producer_group: str) -> bool:
    """Whether it is one that each Java client joins, be it only a consumer's."""
    return producer_group == CLIENT_INNER_PRODUCER_GROUP or producer_group.startswith(INNER_TRACE_PRODUCER_PREFIX)


# --- the table

_ACCOUNT = Demand(Access.PUBLIC, "any account")
_ADMINISTRATOR = Demand(Access.ADMIN, "an administrator")
_PEER = Demand(Access.PEER, "a trusted address, or an administrator")
_SEND = Demand(Access.PRODUCE, "``PUB`` of the topic", _sending)
_REPLY = Demand(Access.PRODUCE, "``PUB`` of the topic", _replying)
_TOPIC = Demand(Access.CONSUME, "``SUB`` of the topic", _topic)
_OF_GROUP = Demand(Access.CONSUME, "``SUB`` of the group", _group("consumerGroup"))
_LOCK = Demand(Access.CONSUME, "``SUB`` of the group", _lock)
_TOPIC_AND_GROUP = Demand(Access.CONSUME, "``SUB`` of topic and group", _topic_and_group)


def _demands() -> dict[RequestCode, Demand]:
    code = RequestCode
    sends = code.SEND_MESSAGE, code.SEND_MESSAGE_V2, code.SEND_BATCH_MESSAGE
    of_topics = (
        code.QUERY_MESSAGE, code.SEARCH_OFFSET_BY_TIMESTAMP, code.GET_MAX_OFFSET, code.GET_MIN_OFFSET,
        code.GET_EARLIEST_MSG_STORETIME,
    )  # fmt: skip
    public = (
        code.CHECK_CLIENT_CONFIG, code.GET_ROUTEINFO_BY_TOPIC,
        code.GET_BROKER_CLUSTER_INFO, code.GET_KV_CONFIG, code.GET_KVLIST_BY_NAMESPACE, code.GET_TOPICS_BY_CLUSTER,
        code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, code.GET_UNIT_TOPIC_LIST, code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, code.GET_BROKER_RUNTIME_INFO, code.GET_TOPIC_STATS_INFO,
        code.GET_CONSUME_STATS, code.GET_BROKER_CONSUME_STATS, code.VIEW_BROKER_STATS_DATA,
        code.QUERY_TOPIC_CONSUME_BY_WHO, code.QUERY_CONSUME_TIME_SPAN, code.QUERY_CORRECTION_OFFSET,
        code.GET_CONSUMER_CONNECTION_LIST, code.GET_PRODUCER_CONNECTION_LIST, code.GET_ALL_PRODUCER_INFO,
        code.GET_CONSUMER_RUNNING_INFO, code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    )  # fmt: skip
    admin = (
        code.UPDATE_AND_CREATE_TOPIC, code.DELETE_TOPIC_IN_BROKER, code.DELETE_TOPIC_IN_NAMESRV,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, code.DELETE_SUBSCRIPTIONGROUP, code.UPDATE_BROKER_CONFIG,
        code.GET_BROKER_CONFIG, code.UPDATE_NAMESRV_CONFIG, code.GET_NAMESRV_CONFIG,
        code.UPDATE_AND_CREATE_ACL_CONFIG, code.DELETE_ACL_CONFIG, code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        code.GET_BROKER_CLUSTER_ACL_CONFIG, code.GET_BROKER_CLUSTER_ACL_INFO, code.PUT_KV_CONFIG,
        code.DELETE_KV_CONFIG, code.WIPE_WRITE_PERM_OF_BROKER, code.ADD_WRITE_PERM_OF_BROKER,
        code.INVOKE_BROKER_TO_RESET_OFFSET, code.CLONE_GROUP_OFFSET, code.CONSUME_MESSAGE_DIRECTLY,
        code.RESUME_CHECK_HALF_MESSAGE, code.CLEAN_EXPIRED_CONSUMEQUEUE, code.CLEAN_UNUSED_TOPIC,
        code.DELETE_EXPIRED_COMMITLOG,
    )  # fmt: skip
    peer = (
        code.REGISTER_BROKER, code.UNREGISTER_BROKER, code.QUERY_DATA_VERSION, code.GET_ALL_TOPIC_CONFIG,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, code.GET_ALL_CONSUMER_OFFSET, code.GET_ALL_DELAY_OFFSET,
    )  # fmt: skip
    return {
        **dict.fromkeys(sends, _SEND),
        **dict.fromkeys((code.SEND_REPLY_MESSAGE, code.SEND_REPLY_MESSAGE_V2), _REPLY),
        code.END_TRANSACTION: Demand(Access.PRODUCE, "``PUB`` of the half message's topic", of_message=PUB),
        code.PULL_MESSAGE: _TOPIC_AND_GROUP,
        code.QUERY_CONSUMER_OFFSET: _TOPIC_AND_GROUP,
        code.UPDATE_CONSUMER_OFFSET: _TOPIC_AND_GROUP,
        code.QUERY_CONSUME_QUEUE: Demand(
            Access.CONSUME, "``SUB`` of the topic, and of the group if named", _topic_and_group_if_named
        ),
        **dict.fromkeys(of_topics, _TOPIC),
        code.VIEW_MESSAGE_BY_ID: Demand(Access.CONSUME, "``SUB`` of the message's topic", of_message=SUB),
        code.CONSUMER_SEND_MSG_BACK: Demand(
            Access.CONSUME, "``SUB`` of the group and of the message's topic", _group("group"), of_message=SUB
        ),
        code.HEART_BEAT: Demand(
            Access.CONSUME, "``SUB`` of consumers' groups and topics; producers: any ``PUB``", _heartbeat
        ),
        code.UNREGISTER_CLIENT: Demand(Access.CONSUME, "``SUB`` of the group if named", _group_if_named),
        code.GET_CONSUMER_LIST_BY_GROUP: _OF_GROUP,
        **dict.fromkeys((code.LOCK_BATCH_MQ, code.UNLOCK_BATCH_MQ), _LOCK),
        **dict.fromkeys(public, _ACCOUNT),
        **dict.fromkeys(admin, _ADMINISTRATOR),
        **dict.fromkeys(peer, _PEER),
    }


#: What a server may be asked, and what that needs.
DEMANDS: Final[Mapping[RequestCode, Demand]] = MappingProxyType(_demands())

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
    return code in DEMANDS or code in ASKED_OF_CLIENTS
