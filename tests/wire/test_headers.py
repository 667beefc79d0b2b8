from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies._internal.core import DataObject

from mqbroker.errors import Refused
from mqbroker.wire import headers
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.headers import Header, camel_case, coding, decode_header, encode_header
from mqbroker.wire.requests import REQUESTS
from tests.commands import decode_frame
from tests.numbers import numbers
from tests.wire.conftest import GoldenFrame

CLASSES = {
    name: value
    for name, value in vars(headers).items()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
}

# Primitive fields of Java that are not marked as having to be there: missing, they keep 0 or false.
PRIMITIVE_DEFAULTS = {
    # No primitive, but its own tool leaves it out.
    ("UpdateGlobalWhiteAddrsConfigRequestHeader", "aclFileFullPath"),
    ("CloneGroupOffsetRequestHeader", "offline"),
    ("ConsumerSendMsgBackRequestHeader", "unitMode"),
    ("CreateAccessConfigRequestHeader", "admin"),
    ("DeleteSubscriptionGroupRequestHeader", "removeOffset"),
    ("GetConsumerRunningInfoRequestHeader", "jstackEnable"),
    ("QueryConsumeQueueRequestHeader", "queueId"),
    ("QueryConsumeQueueRequestHeader", "index"),
    ("QueryConsumeQueueRequestHeader", "count"),
    ("RegisterBrokerRequestHeader", "compressed"),
    ("ReplyMessageRequestHeader", "unitMode"),
    ("SendMessageRequestHeader", "unitMode"),
    ("SendMessageRequestHeader", "batch"),
    ("SendMessageRequestHeaderV2", "k"),
    ("SendMessageRequestHeaderV2", "m"),
}

# Of a field of each Java type: good texts with what they mean, and texts that are refused.
LONG_GOOD = {"0": 0, "-1": -1, "+5": 5, "007": 7, str(2**63 - 1): 2**63 - 1, str(-(2**63)): -(2**63)}
LONG_BAD = [
    "",
    " ",
    "a",
    "1.0",
    "1e3",
    "0x1",
    "1_000",
    " 1",
    "1 ",
    "1\n",
    "--1",
    "+-1",
    "+",
    "-",
    "NaN",
    "null",
    "\u0661",
    "\xb2",
    "9" * 21,
    "9" * 5000,
    str(2**63),
    str(-(2**63) - 1),
]
INT_GOOD = {"0": 0, "-1": -1, "+5": 5, str(2**31 - 1): 2**31 - 1, str(-(2**31)): -(2**31)}
INT_BAD = [*LONG_BAD, str(2**31), str(-(2**31) - 1)]
BOOL_GOOD = {"true": True, "TRUE": True, "True": True, "false": False, "1": False, "yes": False, "": False}
TEXT_GOOD = {"": "", "a": "a", "\x01\x02": "\x01\x02", "中": "中"}

GOOD: dict[str, dict[str, Any]] = {
    "int": INT_GOOD,
    "Integer": INT_GOOD,
    "long": LONG_GOOD,
    "Long": LONG_GOOD,
    "boolean": BOOL_GOOD,
    "Boolean": BOOL_GOOD,
    "String": TEXT_GOOD,
    "List<PlainAccessConfig>": TEXT_GOOD,  # Java never sends it in a header
}
BAD = {"int": INT_BAD, "Integer": INT_BAD, "long": LONG_BAD, "Long": LONG_BAD}


def keys_of(cls: type[Any]) -> dict[str, str]:
    """From the name on the wire to the name of the field."""
    return {field.metadata.get("key") or camel_case(field.name): field.name for field in attrs.fields(cls)}


def golden_fields(protocol: dict, cls: type[Header]) -> list[dict]:
    """The fields Java declares; without the `bname` the short form inherits, which travels as its `n`."""
    fields = protocol["headers"][cls.__name__]
    return [field for field in fields if (cls.__name__, field["name"]) != ("SendMessageRequestHeaderV2", "bname")]


def some_fields(golden: list[dict]) -> dict[str, str]:
    """A good value for every field."""
    return {field["name"]: next(iter(GOOD[field["type"]])) for field in golden}


def test_each_class_is_of_java(protocol: dict[str, dict[str, Any]]) -> None:
    """Not each of Java's is here: some say nothing that is used, others are of requests that nothing of 4.9.7 sends."""
    assert set(CLASSES) <= set(protocol["headers"])


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_the_fields_are_those_of_java_in_their_order(protocol: dict[str, dict[str, Any]], cls: type[Header]) -> None:
    assert list(keys_of(cls)) == [field["name"] for field in golden_fields(protocol, cls)]


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_a_field_that_must_be_there_is_asked_for_by_name(
    protocol: dict[str, dict[str, Any]], cls: type[Header]
) -> None:
    golden = golden_fields(protocol, cls)
    whole = some_fields(golden)
    decode_header(cls, whole)
    for field in golden:
        key = field["name"]
        rest = {name: text for name, text in whole.items() if name != key}
        if field["required"] and (cls.__name__, key) not in PRIMITIVE_DEFAULTS:
            with pytest.raises(Refused) as caught:
                decode_header(cls, rest)
            assert caught.value.code == ResponseCode.SYSTEM_ERROR
            assert caught.value.remark == f"the custom field <{key}> is null"
        else:
            value = getattr(decode_header(cls, rest), keys_of(cls)[key])
            missing = {"boolean": False, "int": 0, "long": 0}.get(field["type"])
            assert (value, type(value)) == (missing, type(missing))


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_each_field_takes_its_type_and_no_other(protocol: dict[str, dict[str, Any]], cls: type[Header]) -> None:
    golden = golden_fields(protocol, cls)
    whole = some_fields(golden)
    for field in golden:
        key = field["name"]
        for text, wanted in GOOD[field["type"]].items():
            value = getattr(decode_header(cls, {**whole, key: text}), keys_of(cls)[key])
            assert (value, type(value)) == (wanted, type(wanted))
        for text in BAD.get(field["type"], []):
            with pytest.raises(Refused, match=f"<{key}>") as caught:
                decode_header(cls, {**whole, key: text})
            assert caught.value.code == ResponseCode.SYSTEM_ERROR
            assert len(caught.value.remark) < 200


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_unknown_fields_are_skipped(protocol: dict[str, dict[str, Any]], cls: type[Header]) -> None:
    whole = some_fields(golden_fields(protocol, cls))
    assert decode_header(cls, {**whole, "AccessKey": "x", "": "y"}) == decode_header(cls, whole)


