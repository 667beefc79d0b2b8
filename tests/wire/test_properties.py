from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import MQError
from mqbroker.kernel import compiled
from mqbroker.wire.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    find_in_each,
    find_property,
)
from tests.commands import decode_frame
from tests.wire.conftest import GoldenFrame

# What MessageDecoder.string2messageProperties of 4.9.7 makes of these.
FROM_JAVA = [
    (b"A\x011\x02B\x01\x02C\x01x\x01y\x02", {"A": "1", "C": "x\x01y"}),
    (b"\x01v\x02k", {}),
    (b"a\x01b\x02a\x01c", {"a": "c"}),
    (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
    (b"a", {}),
    (b"ab\x01", {}),
    (b"k\x01v", {"k": "v"}),
    (b"", {}),
]


@pytest.mark.parametrize(("data", "wanted"), FROM_JAVA)
def test_properties_are_read_as_java_reads_them(data: bytes, wanted: dict[str, str]) -> None:
    assert decode_properties(data) == wanted


def test_properties_are_written_as_java_writes_them() -> None:
    assert encode_properties({"A": "1", "B": "", "C": "x"}) == b"A\x011\x02B\x01\x02C\x01x"
    assert encode_properties({"k\xe9y": "中\U0001f600"}) == "k\xe9y\x01中\U0001f600".encode()
    assert encode_properties({}) == b""


def test_properties_of_golden_sends_come_back_as_they_were(golden_frames: list[GoldenFrame]) -> None:
    sends = [frame for frame in golden_frames if frame.code == 310 and frame.side == "request"]
    assert sends
    for frame in sends:
        data = decode_frame(frame.data).ext_fields["i"].encode()
        assert encode_properties(decode_properties(data)) == data


@pytest.mark.parametrize(
    "properties",
    [{"": "v"}, {"a\x01b": "v"}, {"a\x02b": "v"}, {"a": "v\x01w"}, {"a": "v\x02w"}, {"a": "\x02b\x01c"}, {"\x01": "v"}],
)
def test_separators_and_empty_names_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MQError, match="must not be empty"):
        encode_properties({"ok": "ok", **properties})


def test_what_is_not_utf_8_becomes_the_replacement_character() -> None:
    assert decode_properties(b"a\x01\xff\x02b\x01ok") == {"a": "\ufffd", "b": "ok"}
    assert decode_properties(b"\xc3\x01v") == {"\ufffd": "v"}


def test_the_bound_is_that_of_a_signed_16_bit_length() -> None:
    assert PROPERTIES_BYTES_MAX == 2**15 - 1


words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.dictionaries(words, words, max_size=10))
def test_any_properties_survive_in_their_order(properties: dict[str, str]) -> None:
    decoded = decode_properties(encode_properties(properties))
    assert list(decoded.items()) == list(properties.items())


@given(
    st.binary(max_size=100) | st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"\xe4"]), max_size=30).map(b"".join)
)
def test_any_bytes_are_read_as_pairs_of_something(data: bytes) -> None:
    for name, value in decode_properties(data).items():
        assert name
        assert value
        assert "\x01" not in name
        assert "\x02" not in name + value


PARTS = [b"a", b"b", b"ab", b"\x01", b"\x02", b"\xff", "\u00e9".encode(), b"1"]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=20).map(b"".join), max_size=4))
def test_a_property_is_found_as_it_is_read(messages: list[bytes]) -> None:
    for name in ("a", "b", "ab", "bb"):
        wanted = [decode_properties(data).get(name, "") for data in messages]
        mark = name.encode() + b"\x01"
        assert [find_property(data, mark).decode("utf-8", "replace") for data in messages] == wanted
        assert [value.decode("utf-8", "replace") for value in find_in_each(messages, mark)] == wanted
        if compiled is not None:
            assert [value.decode("utf-8", "replace") for value in compiled.values_of(messages, [mark])] == wanted


def test_properties_that_look_alike() -> None:
    data = b"aa\x011\x02a\x012\x02b\x01x\x01y"
    found = [find_property(data, name + b"\x01") for name in (b"a", b"aa", b"b", b"x", b"missing")]
    assert found == [b"2", b"1", b"x\x01y", b"", b""]
    assert find_property(b"a\x011\x02b\x012\x02a\x01", b"a\x01") == b"1"  # a pair without a value is none
