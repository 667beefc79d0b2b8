"""Permissions that requests need; the table in `requests` has them by code.

A request is checked before any handler sees it, by the fields that its handler will use. A stored message is checked by
the handler that reads it, with `Demand.of_message`. Source: PlainAccessValidator.parse of 4.9.7, which checks fewer
codes; there, any account may send the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntFlag, StrEnum
from typing import Any, Final

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.batch import decode_batch
from mqbroker.wire.bodies import HeartbeatData, LockBatchRequestBody
from mqbroker.wire.body import BadBody
from mqbroker.wire.codes import (
    CLIENT_INNER_PRODUCER_GROUP,
    DLQ_PREFIX,
    INNER_TRACE_PRODUCER_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    RequestCode,
    ResponseCode,
)
from mqbroker.wire.headers import is_short_send_header, read_send_header, send_topic_key
from mqbroker.wire.long_bodies import parse_long_body
from mqbroker.wire.properties import DISPATCH_MARK, dispatch_names


class Permission(IntFlag):
    """Permissions on a topic or group."""

    DENY = 1
    PUB = 4
    SUB = 8


PUB, SUB = Permission.PUB, Permission.SUB


@attrs.frozen
class Need:
    """A topic or group, and the permission (PUB or SUB) needed on it."""

    name: str
    permission: Permission
    is_group: bool = False

    @classmethod
    def of_topic(cls, topic: str, permission: Permission) -> Need:
        """A group's own topics (retry, DLQ) are checked by the group: its consumers may read and write them."""
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                return cls(topic.removeprefix(prefix), Permission.SUB, True)
        return cls(topic, permission)

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'}:{self.name}"


class Access(StrEnum):
    """What a request's sender needs, if access control is on."""

    #: Any account: heartbeats, routes, statistics.
    PUBLIC = "public"
    #: PUB on the topic.
    PRODUCE = "produce"
    #: SUB on the topic and the group.
    CONSUME = "consume"
    #: An administrator.
    ADMIN = "admin"
    #: Another broker or a name server: a trusted address, or an administrator's account.
    PEER = "peer"


_Fields = Mapping[str, str]
Finder = Callable[[int, _Fields, bytes], list[Need]]


def _nothing(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return []


@attrs.frozen
class Demand:
    """What requests of one code need.

    :param find: reads the needs from (code, fields, body). Raises MQError if they are missing.
    :param of_message: additional permission on the topic of the message that the request is about.
    :param words: the text for the docs.
    """

    access: Access
    words: str
    find: Finder = _nothing
    of_message: Permission | None = None

    @property
    def is_of_administrators(self) -> bool:
        """Whether it needs an administrator's account."""
        return self.access in (Access.ADMIN, Access.PEER)


# --- what requests say


def _named(fields: _Fields, key: str) -> str:
    name = fields.get(key)
    if name is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is null")
    return name


def _sending(code: int, fields: _Fields, body: bytes) -> list[Need]:
    topic = _named(fields, send_topic_key(code, fields))
    # Clients also write traces, which need no permission of their own.
    needs = [] if topic == TRACE_TOPIC else [Need.of_topic(topic, PUB)]
    needs += _named_queues(code, fields)
    if DISPATCH_MARK in body and (code == RequestCode.SEND_BATCH_MESSAGE or read_send_header(code, fields).batch):
        for entry in decode_batch(body):
            needs += _queue_needs(entry.properties)
    return needs


def _replying(code: int, fields: _Fields, body: bytes) -> list[Need]:
    return [Need.of_topic(_named(fields, send_topic_key(code, fields)), PUB), *_named_queues(code, fields)]


def _named_queues(code: int, fields: _Fields) -> list[Need]:
    properties = fields.get("i" if is_short_send_header(code, fields) else "properties") or ""
    return _queue_needs(properties.encode())


def _queue_needs(properties: bytes) -> list[Need]:
    # Whether this broker has enableMultiDispatch on does not matter: one that has may read its log.
    if DISPATCH_MARK not in properties:
        return []
    return [Need.of_topic(name.decode("utf-8", "replace"), PUB) for name in dispatch_names(properties)]


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
    return [Need(_text_of(parse_long_body(body, LockBatchRequestBody), "consumerGroup"), SUB, True)]


def _heartbeat(code: int, fields: _Fields, body: bytes) -> list[Need]:
    """Checks the names only: there may be thousands of values, which the handler checks in steps."""
    data = parse_long_body(body, HeartbeatData)
    producers = [_text_of(producer, "groupName") for producer in _list_of(data, "producerDataSet")]
    needs = [Need(group, PUB, True) for group in producers if not is_group_of_clients_themselves(group)]
    for consumer in _list_of(data, "consumerDataSet"):
        needs.append(Need(_text_of(consumer, "groupName"), SUB, True))
        topics = {_text_of(each, "topic"): None for each in _list_of(consumer, "subscriptionDataSet")}
        needs += [Need.of_topic(topic, SUB) for topic in topics]
    return needs


def _list_of(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if found is not None and not isinstance(found, list):
        raise BadBody(f"{key} must be an array")
    return found or []


def _text_of(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise BadBody(f"{key} must be text")
    return found


def is_group_of_clients_themselves(producer_group: str) -> bool:
    """Whether it is a group that each Java client joins by itself."""
    return producer_group == CLIENT_INNER_PRODUCER_GROUP or producer_group.startswith(INNER_TRACE_PRODUCER_PREFIX)


# --- what requests may demand

ACCOUNT: Final = Demand(Access.PUBLIC, "any account")
ADMINISTRATOR: Final = Demand(Access.ADMIN, "an administrator")
PEER: Final = Demand(Access.PEER, "a trusted address, or an administrator")
SEND: Final = Demand(Access.PRODUCE, "``PUB`` of the topic, and of queues it names", _sending)
REPLY: Final = Demand(Access.PRODUCE, "``PUB`` of the topic, and of queues it names", _replying)
HALF_MESSAGE: Final = Demand(
    Access.PRODUCE, "``PUB`` of the half message's topic, and of queues it names", of_message=PUB
)
TOPIC: Final = Demand(Access.CONSUME, "``SUB`` of the topic", _topic)
GROUP: Final = Demand(Access.CONSUME, "``SUB`` of the group", _group("consumerGroup"))
LOCK: Final = Demand(Access.CONSUME, "``SUB`` of the group", _lock)
TOPIC_AND_GROUP: Final = Demand(Access.CONSUME, "``SUB`` of topic and group", _topic_and_group)
TOPIC_AND_GROUP_IF_NAMED: Final = Demand(
    Access.CONSUME, "``SUB`` of the topic, and of the group if named", _topic_and_group_if_named
)
GROUP_IF_NAMED: Final = Demand(Access.CONSUME, "``SUB`` of the group if named", _group_if_named)
STORED_MESSAGE: Final = Demand(Access.CONSUME, "``SUB`` of the message's topic", of_message=SUB)
SEND_BACK: Final = Demand(
    Access.CONSUME, "``SUB`` of the group and of the message's topic", _group("group"), of_message=SUB
)
HEARTBEAT: Final = Demand(Access.CONSUME, "``SUB`` of consumers' groups and topics; producers: any ``PUB``", _heartbeat)