@st.composite
def any_header(draw: Callable[..., Any]) -> Header:
    ints = numbers(-(2**31), 2**31 - 1)
    longs = numbers(-(2**63), 2**63 - 1)
    kinds = {"Int": ints, "Long": longs, "bool": st.booleans(), "str": st.text(max_size=10)}
    cls = draw(st.sampled_from(list(CLASSES.values())))
    values = {}
    for field in attrs.fields(cls):
        kind, _, nullable = str(field.type).partition(" | ")
        values[field.name] = draw(st.none() | kinds[kind] if nullable else kinds[kind])
    return cls(**values)


@given(any_header())
def test_any_header_survives(header: Header) -> None:
    ext = encode_header(header)
    assert all(type(text) is str for text in ext.values())
    assert decode_header(type(header), ext) == header


def test_what_is_none_is_left_out() -> None:
    header = headers.SendMessageResponseHeader(msg_id="m", queue_id=1, queue_offset=2)
    assert encode_header(header) == {"msgId": "m", "queueId": "1", "queueOffset": "2"}


def test_an_enum_is_written_as_its_number() -> None:
    header = headers.ViewMessageRequestHeader(offset=ResponseCode.TRANSACTION_SHOULD_COMMIT)
    assert encode_header(header) == {"offset": "200"}


RESPONSE_HEADERS = {
    11: headers.PullMessageResponseHeader,
    12: headers.QueryMessageResponseHeader,
    14: headers.QueryConsumerOffsetResponseHeader,
    26: headers.GetBrokerConfigResponseHeader,
    29: headers.SearchOffsetResponseHeader,
    30: headers.GetMaxOffsetResponseHeader,
    31: headers.GetMinOffsetResponseHeader,
    32: headers.GetEarliestMsgStoretimeResponseHeader,
    101: headers.GetKVConfigResponseHeader,
    103: headers.RegisterBrokerResponseHeader,
    205: headers.WipeWritePermOfBrokerResponseHeader,
    310: headers.SendMessageResponseHeader,
    320: headers.SendMessageResponseHeader,
    325: headers.SendMessageResponseHeader,
    327: headers.AddWritePermOfBrokerResponseHeader,
}
# What hooks and request-type marks add to the fields of a header.
EXTRAS = {"AccessKey", "Signature", "SecurityToken", "ReqT", "_UNIQUE_KEY_QUERY", "MSG_REGION", "TRACE_ON"}


def test_a_golden_header_comes_back_as_it_was(golden_frame: GoldenFrame) -> None:
    command = decode_frame(golden_frame.data)
    wanted = {name: text for name, text in command.ext_fields.items() if name not in EXTRAS}
    code = golden_frame.code
    cls = RESPONSE_HEADERS.get(code) if command.is_response else REQUESTS[code].header
    if cls is None or (command.is_response and not wanted):
        assert not wanted, "a header without a class"
        return
    assert encode_header(decode_header(cls, command.ext_fields)) == wanted


@given(st.sampled_from(list(CLASSES.values())), st.data())
def test_any_texts_raise_nothing_but_refused(cls: type[Header], data: DataObject) -> None:
    keys = st.sampled_from([*keys_of(cls), "other"])
    ext = data.draw(st.dictionaries(keys, st.text(st.characters(), max_size=25)))
    try:
        header = decode_header(cls, ext)
    except Refused:
        return
    assert decode_header(cls, encode_header(header)) == header


def test_threads_that_use_a_header_class_first_at_the_same_time_all_get_whole_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @attrs.frozen(kw_only=True)
    class Fresh(Header):
        first_field: str
        second_field: str

    meanwhile: list[tuple[dict[str, str], Fresh]] = []
    name_of = camel_case

    def in_the_midst(name: str) -> str:
        # What another thread does while this one is half through the fields.
        monkeypatch.setattr(coding, "camel_case", name_of)
        ext = encode_header(Fresh(first_field="a", second_field="b"))
        meanwhile.append((ext, decode_header(Fresh, ext)))
        return name_of(name)

    monkeypatch.setattr(coding, "camel_case", in_the_midst)
    header = Fresh(first_field="x", second_field="y")
    assert encode_header(header) == {"firstField": "x", "secondField": "y"}
    whole = {"firstField": "a", "secondField": "b"}
    assert meanwhile == [(whole, Fresh(first_field="a", second_field="b"))]
    assert decode_header(Fresh, encode_header(header)) == header
