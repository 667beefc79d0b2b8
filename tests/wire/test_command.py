from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker.errors import BadFrame
from mqbroker.wire.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.command import (
    EXT_FIELDS_MAX,
    JSON,
    ROCKETMQ,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    encode_frame,
)
from mqbroker.wire.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from tests.commands import decode_commands, decode_frame
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame

# RemotingCommand.encode() of 4.9.7: a oneway GO request with a remark, four-byte characters and an empty field,
# and a response with neither remark nor fields.
JAVA_BINARY_REQUEST = bytes.fromhex(
    "0000004b01000043000a09019700000007000000020000000a636166c3a920f09f9880000000240005746f70696300000001540004"
    "6bc3a97900000003e4b8ad0005656d70747900000000626f6479"
)
JAVA_BINARY_RESPONSE = bytes.fromhex("00000019010000150001000197ffffffff000000010000000000000000")


def header_json(data: bytes) -> dict:
    """The JSON header of a whole frame, read by hand."""
    return json.loads(data[8 : 8 + int.from_bytes(data[5:8], "big")])


def binary_header(
    remark: bytes = b"", ext: bytes = b"", *, remark_length: int | None = None, ext_length: int | None = None
) -> bytes:
    """A binary header whose lengths may lie."""
    return (
        struct.pack(">hbhii", 10, 0, 407, 1, 0)
        + struct.pack(">i", len(remark) if remark_length is None else remark_length)
        + remark
        + struct.pack(">i", len(ext) if ext_length is None else ext_length)
        + ext
    )


def pair(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def test_a_golden_frame_is_read_as_its_json_says(golden_frame: GoldenFrame) -> None:
    command = decode_frame(golden_frame.data)
    wanted = header_json(golden_frame.data)
    assert wanted["serializeTypeCurrentRPC"] == "JSON"
    assert command.serialize_type == JSON
    assert command.code == wanted["code"]
    assert command.opaque == wanted["opaque"]
    assert command.flag == wanted["flag"]
    assert command.version == wanted["version"] == VERSION
    assert command.remark == wanted.get("remark")
    assert LanguageCode(command.language).name == wanted["language"]
    assert command.ext_fields == (wanted.get("extFields") or {})
    assert command.body == golden_frame.data[8 + int.from_bytes(golden_frame.data[5:8], "big") :]
    assert command.is_response == (golden_frame.side == "response")


def test_a_golden_frame_is_written_as_java_would_read_it(golden_frame: GoldenFrame) -> None:
    command = decode_frame(golden_frame.data)
    data = encode_command(command)
    assert decode_frame(data) == command
    ours, wanted = header_json(data), header_json(golden_frame.data)
    if not wanted.get("extFields"):
        wanted.pop("extFields", None)  # none and no fields are the same to a reader
    assert ours == wanted
    assert data.endswith(command.body)


def test_a_golden_frame_survives_the_binary_encoding(golden_frame: GoldenFrame) -> None:
    command = attrs.evolve(decode_frame(golden_frame.data), serialize_type=ROCKETMQ)
    data = encode_command(command)
    assert data[4] == ROCKETMQ
    fields = {name: value for name, value in command.ext_fields.items() if value}
    assert decode_frame(data) == attrs.evolve(command, ext_fields=fields)


def test_the_whole_golden_stream_as_commands(golden_frames: list[GoldenFrame]) -> None:
    commands = decode_commands(FrameDecoder().feed(b"".join(frame.data for frame in golden_frames)))
    assert [command.is_response for command in commands] == [frame.side == "response" for frame in golden_frames]
    requests = [command.code for command in commands if not command.is_response]
    assert requests == [frame.code for frame in golden_frames if frame.side == "request"]


def test_binary_request_of_java() -> None:
    command = decode_frame(JAVA_BINARY_REQUEST)
    assert command == RemotingCommand(
        code=RequestCode.SEND_MESSAGE,
        ext_fields={"topic": "T", "k\xe9y": "中"},  # Java, too, reads an empty value as none
        body=b"body",
        remark="caf\xe9 \U0001f600",
        opaque=7,
        flag=2,
        language=LanguageCode.GO,
        version=407,
        serialize_type=ROCKETMQ,
    )
    assert command.is_oneway
    assert not command.is_response
    assert encode_command(attrs.evolve(command, ext_fields={**command.ext_fields, "empty": ""})) == JAVA_BINARY_REQUEST


def test_binary_response_of_java() -> None:
    command = decode_frame(JAVA_BINARY_RESPONSE)
    assert command == RemotingCommand(
        ResponseCode.SYSTEM_ERROR, opaque=-1, flag=1, language=LanguageCode.JAVA, serialize_type=ROCKETMQ
    )
    assert encode_command(command) == JAVA_BINARY_RESPONSE


def test_a_request_and_its_response() -> None:
    request = RemotingCommand.request(
        RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="T", queue_id=3), b"body"
    )
    assert request.ext_fields == {"topic": "T", "queueId": "3"}
    assert (request.body, request.flag, request.language) == (b"body", 0, LanguageCode.PYTHON)
    assert not request.is_response
    request.opaque, request.serialize_type = 77, ROCKETMQ
    response = RemotingCommand.response(
        request, ResponseCode.SUCCESS, "fine", GetMaxOffsetResponseHeader(offset=5), b"answer"
    )
    assert response == RemotingCommand(
        0, {"offset": "5"}, b"answer", "fine", opaque=77, flag=1, serialize_type=ROCKETMQ
    )
    assert response.is_response
    assert not response.is_oneway


