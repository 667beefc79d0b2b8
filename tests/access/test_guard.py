"""A broker that controls access: who is let to what, before any handler sees the request."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.broker.requests.send_message import SendRequests
from mqbroker.errors import Refused
from mqbroker.wire.access import Access
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import JSON, ONEWAY_FLAG, ROCKETMQ, RemotingCommand
from mqbroker.wire.headers import encode_header
from mqbroker.wire.requests import codes_where
from mqbroker.wire.signature import ACCESS_KEY, SIGNATURE, Credentials
from tests.access.acl import ADMIN, ALICE, STRANGER, signed
from tests.broker.bench import Bench, Client, pull_header, send_command
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
V1, V2, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def peer(bench: Bench, host: str = "10.0.0.2") -> Client:
    return bench.client(IPv4Address("TCP", host, 40000))


def answers(bench: Bench, *commands: RemotingCommand, host: str = "10.0.0.2") -> list[RemotingCommand]:
    return [answer for answer in peer(bench, host).ask_all(*commands) if answer.is_response]


def refusal(bench: Bench, command: RemotingCommand, **more: str) -> str | None:
    """Why `command` is refused; None where it is not."""
    (answer,) = answers(bench, command, **more)
    if (answer.remark or "").startswith(PREFIX):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        return answer.remark.removeprefix(PREFIX)
    return None


def sending(credentials: Credentials, topic: str = "T", code: int = V2, **more: Any) -> RemotingCommand:
    plain = send_command(topic, code=code)
    return signed(credentials, code, plain.ext_fields, plain.body, **more)


def pulling(credentials: Credentials, topic: str = "T", group: str = "CG") -> RemotingCommand:
    fields = encode_header(pull_header(topic, consumer_group=group, sys_flag=0, subscription=None))
    return signed(credentials, RequestCode.PULL_MESSAGE, fields)


# --- who it is


def test_a_signed_send_is_taken(bench: Bench) -> None:
    (answer,) = answers(bench, sending(ALICE))
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in bench.records("T")] == [b"body"]


def spoilt(change: Callable[..., Any], code: int = V2) -> RemotingCommand:
    command = sending(ALICE, code=code)
    change(command.ext_fields)
    return command


@pytest.mark.parametrize("code", [V1, V2, BATCH])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda fields: fields.pop(ACCESS_KEY), "No accessKey is configured"),
        (lambda fields: fields.pop(SIGNATURE), "Check signature failed for accessKey=alice-key"),
        (lambda fields: fields.update({SIGNATURE: "AAAA"}), "Check signature failed for accessKey=alice-key"),
        (lambda fields: fields.update({ACCESS_KEY: "the-admin"}), "Check signature failed for accessKey=the-admin"),
        (lambda fields: fields.update({ACCESS_KEY: "nobody"}), "No acl config for nobody"),
        (lambda fields: fields.update(extra="1"), "Check signature failed for accessKey=alice-key"),
    ],
)
def test_a_send_that_is_not_rightly_signed_is_refused(
    bench: Bench, code: int, change: Callable[..., Any], why: str
) -> None:
    assert refusal(bench, spoilt(change, code)) == why
    assert bench.records("T") == []


def test_another_body_than_was_signed_is_refused(bench: Bench) -> None:
    command = sending(ALICE)
    command.body += b"!"
    assert refusal(bench, command) == "Check signature failed for accessKey=alice-key"


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_both_header_encodings_are_looked_at(bench: Bench, serialize_type: int) -> None:
    (taken,) = answers(bench, sending(ALICE, serialize_type=serialize_type))
    assert taken.code == ResponseCode.SUCCESS
    assert refusal(bench, sending(STRANGER, serialize_type=serialize_type)) == "No acl config for stranger"


@pytest.mark.parametrize(("host", "trusted"), [("10.10.103.9", True), ("192.168.0.1", True), ("10.10.104.9", False)])
def test_global_white_addresses_need_no_account(bench: Bench, host: str, trusted: bool) -> None:
    (answer,) = answers(bench, send_command("Anything"), host=host)
    assert (answer.code == ResponseCode.SUCCESS) == trusted
    (answer,) = answers(bench, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "None"}), host=host)
    assert (answer.code == ResponseCode.SUCCESS) == trusted


def test_an_accounts_white_addresses_need_no_signature(bench: Bench) -> None:
    unsigned = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, {ACCESS_KEY: ADMIN.access_key})
    assert refusal(bench, unsigned) == "Check signature failed for accessKey=the-admin"
    assert refusal(bench, unsigned, host="172.16.0.1") is None


# --- what it may


@pytest.mark.parametrize("code", [V1, V2, BATCH])
@pytest.mark.parametrize(("topic", "allowed"), [("T", True), ("OnlyPub", True), ("OnlySub", False), ("Other", False),
                                                ("%RETRY%CG", True), ("%RETRY%Shut", False)])  # fmt: skip
def test_sending_goes_by_topic(bench: Bench, code: int, topic: str, allowed: bool) -> None:
    why = refusal(bench, sending(ALICE, topic, code))
    if allowed:
        assert why is None
    else:
        kind = "group:Shut" if "%" in topic else f"topic:{topic}"
        assert why == f"No default permission for {kind}"


def test_a_batch_with_the_long_header_is_looked_at_too(bench: Bench) -> None:
    plain = send_command("Other", code=V1)
    batch = signed(ALICE, BATCH, plain.ext_fields, plain.body)
    assert refusal(bench, batch) == "No default permission for topic:Other"


def test_traces_may_be_sent_by_all(bench: Bench) -> None:
    assert refusal(bench, sending(ALICE, "RMQ_SYS_TRACE_TOPIC")) is None
    assert refusal(bench, sending(STRANGER, "RMQ_SYS_TRACE_TOPIC")) == "No acl config for stranger"


@pytest.mark.parametrize(
    ("topic", "group", "why"),
    [
        ("T", "CG", None),
        ("OnlySub", "CG", None),
        ("%RETRY%CG", "CG", None),
        ("%DLQ%CG", "CG", None),
        ("OnlyPub", "CG", "No default permission for topic:OnlyPub"),
        ("T", "Shut", "No default permission for group:Shut"),
        ("%DLQ%Shut", "CG", "No default permission for group:Shut"),
    ],
)
def test_pulling_goes_by_topic_and_group(bench: Bench, topic: str, group: str, why: str | None) -> None:
    assert refusal(bench, pulling(ALICE, topic, group)) == why


def heartbeat(group: str, topic: str) -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    return json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


@pytest.mark.parametrize(
    ("code", "fields", "body", "why"),
    [
        (RequestCode.HEART_BEAT, {}, heartbeat("CG", "T"), None),
        (RequestCode.HEART_BEAT, {}, heartbeat("Shut", "T"), "No default permission for group:Shut"),
        (RequestCode.HEART_BEAT, {}, heartbeat("CG", "OnlyPub"), "No default permission for topic:OnlyPub"),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "Shut"}, b"", "group:Shut"),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c"}, b"", None),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Shut"}, b"", "group:Shut"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "Shut", "offset": "0", "delayLevel": "0"}, b"", "group:Shut"),
        (RequestCode.QUERY_MESSAGE, {"topic": "OnlyPub"}, b"", "topic:OnlyPub"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "Other", "consumerGroup": "CG"}, b"", "topic:Other"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "T", "consumerGroup": "Shut"}, b"", "group:Shut"),
        (RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "T", "consumerGroup": "Shut"}, b"", "group:Shut"),
        (RequestCode.LOCK_BATCH_MQ, {}, b'{"consumerGroup":"Shut","clientId":"c","mqSet":[]}', "group:Shut"),
        (RequestCode.UNLOCK_BATCH_MQ, {}, b'{"consumerGroup":"Shut","clientId":"c","mqSet":[]}', "group:Shut"),
        (RequestCode.LOCK_BATCH_MQ, {}, b'{"consumerGroup":"CG","clientId":"c","mqSet":[]}', None),
        (RequestCode.GET_MAX_OFFSET, {"topic": "Other", "queueId": "0"}, b"", "topic:Other"),
    ],
)
def test_requests_of_consumers_go_by_topic_and_group(
    bench: Bench, code: int, fields: dict[str, str], body: bytes, why: str | None
) -> None:
    found = refusal(bench, signed(ALICE, code, fields, body))
    assert found is None if why is None else why in (found or "")
    assert refusal(bench, signed(ADMIN, code, fields, body)) is None


def test_a_body_that_cannot_be_read_is_refused(bench: Bench) -> None:
    assert refusal(bench, signed(ALICE, RequestCode.HEART_BEAT, {}, b"{")).startswith("HeartbeatData")


@pytest.mark.parametrize("code", codes_where(lambda request: request.demand and request.demand.access is Access.ADMIN))
def test_what_is_for_administrators(bench: Bench, code: int) -> None:
    if code not in bench.table.codes:
        return
    wanted = f"Need admin permission for request code={int(code)}, but accessKey=alice-key is not"
    assert refusal(bench, signed(ALICE, code)) == wanted
    assert refusal(bench, signed(ADMIN, code)) is None


@pytest.mark.parametrize("code", sorted(RequestCode))
def test_no_code_is_open_to_a_stranger(bench: Bench, code: int) -> None:
    if code in bench.table.codes:
        assert refusal(bench, RemotingCommand(code)) == "No accessKey is configured"
        assert refusal(bench, signed(STRANGER, code)) == "No acl config for stranger"


# --- many at once, and none at all


def test_in_one_read_the_good_are_taken_and_the_others_refused(bench: Bench) -> None:
    commands = [sending(ALICE), sending(STRANGER), sending(ALICE, "Other"), sending(ALICE), pulling(STRANGER)]
    found = answers(bench, *commands)
    by_opaque = {answer.opaque: answer.code for answer in found}
    assert [by_opaque[command.opaque] for command in commands] == [0, 1, 1, 0, 1]
    assert len(bench.records("T")) == 2


def test_answers_that_wait_come_with_the_refusals(make_bench: Callable[..., Bench]) -> None:
    from mqbroker.config.settings import FlushDiskType

    bench = make_bench(worker=SteppedWorker(at_once=False), store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    client = peer(bench)
    assert client.ask_all(sending(ALICE), sending(STRANGER)) == []
    bench.worker.work()
    assert sorted(answer.code for answer in client.heard()) == [0, 1]


def test_oneway_refusals_are_not_answered(bench: Bench) -> None:
    client = peer(bench)
    assert client.ask_all(sending(STRANGER, flag=ONEWAY_FLAG)) == []
    assert client.ask_all(RemotingCommand(RequestCode.HEART_BEAT, flag=ONEWAY_FLAG)) == []
    assert bench.records("T") == []


def test_a_refusal_is_logged_once_for_each_host_and_account_and_tells_no_secret(bench: Bench, logged: Logged) -> None:
    client = peer(bench)
    for command in (sending(STRANGER), pulling(STRANGER), spoilt(lambda fields: fields.update(x="1"))):
        client.ask_all(command)
    peer(bench, "10.0.0.9").ask_all(spoilt(lambda fields: fields.update({ACCESS_KEY: "x" * 5000})))
    lines = [line for line in logged.lines if " may not " in line]
    assert len(lines) == 3
    assert lines[0].startswith("10.0.0.2:40000 may not SEND_MESSAGE_V2: No acl config for stranger")
    assert "alice-key" in lines[1]
    assert len(lines[2]) < 400
    assert "secret-of" not in "".join(logged.lines)


def test_refusals_are_logged_once_for_a_host_and_an_account_and_again_when_the_accounts_change(
    bench: Bench, logged: Logged
) -> None:
    def refused() -> int:
        return len([line for line in logged.lines if " may not " in line])

    for _ in range(3):  # connections of one host
        peer(bench).ask_all(sending(STRANGER))
    assert refused() == 1
    for number in range(3):  # unknown accounts are not counted apart: anybody could fill the log
        peer(bench).ask_all(spoilt(lambda fields, number=number: fields.update({ACCESS_KEY: f"nobody{number}"})))
    assert refused() == 1
    for _ in range(3):
        peer(bench).ask_all(spoilt(lambda fields: fields.update(x="1")))
    assert refused() == 2
    for changed in bench.acl.on_change:
        changed(bench.acl.content.accounts())
    peer(bench).ask_all(sending(STRANGER))
    assert refused() == 3


def test_peers_that_were_told_of_are_bounded(bench: Bench, logged: Logged) -> None:
    from mqbroker.access import guard
    from mqbroker.broker.requests.acl_requests import AclRequests  # noqa: F401 - the guard stands before it

    watch = guard.Guard(bench.acl.content.accounts())
    for count in range(guard._PEERS_MAX + 50):
        connection = type("Peer", (), {"remote_addr": f"10.0.{count // 250}.{count % 250}:1"})()
        with pytest.raises(Refused):
            watch.check_topics(RequestCode.END_TRANSACTION, {}, b"", connection, ["T"])
    assert len(watch._told) == guard._PEERS_MAX


def test_without_access_control_no_handler_is_guarded(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "open")
    # What is around it looks at the time only.
    assert bench.table.batch[V2].__wrapped__.__module__ == SendRequests.__module__  # type: ignore[attr-defined]
    bench.close()


def test_a_guard_that_comes_late_is_not_taken(bench: Bench) -> None:
    with pytest.raises(ValueError, match="before the first handler"):
        bench.table.protect(object())  # type: ignore[arg-type]
