"""Heartbeats and lists of queues to lock, which may have tens of thousands of entries: decoded in steps. Lists of names
in responses, of topics and of members, which may have more.

The text is parsed at once, some 10 ms a MB; what would take longer, such as a million empty lists, is refused unread.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from mqbroker.wire import fastjson
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, LockBatchRequestBody, MessageQueue, SubscriptionData
from mqbroker.wire.body import DIALECT_BYTES_MAX, BadBody, Body
from mqbroker.wire.registration import Steps

#: A client may have 20,000 subscriptions, of 256 bytes each with its topic, in 1,000 groups, and consume all queues of
#: some topics: 450 bytes each.
LONG_BODY_BYTES_MAX: Final = 6 * 1024 * 1024
#: Objects and lists of one body: each subscription has three, each queue one.
CONTAINERS_MAX: Final = 65_536 + 4096
#: Values of all kinds: a subscription has seven, and its tags.
VALUES_MAX: Final = 6 * CONTAINERS_MAX
#: Entries that are decoded in one step, a ms or two.
STEP_ENTRIES: Final = 200


def parse_long_body(data: bytes, kind: type[Body]) -> dict[str, Any]:
    """The JSON object of a body of this kind. Raises BadBody."""
    if len(data) > DIALECT_BYTES_MAX and (count := data.count(b"{") + data.count(b"[")) > CONTAINERS_MAX:
        raise BadBody(f"{kind.__name__}: {count} objects and lists, {CONTAINERS_MAX} at most")
    if len(data) > DIALECT_BYTES_MAX and (count := data.count(b",")) > VALUES_MAX:
        raise BadBody(f"{kind.__name__}: {count} values, {VALUES_MAX} at most")
    try:
        value = fastjson.loads(data, DIALECT_BYTES_MAX)
    except fastjson.BadJson as error:
        raise BadBody(f"{kind.__name__}: {error}") from None
    if not isinstance(value, dict):
        raise BadBody(f"{kind.__name__} must be an object, not {type(value).__name__}")
    return value


def read_heartbeat(data: bytes) -> Steps[HeartbeatData]:
    """Decode a heartbeat in steps. Raises BadBody."""
    value = parse_long_body(data, HeartbeatData)
    given = value.get("consumerDataSet")
    if not isinstance(given, list):
        return HeartbeatData.from_value(value)
    consumers: list[ConsumerData] = []
    for consumer in given:
        subscriptions = consumer.get("subscriptionDataSet") if isinstance(consumer, dict) else None
        if not isinstance(subscriptions, list):
            consumers.append(ConsumerData.from_value(consumer))
            continue
        found: list[SubscriptionData] = []
        for at in range(0, len(subscriptions), STEP_ENTRIES):
            found += map(SubscriptionData.from_value, subscriptions[at : at + STEP_ENTRIES])
            yield
        rest = ConsumerData.from_value(consumer | {"subscriptionDataSet": []})
        consumers.append(attrs.evolve(rest, subscription_data_set=found))
    return attrs.evolve(HeartbeatData.from_value(value | {"consumerDataSet": []}), consumer_data_set=consumers)


def read_lock_request(data: bytes) -> Steps[LockBatchRequestBody]:
    """Decode a list of queues to lock or unlock in steps. Raises BadBody."""
    value = parse_long_body(data, LockBatchRequestBody)
    given = value.get("mqSet")
    if not isinstance(given, list):
        return LockBatchRequestBody.from_value(value)
    found: set[MessageQueue] = set()
    for at in range(0, len(given), STEP_ENTRIES):
        found.update(map(MessageQueue.from_value, given[at : at + STEP_ENTRIES]))
        yield
    return attrs.evolve(LockBatchRequestBody.from_value(value | {"mqSet": []}), mq_set=frozenset(found))
