"""What permissions a request needs: read from its fields or its body before any handler sees it.

Source: PlainAccessValidator.parse of 4.9.7. Beyond it, batches, locks and reads of consumer offsets and consume queues
are looked at too; there, any account may do those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mqbroker.access.accounts import Need, Permission
from mqbroker.wire.bodies import HeartbeatData, LockBatchRequestBody
from mqbroker.wire.codes import TRACE_TOPIC, RequestCode

PUB, SUB = Permission.PUB, Permission.SUB

_Fields = Mapping[str, str]
_Finder = Callable[[_Fields, bytes], list[Need]]


def find_needs(code: int, fields: _Fields, body: bytes) -> list[Need]:
    """The needs of a request. Raises MQError where its body cannot be read.

    What is not there needs nothing: the handler says what is missing.
    """
    finder = _FINDERS.get(code)
    return finder(fields, body) if finder is not None else []


def _sending(key: str) -> _Finder:
    def find(fields: _Fields, body: bytes) -> list[Need]:
        topic = fields.get(key)
        # Clients write traces beside what they do with their own topics.
        return [] if topic is None or topic == TRACE_TOPIC else [Need.of_topic(topic, PUB)]

    return find


def _batch(fields: _Fields, body: bytes) -> list[Need]:
    """Batches come with either kind of header."""
    return (_send_v2 if "a" in fields else _send_v1)(fields, body)


def _reading(topic_key: str | None, group_key: str | None) -> _Finder:
    def find(fields: _Fields, body: bytes) -> list[Need]:
        topic = fields.get(topic_key) if topic_key else None
        group = fields.get(group_key) if group_key else None
        needs = [] if topic is None else [Need.of_topic(topic, SUB)]
        return needs if group is None else [*needs, Need(group, SUB, True)]

    return find


def _heartbeat(fields: _Fields, body: bytes) -> list[Need]:
    needs = []
    for consumer in HeartbeatData.from_json(body).consumer_data_set:
        needs.append(Need(consumer.group_name, SUB, True))
        needs += [Need.of_topic(subscription.topic, SUB) for subscription in consumer.subscription_data_set]
    return needs


def _lock(fields: _Fields, body: bytes) -> list[Need]:
    return [Need(LockBatchRequestBody.from_json(body).consumer_group, SUB, True)]


_send_v1, _send_v2 = _sending("topic"), _sending("b")

_FINDERS: Mapping[int, _Finder] = {
    RequestCode.SEND_MESSAGE: _send_v1,
    RequestCode.SEND_MESSAGE_V2: _send_v2,
    RequestCode.SEND_BATCH_MESSAGE: _batch,
    RequestCode.CONSUMER_SEND_MSG_BACK: _reading(None, "group"),
    RequestCode.PULL_MESSAGE: _reading("topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: _reading("topic", None),
    RequestCode.QUERY_CONSUME_QUEUE: _reading("topic", None),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _reading(None, "consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _reading(None, "consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _reading("topic", "consumerGroup"),
    RequestCode.QUERY_CONSUMER_OFFSET: _reading("topic", "consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
}