@pytest.mark.parametrize(
    ("flag", "response", "oneway"), [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (-1, 1, 1), (4, 0, 0)]
)
def test_flags_are_bits(flag: int, response: int, oneway: int) -> None:
    command = RemotingCommand(1, flag=flag)
    assert (command.is_response, command.is_oneway) == (bool(response), bool(oneway))


def test_names_for_log_lines() -> None:
    assert RemotingCommand(10, opaque=5).describe() == "SEND_MESSAGE (10, opaque 5)"
    assert RemotingCommand(9999, opaque=5).describe() == "unknown code (9999, opaque 5)"
    assert RemotingCommand(1, opaque=5, flag=1).describe() == "response 1 (opaque 5)"


@pytest.mark.parametrize("serialize_type", [2, 3, 127, 128, 255])
def test_an_unknown_serialize_type_is_refused(serialize_type: int) -> None:
    with pytest.raises(BadFrame, match=f"serialize type {serialize_type} "):
        decode_command(serialize_type, b"{}", b"")


BAD_JSON_HEADERS = {
    "empty": b"",
    "null": b"null",
    "array": b"[]",
    "text": b'"code"',
    "number": b"1",
    "not JSON": b"{code:1}",
    "cut short": b'{"code":1',
    "something behind it": b"{} {}",
    "NaN": b'{"code":NaN}',
    "Infinity": b'{"opaque":-Infinity}',
    "not UTF-8": b'{"remark":"\xff"}',
    "a lone surrogate": b'{"remark":"\\ud800"}',
    "code of 33 bits": b'{"code":2147483648}',
    "code of 5000 digits": b'{"code":' + b"9" * 5000 + b"}",
    "code of 20 digits": b'{"code":99999999999999999999}',
    "code with a fraction": b'{"code":1.0}',
    "code as text": b'{"code":"10"}',
    "code of null": b'{"code":null}',
    "code true": b'{"code":true}',
    "opaque below 32 bits": b'{"opaque":-2147483649}',
    "flag as object": b'{"flag":{}}',
    "version as array": b'{"version":[1]}',
    "remark as number": b'{"remark":1}',
    "extFields as text": b'{"extFields":"a"}',
    "extFields as array": b'{"extFields":["a"]}',
    "extFields value as object": b'{"extFields":{"a":{}}}',
    "extFields value as array": b'{"extFields":{"a":[]}}',
    "100000 extFields": b'{"extFields":{' + b",".join(b'"%d":"1"' % n for n in range(100_000)) + b"}}",
    "nested beyond what the parser takes": b"[" * 100_000,
    "objects nested without end": b'{"a":' * 100_000,
    "extFields nested": b'{"extFields":{"a":' + b"[" * 1000 + b"]" * 1000 + b"}}",
}


@pytest.mark.parametrize("header", BAD_JSON_HEADERS.values(), ids=BAD_JSON_HEADERS)
def test_a_bad_json_header_is_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_command(JSON, header, b"")


@pytest.mark.parametrize("depth", [10, 100, 500, 900, 1000, 1020])
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version", "remark", "extFields", "language"])
def test_deep_nesting_ends_in_bad_frame(name: str, depth: int) -> None:
    header = b'{"%s":%s}' % (name.encode(), b"[" * depth + b"]" * depth)
    if name == "language":
        assert decode_command(JSON, header, b"").language == LanguageCode.OTHER
    else:
        with pytest.raises(BadFrame):
            decode_command(JSON, header, b"")


def test_the_most_ext_fields_there_may_be() -> None:
    fields = {str(n): "v" for n in range(EXT_FIELDS_MAX)}
    for serialize_type in (JSON, ROCKETMQ):
        command = RemotingCommand(1, fields, serialize_type=serialize_type)
        assert decode_frame(encode_command(command)).ext_fields == fields
        command.ext_fields = {**fields, "more": "v"}
        with pytest.raises(BadFrame, match="1024"):
            decode_frame(encode_command(command))


