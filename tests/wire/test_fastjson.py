from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbroker.wire import fastjson
from mqbroker.wire.fastjson import DEPTH_MAX, BadJson, JsonKey, dumps, loads
from tests.commands import decode_frame
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame


def objects(found: list[tuple[str, object]]) -> dict:
    """Strict JSON, to compare with: no name twice."""
    assert len({name for name, _ in found}) == len(found)
    return dict(found)


def test_golden_bodies_keep_their_value(golden_frames: list[GoldenFrame]) -> None:
    strict = dialect = 0
    for frame in golden_frames:
        body = decode_frame(frame.data).body
        if body[:1] not in (b"{", b"["):
            continue
        value = loads(body)
        assert loads(dumps(value)) == value
        # Java's writer leaves no space and escapes little: the length shows that nothing was dropped.
        assert abs(len(dumps(value)) - len(body)) < 10
        try:
            wanted = json.loads(body, object_pairs_hook=objects)
        except ValueError:
            dialect += 1
        else:
            strict += 1
            assert value == wanted
    assert strict > 30
    assert dialect > 5


def test_maps_with_other_keys_than_text() -> None:
    queue = JsonKey.of({"topic": "T", "brokerName": "b", "queueId": 1})
    # Written by JSON.toJSONString of Fastjson for a TreeMap<Long, String> and a HashMap<MessageQueue, Long>.
    assert loads('{-2:"b",1:"a"}') == {-2: "b", 1: "a"}
    assert loads('{{"brokerName":"b","queueId":1,"topic":"T"}:12}') == {queue: 12}
    assert dumps({-2: "b", 1: "a"}) == b'{-2:"b",1:"a"}'
    assert dumps({queue: 12}) == b'{{"brokerName":"b","queueId":1,"topic":"T"}:12}'
    assert queue.as_dict() == {"topic": "T", "brokerName": "b", "queueId": 1}


def test_equal_objects_are_equal_keys() -> None:
    value = loads('{{"a":1,"b":2}:"first",{"b":2,"a":1}:"second"}')
    assert value == {JsonKey.of({"a": 1, "b": 2}): "second"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", {}),
        ("[]", []),
        ("null", None),
        ("true", True),
        ("-1.5e3", -1500.0),
        ('"a"', "a"),
        ("{1:{2:{3:[]}}}", {1: {2: {3: []}}}),
        (' {\t1 :\r\n[ 1 , "a" ] , 2:null } ', {1: [1, "a"], 2: None}),
        ("{1:true,2:false,3:null}", {1: True, 2: False, 3: None}),
        ('{1:"\\u00e9\\ud83d\\ude00\\n\\"\\\\\\/"}', {1: '\xe9\U0001f600\n"\\/'}),
        ('{1:"\u2028中"}', {1: "\u2028中"}),
        ('{"1":1,1:2}', {"1": 1, 1: 2}),
        ("{1:1,1:2}", {1: 2}),
        ('{name:"v",$ref:1,_x:2,true:3}', {"name": "v", "$ref": 1, "_x": 2, "true": 3}),
        ("{-0:1,007:2}", {0: 1, 7: 2}),
        ("{1.5:1}", {"1.5": 1}),
        ("{9223372036854775807:9223372036854775807}", {2**63 - 1: 2**63 - 1}),
        ("{1:18446744073709551615}", {1: 2**64 - 1}),
        ("{1:1" + "0" * 30 + "}", {1: 1e30}),
        ('{{"a":{"b":1}.a:1}', None),
    ],
)
def test_values(text: str, wanted: Any) -> None:
    if wanted is None and text != "null":
        with pytest.raises(BadJson):
            loads(text)
        return
    for source in (text, text.encode()):
        value = loads(source)
        assert value == wanted
        assert type(value) is type(wanted)


