"""SQL92 expressions, compiled once and kept: what is bounded, and what a message's properties make of them."""

from __future__ import annotations

import functools

import attrs

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter.grammar import parse
from mqbroker.filter.lookup import Properties
from mqbroker.filter.terms import Evaluate, as_condition

#: Characters of an expression. Reading takes time in which nobody else is served.
EXPRESSION_LENGTH_MAX = 16_384
#: Expressions that are kept compiled, and refusals with them.
KEPT_MAX = 256


@attrs.frozen
class Expression:
    """A compiled expression."""

    text: str
    _evaluate: Evaluate = attrs.field(eq=False, repr=False)

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False, or None for null. Raises NotEvaluable where a property cannot be compared as it is written."""
        value = self._evaluate(properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: Properties) -> bool:
        """Whether it is true of a message; it is not where it cannot be evaluated."""
        try:
            return self._evaluate(properties) is True
        except NotEvaluable:
            return False


def compile_expression(text: str) -> Expression:
    """Compile an expression, or take it from those that are kept. Raises BadExpression."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise BadExpression(f"the expression has {len(text)} characters; at most {EXPRESSION_LENGTH_MAX} are taken")
    compiled = _compiled(text)
    if isinstance(compiled, BadExpression):
        raise BadExpression(*compiled.args)
    return compiled


@functools.lru_cache(maxsize=KEPT_MAX)
def _compiled(text: str) -> Expression | BadExpression:
    try:
        return Expression(text, as_condition(parse(text)).evaluate)
    except BadExpression as why:
        return why
