"""Expressions evaluated for the properties of one message."""

from collections.abc import Mapping

from mqbroker.errors import NotEvaluable
from mqbroker.filter import Expression


def evaluate(expression: Expression, properties: Mapping[str, str]) -> bool | None:
    """True, False, or None for null. Raises NotEvaluable if a property cannot be compared."""
    return expression._evaluate(*map(properties.get, expression._names))


def matches(expression: Expression, properties: Mapping[str, str]) -> bool:
    """Whether it is true for a message; False if it cannot be evaluated."""
    try:
        return evaluate(expression, properties) is True
    except NotEvaluable:
        return False
