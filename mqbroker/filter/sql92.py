"""SQL92 expressions: compiled once, cached, and evaluated for messages' properties; and their bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count, islice
from typing import Any
from weakref import WeakValueDictionary

import attrs

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter.conditions import Evaluate, as_condition, compiled
from mqbroker.filter.grammar import parse
from mqbroker.kernel import compiled as compiled_module
from mqbroker.wire.properties import find_in_each

#: Maximum characters of an expression. Parsing blocks the reactor.
EXPRESSION_LENGTH_MAX = 16_384
#: Compiled expressions that are cached, refused ones included; and characters of all of them, each of which takes some
#: 300 bytes of memory.
KEPT_MAX = 256
KEPT_CHARACTERS_MAX = 131_072
#: Cached outcomes of an expression, and of all; maximum bytes of the values of one, plus one each.
OUTCOMES_MAX = 1024
ALL_OUTCOMES_MAX = 131_072
OUTCOME_BYTES_MAX = 128
#: How many times the cache is skipped once it was full.
NOT_KEPT = 64


@attrs.frozen
class Expression:
    """A compiled expression. `size`: its number of terms."""

    text: str
    _evaluate: Evaluate = attrs.field(eq=False, repr=False)
    _names: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    size: int = attrs.field(default=1, eq=False, repr=False)
    #: The names in the form of `find_in_each`.
    _marks: list[bytes] = attrs.field(init=False, eq=False, repr=False)
    _outcomes: _Outcomes = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_marks", [name.encode() + b"\1" for name in self._names])
        object.__setattr__(self, "_outcomes", _Outcomes(lambda *found: self._evaluate(*found)))

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        """The indexes of the first so many messages for which it is true, given the property bytes of each. Hot."""
        marks = self._marks
        if not marks:
            return list(range(len(messages))[:most]) if self._outcomes[()] else []
        rows: Sequence[Any]
        if compiled_module is not None:
            rows = compiled_module.values_of(messages, marks)
        else:
            columns = [find_in_each(messages, mark) for mark in marks]
            rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return list(islice(compress(count(), self._outcomes.of_each(rows)), most))


def _true_of_each(evaluate: Evaluate, rows: Iterable[Iterable[str | None]]) -> list[bool]:
    """Whether an expression is true for messages with the given values. Hot."""
    found = []
    for values in rows:
        try:
            found.append(evaluate(*values) is True)
        except NotEvaluable:
            found.append(False)
    return found


class _Outcomes(dict[Any, bool]):
    """Cached outcomes of an expression by the values of its properties: the key is a value, or a tuple of several.
    Usually few messages differ, and a lookup takes a fifth of the time of an evaluation; if too many differ, the cache
    is off for a while."""

    #: How many were kept since all were dropped last, of all expressions.
    kept = 0

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._not_kept = 0
        _all_outcomes[id(self)] = self

    def of_each(self, rows: Sequence[Any]) -> Iterable[bool]:
        """Whether it is true for each message, given its values. Hot."""
        if self._not_kept:
            self._not_kept -= 1
            return _true_of_each(self._evaluate, map(_texts, rows))
        return map(self.__getitem__, rows)

    def __missing__(self, key: Any) -> bool:
        (outcome,) = _true_of_each(self._evaluate, [_texts(key)])
        found = (key,) if isinstance(key, bytes) else key
        if len(self) >= OUTCOMES_MAX:
            self.clear()
            self._not_kept = NOT_KEPT
        elif _Outcomes.kept >= ALL_OUTCOMES_MAX:
            for each in list(_all_outcomes.values()):
                each.clear()
            _Outcomes.kept = 0
        elif sum(map(len, found), len(found)) <= OUTCOME_BYTES_MAX:
            self[key] = outcome
            _Outcomes.kept += 1
        return outcome


def _texts(key: Any) -> list[str | None]:
    """The values of a message's properties; None where it has none."""
    found = (key,) if isinstance(key, bytes) else key
    return [value.decode("utf-8", "replace") if value else None for value in found]


_all_outcomes: WeakValueDictionary[int, _Outcomes] = WeakValueDictionary()
_kept: OrderedDict[str, Expression | BadExpression] = OrderedDict()


def compile_expression(text: str, charge: Callable[[int], None] | None = None) -> Expression:
    """Compile an expression, or return the cached one. Raises BadExpression.

    `charge` is called with the number of its characters if it must be parsed; its exceptions are passed on.
    """
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise BadExpression(f"the expression has {len(text)} characters; at most {EXPRESSION_LENGTH_MAX} are taken")
    compiled = _kept.get(text)
    if compiled is None:
        if charge is not None:
            charge(len(text))
        compiled = _kept[text] = _compiled(text)
        while len(_kept) > KEPT_MAX or sum(map(len, _kept)) > KEPT_CHARACTERS_MAX:
            _kept.popitem(last=False)
    else:
        _kept.move_to_end(text)
    if isinstance(compiled, BadExpression):
        raise BadExpression(*compiled.args)
    return compiled


def _compiled(text: str) -> Expression | BadExpression:
    try:
        condition = as_condition(parse(text))
        return Expression(text, compiled(condition), tuple(sorted(condition.names)), condition.size)
    except BadExpression as why:
        return why
