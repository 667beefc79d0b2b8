"""The grammar of filter expressions: that of SelectorParser of the filter module 4.9.7, which has no arithmetic.

As there, an expression ends where it cannot be parsed further: tokens after a complete condition are ignored, if they
are valid tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqbroker.errors import BadExpression
from mqbroker.filter import conditions as c
from mqbroker.filter.conditions import Term

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

# Letters are ASCII's, in words of either case. Of two alternatives the longer has the higher priority.
GRAMMAR = r"""
    ?start: disjunction
    ?disjunction: conjunction (_OR conjunction)*
    ?conjunction: equality (_AND equality)*
    ?equality: comparison
        | equality "=" comparison                       -> equal
        | equality "<>" comparison                      -> not_equal
        | equality _IS _NULL                            -> is_null
        | equality _IS _NOT _NULL                       -> is_not_null
    ?comparison: unary
        | comparison ">" unary                          -> greater
        | comparison ">=" unary                         -> greater_or_equal
        | comparison "<" unary                          -> less
        | comparison "<=" unary                         -> less_or_equal
        | comparison _BETWEEN unary _AND unary          -> between
        | comparison _NOT _BETWEEN unary _AND unary     -> not_between
        | comparison _IN "(" STRING ("," STRING)* ")"       -> is_in
        | comparison _NOT _IN "(" STRING ("," STRING)* ")"  -> is_not_in
    ?unary: primary
        | "+" unary
        | "-" unary     -> negated
        | _NOT unary    -> negation
    ?primary: STRING    -> string
        | DECIMAL       -> decimal
        | FLOATING      -> floating
        | _TRUE         -> true
        | _FALSE        -> false
        | _NULL         -> null
        | ID            -> named
        | "(" disjunction ")"

    %declare _NOT _AND _OR _BETWEEN _IN _TRUE _FALSE _NULL _IS
    LINE_COMMENT.3: /--[^\n\r]*(?:\r\n|\n|\r)/
    BLOCK_COMMENT.3: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
    FLOATING.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
    DECIMAL: /0|[1-9][0-9]*[lL]?/
    STRING: /'(?:''|[^'])*'/
    ID: /[a-zA-Z_$][a-zA-Z0-9_$]*/
    BLANKS: /[ \t\n\r\f]+/
    %ignore BLANKS
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
"""
_WORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"])


def parse(text: str) -> Term:
    """Compile an expression. Raises BadExpression."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    parsing = _parser().parse_interactive(text)
    where = len(text)
    try:
        parsing.exhaust_lexer()
    except UnexpectedToken as unexpected:  # tokens that may follow a complete condition
        where = _position(unexpected)
    except UnexpectedCharacters as unexpected:
        raise BadExpression(_told(text, _position(unexpected))) from None
    try:
        term: Term = parsing.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken:
        raise BadExpression(_told(text, where)) from None
    return term


def _position(unexpected: UnexpectedInput) -> int:
    position: int | None = getattr(unexpected, "pos_in_stream", None)
    return position or 0


def _told(text: str, where: int) -> str:
    if where >= len(text):
        return "the expression ends before it is whole"
    return f"{text[where : where + 20]!r} cannot stand at character {where + 1}"


@functools.cache
def _parser() -> Lark:
    """Created on first use: a broker without SQL92 filters does not import the parser library."""
    from lark import Lark, Transformer, v_args

    actions = {name: staticmethod(action) for name, action in _ACTIONS.items()}
    transformer = v_args(inline=True)(type("Actions", (Transformer,), actions))()
    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=transformer, lexer_callbacks={"ID": _word})


def _word(token: Token) -> Token:
    upper = token.value.upper()
    if upper in _WORDS:
        token.type = f"_{upper}"
    return token


def _text(literal: str) -> str:
    return literal[1:-1].replace("''", "'")


_ACTIONS: dict[str, Callable[..., Term]] = {
    "disjunction": lambda *parts: c.either(parts),
    "conjunction": lambda *parts: c.both(parts),
    "equal": c.equal,
    "not_equal": lambda left, right: c.negation(c.equal(left, right)),
    "is_null": c.is_null,
    "is_not_null": lambda term: c.negation(c.is_null(term)),
    "greater": lambda left, right: c.ordered(left, ">", right),
    "greater_or_equal": lambda left, right: c.ordered(left, ">=", right),
    "less": lambda left, right: c.ordered(left, "<", right),
    "less_or_equal": lambda left, right: c.ordered(left, "<=", right),
    "between": c.between,
    "not_between": c.not_between,
    "is_in": lambda term, *strings: c.one_of(term, list(map(_text, strings)), True),
    "is_not_in": lambda term, *strings: c.one_of(term, list(map(_text, strings)), False),
    "negated": c.negated,
    "negation": c.negation,
    "string": lambda literal: c.constant(_text(literal)),
    "decimal": lambda token: c.decimal(str(token)),
    "floating": lambda token: c.floating(str(token)),
    "true": lambda: c.constant(True),
    "false": lambda: c.constant(False),
    "null": lambda: c.constant(None),
    "named": lambda token: c.property_named(str(token)),
}