@pytest.mark.parametrize("one", [pair(b"", b""), pair(b"same", b"v"), pair(b"", b"v"), pair(b"n", b"")])
def test_binary_pairs_that_add_nothing_count_too(one: bytes) -> None:
    assert decode_command(ROCKETMQ, binary_header(ext=one * EXT_FIELDS_MAX), b"").code == 10
    with pytest.raises(BadFrame, match="1024"):
        decode_command(ROCKETMQ, binary_header(ext=one * (EXT_FIELDS_MAX + 1)), b"")


def test_what_a_json_header_leaves_out_is_zero_or_none() -> None:
    assert decode_command(JSON, b"{}", b"x") == RemotingCommand(
        0, {}, b"x", None, opaque=0, flag=0, language=LanguageCode.OTHER, version=0, serialize_type=JSON
    )
    nulls = b'{"extFields":null,"remark":null,"language":null,"unknown":[1]}'
    assert decode_command(JSON, nulls, b"") == decode_command(JSON, b"{}", b"")


def test_json_ext_fields_become_text_as_in_java() -> None:
    header = b'{"extFields":{"i":-7,"t":true,"f":false,"d":1.5,"n":null,"s":"x","e":""}}'
    fields = {"i": "-7", "t": "true", "f": "false", "d": "1.5", "s": "x", "e": ""}
    assert decode_command(JSON, header, b"").ext_fields == fields


def test_of_duplicate_json_keys_the_last_counts() -> None:
    command = decode_command(JSON, b'{"code":1,"code":2,"extFields":{"a":"1","a":"2"}}', b"")
    assert (command.code, command.ext_fields) == (2, {"a": "2"})


@pytest.mark.parametrize("name", ["COBOL", "java", "", "PYTHON "])
def test_an_unknown_language_is_other(name: str) -> None:
    assert decode_command(JSON, json.dumps({"language": name}).encode(), b"").language == LanguageCode.OTHER


@pytest.mark.parametrize("number", [-128, -1, 13, 127])
def test_an_unknown_language_number_is_other(number: int) -> None:
    header = bytearray(binary_header())
    header[2:3] = struct.pack(">b", number)
    command = decode_command(ROCKETMQ, bytes(header), b"")
    assert command.language == LanguageCode.OTHER
    assert encode_command(command)[10] == LanguageCode.OTHER


def test_every_language_in_both_encodings() -> None:
    for language in LanguageCode:
        for serialize_type in (JSON, ROCKETMQ):
            command = RemotingCommand(1, language=language, serialize_type=serialize_type)
            assert decode_frame(encode_command(command)).language == language


def test_a_language_without_a_name_is_written_as_other() -> None:
    assert header_json(encode_command(RemotingCommand(1, language=99)))["language"] == "OTHER"


BAD_BINARY_HEADERS = {
    "empty": b"",
    "negative remark length": binary_header(remark_length=-1),
    "most negative remark length": binary_header(remark_length=-(2**31)),
    "remark longer than the header": binary_header(b"abc", remark_length=1000),
    "remark of 2 GiB": binary_header(remark_length=2**31 - 1),
    "remark takes the length of the fields": binary_header(b"abc", remark_length=7),
    # The fields' length would be read from the opaque, which is 0.
    "a remark that leads back": struct.pack(">hbhiii", 10, 0, 407, 0, 0, -12) + bytes(4),
    "negative fields length": binary_header(ext_length=-1),
    "fields longer than the header": binary_header(ext=pair(b"a", b"b"), ext_length=1000),
    "fields one byte too long": binary_header(ext=pair(b"a", b"b"), ext_length=9),
    "fields one byte too short": binary_header(ext=pair(b"a", b"b"), ext_length=7),
    "negative name length": binary_header(ext=struct.pack(">h", -1) + b"abcdefgh"),
    "negative value length": binary_header(ext=struct.pack(">h", 1) + b"a" + struct.pack(">i", -1) + b"abcd"),
    "name longer than the fields": binary_header(ext=struct.pack(">h", 999) + b"abcdefgh"),
    "value longer than the fields": binary_header(ext=struct.pack(">h", 1) + b"a" + struct.pack(">i", 99) + b"a"),
    "half a name length": binary_header(ext=b"\0"),
    "a name without a value": binary_header(ext=struct.pack(">h", 1) + b"a"),
    "remark not UTF-8": binary_header(b"\xff\xfe"),
    "name not UTF-8": binary_header(ext=pair(b"\xc3", b"v")),
    "value of a surrogate": binary_header(ext=pair(b"n", b"\xed\xa0\x80")),
}


