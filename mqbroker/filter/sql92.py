"""SQL92 expressions: compiled once, cached, and evaluated for messages' properties; and their bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, count, islice, product, repeat
from math import prod
from typing import Any

import attrs

from mqbroker.errors import BadExpression, NotEvaluable
from mqbroker.filter.conditions import Evaluate, as_condition, compiled
from mqbroker.filter.grammar import parse
from mqbroker.wire.properties import find_in_each, find_property, find_values

#: Maximum characters of an expression. Parsing blocks the reactor.
EXPRESSION_LENGTH_MAX = 16_384
#: Compiled expressions that are cached, refused ones included.
KEPT_MAX = 256
#: Cached outcomes per combination of present properties, and number of such combinations; maximum bytes of the values
#: of a cached outcome, plus one each.
OUTCOMES_MAX = 1024
COMBINATIONS_MAX = 8
OUTCOME_BYTES_MAX = 128
#: How many times the cache is skipped once it was full.
NOT_KEPT = 64
#: Minimum number of messages for which values are collected; and how often that is skipped after it was in vain.
TOGETHER_MIN = 32
VAIN = 8

#: A message's properties by name.
Properties = Mapping[str, str]


@attrs.frozen
class Expression:
    """A compiled expression. `size`: its number of terms."""

    text: str
    _evaluate: Evaluate = attrs.field(eq=False, repr=False)
    _names: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    size: int = attrs.field(default=1, eq=False, repr=False)
    #: The names in the form of `find_in_each`, and their places.
    _marks: list[bytes] = attrs.field(init=False, eq=False, repr=False)
    _all: tuple[int, ...] = attrs.field(init=False, eq=False, repr=False)
    #: Outcomes by the places of the present properties.
    _outcomes: dict[tuple[int, ...], _Outcomes] = attrs.field(init=False, factory=dict, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_marks", [name.encode() + b"\1" for name in self._names])
        object.__setattr__(self, "_all", tuple(range(len(self._names))))

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False, or None for null. Raises NotEvaluable if a property cannot be compared."""
        return self._evaluate(*map(properties.get, self._names))

    def matches(self, properties: Properties) -> bool:
        """Whether it is true for a message; False if it cannot be evaluated."""
        return _true_of_each(self._evaluate, [map(properties.get, self._names)])[0]

    def pick(self, messages: Sequence[bytes], most: int) -> list[int]:
        """The indexes of the first so many messages for which it is true, given the property bytes of each. Hot."""
        if len(messages) == 1:
            found = [find_property(messages[0], mark) for mark in self._marks]
            return [0][:most] if self._of(self._all)[found[0] if len(found) == 1 else tuple(found)] else []
        together = b"\2".join([b"", *messages])
        which = tuple([place for place, mark in enumerate(self._marks) if mark in together])
        outcomes = self._of(which)
        if not which:
            return list(range(len(messages))[:most]) if outcomes[()] else []
        if not outcomes.gathered_after and len(messages) >= TOGETHER_MIN:
            if outcomes.are_none_true([find_values(together, self._marks[place]) for place in which], len(messages)):
                return []
            outcomes.gathered_after = VAIN
        columns = [find_in_each(messages, self._marks[place]) for place in which]
        picked = list(islice(compress(count(), outcomes.of_each(columns)), most))
        if picked:
            outcomes.gathered_after = outcomes.gathered_after or 1
        elif outcomes.gathered_after:
            outcomes.gathered_after -= 1
        return picked

    def _of(self, which: tuple[int, ...]) -> _Outcomes:
        """The outcomes of messages that have exactly the properties at some places."""
        outcomes = self._outcomes.get(which)
        if outcomes is None:
            if len(self._outcomes) >= COMBINATIONS_MAX:
                self._outcomes.clear()
            outcomes = self._outcomes[which] = _Outcomes(self._evaluate, which, len(self._names))
        return outcomes


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
    """Cached outcomes of an expression by the values of the present properties: the key is a value, or a tuple of
    several. Usually few messages differ, and a lookup takes a fifth of the time of an evaluation; if too many differ,
    the cache is off for a while."""

    def __init__(self, evaluate: Evaluate, which: Sequence[int], names: int) -> None:
        self._evaluate = evaluate
        self._which = which
        self._names = names
        self._not_kept = 0
        self._none_true: frozenset[Any] = frozenset()
        #: Values of many messages are collected after none was picked so many times.
        self.gathered_after = 1

    def of_each(self, columns: list[list[bytes]]) -> Iterable[bool]:
        """Whether it is true for each message, given the values of each property. Hot."""
        if self._not_kept:
            self._not_kept -= 1
            return self._of_each(columns)
        return map(self.__getitem__, columns[0] if len(columns) == 1 else zip(*columns, strict=True))

    def are_none_true(self, values: Sequence[list[bytes]], count: int) -> bool:
        """Whether it is certainly true for none of `count` messages, by the values that each property has in any of
        them: collecting these takes half the time of finding those of each message. Hot."""
        if len(values) == 1:
            if self._none_true and self._none_true.issuperset(values[0]):
                return True
            keys = frozenset[Any]([b"", *values[0]])
        else:
            differing = [{b"", *each} for each in values]
            if prod(map(len, differing)) > 2 * count:
                return False
            keys = frozenset(product(*differing))
            if keys <= self._none_true:
                return True
        unknown = keys.difference(self)
        if 4 * len(unknown) > count or any(map(self.__getitem__, keys)):
            return False
        if not unknown:  # nor is any of them long
            self._none_true = keys if len(self._none_true) > OUTCOMES_MAX else self._none_true | keys
        return True

    def __missing__(self, key: Any) -> bool:
        found = [key] if isinstance(key, bytes) else key
        values: list[str | None] = [None] * self._names
        for place, value in zip(self._which, found, strict=True):
            if value:
                values[place] = value.decode("utf-8", "replace")
        (outcome,) = _true_of_each(self._evaluate, [values])
        if len(self) >= OUTCOMES_MAX:
            self.clear()
            self._not_kept = NOT_KEPT
        elif sum(map(len, found), len(found)) <= OUTCOME_BYTES_MAX:
            self[key] = outcome
        return outcome

    def _of_each(self, columns: Sequence[Sequence[bytes]]) -> list[bool]:
        texts: list[Iterable[str | None]] = [repeat(None)] * self._names
        for place, values in zip(self._which, columns, strict=True):
            texts[place] = [value.decode("utf-8", "replace") if value else None for value in values]
        return _true_of_each(self._evaluate, zip(*texts, strict=False))


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
        return Expression(text, compiled(condition), tuple(sorted(condition.names)), condition.size)
    except BadExpression as why:
        return why
