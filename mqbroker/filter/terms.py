"""What filter expressions are compiled to: closures over each other, each from a message's properties to a value.

Checks when a term is made refuse what the Java broker refuses when it reads an expression. Logic has three values:
None stands for null. Source: the expression package of the filter module 4.9.7. Must never know of the grammar.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence

import attrs

from mqbroker.errors import BadExpression
from mqbroker.filter.lookup import Found, Properties, finder, text_of
from mqbroker.filter.values import (
    INTEGER_MAX,
    LONG_MAX,
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

Evaluate = Callable[[Properties], Value]
Find = Callable[[Properties], Found]
_Order = Callable[[float, float], bool]

#: How deep terms may stand in each other; a chain of ANDs or ORs is one.
DEPTH_MAX = 100
#: What stands for bytes that are no text, in a value that is decoded.
_REPLACEMENT = "\ufffd"
_DOUBLE_MIN = 5e-324
_DOUBLE_MAX = 1.7976931348623157e308

_ORDERS: dict[str, _Order] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Kind(enum.Enum):
    """What the Java broker tells apart when it reads an expression."""

    CONSTANT = "a constant"
    BOOLEAN_CONSTANT = "TRUE, FALSE or NULL"
    PROPERTY = "a property"
    CONDITION = "a condition"
    NEGATED = "a negated term"


@attrs.frozen(eq=False)
class Term:
    """A compiled part of an expression. `value` is a constant's or a negated number's; `find` finds a property's."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    value: Value = None
    find: Find | None = None

    @property
    def number(self) -> int | float | None:
        """What it is where it is a number that is written down."""
        is_number = self.kind is Kind.CONSTANT or self.kind is Kind.NEGATED
        return None if not is_number or isinstance(self.value, (str, bool)) else self.value

    @property
    def is_constant(self) -> bool:
        return self.kind is Kind.CONSTANT or self.kind is Kind.BOOLEAN_CONSTANT

    @property
    def is_boolean(self) -> bool:
        return self.kind is Kind.CONDITION or self.kind is Kind.BOOLEAN_CONSTANT


def _above(*terms: Term) -> int:
    depth = 1 + max(term.depth for term in terms)
    if depth > DEPTH_MAX:
        raise BadExpression(f"terms stand in each other more than {DEPTH_MAX} deep; write it with fewer parentheses")
    return depth


def _condition(evaluate: Evaluate, *parts: Term) -> Term:
    return Term(Kind.CONDITION, evaluate, _above(*parts))


# Constants and properties


def constant(value: Value) -> Term:
    kind = Kind.BOOLEAN_CONSTANT if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Term(kind, lambda properties: value, value=value)


def decimal(digits: str) -> Term:
    """A whole number, with or without the L at its end. Raises BadExpression."""
    text = digits.rstrip("lL")
    number = int(text) if len(text) <= len(str(LONG_MAX)) else LONG_MAX + 1
    if number > LONG_MAX:
        raise BadExpression(f"{text[:40]} is above {LONG_MAX}")
    return constant(number if number <= INTEGER_MAX else Long(number))


def floating(text: str) -> Term:
    """A number with a point or an exponent. Raises BadExpression: zero is refused, too."""
    number = float(text)
    if number > _DOUBLE_MAX:
        raise BadExpression(f"{text[:40]} is greater than {_DOUBLE_MAX}")
    if number < _DOUBLE_MIN:
        raise BadExpression(f"{text[:40]} is less than {_DOUBLE_MIN}")
    return constant(number)


def property_named(name: str) -> Term:
    find = finder(name)
    return Term(Kind.PROPERTY, lambda properties: text_of(find(properties)), find=find)


# Logic


def as_condition(term: Term) -> Term:
    """A term where a condition is wanted: a property alone is none that is ever true. Raises BadExpression."""
    if term.is_boolean:
        return term
    if term.kind is not Kind.PROPERTY:
        raise BadExpression(f"{term.kind.value} is no condition")
    find = term.evaluate
    return _condition(lambda properties: None if find(properties) is None else False, term)


