from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import MQError
from mqbroker.wire.command import decode_frame
from mqbroker.wire.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties

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
def test_properties_are_read_as_java_reads_them(data, wanted):
    assert decode_properties(data) == wanted


def test_properties_are_written_as_java_writes_them():
    assert encode_properties({"A": "1", "B": "", "C": "x"}) == b"A\x011\x02B\x01\x02C\x01x"
    assert encode_properties({"k\xe9y": "中\U0001f600"}) == "k\xe9y\x01中\U0001f600".encode()
    assert encode_properties({}) == b""


def test_properties_of_golden_sends_come_back_as_they_were(golden_frames):
    sends = [frame for frame in golden_frames if frame.code == 310 and frame.side == "request"]
    assert sends
    for frame in sends:
        data = decode_frame(frame.data).ext_fields["i"].encode()
        assert encode_properties(decode_properties(data)) == data


@pytest.mark.parametrize(
    "properties",
    [{"": "v"}, {"a\x01b": "v"}, {"a\x02b": "v"}, {"a": "v\x01w"}, {"a": "v\x02w"}, {"a": "\x02b\x01c"}, {"\x01": "v"}],
)
def test_separators_and_empty_names_are_refused(properties):
    with pytest.raises(MQError, match="must not be empty"):
        encode_properties({"ok": "ok", **properties})


def test_what_is_not_utf_8_becomes_the_replacement_character():
    assert decode_properties(b"a\x01\xff\x02b\x01ok") == {"a": "\ufffd", "b": "ok"}
    assert decode_properties(b"\xc3\x01v") == {"\ufffd": "v"}


def test_the_bound_is_that_of_a_signed_16_bit_length():
    assert PROPERTIES_BYTES_MAX == 2**15 - 1


words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.dictionaries(words, words, max_size=10))
def test_any_properties_survive_in_their_order(properties):
    decoded = decode_properties(encode_properties(properties))
    assert list(decoded.items()) == list(properties.items())


@given(
    st.binary(max_size=100) | st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"\xe4"]), max_size=30).map(b"".join)
)
def test_any_bytes_are_read_as_pairs_of_something(data):
    for name, value in decode_properties(data).items():
        assert name
        assert value
        assert "\x01" not in name
        assert "\x02" not in name + value
