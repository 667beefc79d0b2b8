"""Every field of every request that a name server answers: missing, of another type, huge, or of nobody."""

from typing import Any, cast

import attrs
import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import camel_case
from mqbroker.wire.requests import REQUESTS
from tests.namesrv.conftest import Peer, System
from tests.namesrv.test_every_request import BROKER, register, route

CODES = [
    RequestCode.PUT_KV_CONFIG, RequestCode.GET_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION, RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.GET_KVLIST_BY_NAMESPACE, RequestCode.GET_TOPICS_BY_CLUSTER, RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG,
]  # fmt: skip
HEADERS = {code: header for code in CODES if (header := REQUESTS[code].header) is not None}
FIELDS = [
    (
        code,
        field.metadata.get("key") or camel_case(field.name),
        str(field.type).removesuffix(" | None"),
        field.default is attrs.NOTHING,
    )
    for code, header in HEADERS.items()
    for field in attrs.fields(cast(Any, header))
]
GOOD = {"Int": "0", "Long": "0", "bool": "false"}
BAD_NUMBERS = ["", "x", "-", "1.5", "0x1", "9" * 19, "9" * 400, "-9" * 20, "\u0661", "1e3", " 1"]
BAD_TEXTS = ["", " ", "../x", "\x00", "\ud800".encode("utf-8", "replace").decode(), "%RETRY%", "n" * 100_000]


def good_fields(code: int) -> dict[str, str]:
    return {key: GOOD.get(kind, "name") for of, key, kind, _ in FIELDS if of == code}


def ask(peer: Peer, code: int, fields: dict[str, Any]) -> RemotingCommand:
    """One answer, whatever is asked, which is no traceback."""
    answer = peer.ask(code, b'{"counter":1,"timestamp":1}' if code == RequestCode.QUERY_DATA_VERSION else b"", **fields)
    assert "Traceback" not in (answer.remark or "")
    return answer


def test_every_code_is_here(system: System) -> None:
    answered = system.factory._table.codes  # type: ignore[attr-defined]
    assert answered == set(CODES)


@pytest.mark.parametrize("code", HEADERS)
def test_good_fields_are_good(peer: Peer, code: int) -> None:
    answer = ask(peer, code, good_fields(code))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND)


@pytest.mark.parametrize(("code", "key"), [(code, key) for code, key, _, is_required in FIELDS if is_required])
def test_a_missing_field_is_named(peer: Peer, code: int, key: str) -> None:
    fields = {name: value for name, value in good_fields(code).items() if name != key}
    answer = ask(peer, code, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{key}> is null")


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize(("code", "key"), [(code, key) for code, key, kind, _ in FIELDS if kind in GOOD])
def test_a_field_that_is_no_number_changes_nothing(peer: Peer, code: int, key: str, bad: str) -> None:
    register(peer, "T")
    before = peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body
    answer = ask(peer, code, {**good_fields(code), key: bad})
    if answer.code:
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST)
        assert peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body == before
    assert route(peer, "T").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("bad", BAD_TEXTS, ids=[ascii(text[:8]) for text in BAD_TEXTS])
@pytest.mark.parametrize(("code", "key"), [(code, key) for code, key, kind, _ in FIELDS if kind not in GOOD])
def test_a_text_of_nobody_is_answered(peer: Peer, code: int, key: str, bad: str) -> None:
    register(peer, "T")
    ask(peer, code, {**good_fields(code), key: bad})
    assert route(peer, "T").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("broker_id", ["-1", "-9223372036854775808", "9223372036854775807"])
def test_any_id_of_a_broker_comes_back(peer: Peer, broker_id: str) -> None:
    register(peer, "T")
    assert register(peer, brokerAddr="b:2", brokerId=broker_id).code == ResponseCode.SUCCESS
    assert f'{broker_id}:"b:2"'.encode() in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body
    fields: dict[str, Any] = {**BROKER, "brokerAddr": "b:2", "brokerId": broker_id}
    assert peer.ask(RequestCode.UNREGISTER_BROKER, **fields).code == ResponseCode.SUCCESS
    assert b"b:2" not in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"counter":"x"}', b'{"counter":[]}', b"\xff", b"[" * 5000]
)
def test_a_version_that_is_none_is_refused(peer: Peer, body: bytes) -> None:
    register(peer, "T")
    answer = peer.ask(RequestCode.QUERY_DATA_VERSION, body, **BROKER)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Traceback" not in str(answer.remark)


@pytest.mark.parametrize("code", sorted(set(CODES) - HEADERS.keys() - {RequestCode.UPDATE_NAMESRV_CONFIG}))
def test_what_no_header_is_asked_for_is_passed_over(peer: Peer, code: int) -> None:
    assert peer.ask(code, b"\xff{", unknown="x" * 1000).code == ResponseCode.SUCCESS
