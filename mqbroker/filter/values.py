"""Values of filter expressions and their comparison by Java's types, which decide how a string is parsed.

A value is a string (every property is one), a whole number of 32 or 64 bits, a double, a boolean, or null. Strings are
parsed as the type that they are compared with, by the rules of Java's `valueOf`. Source: ComparisonExpression of the
filter module 4.9.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from mqbroker.errors import NotEvaluable


class Long(int):
    """A whole number of 64 bits; an `int` is one of 32. The type bounds the number in a compared string."""


Value = str | bool | int | float | None

INTEGER_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
_DIGITS_MAX = 19
#: Fewer digits than these are a number of 32 bits.
_SURE_DIGITS = 10

_WHOLE = re.compile(r"([+-]?)(\d+)")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|0[xX](?P<hex>[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
#: Characters that Java's String.trim removes.
_BLANKS = "".join(map(chr, range(0x21)))


def _parser_within(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if len(text) < _SURE_DIGITS and text.isdigit() and text.isascii():  # as most are
            return int(text)
        match = _WHOLE.fullmatch(text)
        if match is None or max(text) > "\uffff":  # Java checks UTF-16 code units, of which none beyond is a digit
            raise NotEvaluable(f"{text[:80]!r} is not an integer")
        digits = match[2].lstrip("0") or "0"
        number = int(match[1] + digits) if len(digits) <= _DIGITS_MAX else high + 1
        if not low <= number <= high:
            raise NotEvaluable(f"{text[:80]!r} is not within {low}..{high}")
        return number

    return parse


#: Read a string as Java's `Integer.valueOf` and `Long.valueOf`. Raise NotEvaluable.
parse_integer = _parser_within(-(2**31), INTEGER_MAX)
parse_long = _parser_within(-(2**63), LONG_MAX)


def parse_double(text: str) -> float:
    """Parse a string as Java's `Double.valueOf`: surrounding blanks are ignored, and a suffix d or f is allowed.

    Raises NotEvaluable.
    """
    if len(text) < _SURE_DIGITS and text.isdigit() and text.isascii():  # as most are
        return float(text)
    text = text.strip(_BLANKS)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise NotEvaluable(f"{text[:80]!r} is not a number")
    if match["hex"] is not None:
        try:
            return float.fromhex(text.rstrip("fFdD"))
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    if text[-1] in "fFdD":
        text = text[:-1]
    return float(text)


def compare_doubles(left: float, right: float) -> int:
    """Negative, 0 or positive as `Double.compareTo`: NaN equals itself and is above all, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    """The order of values that `<` and `>` do not distinguish."""
    if number != number:
        return 2
    return 0 if number == 0 and math.copysign(1, number) < 0 else 1


def compare(left: Value, right: Value) -> int:
    """Negative, 0 or positive; -1 for values without order. Neither is null.

    Raises NotEvaluable if a string cannot be parsed as the other's type, and for a boolean on the left of a string, on
    which Java brokers fail.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_boolean(left, right)
    assert left is not None
    assert right is not None
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)  # only equality matters here
        left = _read_as(right, left)
    elif isinstance(right, str):
        right = _read_as(left, right)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _compare_boolean(left: Value, right: Value) -> int:
    if isinstance(left, str):
        left = left.lower() == "true"
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    if isinstance(right, str):
        raise NotEvaluable("a boolean on the left cannot be compared with a string on the right")
    return -1


def _read_as(other: int | float, text: str) -> int | float:
    """Parse a string as a number of the other's type."""
    if isinstance(other, float):
        return parse_double(text)
    return parse_long(text) if isinstance(other, Long) else parse_integer(text)
