"""What filter expressions are read as: terms in each other, each with a function from properties to a value.

Logic has three values: None stands for null. Checks when a term is made refuse what the Java broker refuses when it
reads an expression. Source: the expression package of the filter module 4.9.7. Must never know of the grammar.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence

import attrs

from mqbroker.errors import BadExpression
from mqbroker.filter.values import INTEGER_MAX, LONG_MAX, Long, Value, compare, compare_doubles, parse_double

#: A message's properties by name.
Properties = Mapping[str, str]
#: Raises NotEvaluable where a property cannot be compared as it is written.
Evaluate = Callable[[Properties], Value]

#: How deep terms may stand in each other; a chain of ANDs or ORs is one.
DEPTH_MAX = 100
_DOUBLE_MIN = 5e-324
_DOUBLE_MAX = 1.7976931348623157e308
_ORDERS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Kind(enum.Enum):
    """What the Java broker tells apart when it reads an expression."""

    CONSTANT = "a constant"
    BOOLEAN_CONSTANT = "TRUE, FALSE or NULL"
    PROPERTY = "a property"
    CONDITION = "a condition"
    NEGATED = "a negated term"


@attrs.frozen(eq=False)
class Term:
    """A part of an expression.

    `value`: a constant's or a negated number's. `name`: a property's. `size`: how many terms it has, strings and
    numbers aside. `names`: the properties in it.
    """

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    size: int = 1
    value: Value = None
    name: str | None = None
    names: frozenset[str] = frozenset()

    @property
    def is_constant(self) -> bool:
        return self.kind is Kind.CONSTANT or self.kind is Kind.BOOLEAN_CONSTANT

    @property
    def is_boolean(self) -> bool:
        return self.kind is Kind.CONDITION or self.kind is Kind.BOOLEAN_CONSTANT

    @property
    def is_number(self) -> bool:
        """Whether it is a number that is written down."""
        is_written = self.kind is Kind.CONSTANT or self.kind is Kind.NEGATED
        return is_written and self.value is not None and not isinstance(self.value, (str, bool))


def _made_of(parts: Sequence[Term], evaluate: Evaluate, kind: Kind = Kind.CONDITION, value: Value = None) -> Term:
    """A term of others. Raises BadExpression where they stand in each other too deep."""
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise BadExpression(f"terms stand in each other more than {DEPTH_MAX} deep; write it with fewer parentheses")
    names = frozenset[str]().union(*[part.names for part in parts])
    return Term(kind, evaluate, depth, max(1, sum([part.size for part in parts])), value, names=names)


# Constants and properties


def constant(value: Value) -> Term:
    kind = Kind.BOOLEAN_CONSTANT if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Term(kind, lambda properties: value, size=int(kind is Kind.BOOLEAN_CONSTANT), value=value)


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
    return Term(Kind.PROPERTY, lambda properties: properties.get(name), name=name, names=frozenset([name]))


def negated(term: Term) -> Term:
    """`-a`: null unless that is a number, which no property is."""
    inner = term.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None or isinstance(value, (bool, str)) else _minus(value)

    return _made_of([term], evaluate, Kind.NEGATED, _minus(term.value) if term.is_number else None)


def _minus(number: Value) -> Value:
    assert number is not None
    assert not isinstance(number, str)
    return Long(-number) if isinstance(number, Long) else -number


# Comparisons


def ordered(left: Term, sign: str, right: Term) -> Term:
    """`a < b` and the like. Raises BadExpression where one of them has no order."""
    for term in (left, right):
        if (term.is_constant or term.is_boolean) and not term.is_number:
            raise BadExpression(f"{_shown(term)} cannot be compared by {sign}: only numbers can")
    order = _ORDERS[sign]
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        left_value, right_value = evaluate_left(properties), evaluate_right(properties)
        if left_value is None or right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return order(compare_doubles(parse_double(left_value), parse_double(right_value)), 0)
        return order(compare(left_value, right_value), 0)

    return _made_of([left, right], evaluate)


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
        name = term.name
        return _made_of([term], lambda properties: properties.get(name) is None)
    return _equal(term, constant(None))


def _equal(left: Term, right: Term) -> Term:
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

    return _made_of([left, right], evaluate)


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
    return both([ordered(term, ">=", low), ordered(term, "<=", high)])


def not_between(term: Term, low: Term, high: Term) -> Term:
    """`a NOT BETWEEN low AND high`"""
    return either([ordered(term, "<", low), ordered(term, ">", high)])


def one_of(term: Term, strings: Sequence[str], is_in: bool) -> Term:
    """`a IN ('x', 'y')`, or NOT IN. Raises BadExpression for what is no property."""
    if term.name is None:
        raise BadExpression(f"IN takes a property on its left, not {term.kind.value}")
    name, texts = term.name, frozenset(strings)

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in texts) is is_in

    return _made_of([term], evaluate)


def _shown(term: Term) -> str:
    if isinstance(term.value, str) and term.kind is Kind.CONSTANT:
        return f"'{term.value[:80]}'"
    return term.kind.value


# Logic


def as_condition(term: Term) -> Term:
    """A term where a condition is wanted: a property alone is none that is ever true. Raises BadExpression."""
    if term.is_boolean:
        return term
    if term.name is None:
        raise BadExpression(f"{term.kind.value} is no condition")
    name = term.name
    return _made_of([term], lambda properties: None if properties.get(name) is None else False)


def either(terms: Sequence[Term]) -> Term:
    """`a OR b OR ...`"""
    return _chain(terms, True)


def both(terms: Sequence[Term]) -> Term:
    """`a AND b AND ...`"""
    return _chain(terms, False)


def _chain(terms: Sequence[Term], decisive: bool) -> Term:
    """Conditions of which one that is `decisive` decides: what is behind it is not asked for, and cannot fail."""
    parts = [as_condition(term) for term in terms]
    evaluates = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> Value:
        result: Value = not decisive
        for one in evaluates:
            value = one(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _made_of(parts, evaluate)


def negation(term: Term) -> Term:
    """`NOT a`"""
    part = as_condition(term)
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _made_of([part], evaluate)
