"""The syntax tree of filter expressions: nested terms, each of which generates a Python expression.

`compiled` generates one function of a condition, from the values of its properties to True, False or None for null. Its
source has only text from this module: names and constants of an expression are objects that it refers to, never part of
the source. Constructors of terms refuse what the Java broker refuses when it parses an expression. Source: the
expression package of the filter module 4.9.7. Knows nothing of the grammar.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from itertools import count

import attrs

from mqbroker.errors import BadExpression
from mqbroker.filter.values import (
    INTEGER_MAX,
    LONG_MAX,
    Long,
    Value,
    compare,
    compare_doubles,
    parse_double,
    parse_integer,
    parse_long,
)

#: Function of the values of an expression's properties, None for missing ones. Raises NotEvaluable if one cannot be
#: compared.
Evaluate = Callable[..., bool | None]

#: Maximum depth of terms; a chain of ANDs or ORs is one level.
DEPTH_MAX = 100
#: Maximum depth in one generated function; deeper terms get their own. Python allows 200 parentheses.
_LEVELS_MAX = 10
_DOUBLE_MIN = 5e-324
_DOUBLE_MAX = 1.7976931348623157e308


class Kind(enum.Enum):
    """Kinds of terms that the Java broker distinguishes when it parses an expression."""

    CONSTANT = "a constant"
    BOOLEAN_CONSTANT = "TRUE, FALSE or NULL"
    PROPERTY = "a property"
    CONDITION = "a condition"
    NEGATED = "a negated term"


@attrs.frozen(eq=False)
class Term:
    """A part of an expression.

    `write`: generates its Python source. `value`: of a constant or negated number. `name`: of a property. `size`:
    number of terms, without strings and numbers. `names`: its properties.
    """

    kind: Kind
    write: Callable[[Writer], str]
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
        """Whether it is a literal number."""
        is_written = self.kind is Kind.CONSTANT or self.kind is Kind.NEGATED
        return is_written and self.value is not None and not isinstance(self.value, (str, bool))


class Writer:
    """The source of generated functions, and the objects that it refers to."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {"__builtins__": {}, **_WORDS}
        self._functions: list[str] = []
        self._variables: dict[str, str] = {}
        self._numbers = count()
        self._level = 0

    def new(self, letter: str) -> str:
        """An unused name."""
        return f"{letter}{next(self._numbers)}"

    def constant(self, value: object) -> str:
        """A name for an object."""
        name = self.new("k")
        self.objects[name] = value
        return name

    def variable(self, name: str) -> str:
        """The variable with the value of a property."""
        if name not in self._variables:
            self._variables[name] = self.new("v")
        return self._variables[name]

    def text(self, term: Term) -> str:
        """The source of a part of a term."""
        if self._level >= _LEVELS_MAX:
            return f"{self.function(term)}({', '.join(map(self.variable, sorted(term.names)))})"
        self._level += 1
        text = term.write(self)
        self._level -= 1
        return text

    def function(self, term: Term) -> str:
        """Generate a function of the values of a term's properties, in the order of their names; returns its name."""
        level, self._level = self._level, 0
        text = self.text(term)
        self._level = level
        name = self.new("f")
        variables = ", ".join(map(self.variable, sorted(term.names)))
        self._functions.append(f"def {name}({variables}): return {text}\n")
        return name

    def made(self, name: str) -> Evaluate:
        """Compile the source; returns the function with a name."""
        exec(compile("".join(self._functions), "<filter expression>", "exec"), self.objects)
        function: Evaluate = self.objects[name]  # type: ignore[assignment]
        return function


def compiled(condition: Term) -> Evaluate:
    """The function of the values of a condition's properties, in the order of their names."""
    writer = Writer()
    return writer.made(writer.function(condition))


def _made_of(
    parts: Sequence[Term], write: Callable[[Writer], str], kind: Kind = Kind.CONDITION, value: Value = None
) -> Term:
    """A term of others. Raises BadExpression if they are nested too deep."""
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise BadExpression(f"terms stand in each other more than {DEPTH_MAX} deep; write it with fewer parentheses")
    names = frozenset[str]().union(*[part.names for part in parts])
    return Term(kind, write, depth, max(1, sum([part.size for part in parts])), value, names=names)


def _of_property(parts: Sequence[Term], text: str, constant: object = None) -> Term:
    """A condition on a property, the first of `parts`, by the source `text` with its value {v} and a constant {k}; null
    if the value is."""

    def write(writer: Writer) -> str:
        value = writer.text(parts[0])
        return f"(None if {value} is None else {text.format(v=value, k=writer.constant(constant))})"

    return _made_of(parts, write)


# Constants and properties


def constant(value: Value) -> Term:
    """A literal: TRUE, FALSE and NULL are conditions themselves, numbers and strings are not."""
    kind = Kind.BOOLEAN_CONSTANT if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Term(kind, lambda writer: writer.constant(value), size=int(kind is Kind.BOOLEAN_CONSTANT), value=value)


def decimal(digits: str) -> Term:
    """A whole number, with optional suffix L. Raises BadExpression."""
    text = digits.rstrip("lL")
    number = int(text) if len(text) <= len(str(LONG_MAX)) else LONG_MAX + 1
    if number > LONG_MAX:
        raise BadExpression(f"{text[:40]} is above {LONG_MAX}")
    return constant(number if number <= INTEGER_MAX else Long(number))


def floating(text: str) -> Term:
    """A number with a point or an exponent. Raises BadExpression, also for zero."""
    number = float(text)
    if number > _DOUBLE_MAX:
        raise BadExpression(f"{text[:40]} is greater than {_DOUBLE_MAX}")
    if number < _DOUBLE_MIN:
        raise BadExpression(f"{text[:40]} is less than {_DOUBLE_MIN}")
    return constant(number)


