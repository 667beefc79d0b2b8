"""Expressions and messages on which ours and the Java system's filter module are compared: chosen, and by chance.

`questions()` are the same at every call; `python -m tests.filter.cases` prints them, one JSON object a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

MESSAGES = [
    {"a": "5", "b": "x", "c": "2.5", "d": "true", "TAGS": "t1", "region": "north"},
    {"a": "-7", "b": "5", "c": "1e3", "d": "FALSE", "e": ""},
    {"a": "3000000000", "b": "it's", "c": " 4.0 ", "d": "yes"},
    {"a": "x", "b": "9223372036854775808", "c": "NaN", "region": "süd"},
    {"a": "+5", "b": "\u0665", "c": "0x1.8p1", "d": "tRUE"},
    {"a": "5.0", "b": "-0", "c": "-Infinity", "d": "1"},
    {"a": " 5", "b": "5L", "c": "-0.0", "d": "null"},
    {"a": "00005", "b": "-2147483649", "c": "1_0", "e": "1.5d"},
    {"a": "2147483648", "b": "", "c": ".5f", "e": "0.0"},
    {"A": "5", "$x": "1", "_y": "2", "e": "inf"},
    {},
]

CHOSEN = r"""
a = 5
a <> 5
a > 5
a >= 5
a < 5
a <= 5L
a > 3000000000
a < 2147483648
a = 3000000000
a = 2147483647
a = 2147483648
a = -2147483648
a > -2147483649
a > - 2147483648
a > --2147483648
a = 9223372036854775807
a = 9223372036854775808
a = -9223372036854775808
c = 2.5
c > 2.5
c >= 1e3
c < 1.e-3
c <= .5
c > 5E+2
c > 5e-2L
c > 0.0
c > -0.0
c > 1e-400
c > 1e400
c > 4.9e-324
c > 0
c = 0
c < c
c <= c
c >= e
e > c
e < 1
a > b
b > a
a = b
b = e
e = b
b = 'x'
'x' = b
b = ''
e = ''
b = 'it''s'
b = 'it''s
b = 'a
b'
'x' = 'x'
'x' = 'y'
'x' < 'y'
'x' > 5
5 > 'x'
1 = 1
1 = 1.0
1 = 2
1.5 > 1
2 > 3000000000
3000000000 > 2
3000000000 = 3000000000L
1 = '1'
'1' = 1
1.0 = '1'
'01' = 1.0
'x' = 1
1 = 'x'
5 = a
5 < a
2.0 < a
3000000000 < a
a BETWEEN 1 AND 10
a NOT BETWEEN 1 AND 10
a BETWEEN -10 AND 10
a between 10 and 1
a not between 10 and 1
a BETWEEN 1 AND 1
a BETWEEN 1 AND 1.0
a BETWEEN 1.5 AND 1
a BETWEEN b AND 10
a BETWEEN 1 AND b
a BETWEEN NULL AND 5
a BETWEEN 1 AND NULL
a BETWEEN 'a' AND 'b'
a BETWEEN '1' AND 5
a BETWEEN '5' AND 1
a BETWEEN TRUE AND FALSE
a BETWEEN FALSE AND TRUE
a BETWEEN 1 AND TRUE
5 BETWEEN 1 AND 10
5 BETWEEN a AND 10
a BETWEEN 1 AND 10 = TRUE
a BETWEEN 1 AND 10 BETWEEN 1 AND 2
a BETWEEN -1 AND -5
a BETWEEN 1 OR 5
c BETWEEN 0.5 AND 1e3
-a BETWEEN 1 AND 2
region IN ('north', 'south')
region NOT IN ('north', 'south')
region IN ('süd')
b IN ('it''s', 'x', '5', 'a', 'b', 'c', 'd')
b NOT IN ('it''s', 'x', '5', 'a', 'b', 'c', 'd')
a IN (1, 2)
a IN ()
a IN ('x',)
a IN 'x'
a IN ('x'
5 IN ('5')
'x' IN ('x')
(b) IN ('x')
+b IN ('x')
-b IN ('x')
NOT b IN ('x')
NOT (b IN ('x'))
b IN ('x') IN ('y')
b IN ('x') = TRUE
b IN ('x') IS NULL
a IS NULL
a IS NOT NULL
a is null
5 IS NULL
NULL IS NULL
NULL IS NOT NULL
'x' IS NOT NULL
TRUE IS NULL
a IS
a IS NOT
a IS TRUE
a IS NOT 5
a = NULL
NULL = a
a <> NULL
a > NULL
a = 1 IS NULL
e > 1 IS NULL
a IS NULL IS NULL
TRUE
FALSE
NULL
true
tRuE
NOT TRUE
NOT NULL
NOT FALSE
TRUE = TRUE
TRUE = FALSE
TRUE <> FALSE
TRUE = 1
1 = TRUE
'true' = TRUE
TRUE = 'true'
TRUE = a
d = TRUE
d = FALSE
d <> TRUE
TRUE = d
TRUE > FALSE
d > TRUE
TRUE > d
a
d
a AND b
a OR TRUE
a AND TRUE
e AND TRUE
e OR FALSE
NOT a
NOT e
1
'x'
-1
-a
NOT 1
NOT 'x'
NOT -1
1 AND TRUE
TRUE AND 1
TRUE OR 'x'
-a = 5
-a IS NULL
-a > 1
-'x' > 1
-TRUE > 1
-(a > 1) = 5
a > -'x'
a > -b
a > +5
a > + - + 5
a = -5
a = --5
a = - -5
a = ---5
a > 5 AND b = 'x'
a > 5 OR b = 'x'
a > 5 AND b = 'x' OR c > 1
a > 5 OR b = 'x' AND c > 1
(a > 5 OR b = 'x') AND c > 1
NOT a > 5
NOT (a > 5)
NOT a = 5
NOT NOT d = TRUE
NOT (NOT (d = TRUE))
a = 5 = TRUE
a = 5 = 1
a = 5 = 'true'
'true' = (a = 5)
d = (a = 5)
(a = 5) = d
(a = 5) = (b = 'x')
(a > 5) > (b = 'x')
(a > 5) > 1
a > (b = 'x')
a > 1 > 2
a > 1 < 2
a <> 5 <> TRUE
a = 5 <> FALSE
NULL AND TRUE
NULL AND FALSE
NULL OR TRUE
NULL OR FALSE
FALSE AND b > 'x'
b > 1 OR TRUE
TRUE OR b > 1
FALSE AND b > 1
b > 1 AND FALSE
missing = 1 AND TRUE
missing = 1 OR TRUE
missing = 1 OR FALSE
missing > 1 OR FALSE
missing <> 1
missing = missing
missing = a
a = missing
missing IN ('x')
missing NOT IN ('x')
missing BETWEEN 1 AND 2
missing NOT BETWEEN 1 AND 2
a > 5 garbage
a > 5 garbage #
a > 5 #
a > 5;
a > 5 LIKE 'x%'
a LIKE 'x%'
a CONTAINS 'x'
a + 1 > 5
a - 1 > 5
a * 2 > 5
a > 5 + 1
a > 5 )
(a > 5
((a > 5))
()
a >
> 5
a = = 5
a == 5
a != 5
a => 5
a =< 5
a <> = 5
a > 5 AND
a > 5 AND AND b
a > 5 AND garbage
a > 5 OR (
a > 5 NOT
a > 5 NOT b
a NOT
a NOT IN
AND
NOT
BETWEEN
a BETWEEN
a IN
-
+
'
"a" = 5
a = "5"
`a` = 5
a.b = 5
a-b = 5
a:b = 5
@a = 5
é = 5
a = 5é
A = 5
$x = 1
_y > 1
$x$ IS NULL
TAGS = 't1'
tags = 't1'
nota = 1
NOTa = 1
andy = 1 AND a = 5
a=5AND b='x'
a=5 ANDb='x'
a>5OR b='x'
a IN('5')
a>=5
a> =5
a = 05
a = 0
a = 0L
a = 5l
a = 5LL
a = 5L5
a = 5.
a = 5.5.5
a = 5e
a = 5e5
a = 5E+
a = 1.5L
a = 1.5f
a = 0x5
a = 007
a = 007.5
a = 5 5
a /* comment */ = 5
a /* comment * ** / */ = 5
a /* unfinished = 5
a = 5 /* unfinished
a /* x **/ = /**/ 5
a = 5 -- the rest
a -- the rest = 5
a --5
a = --5 AND b
NULL NULL
TRUE TRUE
'x' 'y' = b
b = 'x' 'y'
NOT
a = TRUE AND b
TRUE AND TRUE AND TRUE
FALSE OR FALSE OR NULL
((NULL)) IS NULL
(a) = (5)
(a) > (5)
((a)) BETWEEN (1) AND (10)
(a > 5) IS NULL
(a > 5) IS NOT NULL
(5) = a
+5 = a
-5 = a
-5 < a
- 5 = -5
-5 = 5
-3000000000 = -3000000000
-5 = '-5'
'-5' = -5
-3000000000 = a
-2147483648 < a
-(-2147483648) < a
""".strip("\n").split("\n")

MORE = [
    "",
    " ",
    "a -- comment\n= 5",
    "a -- comment\r\n= 5 -- more\n",
    "--\na = 5",
    "a\t=\r\n\f5",
    "a\v= 5",
    "a =\u00a05",
    "\u0131s = 5",
    "a I\u017f NULL",
    "a \u017f = 5",
    "\u212aelvin = 5",
    "\u0665 = b",
    "a\u3000= 5",
    "b = 'line\nbreak'",
    "a = 5\0",
    "(" * 60 + "a = 5" + ")" * 60,
    "NOT " * 40 + "d = TRUE",
    "-" * 41 + "5 = a",
    " OR ".join(f"a = {number}" for number in range(200)),
    " AND ".join(f"a <> {number}" for number in range(100, 300)),
    "b IN (" + ", ".join(f"'{number}'" for number in range(300)) + ")",
]

_NAMES = ["a", "b", "c", "d", "e", "region", "missing"]
_VALUES = [
    *("5", "-7", "0", "x", "true", "false", "2.5", "1e3", "3000000000", "NaN", "", " 5 ", "north", "2147483647"),
    *("-2147483648", "9223372036854775807", "Infinity", "0x10", "5d", "1."),
]
_LITERALS = [
    *("5", "0", "7L", "2.5", "1e3", "3000000000", "2147483647", "'x'", "'5'", "'true'", "''", "TRUE", "FALSE", "NULL"),
    *("-5", "+5", "-2.5", "--7", "-3000000000"),
]
_SIGNS = ["=", "<>", ">", ">=", "<", "<="]
_STRAY = ["AND", "OR", "NOT", "(", ")", "IN", "IS", "NULL", "BETWEEN", "5", "'x'", "a", "=", ">", ",", "-", "#"]


def _operand(rng: Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(_NAMES)
    if kind < 0.93 or not depth:
        return rng.choice(_LITERALS)
    return f"({_condition(rng, depth - 1)})"


def _condition(rng: Random, depth: int) -> str:
    kind = rng.randrange(14 if depth else 8)
    left = _operand(rng, depth)
    negated = rng.choice(["", "", "NOT "])
    if kind < 5:
        return f"{left} {rng.choice(_SIGNS)} {_operand(rng, depth)}"
    if kind == 5:
        bounds = rng.sample(["1", "-5", "5", "2.5", "10", "1e4", "b", "c", "5"], 2)
        return f"{rng.choice(_NAMES)} {negated}BETWEEN {bounds[0]} AND {bounds[1]}"
    if kind == 6:
        strings = ", ".join(f"'{value}'" for value in rng.sample(_VALUES, rng.randrange(1, 7)))
        return f"{rng.choice(_NAMES)} {negated}IN ({strings})"
    if kind == 7:
        return f"{left} IS {negated}NULL"
    if kind < 12:
        joint = rng.choice([" AND ", " OR "])
        return joint.join(_condition(rng, depth - 1) for _ in range(rng.randrange(2, 4)))
    if kind == 12:
        return f"NOT ({_condition(rng, depth - 1)})"
    return f"({_condition(rng, depth - 1)})"


def _spoiled(rng: Random, text: str) -> str:
    words = text.split(" ")
    at = rng.randrange(len(words))
    words[at : at + rng.randrange(2)] = [rng.choice(_STRAY)]
    return " ".join(words)


def by_chance(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Questions from a seed."""
    rng = Random(seed)
    for _ in range(count):
        text = _condition(rng, rng.randrange(4))
        if rng.random() < 0.2:
            text = _spoiled(rng, text)
        names = rng.sample(_NAMES, 4)
        messages = [{name: rng.choice(_VALUES) for name in names[: rng.randrange(5)]} for _ in range(4)]
        yield {"expression": text, "messages": messages}


def questions() -> list[dict[str, Any]]:
    """The expressions of the recorded table."""
    chosen = [{"expression": text, "messages": MESSAGES} for text in [*CHOSEN, *MORE]]
    return [*chosen, *by_chance(92, 600), *blooms()]


def blooms() -> list[dict[str, Any]]:
    """Bloom filters of several shapes, and names of consumers of several lengths."""
    names = [
        "group#topic",
        "#",
        "",
        "g" * 15,
        "g" * 16,
        "g" * 17,
        "g" * 33,
        "größe#süd",
        "消费者#主题",
        "CID_1#TopicTest",
    ]
    shapes = [[20, 32], [20, 64], [10, 128], [1, 1], [99, 1], [50, 7], [1, 10_000], [33, 3]]
    return [{"bloom": shape, "names": names} for shape in shapes]


if __name__ == "__main__":
    for question in questions():
        print(json.dumps(question))
