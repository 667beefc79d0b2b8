"""Generated functions: of all expressions and messages what the closures say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.errors import NotEvaluable
from mqbroker.filter import compile_expression
from mqbroker.filter import generated as module
from mqbroker.filter.generated import generate
from mqbroker.filter.grammar import parse
from mqbroker.filter.terms import as_condition
from mqbroker.wire.properties import encode_properties, reencode_properties
from tests.filter.cases import questions

ASKED = [question for question in questions() if "expression" in question]
REPEATABLE = settings(derandomize=True, database=None, deadline=None)


def by_closures(expression, messages):
    """Where it is true, going by the closures."""
    found = []
    for place, message in enumerate(messages):
        try:
            if expression.evaluate(message) is True:
                found.append(place)
        except NotEvaluable:
            pass
    return found


def compiled(text):
    try:
        return compile_expression(text)
    except Exception:
        return None


@pytest.mark.parametrize("part", range(4))
def test_recorded_questions(part):
    for question in ASKED[part::4]:
        expression = compiled(question["expression"])
        if expression is not None:
            messages = [reencode_properties(message) for message in question["messages"]]
            assert expression.pick(messages, 1000) == by_closures(expression, messages), expression.text


TERMS = [
    "a > 5", "a = 5", "b <> 5", "b <= 3000000000", "a >= 1.5", "a BETWEEN 2 AND 7", "b NOT BETWEEN 2 AND 7",
    "a BETWEEN 1.5 AND 2.5", "b BETWEEN 1 AND 7.5", "a = 'x'", "b <> 'x'", "a IN ('x', '5')", "b NOT IN ('x', '5')",
    "a = 'x\ufffd'", "b IN ('x\ufffd')", "a IS NULL", "b IS NOT NULL", "ab IS NULL", "a", "a = b", "a = TRUE", "a < b",
    "5 < a", "TRUE", "FALSE", "NULL", "a = 'caf\u00e9'", "a > -5", "b > 9223372036854775807", "a = 9007199254740993",
]  # fmt: skip
EXPRESSIONS = st.recursive(
    st.sampled_from(TERMS),
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds(" AND ".join, st.lists(inner.map("({})".format), min_size=2, max_size=4)),
        st.builds(" OR ".join, st.lists(inner.map("({})".format), min_size=2, max_size=4)),
    ),
    max_leaves=8,
)
VALUES = st.sampled_from(
    [b"5", b"x", b"7", b"", b"1.5", b"2", b"-5", b"+5", b"NaN", b"3000000001", b"0005", b"\xd9\xa5", b"x\xff", b"true",
     b"caf\xc3\xa9", b"9223372036854775808", b"9007199254740993", b"9007199254740992", b"5\x01", b"1_0", b" 5", b"5 "]
)  # fmt: skip
PAIRS = st.builds(
    bytes.__add__, st.sampled_from([b"a\x01", b"b\x01", b"ab\x01", b"ba\x01", b"\x01", b"a", b""]), VALUES
)
MESSAGES = st.lists(st.lists(PAIRS, max_size=4).map(b"\x02".join), max_size=8)


@settings(REPEATABLE, max_examples=2000)
@given(EXPRESSIONS, MESSAGES)
def test_any_expression_of_any_messages(text, messages):
    expression = compiled(text)
    if expression is not None:
        assert expression.pick(messages, 1000) == by_closures(expression, messages)


@given(EXPRESSIONS, MESSAGES, st.sampled_from([(0, 12), (3, 12), (64, 0), (64, 1), (64, 2)]))
@REPEATABLE
def test_what_is_left_to_closures_is_the_same(text, messages, limits):
    expression = compiled(text)
    if expression is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "SIZE_MAX", limits[0])
            patch.setattr(module, "LEVELS_MAX", limits[1])
            pick = generate(as_condition(parse(text)))
        assert pick(messages, 1000) == by_closures(expression, messages)


def test_so_many_are_picked():
    expression = compile_expression("a > 5")
    messages = [encode_properties({"a": str(i)}) for i in (1, 6, 7, 2, 8, 9)]
    assert [expression.pick(messages, most) for most in (1, 2, 3, 9)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 5]]
    assert expression.pick([], 1) == []


@pytest.mark.parametrize("joined", [" OR ", " AND "])
@pytest.mark.parametrize("count", [module.SIZE_MAX, module.SIZE_MAX + 1, 1000])
def test_long_chains(joined, count):
    expression = compile_expression(joined.join(f"a <> {number}" for number in range(count)))
    messages = [b"a\x01%d" % number for number in (-1, 0, count - 1, count)] + [b"a\x01x", b""]
    assert expression.pick(messages, 9) == ([0, 1, 2, 3] if joined == " OR " else [0, 3])


def test_deep_and_wide():
    text = "a = 5"
    for level in range(30):
        text = f"({text} {'OR' if level % 2 else 'AND'} NOT (b{level} = 'x') = TRUE)"
    expression = compile_expression(text)
    messages = [b"a\x015" + b"".join(b"\x02b%d\x01%c" % (i, 120 + (i == at)) for i in range(30)) for at in range(30)]
    assert expression.pick(messages, 99) == by_closures(expression, messages)
    for count in (module.LEVELS_MAX - 1, module.LEVELS_MAX, module.LEVELS_MAX + 1, 90):
        nots = compile_expression("NOT " * count + "(a = 5)")
        assert nots.pick([b"a\x015", b"a\x016"], 2) == by_closures(nots, [b"a\x015", b"a\x016"]) == [count % 2]


@pytest.mark.parametrize("parts", [2, 3, 5, 6, 9, 11])
def test_the_deepest_there_may_be(parts):
    """Python takes parentheses in each other to some depth only."""
    text = "a = 0"
    for level in range(module.LEVELS_MAX):
        joined = [f"b{level} = {number}" for number in range(parts - 1)]
        text = (" OR " if level % 2 else " AND ").join([*joined, f"NOT ({text})" if level % 3 else f"({text})"])
    term = as_condition(parse(text))
    assert term.size == parts + (module.LEVELS_MAX - 1) * (parts - 1)
    messages = [
        b"a\x01%d" % (i % 2) + b"".join(b"\x02b%d\x01%d" % (k, i % (k + 1)) for k in range(12)) for i in range(30)
    ]
    assert generate(term)(messages, 99) == by_closures(compile_expression(text), messages)


def test_what_is_large_or_deep_is_not_put_in_words():
    def words(text):
        return len(module._Writing(as_condition(parse(text))).text)

    def chain(count):
        return " OR ".join(f"a = {number}" for number in range(count))

    assert words(chain(module.SIZE_MAX)) > 50 * module.SIZE_MAX
    assert words(chain(module.SIZE_MAX + 1)) < 400
    deepest = words("NOT " * (module.LEVELS_MAX + 1) + "(a = 1)")
    assert words("NOT " * module.LEVELS_MAX + "(a = 1)") > deepest == words("NOT " * 90 + "(a = 1)")


def test_a_property_that_is_asked_for_often_is_looked_up_once():
    for text, count in [("a = 1 OR b = 2", 2), ("a = 1 OR a = 2", 1), ("NOT (a = 1 AND b = 2 OR a > 5)", 2)]:
        assert module._Writing(as_condition(parse(text))).text.count("rpartition") == count


def test_nothing_of_an_expression_is_text_of_its_function():
    writing = module._Writing(
        as_condition(parse("secret = 'word' AND {0} = 'x' OR __import__ IN ('{value}')".replace("{0}", "a")))
    )
    for word in ("secret", "word", "import", "value}", "'"):
        assert word not in writing.text
