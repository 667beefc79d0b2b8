"""SQL92 expressions, compiled once and kept: what is bounded, and what a message's properties make of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import attrs

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter.generated import Pick, generate
from mqbroker.filter.grammar import parse
from mqbroker.filter.lookup import Properties
from mqbroker.filter.sifting import sifted
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
    #: Which of some messages it is true of: what takes the least time. See `Pick`.
    pick: Pick = attrs.field(eq=False, repr=False)
    #: How many terms it has: what a message costs.
    size: int = attrs.field(default=1, eq=False, repr=False)

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


_kept: OrderedDict[str, Expression | BadExpression] = OrderedDict()


def compile_expression(text: str, charge: Callable[[int], None] | None = None) -> Expression:
    """Compile an expression, or take it from those that are kept. Raises BadExpression.

    `charge` is called with the number of its characters where it has to be read; what that raises is passed on.
    """
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise BadExpression(f"the expression has {len(text)} characters; at most {EXPRESSION_LENGTH_MAX} are taken")
    compiled = _kept.get(text)
    if compiled is None:
        if charge is not None:
            charge(len(text))
        compiled = _kept[text] = _compiled(text)
        if len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    else:
        _kept.move_to_end(text)
    if isinstance(compiled, BadExpression):
        raise BadExpression(*compiled.args)
    return compiled


def _compiled(text: str) -> Expression | BadExpression:
    try:
        condition = as_condition(parse(text))
        return Expression(text, condition.evaluate, sifted(condition, generate(condition)), condition.size)
    except BadExpression as why:
        return why
