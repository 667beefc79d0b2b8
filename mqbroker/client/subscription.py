"""Tag expressions: "a || b", or "*" for all. The broker filters by hash, so clients compare the tags themselves."""

from __future__ import annotations

import re

import attrs

from mqbroker.client.errors import BadArgument
from mqbroker.client.names import is_text
from mqbroker.errors import MQError
from mqbroker.wire.bodies import SubscriptionData
from mqbroker.wire.names import java_hash

ALL = "*"

_COMPARISON = "(?:<>|[<>]=?|=)"
#: SQL92 in place of tags: a comparison with a number or a text, or with blanks around it, and SQL's other operators.
#: Tags such as "k=5" and "a->b" stay tags.
_seems_sql = re.compile(
    rf"(?:<>|[<>]=?)\s*[-+.\d'(]|=\s*'|\s{_COMPARISON}|{_COMPARISON}\s|\s(?:IS|IN|BETWEEN|AND|OR)[\s(]|^NOT\s",
    re.IGNORECASE,
).search


@attrs.frozen
class Sql:
    """An SQL92 expression on the properties of messages, in place of tags. It is checked here before brokers get it;
    these must have enablePropertyFilter=true. Raises BadArgument."""

    expression: str = attrs.field()

    def __attrs_post_init__(self) -> None:
        # Imported where it is used: few need the parser.
        from mqbroker.filter import EXPRESSION_LENGTH_MAX, compile_expression

        text: object = self.expression
        if not isinstance(text, str) or len(text) > EXPRESSION_LENGTH_MAX:
            raise BadArgument("Sql", f"a text of at most {EXPRESSION_LENGTH_MAX} characters", text)
        try:
            compile_expression(self.expression)
        except MQError as error:
            raise BadArgument("Sql", f"an expression that brokers can read ({error})", text) from error


def subscribe_to(topic: str, expression: str | Sql, version_ms: int) -> SubscriptionData:
    """Parse a tag expression as FilterAPI of 4.9.7 does. Raises BadArgument if it names no tag, or is SQL92 as a plain
    text: as a tag it would match nothing."""
    if not is_text(expression.expression if isinstance(expression, Sql) else str(expression)):
        raise BadArgument("expression", "text that UTF-8 can encode", expression)
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic, sub_string=expression.expression, sub_version=version_ms, expression_type="SQL92"
        )
    if not isinstance(expression, str):
        raise BadArgument("expression", "tags as text, or Sql(...)", expression)
    expression = expression.strip()
    if expression in ("", ALL):
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version_ms)
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if any(map(_seems_sql, tags)):
        right = f"tags ('a || b'), or Sql({expression!r}) if it is an SQL92 expression"
        raise BadArgument("expression", right, expression)
    if not tags:
        raise BadArgument("expression", "'a || b', or '*' for all: it names no tag", expression)
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
        sub_version=version_ms,
    )


def matches(subscription: SubscriptionData, tags: str | None) -> bool:
    """Whether a message with `tags` matches."""
    return not subscription.tags_set or (tags is not None and tags in subscription.tags_set)
