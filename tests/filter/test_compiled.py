"""Compiled expressions have the values of a plain reading of the same expression, one term after another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.errors import NotEvaluable
from mqbroker.filter import compile_expression
from mqbroker.filter.values import Long, Value, compare, compare_doubles, parse_double
from tests.filter.evaluating import evaluate
from tests.numbers import numbers

Found = Mapping[str, str]
Order = Callable[[int, int], bool]
Reading = Callable[[Found], Value]
#: Its text, and what reads it.
Condition = tuple[str, Reading]

ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.one_of(
    numbers(0, 2**31 - 1).map(lambda number: (str(number), number)),
    numbers(2**31, 2**63 - 1).map(lambda number: (f"{number}L", Long(number))),
    st.sampled_from([0, 1, 5, 7]).map(lambda number: (str(number), number)),
    st.floats(1e-300, 1e300).map(lambda number: (repr(number) if "." in repr(number) else f"{number:e}", number)),
)
SIGNED = st.one_of(
    NUMBERS,
    NUMBERS.map(lambda of: (f"-{of[0]}", Long(-of[1]) if isinstance(of[1], Long) else -of[1])),
)
STRINGS = st.sampled_from(["", "x", "5", "it's", "süd", "\ufffd", "{v}", "\\"])


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def equal(left: Value, right: Value) -> Value:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return compare(left, right) == 0


def ordered(order: Order, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return order(compare_doubles(parse_double(left), parse_double(right)), 0)
    return order(compare(left, right), 0)


def negation(value: Value) -> Value:
    return None if value is None else not value


def chain(decisive: bool, readings: Sequence[Reading], found: Found) -> Value:
    result: Value = not decisive
    for reading in readings:
        value = reading(found)
        if value is decisive:
            return decisive
        if value is None:
            result = None
    return result


def between(order_low: Order, order_high: Order, decisive: bool) -> Callable[[str, Value, Value], Reading]:
    def reading(name: str, low: Value, high: Value) -> Reading:
        return lambda found: chain(
            decisive,
            [
                lambda found: ordered(order_low, found.get(name), low),
                lambda found: ordered(order_high, found.get(name), high),
            ],
            found,
        )

    return reading


BETWEEN = between(operator.ge, operator.le, False)
NOT_BETWEEN = between(operator.lt, operator.gt, True)

#: Texts of conditions, each with what reads it.
TESTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        lambda name, sign, of: (f"{name} {sign} {of[0]}", lambda found: ordered(ORDERS[sign], found.get(name), of[1])),
        NAMES, st.sampled_from(list(ORDERS)), SIGNED,
    ),
    st.builds(
        lambda name, sign, of: (f"{of[0]} {sign} {name}", lambda found: ordered(ORDERS[sign], of[1], found.get(name))),
        NAMES, st.sampled_from(list(ORDERS)), SIGNED,
    ),
    st.builds(
        lambda name, sign, other: (
            f"{name} {sign} {other}", lambda found: ordered(ORDERS[sign], found.get(name), found.get(other))
        ),
        NAMES, st.sampled_from(list(ORDERS)), NAMES,
    ),
    st.builds(lambda name, of: (f"{name} = {of[0]}", lambda found: equal(found.get(name), of[1])), NAMES, SIGNED),
    st.builds(
        lambda name, of: (f"{of[0]} <> {name}", lambda found: negation(equal(of[1], found.get(name)))), NAMES, SIGNED
    ),
    st.builds(
        lambda name, text: (f"{name} = {literal(text)}", lambda found: equal(found.get(name), text)), NAMES, STRINGS
    ),
    st.builds(
        lambda name, text: (f"{literal(text)} = {name}", lambda found: equal(text, found.get(name))), NAMES, STRINGS
    ),
    st.builds(
        lambda name, other: (f"{name} = {other}", lambda found: equal(found.get(name), found.get(other))), NAMES, NAMES
    ),
    st.builds(lambda name: (f"{name} = TRUE", lambda found: equal(found.get(name), True)), NAMES),
    st.builds(lambda name: (f"{name} = -{name}", lambda found: equal(found.get(name), None)), NAMES),
    st.builds(lambda name: (f"{name} IS NULL", lambda found: found.get(name) is None), NAMES),
    st.builds(lambda name: (name, lambda found: None if found.get(name) is None else False), NAMES),
    st.builds(
        lambda name, texts, is_in: (
            f"{name} {'' if is_in else 'NOT '}IN ({', '.join(map(literal, texts))})",
            lambda found: None if found.get(name) is None else (found[name] in texts) is is_in,
        ),
        NAMES, st.lists(STRINGS, min_size=1, max_size=3), st.booleans(),
    ),
    st.builds(
        lambda name, one, other, is_in: (
            "{} {}BETWEEN {} AND {}".format(name, "" if is_in else "NOT ", *[of[0] for of in sorted_by(one, other)]),
            (BETWEEN if is_in else NOT_BETWEEN)(name, *[of[1] for of in sorted_by(one, other)]),
        ),
        NAMES, NUMBERS, NUMBERS, st.booleans(),
    ),
    st.sampled_from([("TRUE", lambda found: True), ("FALSE", lambda found: False), ("NULL", lambda found: None)]),
)  # fmt: skip


def sorted_by(*numbers: Any) -> list[Any]:
    return sorted(numbers, key=lambda of: of[1])


def joined(word: str, decisive: bool) -> Callable[[Sequence[Condition]], Condition]:
    return lambda parts: (
        f" {word} ".join(f"({text})" for text, _ in parts),
        lambda found: chain(decisive, [reading for _, reading in parts], found),
    )


CONDITIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        inner.map(lambda of: (f"NOT ({of[0]})", lambda found: negation(of[1](found)))),
        inner.map(lambda of: (f"(NOT ({of[0]})) = TRUE", lambda found: equal(negation(of[1](found)), True))),
        st.lists(inner, min_size=2, max_size=4).map(joined("AND", False)),
        st.lists(inner, min_size=2, max_size=4).map(joined("OR", True)),
    ),
    max_leaves=12,
)
VALUES = st.one_of(
    st.sampled_from(
        ["5", "x", "7", "", "1.5", "-5", "+5", "NaN", "-0.0", "2147483648", "00005", "\u0665", "true", "süd", "\ufffd",
         "9223372036854775808", "1_0", " 5", "5 ", "it's", "0x1p3", "1e400", "9" * 400, "5d", "{v}", "\\"]
    ),
    numbers(-(2**64), 2**64).map(str),
)  # fmt: skip
MESSAGES = st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=6)


def outcome(reading: Reading, found: Found) -> Value:
    try:
        return reading(found)
    except NotEvaluable:
        return "not evaluable"


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(CONDITIONS, MESSAGES)
def test_any_condition_of_any_messages(condition: Condition, messages: list[Found]) -> None:
    text, reading = condition
    expression = compile_expression(text)
    for found in messages:
        assert outcome(partial(evaluate, expression), found) == outcome(reading, found), text


def above(name: str, number: int) -> Condition:
    return f"{name} > {number}", lambda found: ordered(operator.gt, found.get(name), number)


def nested(depth: int) -> Condition:
    """As deep a condition, with which its outcome changes."""
    condition: Condition = "a = 5", lambda found: equal(found.get("a"), 5)
    for level in range(depth):
        word, decisive = [("AND", False), ("OR", True)][level % 2]
        condition = joined(word, decisive)([condition, above("bc"[level % 2], level)])
    return condition


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(st.integers(1, 98), st.fixed_dictionaries({}, optional={name: st.integers(0, 99).map(str) for name in "abc"}))
def test_any_depth(depth: int, found: Found) -> None:
    text, reading = nested(depth)
    assert evaluate(compile_expression(text), found) is reading(found)