BAD = {
    "nothing": "",
    "space": "  ",
    "a word": "hello",
    "a cut word": "tru",
    "NaN": "NaN",
    "NaN in the dialect": "{1:NaN}",
    "Infinity in the dialect": "{1:-Infinity}",
    "a number beyond a double": "{1:1e999}",
    "a long number": "{1:" + "9" * 5000 + "}",
    "a minus": "{1:-}",
    "two minuses": "{1:--1}",
    "a leading zero": "{1:01}",
    "two points": "{1:1.2.3}",
    "hexadecimal": "{1:0x10}",
    "a comma too many": "{1:1,}",
    "a comma alone": "{,}",
    "two commas": "{1:1,,2:2}",
    "no comma": "{1:1 2:2}",
    "an array with a comma too many": "{1:[1,]}",
    "an array with a comma alone": "[,{1:1}]",
    "an array without a comma": "{1:[1 2]}",
    "a key beyond 64 bits": "{9223372036854775808:1}",
    "a key below 64 bits": "{-9223372036854775809:1}",
    "a key of 5000 digits": "{" + "9" * 5000 + ":1}",
    "no colon": "{1}",
    "no value": "{1:}",
    "no key": "{:1}",
    "an array as key": "{[1]:1}",
    "an object with an array as key": '{{"a":[]}:1}',
    "an object with an object as key": '{{"a":{}}:1}',
    "an object with keys of two kinds as key": '{{"a":1,2:3}:1}',
    "no end of object": "{1:1",
    "no end of array": "{1:[1",
    "no end of string": '{1:"a',
    "an escape at the end": '{1:"a\\',
    "an escaped end": '{1:"a\\"}',
    "single quotes": "{1:'a'}",
    "an unknown escape": '{1:"\\x41"}',
    "a cut escape": '{1:"\\u12"}',
    "a lone surrogate": '{1:"\\ud800"}',
    "surrogates in the wrong order": '{1:"\\ude00\\ud83d"}',
    "a line end in a string": '{1:"a\nb"}',
    "NUL in a string": '{1:"a\0b"}',
    "NUL": "\0",
    "something behind": "{1:1}x",
    "a second value": "{1:1}{}",
    "a comment": "{1:1/*x*/}",
    "the other end": "{1:[1}]",
    "an end alone": "]",
    "a byte order mark": "\ufeff{1:1}",
    "a space of another kind": "{\xa01:1}",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_not_json_is_refused(text: str) -> None:
    for source in (text, text.encode()):
        with pytest.raises(BadJson) as caught:
            loads(source)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("data", [b"\xff", b'{1:"\xff"}', b'{"a":"\xff"}', b'{1:"\xed\xa0\x80"}', b"{1:1}\xc3"])
def test_what_is_not_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(BadJson):
        loads(data)


def test_text_with_a_surrogate_is_refused() -> None:
    for text in ('{"a":"\ud800"}', '{1:"\ud800"}', "\ud800"):
        with pytest.raises(BadJson):
            loads(text)


NESTS = [("[", "]"), ('{"a":', "}"), ("{1:", "}"), ('[{"a":', "}]"), ("[{1:", "}]")]


@pytest.mark.parametrize(("opening", "closing"), NESTS)
def test_nesting_ends_at_the_bound(opening: str, closing: str) -> None:
    count = DEPTH_MAX // len(opening.replace('"a":', "").replace("1:", ""))
    value = loads(opening * count + "0" + closing * count)
    assert loads(dumps(value)) == value
    repr(value)
    for more in (2, 10, 900, 1100, 100_000):
        with pytest.raises(BadJson):
            loads(opening * (count + more) + "0" + closing * (count + more))
        with pytest.raises(BadJson):
            loads(opening * (count + more))


@pytest.mark.parametrize("count", [DEPTH_MAX + 2, 5000])
def test_nesting_of_keys_ends_at_the_bound(count: int) -> None:
    with pytest.raises(BadJson):
        loads("{" * count + '"a":1' + "}:1" * count)
    with pytest.raises(BadJson):
        loads("{" * count)


def test_width_is_not_depth() -> None:
    assert len(loads("[" + ",".join(["[[]]"] * 10_000) + "]")) == 10_000
    assert len(loads("{1:[" + ",".join(["{}"] * 1_000) + "]}")[1]) == 1_000


@pytest.mark.parametrize("piece", ["a", "\\n", "a\\n", "中"])
@pytest.mark.parametrize("end", ['"}', ""])
def test_a_long_string_takes_memory_in_proportion(piece: str, end: str) -> None:
    text = '{1:"' + piece * 200_000 + end
    tracemalloc.start()
    try:
        if end:
            assert len(loads(text)[1]) >= 200_000
        else:
            with pytest.raises(BadJson, match="unfinished string"):
                loads(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 25 * len(text.encode())  # the strict parser, tried first, takes 15


@pytest.mark.parametrize("value", [{1: {2, 3}}, {1: object()}, {1: b"x"}, {1: "\ud800"}, {1: 2**64}, {(): 1}])
def test_what_json_cannot_hold_is_a_type_error(value: dict[int | tuple[Any, ...], Any]) -> None:
    if value == {(): 1}:
        assert dumps(value) == b"{[]:1}"
        return
    with pytest.raises(TypeError):
        dumps(value)


scalars = (
    st.none()
    | st.booleans()
    | numbers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
object_keys = st.dictionaries(st.text(max_size=5), st.integers(-100, 100) | st.text(max_size=5), max_size=3).map(
    JsonKey.of
)
keys = st.text(max_size=6) | numbers(-(2**63), 2**63 - 1) | object_keys
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)


@given(values)
@example({2**63 - 1: 2**63, -(2**63): 2**64 - 1})
@example({JsonKey.of({}): {JsonKey.of({"a": 1}): [{0: {}}]}})
def test_any_value_survives(value: Any) -> None:
    try:
        data = dumps(value)
    except TypeError:
        pytest.fail(f"{value!r} cannot be written")
    assert loads(data) == value
    assert loads(data.decode()) == value


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_strict_json_is_written_as_json(value: Any) -> None:
    assert json.loads(dumps(value)) == value


def reads_or_is_refused(data: bytes | str) -> None:
    try:
        value = loads(data)
    except BadJson:
        return
    repr(value)
    assert loads(dumps(value)) == value


@given(st.binary(max_size=60) | st.text(st.characters(), max_size=60))
def test_random_input_raises_nothing_but_bad_json(data: bytes | str) -> None:
    reads_or_is_refused(data)


TOKENS = ["{", "}", "[", "]", ":", ",", '"a"', '"', "\\", "1", "-2", "1.5", "1e5", "null", "true", "x", " ", "\ud800"]


@given(st.lists(st.sampled_from(TOKENS), max_size=25).map("".join))
def test_random_tokens_raise_nothing_but_bad_json(text: str) -> None:
    reads_or_is_refused(text)


def found(text: str) -> Any:
    try:
        return loads(text)
    except BadJson:
        return BadJson


FLAT = [*TOKENS, '{"a":1}', '{"a":"b","c":-2}', '{"a":true,"b":null}', '{"a":01}', '{"a":1,}', '{"a":"', '\\"']


@given(st.lists(st.sampled_from(FLAT), max_size=12).map("".join))
@example('{{"a":1,"a":2}:{"b":99999999999999999999}}')
def test_objects_that_hold_no_other_are_read_to_the_same_effect_at_once(text: str) -> None:
    at_once = found(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastjson, "_flat", re.compile("(?!)"))
        assert repr(found(text)) == repr(at_once)


SEEDS = [b'{"a":{0:"x",1:[1,2.5,null]},{"b":"c","d":1}:true}', b'{{"brokerName":"b","queueId":1,"topic":"T"}:12}']


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 60), numbers(0, 255)), min_size=1, max_size=4))
def test_mutated_json_raises_nothing_but_bad_json(seed: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(seed)
    for at, byte in changes:
        data[at % len(data)] = byte
    reads_or_is_refused(bytes(data))


def test_every_truncation_is_refused() -> None:
    for seed in SEEDS:
        for length in range(len(seed)):
            with pytest.raises(BadJson):
                loads(seed[:length])


def test_the_dialect_is_bounded_for_peers_and_strict_json_is_not() -> None:
    assert loads(b'{0:"a"}', dialect_bytes_max=7) == {0: "a"}
    with pytest.raises(BadJson, match="8 bytes that are not strict JSON"):
        loads(b'{0:"ab"}', dialect_bytes_max=7)
    assert loads(b'{"0":"abc"}', dialect_bytes_max=7) == {"0": "abc"}
