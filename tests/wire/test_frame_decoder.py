from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject

from mqbroker.errors import BadFrame
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON,
    ROCKETMQ,
    Frame,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_batch_answer,
    encode_frame,
)
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame


def feed_pieces(data: bytes, cuts: list[int]) -> list[Frame]:
    """What a new decoder makes of `data` that arrives in pieces, cut at `cuts`."""
    decoder = FrameDecoder()
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        frames += decoder.feed(data[start:end])
    assert decoder.pending_bytes == 0
    return frames


def parts_of(data: bytes) -> Frame:
    """Cut one whole frame by hand."""
    length, word = struct.unpack(">II", data[:8])
    assert length == len(data) - 4
    header_length = word & 0xFFFFFF
    return word >> 24, data[8 : 8 + header_length], data[8 + header_length :]


def test_a_golden_frame_comes_out_whole(golden_frame: GoldenFrame) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(golden_frame.data) == [parts_of(golden_frame.data)]
    assert decoder.pending_bytes == 0


def test_a_golden_frame_comes_out_of_single_bytes(golden_frame: GoldenFrame) -> None:
    data = golden_frame.data
    decoder = FrameDecoder()
    for at in range(len(data) - 1):
        assert decoder.feed(data[at : at + 1]) == []
        assert decoder.pending_bytes == at + 1
    assert decoder.feed(data[-1:]) == [parts_of(data)]
    assert decoder.pending_bytes == 0


def test_trailing_bytes_wait_for_the_rest_of_their_frame(golden_frame: GoldenFrame) -> None:
    data = golden_frame.data
    decoder = FrameDecoder()
    for trailing in (1, 3, 4, 7, 8, len(data) - 1):
        assert decoder.feed(data + data[:trailing]) == [parts_of(data)]
        assert decoder.pending_bytes == trailing
        assert decoder.feed(data[trailing:]) == [parts_of(data)]
        assert decoder.pending_bytes == 0


def test_encode_frame_gives_the_golden_bytes_back(golden_frame: GoldenFrame) -> None:
    assert encode_frame(*parts_of(golden_frame.data)) == golden_frame.data


def test_a_stream_of_all_golden_frames_in_pieces_of_one_size(golden_frames: list[GoldenFrame]) -> None:
    stream = b"".join(frame.data for frame in golden_frames)
    wanted = [parts_of(frame.data) for frame in golden_frames]
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 100, 1000, 1448, 65536, len(stream)):
        assert feed_pieces(stream, list(range(size, len(stream), size))) == wanted


def test_a_stream_of_all_golden_frames_cut_at_random_places(golden_frames: list[GoldenFrame]) -> None:
    stream = b"".join(frame.data for frame in golden_frames)
    wanted = [parts_of(frame.data) for frame in golden_frames]
    rng = random.Random(497)
    for count in (1, 3, 10, 100, 1000, 10000) * 3:
        cuts = sorted(rng.sample(range(1, len(stream)), count))
        assert feed_pieces(stream, cuts) == wanted


def test_three_frames_cut_at_every_pair_of_places() -> None:
    frames = [(JSON, b"{}", b"body"), (ROCKETMQ, b"", b""), (JSON, b"hdr", b"")]
    stream = b"".join(encode_frame(*frame) for frame in frames)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            assert feed_pieces(stream, [first, second]) == frames


def test_the_layout_byte_by_byte() -> None:
    assert encode_frame(ROCKETMQ, b"abc", b"de") == b"\0\0\0\x09" + b"\x01\0\0\x03" + b"abc" + b"de"
    assert encode_frame(JSON, b"") == b"\0\0\0\x04" + b"\0\0\0\0"


def test_the_smallest_frame_has_neither_header_nor_body() -> None:
    assert FrameDecoder().feed(b"\0\0\0\x04\0\0\0\0") == [(JSON, b"", b"")]


def test_the_serialize_type_is_handed_on_unjudged() -> None:
    assert FrameDecoder().feed(b"\0\0\0\x04\xff\0\0\0") == [(255, b"", b"")]


@pytest.mark.parametrize("length", [0, 1, 3, 101, FRAME_BYTES_MAX + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 100])
def test_an_impossible_length_is_refused_as_soon_as_it_is_there(length: int, piece: int) -> None:
    decoder = FrameDecoder(100)
    data = struct.pack(">I", length)
    for at in range(0, 4, piece):
        chunk = data[at : at + piece]
        if at + piece < 4:
            assert decoder.feed(chunk) == []
        else:
            with pytest.raises(BadFrame, match=f"frame length {length} "):
                decoder.feed(chunk)


@pytest.mark.parametrize("length", [0, 3, 101, 0x80000000])
def test_an_impossible_length_is_refused_with_its_header_length_there(length: int) -> None:
    for header_length in (0, 50):
        with pytest.raises(BadFrame, match=f"frame length {length} "):
            FrameDecoder(100).feed(struct.pack(">II", length, header_length) + bytes(200))


@pytest.mark.parametrize("header_length", [1, 5, 0xFFFFFF])
def test_a_header_longer_than_its_frame_is_refused_before_the_frame_is_whole(header_length: int) -> None:
    length = 4 + header_length - 1
    data = struct.pack(">II", length, header_length)
    with pytest.raises(BadFrame, match="header length"):
        FrameDecoder(2**25).feed(data)
    decoder = FrameDecoder(2**25)
    assert decoder.feed(data[:7]) == []
    with pytest.raises(BadFrame, match="header length"):
        decoder.feed(data[7:])


