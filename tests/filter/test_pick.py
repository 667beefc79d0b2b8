"""Picking messages by their property bytes: of all expressions and messages what reading all properties gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.errors import BadExpression
from mqbroker.filter import compile_expression, sql92
from mqbroker.filter.sql92 import NOT_KEPT, OUTCOME_BYTES_MAX, OUTCOMES_MAX, Expression
from mqbroker.wire.properties import decode_properties, encode_properties, reencode_properties
from tests.filter.cases import questions
from tests.filter.evaluating import matches


def one_by_one(expression: Expression, messages: list[bytes]) -> list[int]:
    """Where it is true, of one message after another with all its properties."""
    return [place for place, message in enumerate(messages) if matches(expression, decode_properties(message))]


def compiled(text: str) -> Expression | None:
    try:
        return compile_expression(text)
    except BadExpression:
        return None


def test_recorded_questions() -> None:
    for question in questions():
        expression = compiled(question["expression"]) if "expression" in question else None
        if expression is not None:
            messages = [reencode_properties(message) for message in question["messages"]]
            assert expression.pick(messages, 1000) == one_by_one(expression, messages), expression.text


TERMS = [
    "a > 5", "a = 5", "b <> 5", "b <= 3000000000", "a >= 1.5", "a BETWEEN 2 AND 7", "b NOT BETWEEN 2 AND 7",
    "a BETWEEN 1.5 AND 2.5", "b BETWEEN 1 AND 7.5", "a = 'x'", "b <> 'x'", "a IN ('x', '5')", "b NOT IN ('x', '5')",
    "a = 'x\ufffd'", "b IN ('x\ufffd')", "a IS NULL", "b IS NOT NULL", "ab IS NULL", "a", "a = b", "a = TRUE", "a < b",
    "5 < a", "TRUE", "FALSE", "NULL", "a = 'caf\u00e9'", "a > -5", "b > 9223372036854775807", "a = 9007199254740993",
]  # fmt: skip
EXPRESSIONS = st.recursive(
    st.sampled_from(TERMS),
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds(" AND ".join, st.lists(inner.map("({})".format), min_size=2, max_size=4)),
        st.builds(" OR ".join, st.lists(inner.map("({})".format), min_size=2, max_size=4)),
    ),
    max_leaves=8,
)
VALUES = st.sampled_from(
    [b"5", b"x", b"7", b"", b"1.5", b"2", b"-5", b"+5", b"NaN", b"3000000001", b"0005", b"\xd9\xa5", b"x\xff", b"true",
     b"caf\xc3\xa9", b"9223372036854775808", b"9007199254740993", b"9007199254740992", b"5\x01", b"1_0", b" 5", b"5 "]
)  # fmt: skip
PAIRS = st.builds(
    bytes.__add__, st.sampled_from([b"a\x01", b"b\x01", b"ab\x01", b"ba\x01", b"\x01", b"a", b""]), VALUES
)
MESSAGES = st.lists(st.lists(PAIRS, max_size=4).map(b"\x02".join), max_size=8)


@settings(derandomize=True, database=None, deadline=None, max_examples=250)
@given(EXPRESSIONS, MESSAGES)
def test_any_expression_of_any_messages(text: str, messages: list[bytes]) -> None:
    expression = compiled(text)
    if expression is not None:
        wanted = one_by_one(expression, messages)
        with pytest.MonkeyPatch.context() as patch:
            for _ in range(2):  # the second time from what is kept
                assert expression.pick(messages, 1000) == wanted
            patch.setattr(sql92, "compiled_module", None)
            assert expression.pick(messages, 1000) == wanted
            patch.setattr(sql92, "OUTCOMES_MAX", 1)
            expression._outcomes.clear()
            for _ in range(3):  # then nothing is kept
                assert expression.pick(messages, 1000) == wanted
            expression._outcomes.clear()
        assert [bool(expression.pick([message], 1)) for message in messages] == [
            place in wanted for place in range(len(messages))
        ]


def test_so_many_are_picked() -> None:
    expression = compile_expression("a > 5")
    messages = [encode_properties({"a": str(i)}) for i in (1, 6, 7, 2, 8, 9)]
    assert [expression.pick(messages, most) for most in (1, 2, 3, 9)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 5]]
    assert expression.pick([], 1) == []


def test_an_expression_without_properties() -> None:
    messages = [b"", b"a\x015", b"\xff"]
    assert compile_expression("1 < 2").pick(messages, 2) == [0, 1]
    assert compile_expression("FALSE OR NULL").pick(messages, 2) == []


@pytest.mark.parametrize("joined", [" OR ", " AND "])
def test_long_chains(joined: str) -> None:
    expression = compile_expression(joined.join(f"a <> {number}" for number in range(1000)))
    messages = [b"a\x01%d" % number for number in (-1, 0, 999, 1000)] + [b"a\x01x", b""]
    assert expression.pick(messages, 9) == ([0, 1, 2, 3] if joined == " OR " else [0, 3])


def test_deep_and_wide() -> None:
    text = "a = 5"
    for level in range(30):
        text = f"({text} {'OR' if level % 2 else 'AND'} NOT (b{level} = 'x') = TRUE)"
    expression = compile_expression(text)
    messages = [b"a\x015" + b"".join(b"\x02b%d\x01%c" % (i, 120 + (i == at)) for i in range(30)) for at in range(30)]
    assert expression.pick(messages, 99) == one_by_one(expression, messages)


def kept(expression: Expression) -> dict[Any, bool]:
    return expression._outcomes


def test_outcomes_are_kept_within_bounds() -> None:
    expression = compile_expression("kept > 1000000 OR other = 'x'")
    many = [b"kept\x01%d" % number for number in range(3 * OUTCOMES_MAX)] + [b"kept\x011000001"]
    for _ in range(2):
        assert expression.pick(many, 9) == [len(many) - 1]
        assert len(kept(expression)) <= OUTCOMES_MAX
    expression._outcomes.clear()
    expression._outcomes._not_kept = 0
    for size, count in [(OUTCOME_BYTES_MAX, 1), (OUTCOME_BYTES_MAX + 1, 1)]:
        messages = [b"kept\x01" + b"0" * (size - 3) + b"\x02other\x01x"] * 2
        assert expression.pick(messages, 9) == [0, 1]
        assert len(kept(expression)) == count


def test_outcomes_are_not_kept_for_a_while_where_too_many_differ() -> None:
    expression = compile_expression("kept > 1000000")
    many = [b"kept\x01%d" % number for number in range(OUTCOMES_MAX + 1)]
    assert expression.pick(many, 9) == []
    for _ in range(NOT_KEPT):
        assert expression.pick(many[:2], 9) == []
        assert not kept(expression)
    assert expression.pick(many[:2], 9) == []
    assert set(kept(expression)) == {b"0", b"1"}


def test_what_is_kept_is_not_looked_at_again() -> None:
    asked = []
    expression = compile_expression("kept = 5 AND again = 6")
    evaluate = expression._evaluate
    object.__setattr__(expression, "_evaluate", lambda *found: (asked.append(found), evaluate(*found))[1])
    messages = [b"kept\x015\x02again\x016", b"again\x016", b"kept\x015\x02n\x011\x02again\x016"]
    for _ in range(2):
        assert expression.pick(messages, 9) == [0, 2]
        assert [expression.pick([message], 9) for message in messages] == [[0], [], [0]]
    assert asked == [("6", "5"), ("6", None)]
