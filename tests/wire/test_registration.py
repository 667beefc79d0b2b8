"""The body of REGISTER_BROKER, in both forms, and what is refused."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire import registration
from mqbroker.wire.bodies import BadBody, DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.registration import body_crc32, decode_registration, encode_registration

BODY = RegisterBrokerBody(
    TopicConfigSerializeWrapper(
        {"T": TopicConfig("T", 4, 3, 6, "SINGLE_TAG"), "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 7, "MULTI_TAG")},
        DataVersion(1795255252579, 12),
    ),
    ["127.0.0.1:1"],
)
# As Java's RegisterBrokerBody writes it, before the stream is compressed.
INFLATED = (
    b'\x00\x00\x00\x28{"timestamp":1795255252579,"counter":12}'
    b"\x00\x00\x00\x02"
    b"\x00\x00\x00\x12T 4 3 6 SINGLE_TAG\x00\x00\x00\x18%RETRY%g 1 1 7 MULTI_TAG"
    b'\x00\x00\x00\x0f["127.0.0.1:1"]'
)


@pytest.mark.parametrize("compressed", [False, True])
def test_both_forms_come_back(compressed):
    data = encode_registration(BODY, compressed=compressed)
    assert decode_registration(data, compressed=compressed) == BODY


def test_the_compressed_form_byte_by_byte():
    assert zlib.decompress(encode_registration(BODY, compressed=True)) == INFLATED


@pytest.mark.parametrize("compressed", [False, True])
def test_no_body_is_no_topics(compressed):
    assert decode_registration(b"", compressed=compressed) == RegisterBrokerBody()


@pytest.mark.parametrize("size", range(len(INFLATED)))
def test_a_truncated_stream_is_refused(size):
    with pytest.raises(BadBody):
        decode_registration(zlib.compress(INFLATED[:size]), compressed=True)


@pytest.mark.parametrize(
    "topic", [b"T 4 3 6", b"T x 3 6 SINGLE_TAG", b"T -1 3 6 SINGLE_TAG", b"T 4 3 6 S S", b"\xff 1 1 1 S"]
)
def test_what_is_no_topic_is_refused(topic):
    version = b'{"counter":0,"timestamp":0}'
    pieces = struct.pack(">i", len(version)) + version + struct.pack(">ii", 1, len(topic)) + topic
    with pytest.raises(BadBody, match="is not a topic"):
        decode_registration(zlib.compress(pieces + b"\x00\x00\x00\x02[]"), compressed=True)


def test_a_stream_that_inflates_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(BadBody, match="inflates to more than 1000 bytes"):
        decode_registration(zlib.compress(bytes(1001)), compressed=True)


@given(st.binary(max_size=200), st.booleans())
def test_other_bytes_are_refused(data, wrap):
    with contextlib.suppress(BadBody):
        decode_registration(zlib.compress(data) if wrap else data, compressed=True)


def test_the_check_value_is_never_negative():
    assert body_crc32(b"a") == zlib.crc32(b"a") & 0x7FFFFFFF == 0x68B7BE43


@pytest.mark.parametrize("compressed", [False, True])
def test_more_topics_than_a_broker_serves_are_refused(monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 2)
    table = {name: TopicConfig(name) for name in ("A", "B", "C")}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table))
    data = encode_registration(body, compressed=compressed)
    with pytest.raises(BadBody, match="3 topics, 2 at most"):
        decode_registration(data, compressed=compressed)
