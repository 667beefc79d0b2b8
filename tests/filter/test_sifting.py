"""Passing over many messages: what is wanted stays the same, and what none of is wanted is not looked at one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.filter import sifting as module
from mqbroker.filter import terms
from mqbroker.filter.generated import generate
from mqbroker.filter.grammar import parse
from mqbroker.filter.sifting import MESSAGES_MIN, OTHERS_MAX, SIZE_MAX, sifted
from mqbroker.filter.terms import as_condition
from tests.filter.test_generated import EXPRESSIONS, MESSAGES, compiled


def term_of(text):
    return as_condition(parse(text))


@settings(derandomize=True, database=None, deadline=None, max_examples=800)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=6))
def test_what_is_picked_is_the_same(text, groups):
    if compiled(text) is None:
        return
    term = term_of(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MESSAGES_MIN", 1)
        pick, plainly = sifted(term, generate(term)), generate(term)
        for messages in groups:
            pick([], 1)  # none of which was wanted
            assert pick(messages, 1000) == plainly(messages, 1000)


class Looked:
    """A function of a condition, and how often messages were looked at one by one."""

    def __init__(self, text):
        term = term_of(text)
        self._pick = generate(term)
        self.calls = 0
        self.sifted = sifted(term, self.pick)

    def pick(self, messages, most):
        self.calls += 1
        return self._pick(messages, most)

    def calls_for(self, messages, picked):
        before = self.calls
        assert self.sifted(messages, 1000) == picked
        return self.calls - before


def messages(value, count=MESSAGES_MIN):
    return [b"k\x01%d\x02a\x01%s" % (n, value) for n in range(count)]


@pytest.mark.parametrize(
    ("text", "dull"),
    [
        ("a > 5", b"5"), ("a = 'x'", b"y"), ("a IN ('x', 'y')", b"xy"), ("a BETWEEN 3 AND 4", b"2"), ("a <> 'x'", b"x"),
        ("NOT (a < 5)", b"4"), ("z IS NOT NULL", b"5"), ("a > 5 OR z IS NOT NULL", b"5"), ("a > 5 AND z IS NULL", b"4"),
        ("a < 5 AND (k = 'none' OR a = 7)", b"4"), ("a > 5", b"no number"),
    ],
)  # fmt: skip
def test_messages_that_are_not_wanted_are_passed_over(text, dull):
    looked = Looked(text)
    assert looked.calls_for(messages(dull, 1), []) == 1
    assert [looked.calls_for(messages(dull), []) for _ in range(3)] == [0, 0, 0]
    assert looked.calls_for(messages(dull, MESSAGES_MIN - 1), []) == 1


def test_messages_of_which_some_are_wanted_are_looked_at():
    looked = Looked("a > 5")
    looked.calls_for(messages(b"5"), [])
    some = messages(b"5")
    some[7] = b"a\x016"
    assert looked.calls_for(some, [7]) == 1
    assert looked.calls_for(messages(b"5"), []) == 1  # the last messages had some
    assert looked.calls_for(messages(b"5"), []) == 0
    assert looked.calls_for(some, [7]) == 1


def test_what_was_tried_in_vain_is_not_tried_again_at_once():
    looked = Looked("a > 5")
    looked.calls_for(messages(b"5"), [])
    unsure = messages(b"5\x027\x02a\x01")  # no value
    assert [looked.calls_for(unsure, []) for _ in range(2)] == [1, 1]
    assert looked.calls_for(messages(b"5"), []) == 0


@pytest.mark.parametrize("text", ["a IS NULL", "NOT (a IS NULL) OR z IS NULL", "a = b", "TRUE", "NOT (NOT (a = 'x'))"])
def test_of_some_conditions_nothing_can_be_known(text):
    term = term_of(text)
    pick = generate(term)
    assert sifted(term, pick) is pick


def test_large_expressions_are_left_alone():
    for count in (SIZE_MAX, SIZE_MAX + 1):
        term = term_of(" OR ".join(f"a = {n}" for n in range(count)))
        pick = generate(term)
        assert (sifted(term, pick) is pick) == (count > SIZE_MAX)


def test_however_many_values_there_are():
    looked = Looked("a > 1000000")
    looked.calls_for(messages(b"5"), [])
    many = [b"a\x01%d" % n for n in range(3 * OTHERS_MAX)]
    assert [looked.calls_for(many, []) for _ in range(3)] == [0, 0, 0]
    many[-1] = b"a\x011000001"
    assert looked.calls_for(many, [len(many) - 1]) == 1


def test_of_so_many_values_it_is_known_and_of_none_that_is_long():
    asked = []

    def holds(value):
        asked.append(value)
        return False

    test = terms.Test("a", holds, "False")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OTHERS_MAX", 3)
        may_be_true = module._may_be(True, test)
        together = b"a\x011\x02a\x012\x02a\x013\x02a\x014\x02a\x015\x02a\x015"
        assert not may_be_true(together)
        assert sorted(asked) == [b"1", b"2", b"3", b"4", b"5"]
        for _ in range(2):
            asked.clear()
            assert not may_be_true(together)
            assert len(asked) == 2
        may_be_true = module._may_be(True, test)
        for size, is_kept in [(module.OTHER_BYTES_MAX, True), (module.OTHER_BYTES_MAX + 1, False)]:
            value = b"x" * size
            assert not may_be_true(b"a\x01" + value)
            asked.clear()
            assert not may_be_true(b"a\x01" + value)
            assert asked == ([] if is_kept else [value])


def test_what_is_no_text():
    looked = Looked("a = 'x\ufffd'")
    looked.calls_for(messages(b"5"), [])
    odd = messages(b"5")
    odd[3] = b"a\x01x\xff\x02ba\x01y"  # read in the longer way, since a longer name ends as this one
    assert looked.calls_for(odd, [3]) == 1
