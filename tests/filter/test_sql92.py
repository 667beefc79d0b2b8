"""Bounds of expressions, what a person is told of a wrong one, and what is kept."""

import pytest

from mqbroker.errors import BadExpression
from mqbroker.filter import EXPRESSION_LENGTH_MAX, compile_expression, sql92
from mqbroker.filter.grammar import parse
from tests.filter.evaluating import evaluate, matches


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the expression ends before it is whole"),
        ("a >", "the expression ends before it is whole"),
        ("a > 5 AND b = ? OR c", "'? OR c' cannot stand at character 15"),
        ("a > > 5", "'> 5' cannot stand at character 5"),
        ("(a > 5", "the expression ends before it is whole"),
        ("a > 'x'", "'x' cannot be compared by >: only numbers can"),
        ("a > TRUE", "TRUE, FALSE or NULL cannot be compared by >: only numbers can"),
        ("a = NULL", "NULL cannot be compared; use IS NULL or IS NOT NULL"),
        ("TRUE = 'x'", "TRUE, FALSE or NULL cannot be compared with 'x'"),
        ("a BETWEEN 5 AND 1.5", "the first bound of BETWEEN must not be above the second: 5 and 1.5"),
        ("5 IN ('x')", "IN takes a property on its left, not a constant"),
        ("5", "a constant is not a condition"),
        ("-a", "a negated term is not a condition"),
        ("a = 9223372036854775808", "9223372036854775808 is above 9223372036854775807"),
        ("a > 1e999", "1e999 is greater than 1.7976931348623157e+308"),
        ("a > 0.0", "0.0 is less than 5e-324"),
    ],
)
def test_what_is_wrong_is_told(text: str, why: str) -> None:
    with pytest.raises(BadExpression) as caught:
        compile_expression(text)
    assert str(caught.value) == why


def test_words_behind_a_whole_condition_are_passed_over_as_in_java() -> None:
    assert matches(compile_expression("a > 5 whatever"), {"a": "6"})


def test_the_length_is_bounded() -> None:
    text = "a = '" + "x" * (EXPRESSION_LENGTH_MAX - 6) + "'"
    assert len(text) == EXPRESSION_LENGTH_MAX
    assert matches(compile_expression(text), {"a": "x" * (EXPRESSION_LENGTH_MAX - 6)})
    with pytest.raises(BadExpression, match=f"has {EXPRESSION_LENGTH_MAX + 1} characters"):
        compile_expression(text + " ")


@pytest.mark.parametrize(
    ("before", "after", "innermost"), [("NOT ", "", "a = 5"), ("(", ") = TRUE", "a = 5"), ("-", "", "5")]
)
def test_the_depth_is_bounded(before: str, after: str, innermost: str) -> None:
    def nested(depth: int) -> str:
        return before * depth + innermost + after * depth + (" = a" if before == "-" else "")

    evaluate(compile_expression(nested(90)), {"a": "5"})
    with pytest.raises(BadExpression, match="more than 100 deep"):
        compile_expression(nested(110))


def test_parentheses_that_change_nothing_and_long_chains_are_not_deep() -> None:
    assert matches(compile_expression("(" * 5000 + "a = 5" + ")" * 5000), {"a": "5"})
    chain = " OR ".join(f"a = {number}" for number in range(1000))
    assert matches(compile_expression(chain), {"a": "999"})
    assert not matches(compile_expression(chain), {"a": "1000"})


def test_expressions_and_refusals_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(sql92, "parse", lambda text, parse=parse: (read.append(text), parse(text))[1])
    sql92._kept.clear()
    for _ in range(2):
        compile_expression("kept = 1")
        with pytest.raises(BadExpression):
            compile_expression("kept =")
    assert read == ["kept = 1", "kept ="]
    for number in range(sql92.KEPT_MAX):
        compile_expression(f"kept = {number} AND a = 1")
    compile_expression("kept = 1")
    assert read[-1] == "kept = 1"
    sql92._kept.clear()


def test_what_has_to_be_read_is_charged() -> None:
    charged: list[int] = []
    sql92._kept.clear()
    for _ in range(2):
        compile_expression("charged = 1", charged.append)
        with pytest.raises(BadExpression):
            compile_expression("charged =", charged.append)
    assert charged == [len("charged = 1"), len("charged =")]


def test_what_a_charge_refuses_is_not_read_and_not_kept() -> None:
    def refuse(characters: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_expression("refused = 1", refuse)
    assert matches(compile_expression("refused = 1"), {"refused": "1"})


def test_a_string_of_many_digits_is_no_number_and_harmless() -> None:
    expression = compile_expression("a > 5")
    assert not matches(expression, {"a": "9" * 30_000})
    assert matches(expression, {"a": "0" * 30_000 + "6"})


HOSTILE = [
    "'); import os; ('", '"""', "\\", "\\'", "{v}", "{k}", "{}", "%s", "\n", "\r\n# x", "\0", "\ud800", "\ufffd",
    "v0", "k0", "__builtins__", "None", "True or (", "caf\u00e9", "\u0663", "x" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_strings_are_constants_and_no_part_of_a_function(text: str) -> None:
    literal = text.replace("'", "''")
    for expression, value, other in [
        (f"a = '{literal}'", True, False),
        (f"a <> '{literal}'", False, True),
        (f"a IN ('y', '{literal}')", True, False),
        (f"a NOT IN ('{literal}')", False, True),
        (f"b = 5 OR a = '{literal}'", True, None),
        (f"'{literal}' = a", True, False),
    ]:
        found = compile_expression(expression)
        assert evaluate(found, {"a": text}) is value
        assert evaluate(found, {"a": text + "y"}) is other
        assert set(found._evaluate.__code__.co_consts) <= {None, True, False}


@pytest.mark.parametrize("name", ["None", "lambda", "import", "print", "__builtins__", "v0", "k1", "f2", "$a"])
def test_names_are_no_part_of_a_function(name: str) -> None:
    expression = compile_expression(f"{name} = 'x' AND {name} IS NOT NULL AND (other = 1 OR {name} IN ('x'))")
    assert [evaluate(expression, {name: value}) for value in "xy"] == [True, False]
    assert expression.pick([f"{name}\x01x".encode(), b"n\x01"], 9) == [0]


def test_functions_reach_nothing_but_what_they_compare_by() -> None:
    found = compile_expression("reach = 5")._evaluate
    assert found.__globals__["__builtins__"] == {}


LONG = [
    " OR ".join(["a=1"] * 2340),
    " AND ".join(["a"] * 2000),
    " OR ".join(f"a{number:x}=1" for number in range(1600)),
    " AND ".join(["a BETWEEN 1 AND 2"] * 700),
    "a IN (" + ",".join(["'x'"] * 4000) + ")",
    "a = '" + "'" * 16_000 + "'",
    "a > " + "9" * 18 + "." + "9" * 16_000,
    " OR ".join(["NOT " * 97 + "a"] * 40),
    " OR ".join(["(" * 48 + "a=1" + " OR b=2) AND c = 3" * 48] * 14),
    "NOT ((" * 48 + "a IS NULL" + ") = TRUE)" * 48,
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:12])
def test_long_and_deep_expressions_are_compiled(text: str) -> None:
    assert len(text) <= EXPRESSION_LENGTH_MAX
    expression = compile_expression(text)
    for properties in ({"a": "1"}, {"a": "9", "b": "2", "c": "3"}, {"a63f": "1"}, {}):
        assert evaluate(expression, properties) in (True, False, None)
    assert expression.pick([b"n\x01", b"n\x01y\x02a\x011"], 9) in ([], [0], [1], [0, 1])
