"""What a consumer wants of a topic, from the expression it gives: `*` or tags joined by `||`."""

from __future__ import annotations

from functools import lru_cache

from mqbroker.errors import MQError
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.javahash import java_hash

ALL = "*"
TAGS_MAX = 1024
_KEPT_LENGTH_MAX = 256


def parse_subscription(topic: str, expression: str | None, kind: str | None) -> SubscriptionData:
    """Read an expression as FilterAPI of 4.9.7 does. Raises MQError on one without any tag.

    An expression of another kind than TAG is returned unread, with its kind.
    """
    if kind not in (None, "", "TAG"):
        return SubscriptionData(topic, expression or "", expression_type=kind)
    text = (expression or "").strip()
    if text in ("", ALL):
        return SubscriptionData(topic, ALL)
    tags, codes = _tags(text) if len(text) <= _KEPT_LENGTH_MAX else _read_tags(text)
    return SubscriptionData(topic, text, tags, codes)


def _read_tags(text: str) -> tuple[frozenset[str], frozenset[int]]:
    tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
    if not tags or len(tags) > TAGS_MAX:
        raise MQError(f"{text[:80]!r} must name 1 to {TAGS_MAX} tags, joined by ||")
    return tags, frozenset(java_hash(tag) for tag in tags)


#: Of those that pulls bring along again and again.
_tags = lru_cache(maxsize=1024)(_read_tags)