def either(terms: Sequence[Term]) -> Term:
    """`a OR b OR ...`"""
    parts = tuple(as_condition(term) for term in terms)
    evaluates = tuple(part.evaluate for part in parts)
    if len(evaluates) == 2:
        return _condition(_either_of_two(*evaluates), *parts)

    def evaluate(properties: Properties) -> Value:
        result: Value = False
        for one in evaluates:
            value = one(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return _condition(evaluate, *parts)


def both(terms: Sequence[Term]) -> Term:
    """`a AND b AND ...`"""
    parts = tuple(as_condition(term) for term in terms)
    evaluates = tuple(part.evaluate for part in parts)
    if len(evaluates) == 2:
        return _condition(_both_of_two(*evaluates), *parts)

    def evaluate(properties: Properties) -> Value:
        result: Value = True
        for one in evaluates:
            value = one(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return _condition(evaluate, *parts)


def _either_of_two(first: Evaluate, second: Evaluate) -> Evaluate:
    """The usual case, in fewer steps."""

    def evaluate(properties: Properties) -> Value:
        value = first(properties)
        if value:
            return True
        other = second(properties)
        return other if other or value is not None else None

    return evaluate


def _both_of_two(first: Evaluate, second: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = first(properties)
        if value:
            return second(properties)
        if value is None:
            return None if second(properties) is not False else False
        return False

    return evaluate


def negation(term: Term) -> Term:
    """`NOT a`"""
    part = as_condition(term)
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _condition(evaluate, part)


def negated(term: Term) -> Term:
    """`-a`: null unless that is a number, which no property is."""
    inner = term.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if value is None or isinstance(value, (bool, str)):
            return None
        return _minus(value)

    value = term.number
    return Term(Kind.NEGATED, evaluate, _above(term), None if value is None else _minus(value))


def _minus(number: float) -> float:
    return Long(-number) if isinstance(number, Long) else -number


# Comparisons


def ordered(left: Term, sign: str, right: Term) -> Term:
    """`a < b` and the like. Raises BadExpression where one of them has no order."""
    for term in (left, right):
        is_number = term.kind is Kind.CONSTANT and not isinstance(term.value, str)
        if (term.is_constant or term.is_boolean) and not is_number:
            raise BadExpression(f"{_shown(term)} cannot be compared by {sign}: only numbers can")
    order = _ORDERS[sign]
    special = _compare_with_number(left, order, right)
    if special is not None:
        return _condition(special, left, right)
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

    return _condition(evaluate, left, right)


def _compare_with_number(left: Term, order: _Order, right: Term) -> Evaluate | None:
    """The usual comparison, of a property with a number; None where it is another one."""
    find, number = left.find, right.number
    if find is None or number is None:
        return None
    if isinstance(number, float):
        return _compare_with_double(find, order, number)
    wanted, read = number, _reader(number)

    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        if found is None:
            return None
        if len(found) < SURE_DIGITS and found.isdigit() and found.isascii():
            return order(int(found), wanted)
        return order(read(found), wanted)

    return evaluate


def _compare_with_double(find: Find, order: _Order, wanted: float) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        if found is None:
            return None
        value = read_double(found)
        # NaN is above all; the other whose order is special is 0.0, which no constant is.
        return order(value, wanted) if value == value else order(1, 0)

    return evaluate


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
    find = term.find
    if find is not None:
        return _condition(lambda properties: find(properties) is None, term)
    return _equal(term, constant(None))


def _equal(left: Term, right: Term) -> Term:
    special = _compare_with_number(left, operator.eq, right) or _equal_to_string(left, right)
    if special is not None:
        return _condition(special, left, right)
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

    return _condition(evaluate, left, right)


def _equal_to_string(left: Term, right: Term) -> Evaluate | None:
    """The usual comparison of a property with a string; None where it is another one."""
    find, text = left.find, right.value
    if find is None or right.kind is not Kind.CONSTANT or not isinstance(text, str) or _REPLACEMENT in text:
        return None
    data = text.encode()

    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        return None if found is None else found == (data if isinstance(found, bytes) else text)

    return evaluate


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
    find, least, most = term.find, low.number, high.number
    if find is None or least is None or most is None or _reader(least) is not _reader(most):
        return whole
    read = _reader(least)

    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        return None if found is None else least <= read(found) <= most

    return _condition(evaluate, term, low, high)


def not_between(term: Term, low: Term, high: Term) -> Term:
    """`a NOT BETWEEN low AND high`"""
    return either([ordered(term, "<", low), ordered(term, ">", high)])


def one_of(term: Term, strings: Sequence[str], is_in: bool) -> Term:
    """`a IN ('x', 'y')`, or NOT IN. Raises BadExpression for what is no property."""
    find = term.find
    if find is None:
        raise BadExpression(f"IN takes a property on its left, not {term.kind.value}")
    texts = frozenset(strings)
    data = frozenset(text.encode() for text in strings)
    is_exact = _REPLACEMENT not in "".join(strings)

    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        if isinstance(found, bytes):
            if is_exact:
                return (found in data) is is_in
            found = text_of(found)
        return None if found is None else (found in texts) is is_in

    return _condition(evaluate, term)


def _shown(term: Term) -> str:
    if isinstance(term.value, str) and term.kind is Kind.CONSTANT:
        return f"'{term.value[:80]}'"
    return term.kind.value
