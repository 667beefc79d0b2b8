"""Python's json in place of orjson: the same values, the same bytes, the same refusals."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire import strict_json
from mqbroker.wire.strict_json import plain_dumps, plain_loads
from tests.numbers import numbers

LEAVES = st.none() | st.booleans() | numbers(-(2**63), 2**64 - 1) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_both_write_and_read_the_same(value: Any) -> None:
    assert plain_dumps(value) == orjson.dumps(value)
    assert plain_loads(orjson.dumps(value)) == value


@pytest.mark.parametrize("value", [{1: "a"}, {None: 1}, [{"a": {2: 3}}], "\ud800", 2**64, -(2**63) - 1, object(), {1}])
def test_both_refuse_to_write_the_same(value: Any) -> None:
    for dumps in (orjson.dumps, plain_dumps):
        with pytest.raises(TypeError):
            dumps(value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"[Infinity]", b'{"a":1,}', b'"\xff"', b"{0:1}", b'"\x01"', b"01", b"[" * 100_000]
)
def test_both_refuse_to_read_the_same(text: bytes) -> None:
    for loads in (orjson.loads, plain_loads):
        with pytest.raises(ValueError):
            loads(text)


@pytest.mark.parametrize("text", [b' {"a" : [1, 2.5, "\\u00e4"]} ', bytearray(b"[]"), memoryview(b"1"), "null", b"-0"])
def test_both_read_the_same_of_each_type(text: Any) -> None:
    assert plain_loads(text) == orjson.loads(text)


def test_orjson_is_used_where_it_is() -> None:
    assert strict_json.loads is orjson.loads
    assert strict_json.dumps is orjson.dumps
