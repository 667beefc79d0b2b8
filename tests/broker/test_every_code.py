"""Whatever is asked is answered, once, and never with a traceback."""

import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbroker import namesrv
from mqbroker.broker import requests
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import JSON, ONEWAY_FLAG, ROCKETMQ, RemotingCommand, encode_frame
from mqbroker.wire.requests import REQUESTS
from tests.broker.bench import Bench, Client
from tests.numbers import numbers
from tests.remoting.logs import Logged

#: What a broker of this much answers.
CODES = {
    RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST, RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    # accounts
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    # administration
    RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_TIME_SPAN, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_PRODUCER_INFO, RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.CLONE_GROUP_OFFSET, RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE,
    # statistics
    RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.GET_BROKER_CONSUME_STATS,
    # groups that elect their master
    RequestCode.SWITCH_GROUP_MASTER, RequestCode.REMOVE_GROUP_MEMBER,
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("codes"))
    yield bench
    bench.close()


def test_the_codes_that_are_answered(bench: Bench) -> None:
    assert bench.table.codes == CODES


def marked_methods() -> Iterator[tuple[Callable[..., typing.Any], tuple[RequestCode]]]:
    """Each method that answers requests, with its codes."""
    names = [each.name for of in (requests, namesrv) for each in pkgutil.iter_modules(of.__path__, f"{of.__name__}.")]
    for name in names:
        for family in vars(importlib.import_module(name)).values():
            if inspect.isclass(family) and family.__module__ == name:
                for method in vars(family).values():
                    if inspect.isfunction(method) and hasattr(method, "answers"):
                        yield method, method.answers[0]


def test_the_header_that_a_method_names_is_that_of_its_codes() -> None:
    found: dict[Any, Any] = {}
    for method, codes in marked_methods():
        (named,) = typing.get_args(typing.get_type_hints(method)["call"])
        headers = set(typing.get_args(named) or [named])
        assert headers == {REQUESTS[code].header or type(None) for code in codes}, method.__qualname__
        found |= dict.fromkeys(codes, method)
    batches = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
               RequestCode.PULL_MESSAGE, RequestCode.END_TRANSACTION}  # fmt: skip
    assert found.keys() >= CODES - batches
    assert RequestCode.REGISTER_BROKER in found


@pytest.mark.parametrize("code", sorted(RequestCode))
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_empty_request_is_answered(shared: Bench, logged: Logged, code: int, serialize_type: int) -> None:
    command = RemotingCommand(code, serialize_type=serialize_type)
    client = shared.client()
    answers = client.ask_all(command)
    assert [(answer.opaque, answer.is_response) for answer in answers] == [(command.opaque, True)]
    assert (answers[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED) == (code not in CODES)
    assert "Traceback" not in (answers[0].remark or "")
    assert logged.failures == []
    assert client.ask(9999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED  # the connection goes on


@pytest.mark.parametrize("code", sorted(CODES))
def test_oneway_is_never_answered(shared: Bench, logged: Logged, code: int) -> None:
    assert shared.client().ask_all(RemotingCommand(code, flag=ONEWAY_FLAG)) == []
    assert logged.failures == []


_names = st.sampled_from(
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "topic", "consumerGroup", "group", "producerGroup", "queueId",
     "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion", "subscription",
     "offset", "timestamp", "key", "maxNum", "beginTimestamp", "endTimestamp", "delayLevel", "clientID", "defaultTopic",
     "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order", "defaultTopicQueueNums", "bornTimestamp",
     "flag", "properties", "maxReconsumeTimes"]
)  # fmt: skip
_values = st.sampled_from(
    ["", "0", "1", "-1", "2147483647", "2147483648", "9223372036854775807", "1e9", "NaN", "true", "null", "T", "CG",
     "../x", "%RETRY%CG", "%DLQ%CG", "TBW102", "*", "||", "a\x01b\x02", "DELAY\x011", "SINGLE_TAG", "é", "\x00"]
)  # fmt: skip
_json = st.recursive(
    st.none() | st.booleans() | numbers(-(2**63), 2**63) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["clientID", "clientId", "producerDataSet", "consumerDataSet", "groupName", "consumerGroup",
                         "subscriptionDataSet", "topic", "mqSet", "brokerName", "queueId", "subscriptionData"]),
        inner, max_size=3,
    ),
    max_leaves=8,
)  # fmt: skip
_bodies = st.binary(max_size=30) | _json.map(lambda value: json.dumps(value).encode())


@given(st.sampled_from(sorted(CODES)), st.dictionaries(_names, _values, max_size=12), _bodies)
def test_any_request_is_answered_or_waits(shared: Bench, code: int, ext: dict[str, str], body: bytes) -> None:
    client = shared.client()
    before = len(shared.held)
    answers = [answer for answer in client.ask_all(RemotingCommand(code, ext, body)) if answer.is_response]
    assert len(answers) + len(shared.held) - before == 1
    assert not client.peer.lost
    if answers:
        assert "Traceback" not in (answers[0].remark or "")
    client.link.cut()
    shared.held.sweep()


@given(st.sampled_from(sorted(CODES)), st.dictionaries(_names, _json, max_size=5))
def test_fields_that_are_no_texts(shared: Bench, code: int, ext: dict[str, typing.Any]) -> None:
    client, good = shared.client(), shared.client()
    header = json.dumps({"code": code, "opaque": 5, "flag": 0, "extFields": ext}).encode()
    client.peer.transport.write(encode_frame(JSON, header))
    client.link.pump()
    assert client.peer.lost or len([answer for answer in client.heard() if answer.is_response]) == 1
    assert good.ask(9999) is not None
    client.link.cut()
    good.link.cut()


def test_garbage_beside_good_clients(bench: Bench, client: Client, logged: Logged) -> None:
    bad = bench.client()
    client.send(body=b"before")
    bad.peer.transport.write(b"\xff" * 100)
    bad.link.pump()
    assert bad.peer.lost
    client.send(body=b"after")
    assert [record.body for record in bench.records("T")] == [b"before", b"after"]
    assert [line for line in logged.lines if line.startswith("closing 10.0.0.2:40000: frame length")]
