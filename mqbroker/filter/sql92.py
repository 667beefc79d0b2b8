"""SQL92 expressions, compiled once and kept: what is bounded, and what a message's properties make of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, compress, count, islice, product
from math import prod

import attrs

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter.conditions import Evaluate, Properties, as_condition
from mqbroker.filter.grammar import parse
from mqbroker.wire.properties import find_in_each, find_property, value_finder

#: Characters of an expression. Reading takes time in which nobody else is served.
EXPRESSION_LENGTH_MAX = 16_384
#: Expressions that are kept compiled, and refusals with them.
KEPT_MAX = 256
#: Outcomes that are kept of an expression, and how many bytes the values may have that one is kept by.
OUTCOMES_MAX = 1024
OUTCOME_BYTES_MAX = 128
#: Of fewer messages than these the values are not gathered, also where none of the last messages was picked.
TOGETHER_MIN = 32
#: Nor by an expression of more terms: values that no message has together are asked after, too.
TOGETHER_SIZE_MAX = 16
#: Bytes of values so gathered that are kept.
TOGETHER_BYTES_MAX = 16_384


@attrs.frozen
class Expression:
    """A compiled expression. `size`: how many terms it has."""

    text: str
    _evaluate: Evaluate = attrs.field(eq=False, repr=False)
    _names: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    size: int = attrs.field(default=1, eq=False, repr=False)
    _outcomes: _Outcomes = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_outcomes", _Outcomes(self))

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

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        """Which of some messages, of each of which the property bytes are given, it is true of: the places, in order,
        of the first so many. Hot."""
        outcomes = self._outcomes
        if not self._names:
            return list(range(len(messages))[:most]) if self.matches({}) else []
        if len(messages) == 1:
            (one,) = messages
            return [0][:most] if outcomes[tuple([find_property(one, mark) for mark in outcomes.marks])] else []
        is_gathered = outcomes.were_none and len(messages) >= TOGETHER_MIN and self.size <= TOGETHER_SIZE_MAX
        if is_gathered and not outcomes.may_be_true_of_any(messages):
            return []
        values = zip(*find_in_each(messages, outcomes.marks), strict=True)
        picked = list(islice(compress(count(), map(outcomes.__getitem__, values)), most))
        outcomes.were_none = not picked and not is_gathered  # what was in vain is not tried again at once
        return picked


class _Outcomes(dict[tuple[bytes, ...], bool]):
    """Whether an expression is true of a message, by the values of the properties that it names: of many messages few
    differ in these, and to look one up takes a tenth of the time of an evaluation.

    `were_none`: whether the last messages held none that was picked. `marks`: the names, as `find_property` has them.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self.were_none = False
        self.marks = [name.encode() + b"\1" for name in expression._names]
        #: Values of each name, in whichever combination of which it is not true.
        self._of_none: list[set[bytes]] = [set() for _ in self.marks]
        self._finders = [value_finder(mark) for mark in self.marks]

    def __missing__(self, found: tuple[bytes, ...]) -> bool:
        expression = self._expression
        named = zip(expression._names, found, strict=True)
        outcome = expression.matches({name: value.decode("utf-8", "replace") for name, value in named if value})
        if sum(map(len, found)) <= OUTCOME_BYTES_MAX:
            if len(self) >= OUTCOMES_MAX:
                self.clear()
            self[found] = outcome
        return outcome

    def may_be_true_of_any(self, messages: Sequence[bytes]) -> bool:
        """Whether it may be true of one of some messages, by the values that each of its names has in any of them:
        False is sure. To gather these takes half of the time of finding those of each message. Hot."""
        together = b"\2".join([b"", *messages])
        values = [find(together) for find in self._finders]
        if all(map(set.issubset, values, self._of_none)):
            return False
        # Of one name that differs there are as many as messages, and none besides.
        if prod(map(len, values)) > 2 * len(messages) or any(map(self.__getitem__, product(*values))):
            return True
        if sum(map(len, chain(*values))) <= TOGETHER_BYTES_MAX:
            self._of_none = values
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
        return Expression(text, condition.evaluate, tuple(sorted(condition.names)), condition.size)
    except BadExpression as why:
        return why