def test_a_bad_length_behind_good_frames_is_found() -> None:
    good = encode_frame(JSON, b"{}")
    for bad in (b"\0\0\0\x03", b"\xff\xff\xff\xff", b"\0\0\0\x05\0\0\0\x02"):
        with pytest.raises(BadFrame):
            FrameDecoder().feed(good * 3 + bad)


def test_a_frame_of_exactly_the_bound_passes_and_one_byte_more_does_not() -> None:
    whole = encode_frame(JSON, b"{}", b"x" * 94)
    assert len(whole) == 104
    assert len(FrameDecoder(100).feed(whole)) == 1
    with pytest.raises(BadFrame):
        FrameDecoder(99).feed(whole)


def test_the_default_bound_is_that_of_a_java_peer() -> None:
    assert FRAME_BYTES_MAX == 16777216
    assert FrameDecoder().feed(struct.pack(">I", FRAME_BYTES_MAX)) == []


def test_an_empty_piece_changes_nothing() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"") == []
    decoder.feed(b"\0\0")
    assert decoder.feed(b"") == []
    assert decoder.pending_bytes == 2


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_header_above_the_bound_is_refused_before_it_is_buffered(serialize_type: int) -> None:
    whole = encode_frame(serialize_type, bytes(HEADER_BYTES_MAX), b"body")
    assert FrameDecoder().feed(whole) == [(serialize_type, bytes(HEADER_BYTES_MAX), b"body")]
    longer = struct.pack(">II", HEADER_BYTES_MAX + 9, serialize_type << 24 | HEADER_BYTES_MAX + 1)
    for cut in (0, 3, 7):
        decoder = FrameDecoder()
        decoder.feed(longer[:cut])
        with pytest.raises(BadFrame, match=f"header length {HEADER_BYTES_MAX + 1} is above {HEADER_BYTES_MAX}"):
            decoder.feed(longer[cut:])


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0,"x":[' + b"[]," * 200_000 + b"[]]}",
        b'{"code":0,"x":[' + b"1," * 200_000 + b"1]}",
        b'{"code":0,"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"code":0,"extFields":{' + b",".join(b'"%d":"1"' % i for i in range(50_000)) + b"}}",
    ],
    ids=["lists", "numbers", "objects", "fields"],
)
def test_a_long_header_is_that_of_a_response_to_a_batch(header: bytes) -> None:
    """A decoder that expects one takes no other that takes long to parse, now or later."""
    decoder = FrameDecoder()
    decoder.expect_answer(RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, body=bytes(4 << 20)))
    ids = b'{"code":0,"extFields":{"msgId":"' + b",".join([b"0123456789ABCDEF" * 2] * 30_000) + b'"},"flag":1}'
    for _ in range(2):
        assert decoder.feed(encode_frame(JSON, ids, header_bytes_max=len(ids))) == [(JSON, ids, b"")]
    whole = encode_frame(JSON, header, b"body", header_bytes_max=len(header))
    assert decoder.feed(whole[:-1]) == []
    with pytest.raises(BadFrame, match=f"a header of {len(header)} bytes is not that of a response to a batch"):
        decoder.feed(whole[-1:])


def test_a_response_to_a_batch_may_be_binary() -> None:
    """A Java broker with ROCKETMQ_SERIALIZE_TYPE answers so, whatever it was asked in."""
    decoder = FrameDecoder()
    decoder.expect_answer(RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, body=bytes(4 << 20)))
    ids = ",".join(["0123456789ABCDEF" * 2] * 30_000)
    whole = encode_batch_answer(RemotingCommand(0, {"msgId": ids}, serialize_type=ROCKETMQ))
    for _ in range(2):
        [frame] = decoder.feed(whole)
        assert decode_command(*frame).ext_fields == {"msgId": ids}
    # One of many fields is not parsed on and on.
    header = whole[8 : 8 + 17] + struct.pack(">I", 600_000) + bytes(600_000)
    [frame] = decoder.feed(encode_frame(ROCKETMQ, header, header_bytes_max=len(header)))
    with pytest.raises(BadFrame, match="are more than 1024"):
        decode_command(*frame)


def test_a_header_that_peers_refuse_is_not_sent() -> None:
    with pytest.raises(BadFrame, match=f"header of {HEADER_BYTES_MAX + 1} bytes, {HEADER_BYTES_MAX} at most"):
        encode_frame(JSON, bytes(HEADER_BYTES_MAX + 1))


frame_parts = st.tuples(numbers(0, 255), st.binary(max_size=40), st.binary(max_size=40))


@given(st.lists(frame_parts, max_size=6), st.data())
def test_any_frames_survive_any_cuts(frames: list[tuple[int, bytes, bytes]], data: DataObject) -> None:
    stream = b"".join(encode_frame(*frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    assert feed_pieces(stream, cuts) == frames


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_random_bytes_raise_nothing_but_bad_frame_and_hold_no_more_than_came(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(200)
    came = 0
    try:
        for piece in pieces:
            came += len(piece)
            for kind, header, body in decoder.feed(piece):
                assert 0 <= kind <= 255
                assert len(header) + len(body) <= 200 - 4
            assert decoder.pending_bytes <= min(came, 204)
    except BadFrame:
        pass
