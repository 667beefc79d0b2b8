"""What filter expressions are read as: terms in each other, each with a closure from a message's properties to a value.

Checks when a term is made refuse what the Java broker refuses when it reads an expression. Logic has three values:
None stands for null. The closures say what an expression means; `generated.py` makes a quicker function of the terms.
Source: the expression package of the filter module 4.9.7. Must never know of the grammar.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import attrs

from mqbroker.errors import BadExpression
from mqbroker.filter.lookup import Properties, finder, text_of
from mqbroker.filter.values import INTEGER_MAX, LONG_MAX, Long, Value

Evaluate = Callable[[Properties], Value]

#: How deep terms may stand in each other; a chain of ANDs or ORs is one.
DEPTH_MAX = 100
_DOUBLE_MIN = 5e-324
_DOUBLE_MAX = 1.7976931348623157e308

_CALL = "{0}({value})"


class Kind(enum.Enum):
    """What the Java broker tells apart when it reads an expression."""

    CONSTANT = "a constant"
    BOOLEAN_CONSTANT = "TRUE, FALSE or NULL"
    PROPERTY = "a property"
    CONDITION = "a condition"
    NEGATED = "a negated term"


@attrs.frozen(eq=False)
class Test:
    """What a condition asks of a value of one property, `name`; where there is none it is `of_none`.

    `text`: the same in Python, where that is quicker than a call, of the bytes {value} and `constants` {0}, {1}, ...
    """

    name: str
    holds: Callable[[bytes | str], bool]
    text: str
    constants: tuple[object, ...] = ()
    of_none: bool | None = None

    @classmethod
    def called(cls, name: str, holds: Callable[[bytes | str], bool]) -> Test:
        """For what no text of a few words says."""
        return cls(name, holds, _CALL, (holds,))


class Join(enum.Enum):
    """How conditions are put together."""

    AND = "AND"
    OR = "OR"
    NOT = "NOT"


@attrs.frozen(eq=False)
class Term:
    """A part of an expression. `value` is a constant's or a negated number's; `name` is a property's.

    A condition is made of `parts`, by `join`, or it is a `test`; or neither, and only `evaluate` says what it is.
    `size`: how many terms it has.
    """

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    size: int = 1
    value: Value = None
    name: str | None = None
    test: Test | None = None
    join: Join | None = None
    parts: tuple[Term, ...] = ()

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


def condition(evaluate: Evaluate, *parts: Term, join: Join | None = None) -> Term:
    """A condition on `parts`. Raises BadExpression where they stand in each other too deep."""
    size = sum([part.size for part in parts])
    return Term(Kind.CONDITION, evaluate, _above(*parts), size, join=join, parts=parts if join else ())


def tested(test: Test, *parts: Term) -> Term:
    """A condition that is a test; `parts` are the terms it was made of. Raises BadExpression as `condition` does."""
    find, holds, of_none = finder(test.name), test.holds, test.of_none

    def evaluate(properties: Properties) -> Value:
        found = find(properties)
        return of_none if found is None else holds(found)

    return Term(Kind.CONDITION, evaluate, _above(*parts), test=test)


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
    return Term(Kind.PROPERTY, lambda properties: text_of(find(properties)), name=name)


# Logic


def as_condition(term: Term) -> Term:
    """A term where a condition is wanted: a property alone is none that is ever true. Raises BadExpression."""
    if term.is_boolean:
        return term
    if term.name is None:
        raise BadExpression(f"{term.kind.value} is no condition")
    return tested(Test(term.name, lambda found: False, "False"), term)


def either(terms: Sequence[Term]) -> Term:
    """`a OR b OR ...`"""
    parts = tuple(as_condition(term) for term in terms)
    evaluates = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> Value:
        result: Value = False
        for one in evaluates:
            value = one(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return condition(evaluate, *parts, join=Join.OR)


def both(terms: Sequence[Term]) -> Term:
    """`a AND b AND ...`"""
    parts = tuple(as_condition(term) for term in terms)
    evaluates = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> Value:
        result: Value = True
        for one in evaluates:
            value = one(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return condition(evaluate, *parts, join=Join.AND)


def negation(term: Term) -> Term:
    """`NOT a`"""
    part = as_condition(term)
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return condition(evaluate, part, join=Join.NOT)


def negated(term: Term) -> Term:
    """`-a`: null unless that is a number, which no property is."""
    inner = term.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if value is None or isinstance(value, (bool, str)):
            return None
        return _minus(value)

    value = term.number
    return Term(Kind.NEGATED, evaluate, _above(term), term.size, None if value is None else _minus(value))


def _minus(number: float) -> float:
    return Long(-number) if isinstance(number, Long) else -number
