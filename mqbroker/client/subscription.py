"""Tag expressions: "a || b", or "*" for all. The broker filters by hash, so clients compare the tags themselves."""

from __future__ import annotations

from mqbroker.errors import MQError
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.javahash import java_hash

ALL = "*"


def subscribe_to(topic: str, expression: str, version_ms: int) -> SubscriptionData:
    """Read a tag expression as FilterAPI of 4.9.7 does. Raises MQError where it names no tag."""
    expression = expression.strip()
    if expression in ("", ALL):
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version_ms)
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise MQError(f"subscription {expression!r} of topic {topic} names no tag; write 'a || b', or '*' for all")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
        sub_version=version_ms,
    )


def matches(subscription: SubscriptionData, tags: str | None) -> bool:
    """True where a message with `tags` is wanted."""
    return not subscription.tags_set or (tags is not None and tags in subscription.tags_set)