def property_named(name: str) -> Term:
    """The value of a message's property; null if it is missing."""
    return Term(Kind.PROPERTY, lambda writer: writer.variable(name), name=name, names=frozenset([name]))


def negated(term: Term) -> Term:
    """`-a`; null unless `a` is a number, which no property is."""
    value = _minus(term.value) if term.is_number else None
    return _made_of([term], lambda writer: f"minus({writer.text(term)})", Kind.NEGATED, value)


def _minus(number: Value) -> Value:
    if number is None or isinstance(number, (bool, str)):
        return None
    return Long(-number) if isinstance(number, Long) else -number


# Comparisons


def ordered(left: Term, sign: str, right: Term) -> Term:
    """`a < b` and the like. Raises BadExpression if one of them has no order."""
    for term in (left, right):
        if (term.is_constant or term.is_boolean) and not term.is_number:
            raise BadExpression(f"{_shown(term)} cannot be compared by {sign}: only numbers can")
    return _compared_with_number(left, sign, right) or _called(_ORDERS[sign], left, right)


def _called(word: str, left: Term, right: Term) -> Term:
    return _made_of([left, right], lambda writer: f"{word}({writer.text(left)}, {writer.text(right)})")


def _compared_with_number(left: Term, sign: str, right: Term) -> Term | None:
    """The source of the usual comparison of a property with a number, as by `compare`; None for other ones."""
    if left.name is None or not right.is_number:
        return None
    if isinstance(right.value, float):
        return _of_property([left, right], f"compare_doubles(double({{v}}), {{k}}) {sign} 0", right.value)
    read = "long" if isinstance(right.value, Long) else "integer"
    return _of_property([left, right], f"{read}({{v}}) {sign} {{k}}", right.value)


def _ordering(order: Callable[[int, int], bool]) -> Callable[[Value, Value], bool | None]:
    def is_ordered(left: Value, right: Value) -> bool | None:
        if left is None or right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            return order(compare_doubles(parse_double(left), parse_double(right)), 0)
        return order(compare(left, right), 0)

    return is_ordered


def equal(left: Term, right: Term) -> Term:
    """`a = b`. Raises BadExpression for what never equals anything."""
    for term in (left, right):
        if term.is_constant and term.value is None:
            raise BadExpression("NULL cannot be compared; use IS NULL or IS NOT NULL")
    if left.kind is Kind.BOOLEAN_CONSTANT and right.kind is Kind.CONSTANT:
        raise BadExpression(f"{_shown(left)} cannot be compared with {_shown(right)}")
    if left.name is not None and isinstance(right.value, str):
        return _of_property([left, right], "{v} == {k}", right.value)
    return _compared_with_number(left, "==", right) or _called("equal", left, right)


def is_null(term: Term) -> Term:
    """`a IS NULL`"""
    if term.name is not None:
        return _made_of([term], lambda writer: f"({writer.text(term)} is None)")
    return _called("equal", term, constant(None))


def _is_equal(left: Value, right: Value) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return compare(left, right) == 0


def between(term: Term, low: Term, high: Term) -> Term:
    """`a BETWEEN low AND high`. Raises BadExpression if nothing can match."""
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
    """`a IN ('x', 'y')`, or NOT IN. Raises BadExpression unless `a` is a property."""
    if term.name is None:
        raise BadExpression(f"IN takes a property on its left, not {term.kind.value}")
    return _of_property([term], "{v} in {k}" if is_in else "{v} not in {k}", frozenset(strings))


def _shown(term: Term) -> str:
    if isinstance(term.value, str) and term.kind is Kind.CONSTANT:
        return f"'{term.value[:80]}'"
    return term.kind.value


# Logic


def as_condition(term: Term) -> Term:
    """A term used as condition: a property alone is never true. Raises BadExpression."""
    if term.is_boolean:
        return term
    if term.name is None:
        raise BadExpression(f"{term.kind.value} is not a condition")
    return _of_property([term], "False")


def either(terms: Sequence[Term]) -> Term:
    """`a OR b OR ...`"""
    return _chain(terms, "True", "is True", "False")


def both(terms: Sequence[Term]) -> Term:
    """`a AND b AND ...`"""
    return _chain(terms, "False", "is False", "True")


def _chain(terms: Sequence[Term], decisive: str, is_decisive: str, other: str) -> Term:
    """A chain of conditions that ends at the first `decisive` value: later ones are not evaluated, and cannot fail."""
    parts = [as_condition(term) for term in terms]

    def write(writer: Writer) -> str:
        texts = [(writer.new("t"), writer.text(part)) for part in parts]
        decides = " or ".join([f"({name} := {text}) {is_decisive}" for name, text in texts])
        is_null = " or ".join([f"{name} is None" for name, _ in texts])
        return f"({decisive} if {decides} else None if {is_null} else {other})"

    return _made_of(parts, write)


def negation(term: Term) -> Term:
    """`NOT a`"""
    part = as_condition(term)

    def write(writer: Writer) -> str:
        name = writer.new("t")
        return f"(None if ({name} := {writer.text(part)}) is None else not {name})"

    return _made_of([part], write)


_ORDERS = {"<": "less", "<=": "less_or_equal", ">": "greater", ">=": "greater_or_equal"}
#: Names that generated source may use, besides variables and constants.
_WORDS: dict[str, object] = {
    "less": _ordering(operator.lt),
    "less_or_equal": _ordering(operator.le),
    "greater": _ordering(operator.gt),
    "greater_or_equal": _ordering(operator.ge),
    "equal": _is_equal,
    "minus": _minus,
    "compare_doubles": compare_doubles,
    "integer": parse_integer,
    "long": parse_long,
    "double": parse_double,
}
