from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.wire.batch import BadBatch, BatchEntry, decode_batch, encode_batch
from mqbroker.wire.properties import decode_properties
from tests.commands import decode_frame
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame

# MessageDecoder.encodeMessages of 4.9.7: two messages, the first with tags, a key and flag 9.
FROM_JAVA = bytes.fromhex(
    "00000032000000000000000000000009000000026231001a4b455953016b0257414954017472756502544147530154616741"
    "000000210000000000000000000000000000000262320009574149540174727565"
)
ENTRIES = [BatchEntry(9, b"b1", b"KEYS\x01k\x02WAIT\x01true\x02TAGS\x01TagA"), BatchEntry(0, b"b2", b"WAIT\x01true")]


def message(
    *, size: int | None = None, body_length: int | None = None, properties_length: int | None = None, rest: bytes = b""
) -> bytes:
    """One message of body "body" and properties "a=b" whose sizes may lie."""
    body, properties = b"body", b"a\x01b"
    whole = 22 + len(body) + len(properties)
    return (
        struct.pack(
            ">iiiii", whole if size is None else size, 0, 0, 0, len(body) if body_length is None else body_length
        )
        + body
        + struct.pack(">h", len(properties) if properties_length is None else properties_length)
        + properties
        + rest
    )


def test_a_batch_of_java() -> None:
    assert decode_batch(FROM_JAVA) == ENTRIES
    assert encode_batch(ENTRIES) == FROM_JAVA


def test_golden_batches_come_back_as_they_were(golden_frames: list[GoldenFrame]) -> None:
    batches = [frame for frame in golden_frames if frame.code == 320 and frame.side == "request"]
    assert batches
    for frame in batches:
        body = decode_frame(frame.data).body
        entries = decode_batch(body)
        assert len(entries) > 1
        assert all("UNIQ_KEY" in decode_properties(entry.properties) for entry in entries)
        assert encode_batch(entries) == body


def test_an_empty_batch() -> None:
    assert decode_batch(b"") == []
    assert encode_batch([]) == b""


def test_the_smallest_message() -> None:
    assert decode_batch(encode_batch([BatchEntry(-1, b"", b"")])) == [BatchEntry(-1, b"", b"")]


LIES = {
    "size 0": message(size=0),
    "negative size": message(size=-29),
    "size one too small": message(size=28),
    "size one too large": message(size=30),
    "size of 2 GiB": message(size=2**31 - 1),
    "negative body length": message(body_length=-1),
    "most negative body length": message(body_length=-(2**31)),
    "body length that leads back": message(body_length=-20),
    "body length of 2 GiB": message(body_length=2**31 - 1),
    "body length one too small": message(body_length=3),
    "body length one too large": message(body_length=5),
    "body takes the properties": message(body_length=9),
    "negative properties length": message(properties_length=-1),
    "most negative properties length": message(properties_length=-(2**15)),
    "properties length one too small": message(properties_length=2),
    "properties length one too large": message(properties_length=4),
    "properties of 32767": message(properties_length=2**15 - 1),
    "properties that take the next message": message(properties_length=3 + 29, size=29 + 29, rest=message()[:-1]),
    # Lengths that end where the message starts: read on, they would be read for ever.
    "a body that takes all back": struct.pack(">iiiiih", 0, 0, 0, 0, -22, 0),
    "properties that take all back": struct.pack(">iiiiih", 0, 0, 0, 0, 0, -22),
    "a zero byte behind": message(rest=b"\0"),
    "zeros behind": message(rest=bytes(22)),
    "text": b"just a plain body that somebody marked as a batch",
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES)
def test_lying_sizes_are_refused(data: bytes) -> None:
    with pytest.raises(BadBatch):
        decode_batch(data)
    with pytest.raises(BadBatch):
        decode_batch(message() + data)


def test_every_truncation_is_refused() -> None:
    for length in range(1, len(FROM_JAVA)):
        if length == 50:  # the first message whole
            assert decode_batch(FROM_JAVA[:length]) == ENTRIES[:1]
        else:
            with pytest.raises(BadBatch):
                decode_batch(FROM_JAVA[:length])


def test_properties_beyond_their_length_field_are_refused() -> None:
    assert decode_batch(encode_batch([BatchEntry(0, b"", bytes(32767))])) == [BatchEntry(0, b"", bytes(32767))]
    with pytest.raises(BadBatch, match="32768"):
        encode_batch([BatchEntry(0, b"", bytes(32768))])


entries = st.builds(BatchEntry, numbers(-(2**31), 2**31 - 1), st.binary(max_size=30), st.binary(max_size=30))


@given(st.lists(entries, max_size=8))
def test_any_batch_survives(batch: list[BatchEntry]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def decodes_to_what_it_says_or_is_refused(data: bytes) -> None:
    try:
        batch = decode_batch(data)
    except BadBatch:
        return
    assert sum(22 + len(entry.body) + len(entry.properties) for entry in batch) == len(data)


@given(st.binary(max_size=120))
def test_random_bytes_raise_nothing_but_bad_batch(data: bytes) -> None:
    decodes_to_what_it_says_or_is_refused(data)


@given(st.lists(st.tuples(st.integers(0, len(FROM_JAVA) - 1), numbers(0, 255)), min_size=1, max_size=4))
def test_mutated_batches_raise_nothing_but_bad_batch(changes: list[tuple[int, int]]) -> None:
    data = bytearray(FROM_JAVA)
    for at, byte in changes:
        data[at] = byte
    decodes_to_what_it_says_or_is_refused(bytes(data))