@pytest.mark.parametrize("header", BAD_BINARY_HEADERS.values(), ids=BAD_BINARY_HEADERS)
def test_a_bad_binary_header_is_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_command(ROCKETMQ, header, b"")


def test_every_truncation_of_a_binary_header_is_refused() -> None:
    header = JAVA_BINARY_REQUEST[8 : 8 + JAVA_BINARY_REQUEST[7]]
    assert decode_command(ROCKETMQ, header, b"").code == 10
    for length in range(len(header)):
        with pytest.raises(BadFrame):
            decode_command(ROCKETMQ, header[:length], b"")


def test_every_truncation_of_a_json_header_is_refused(golden_frames: list[GoldenFrame]) -> None:
    for frame in golden_frames[::10]:
        end = 8 + int.from_bytes(frame.data[5:8], "big")
        for stop in range(8, end):
            with pytest.raises(BadFrame):
                decode_command(JSON, frame.data[8:stop], b"")


@pytest.mark.parametrize("data", [b"", JAVA_BINARY_RESPONSE[:-1], JAVA_BINARY_RESPONSE + b"\0", b"\0\0\0\x03"])
def test_decode_frame_takes_exactly_one_frame(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(data)
    with pytest.raises(BadFrame, match="2 frames"):
        decode_frame(JAVA_BINARY_RESPONSE * 2)


texts = st.text(max_size=20)
int32s = numbers(-(2**31), 2**31 - 1)
int16s = numbers(-(2**15), 2**15 - 1)
languages = st.sampled_from(LanguageCode)


@given(
    st.builds(
        RemotingCommand,
        code=int32s,
        ext_fields=st.dictionaries(texts, texts, max_size=8),
        body=st.binary(max_size=40),
        remark=st.none() | texts,
        opaque=int32s,
        flag=int32s,
        language=languages,
        version=int32s,
    )
)
def test_any_command_survives_json(command: RemotingCommand) -> None:
    assert decode_frame(encode_command(command)) == command


@given(
    st.builds(
        RemotingCommand,
        code=int16s,
        ext_fields=st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=8),
        body=st.binary(max_size=40),
        remark=st.none() | texts.filter(bool),
        opaque=int32s,
        flag=int32s,
        language=languages,
        version=int16s,
        serialize_type=st.just(ROCKETMQ),
    )
)
def test_any_command_survives_the_binary_encoding(command: RemotingCommand) -> None:
    assert decode_frame(encode_command(command)) == command


def decodes_or_is_refused(serialize_type: int, header: bytes) -> None:
    try:
        command = decode_command(serialize_type, header, b"")
    except BadFrame:
        return
    # What was accepted must also be fit to be logged, answered and sent on.
    command.describe()
    again = decode_frame(encode_command(command))
    assert again.code == command.code
    assert decode_frame(encode_command(RemotingCommand.response(command))).opaque == command.opaque


@given(numbers(0, 255), st.binary(max_size=80))
def test_random_headers_raise_nothing_but_bad_frame(serialize_type: int, header: bytes) -> None:
    decodes_or_is_refused(serialize_type, header)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["code", "opaque", "flag", "version", "remark", "extFields", "language"]),
)
def test_any_json_value_in_any_place_raises_nothing_but_bad_frame(
    value: int | list[Any] | dict[str, Any] | None, name: str
) -> None:
    decodes_or_is_refused(JSON, json.dumps({name: value}).encode())
    decodes_or_is_refused(JSON, json.dumps({"extFields": {name: value}}).encode())
    decodes_or_is_refused(JSON, json.dumps(value).encode())


SEEDS = [
    (ROCKETMQ, JAVA_BINARY_REQUEST[8:-4]),
    (ROCKETMQ, JAVA_BINARY_RESPONSE[8:]),
    (JSON, b'{"code":0,"extFields":{"a":"1"},"flag":1,"language":"JAVA","opaque":4,"remark":"r","version":407}'),
]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 200), numbers(0, 255)), min_size=1, max_size=4))
def test_mutated_headers_raise_nothing_but_bad_frame(seed: tuple[int, bytes], changes: list[tuple[int, int]]) -> None:
    serialize_type, header = seed
    mutated = bytearray(header)
    for at, byte in changes:
        mutated[at % len(mutated)] = byte
    decodes_or_is_refused(serialize_type, bytes(mutated))
    whole = bytearray(encode_frame(serialize_type, header, b"body"))
    for at, byte in changes:
        whole[at % len(whole)] = byte
    with contextlib.suppress(BadFrame):
        decode_frame(bytes(whole))
