"""Signatures and address patterns as the Java 4.9.7 classes have them (AclClientRPCHook, RemoteAddressStrategyFactory).

The secret and the addresses are made up; the file was recorded from the classes once.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqbroker.access.addresses import BadAddress, parse_pattern
from mqbroker.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Credentials, is_signed, sign

JAVA = json.loads((Path(__file__).parent.parent / "data" / "acl-4.9.7.json").read_text())
SECRET = JAVA["secretKey"]

#: Java compares only the first part that is a range; here the parts behind it count too.
NARROWER = {"192.168.1-10.5": {"192.168.5.5"}, "192.168.*.5": {"192.168.5.5"}}


@pytest.mark.parametrize("sample", JAVA["signatures"])
def test_a_request_is_signed_as_java_signs(sample: dict[str, Any]) -> None:
    fields, body = dict(sample["fields"]), bytes.fromhex(sample["body"])
    Credentials(JAVA["accessKey"], SECRET, sample["token"]).sign(fields, body)
    assert fields.pop(SIGNATURE) == sample["signature"]
    assert fields.pop(ACCESS_KEY) == JAVA["accessKey"]
    assert fields.pop(SECURITY_TOKEN, None) == sample["token"]
    assert fields == sample["fields"]


def test_signing_anew_replaces_the_former() -> None:
    fields = {"a": "1", "_UNIQUE_KEY_QUERY": "x"}
    Credentials(JAVA["accessKey"], SECRET).sign(fields, b"b")
    first = fields[SIGNATURE]
    Credentials(JAVA["accessKey"], SECRET).sign(fields, b"b")
    assert fields[SIGNATURE] == first
    del fields["_UNIQUE_KEY_QUERY"]
    assert is_signed(fields, b"b", SECRET)


@pytest.mark.parametrize("flag", ["true", "false", "x" * 10_000])
def test_the_flag_of_a_query_may_be_signed_or_not(flag: str) -> None:
    """Java's clients sign it, and Java's broker leaves it out."""
    fields = {"topic": "T", "key": "k", "Zone": "z", "_UNIQUE_KEY_QUERY": flag, ACCESS_KEY: "a"}
    with_flag, without_flag = ("a", "z", flag, "k", "T"), ("a", "z", "k", "T")
    for values in (with_flag, without_flag):
        signature = sign("".join(values).encode() + b"body", SECRET)
        assert is_signed({**fields, SIGNATURE: signature}, b"body", SECRET)
        assert not is_signed({**fields, SIGNATURE: signature}, b"", SECRET)
        assert not is_signed({**fields, SIGNATURE: signature, "key": "l"}, b"body", SECRET)
        assert not is_signed({**fields, SIGNATURE: signature}, b"body", SECRET + "x")
    signature = sign("".join(with_flag).encode() + b"body", SECRET)
    assert not is_signed({**fields, SIGNATURE: signature, "_UNIQUE_KEY_QUERY": flag + "!"}, b"body", SECRET)
    del fields["_UNIQUE_KEY_QUERY"]
    assert not is_signed({**fields, SIGNATURE: signature}, b"body", SECRET)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.update(a="2"),
        lambda fields: fields.update(b="1"),
        lambda fields: fields.update(AccessKey="another"),
        lambda fields: fields.update(Signature=""),
        lambda fields: fields.update(Signature=fields["Signature"].lower()),
        lambda fields: fields.update(Signature="é" * 28),
        lambda fields: fields.pop("Signature"),
    ],
)
def test_what_was_changed_is_not_signed(change: Callable[..., Any]) -> None:
    fields = {"a": "1"}
    Credentials(JAVA["accessKey"], SECRET).sign(fields, b"body")
    assert is_signed(fields, b"body", SECRET)
    assert not is_signed(fields, b"Body", SECRET)
    assert not is_signed(fields, b"body", SECRET + "x")
    change(fields)
    assert not is_signed(fields, b"body", SECRET)


def test_credentials_show_no_secret() -> None:
    assert SECRET not in repr(Credentials("someone", SECRET, "tok-tok"))
    assert "tok-tok" not in repr(Credentials("someone", SECRET, "tok-tok"))


@pytest.mark.parametrize(("text", "wanted"), [(text, wanted) for text, wanted in JAVA["patterns"]])
def test_a_pattern_means_the_addresses_that_java_means(text: str, wanted: str | list[str]) -> None:
    if isinstance(wanted, str):
        with pytest.raises(BadAddress) as caught:
            parse_pattern(text)
        # Java words what is wrong with a range in three ways.
        assert str(caught.value) == wanted or (wanted.startswith("RangeRemote") and text in str(caught.value))
        return
    pattern = parse_pattern(text)
    assert {address for address in JAVA["addresses"] if pattern(address)} == NARROWER.get(text, set(wanted))


@pytest.mark.parametrize(
    "text",
    ["1.2.3.4.5", "1.2.3", "1.2.3.*.5", "1.2.3.1-2-3", "1.2.3.1-", "1.2.3.0x1-9", "1.2.3.\u0661-9",
     "1.2.3.1-256", "{1}", "1.2.3.{}", "1.{2}.3.{4}", "1.2.3.4}", ":::*", "1:2:3:4:5:6:7:8:*", "1:*:3:4:5:6:7:8",
     "1:2:3-4:4:5:6:7:*", "::g-h", "::1-10000", "::5-1", ",", "1.2.3.4,", "*.*", "-", "**"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_pattern(text)


@pytest.mark.parametrize("address", ["", "local", "[::1", "1.2.3.4:5", "1.2.3.4.5", "fe80::1%eth0x y", "é"])
def test_what_is_no_address_is_in_no_pattern_but_that_of_everyone(address: str) -> None:
    for text in ("1.2.3.*", "1.2.3.4", "::1", "::*"):
        if not (address.startswith("[::1") and text.startswith("::")):
            assert not parse_pattern(text)(address)
    assert parse_pattern("*")(address)


def test_an_address_as_a_socket_tells_it() -> None:
    assert parse_pattern("::1")("[::1]")
    assert parse_pattern("FE80::0:1")("fe80::1%eth0")
