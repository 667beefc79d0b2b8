"""Finding properties in their bytes: the same values as reading all of them gives."""

from hypothesis import given
from hypothesis import strategies as st

from mqbroker.filter import compile_expression
from mqbroker.filter.lookup import finder, text_of
from mqbroker.wire.properties import decode_properties

PARTS = [b"a", b"b", b"ab", b"\x01", b"\x02", b"\xff", "\u00e9".encode(), b"1"]


@given(st.lists(st.sampled_from(PARTS), max_size=20), st.sampled_from(["a", "b", "ab", "bb"]))
def test_a_property_is_found_as_it_is_read(parts, name):
    data = b"".join(parts)
    assert text_of(finder(name)(data)) == decode_properties(data).get(name)


def test_properties_that_look_alike():
    data = b"aa\x011\x02a\x012\x02b\x01x\x01y"
    assert [text_of(finder(name)(data)) for name in ("a", "aa", "b", "x", "missing")] == [
        "2",
        "1",
        "x\x01y",
        None,
        None,
    ]
    assert text_of(finder("a")(b"a\x011\x02b\x012\x02a\x01")) == "1"  # a pair without a value is none
    assert finder("a")({"a": "5"}) == "5"
    assert finder("a")({}) is None


def test_bytes_that_are_no_text_are_what_they_are_decoded_to():
    data = b"a\x01x\xffy"
    for text, outcome in [("a = 'x\ufffdy'", True), ("a IN ('x\ufffdy')", True), ("a NOT IN ('x\ufffdy')", False)]:
        assert compile_expression(text).evaluate(data) is outcome
    for text in ("a = 'xy'", "a IN ('xy', 'z')"):
        assert compile_expression(text).evaluate(data) is False
