"""What a consumer wants, from its expression."""

import pytest

from mqbroker.broker.subscription_resolver import parse_subscription
from mqbroker.errors import MQError
from mqbroker.wire.names import java_hash


@pytest.mark.parametrize("expression", [None, "", "*", "  ", " * "])
@pytest.mark.parametrize("kind", [None, "", "TAG"])
def test_everything(expression: str | None, kind: str | None) -> None:
    found = parse_subscription("T", expression, kind)
    assert (found.sub_string, found.tags_set, found.code_set) == ("*", frozenset(), frozenset())


def test_tags() -> None:
    found = parse_subscription("T", " A ||B|| ||中 ", "TAG")
    assert found.tags_set == {"A", "B", "中"}
    assert found.code_set == {java_hash(tag) for tag in found.tags_set}
    assert found.topic == "T"


@pytest.mark.parametrize("expression", ["||", "|| || ", "||".join(map(str, range(2000)))])
def test_no_tags_and_too_many(expression: str) -> None:
    with pytest.raises(MQError) as caught:
        parse_subscription("T", expression, "TAG")
    assert len(str(caught.value)) < 200


def test_another_kind_is_left_as_it_is() -> None:
    found = parse_subscription("T", "a > 1", "SQL92")
    assert (found.sub_string, found.expression_type) == ("a > 1", "SQL92")
