"""Comparisons of filter expressions: conditions on one or two terms.

What is usual, a property beside a constant, becomes a `Test`, which is quicker than two values and a comparison of
them. Source: the expression package of the filter module 4.9.7. Must never know of the grammar.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from mqbroker.errors import BadExpression
from mqbroker.filter.lookup import Properties
from mqbroker.filter.terms import Kind, Term, Test, both, condition, constant, either, tested
from mqbroker.filter.values import (
    SURE_DIGITS,
    Long,
    Value,
    compare,
    compare_doubles,
    parse_double,
    read_double,
    read_integer,
    read_long,
)

_Order = Callable[[float, float], bool]

#: What stands for bytes that are no text, in a value that is decoded.
_REPLACEMENT = "\ufffd"
_ORDERS: dict[str, _Order] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
# A value as a number, most of which have few digits, and are quicker to read as a double. The `isdigit` of bytes knows
# only ASCII's.
_NUMBER = f"(float({{value}}) if {{value}}.isdigit() and len({{value}}) < {SURE_DIGITS} else {{0}}({{value}}))"


def ordered(left: Term, sign: str, right: Term) -> Term:
    """`a < b` and the like. Raises BadExpression where one of them has no order."""
    for term in (left, right):
        is_number = term.kind is Kind.CONSTANT and not isinstance(term.value, str)
        if (term.is_constant or term.is_boolean) and not is_number:
            raise BadExpression(f"{_shown(term)} cannot be compared by {sign}: only numbers can")
    order = _ORDERS[sign]
    test = _compare_with_number(left, sign, right)
    if test is not None:
        return tested(test, left, right)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        left_value = evaluate_left(properties)
        if left_value is None:
            return None
        right_value = evaluate_right(properties)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return order(compare_doubles(parse_double(left_value), parse_double(right_value)), 0)
        return order(compare(left_value, right_value), 0)

    return condition(evaluate, left, right)


def _compare_with_number(left: Term, sign: str, right: Term) -> Test | None:
    """The usual comparison, of a property with a number; None where it is another one."""
    name, number = left.name, right.number
    if name is None or number is None:
        return None
    order = _ORDERS[sign]
    if isinstance(number, float):
        return Test.called(name, _compare_with_double(order, number))
    wanted, read = number, _reader(number)
    constants = (read, _comparable(wanted))
    return Test(name, lambda found: order(read(found), wanted), f"{_NUMBER} {sign} {{1}}", constants)


def _comparable(number: float) -> float:
    """A number that compares as this one does, as a double where it can be: doubles are quicker to compare."""
    return float(number) if float(number) == number else number


def _compare_with_double(order: _Order, wanted: float) -> Callable[[bytes | str], bool]:
    def holds(found: bytes | str) -> bool:
        value = read_double(found)
        # NaN is above all; the other whose order is special is 0.0, which no constant is.
        return order(value, wanted) if value == value else order(1, 0)

    return holds


def _reader(number: int | float) -> Callable[[bytes | str], float]:
    if isinstance(number, float):
        return read_double
    return read_long if isinstance(number, Long) else read_integer


def equal(left: Term, right: Term) -> Term:
    """`a = b`. Raises BadExpression for what never equals anything."""
    for term in (left, right):
        if term.is_constant and term.value is None:
            raise BadExpression("NULL cannot be compared; use IS NULL or IS NOT NULL")
    if left.kind is Kind.BOOLEAN_CONSTANT and right.kind is Kind.CONSTANT:
        raise BadExpression(f"{_shown(left)} cannot be compared with {_shown(right)}")
    return _equal(left, right)


def is_null(term: Term) -> Term:
    """`a IS NULL`"""
    if term.name is not None:
        return tested(Test(term.name, lambda found: False, "False", of_none=True), term)
    return _equal(term, constant(None))


def _equal(left: Term, right: Term) -> Term:
    test = _compare_with_number(left, "==", right) or _equal_to_string(left, right)
    if test is not None:
        return tested(test, left, right)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        left_value, right_value = evaluate_left(properties), evaluate_right(properties)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None:
            return False
        if isinstance(left_value, str) and isinstance(right_value, str):
            return left_value == right_value
        return compare(left_value, right_value) == 0

    return condition(evaluate, left, right)


def _equal_to_string(left: Term, right: Term) -> Test | None:
    """The usual comparison of a property with a string; None where it is another one."""
    name, text = left.name, right.value
    if name is None or right.kind is not Kind.CONSTANT or not isinstance(text, str) or _REPLACEMENT in text:
        return None
    data = text.encode()
    return Test(name, lambda found: found == (data if isinstance(found, bytes) else text), "{value} == {0}", (data,))


def between(term: Term, low: Term, high: Term) -> Term:
    """`a BETWEEN low AND high`. Raises BadExpression where nothing can be."""
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise BadExpression("NULL cannot be a bound of BETWEEN")
        if isinstance(low.value, (str, bool)) or isinstance(high.value, (str, bool)):
            raise BadExpression("the bounds of BETWEEN must be numbers")
        if compare(high.value, low.value) < 0:
            why = f"the first bound of BETWEEN must not be above the second: {low.value} and {high.value}"
            raise BadExpression(why)
    whole = both([ordered(term, ">=", low), ordered(term, "<=", high)])
    name, least, most = term.name, low.number, high.number
    if name is None or least is None or most is None or _reader(least) is not _reader(most):
        return whole
    read = _reader(least)

    def holds(found: bytes | str) -> bool:
        return least <= read(found) <= most

    if read is read_double:
        return tested(Test.called(name, holds), term, low, high)
    constants = (read, _comparable(least), _comparable(most))
    return tested(Test(name, holds, f"{{1}} <= {_NUMBER} <= {{2}}", constants), term, low, high)


def not_between(term: Term, low: Term, high: Term) -> Term:
    """`a NOT BETWEEN low AND high`"""
    return either([ordered(term, "<", low), ordered(term, ">", high)])


def one_of(term: Term, strings: Sequence[str], is_in: bool) -> Term:
    """`a IN ('x', 'y')`, or NOT IN. Raises BadExpression for what is no property."""
    if term.name is None:
        raise BadExpression(f"IN takes a property on its left, not {term.kind.value}")
    texts = frozenset(strings)
    data = frozenset(text.encode() for text in strings)
    is_exact = _REPLACEMENT not in "".join(strings)

    def holds(found: bytes | str) -> bool:
        if isinstance(found, bytes):
            if is_exact:
                return (found in data) is is_in
            found = found.decode("utf-8", "replace")
        return (found in texts) is is_in

    if not is_exact:
        return tested(Test.called(term.name, holds), term)
    return tested(Test(term.name, holds, "{value} in {0}" if is_in else "{value} not in {0}", (data,)), term)


def _shown(term: Term) -> str:
    if isinstance(term.value, str) and term.kind is Kind.CONSTANT:
        return f"'{term.value[:80]}'"
    return term.kind.value
