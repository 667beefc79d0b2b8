"""Offsets reset and asked for through consumers: codes 222 and 223, and what comes of them, 220 and 221."""

import json
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.wire.admin_bodies import GetConsumerStatusBody, ResetOffsetBody
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import (
    V3_0_7_SNAPSHOT,
    V3_1_8_SNAPSHOT,
    LanguageCode,
    RequestCode,
    ResponseCode,
    old_version_name,
)
from mqbroker.wire.command import RESPONSE_FLAG, RemotingCommand, encode_command
from mqbroker.wire.headers import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from tests.broker.bench import START, Bench, Client
from tests.broker.sending import put_topic
from tests.broker.test_client_requests import OTHER, commit, consumer, heartbeat, pushed
from tests.remoting.logs import Logged

START_MS = START * 1000
THIRD = IPv4Address("TCP", "10.0.0.4", 6)
Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def reset(
    client: Client, timestamp: int, *, force: bool = False, topic: str = "T", group: str = "CG", **more: Any
) -> RemotingCommand:
    header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp, is_force=force)
    return client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, **more)


def table(answer: RemotingCommand) -> dict[MessageQueue, int]:
    assert answer.code == 0
    return ResetOffsetBody.from_json(answer.body).offset_table


def status(client: Client, group: str = "CG", client_addr: str | None = None) -> RemotingCommand | None:
    header = GetConsumerStatusRequestHeader(topic="T", group=group, client_addr=client_addr)
    return client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)


def join(client: Client, client_id: str = "c1", **more: Any) -> None:
    answer = client.ask(RequestCode.HEART_BEAT, body=heartbeat(client_id, consumers=[consumer("CG", "T")]), **more)
    assert answer.code == 0
    pushed(client)


def told(client: Client, body: bytes = b"", code: int = 0) -> RemotingCommand:
    """Answer the one request that came."""
    (request,) = pushed(client)
    client.link.pump()
    client.peer.transport.write(
        encode_command(RemotingCommand(code, body=body, opaque=request.opaque, flag=RESPONSE_FLAG))
    )
    client.link.pump()
    return request


@pytest.fixture
def admin(bench: Bench) -> Client:
    return bench.client(THIRD)


@pytest.fixture
def three_messages(bench: Bench, admin: Client) -> None:
    """One each 10 s in queue 0, none in queue 1; the group has consumed two."""
    put_topic(admin, "T", write_queue_nums=2, read_queue_nums=2)
    for _ in range(3):
        admin.send("T")
        bench.turn(10)
    commit(admin, 2)
    commit(admin, 0, queue_id=1)


# --- reset


@pytest.mark.usefixtures("three_messages")
def test_consumers_are_told_where_to_go_on(bench: Bench, client: Client, admin: Client) -> None:
    other = bench.client(OTHER)
    join(client)
    join(other, "c2")
    pushed(client)
    assert table(reset(admin, START_MS + 10_000)) == {Q0: 1, Q1: 0}
    for each in (client, other):
        (command,) = pushed(each)
        assert (command.code, command.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
        assert command.ext_fields == {
            "topic": "T", "group": "CG", "timestamp": str(START_MS + 10_000), "isForce": "false"
        }  # fmt: skip
        assert command.body == (
            b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1,'
            b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:0}}'
        )
    assert bench.offsets.query("CG", "T", 0) == 2  # they commit by themselves


@pytest.mark.usefixtures("three_messages")
@pytest.mark.parametrize(
    ("timestamp", "force", "offset"),
    [(0, False, 0), (START_MS + 20_000, False, 2), (START_MS + 20_000, True, 2), (-1, False, 2), (-1, True, 3),
     (2**63 - 1, True, 3), (2**63 - 1, False, 2), (-(2**63), False, 0)],
)  # fmt: skip
def test_only_force_goes_forward(client: Client, admin: Client, timestamp: int, force: bool, offset: int) -> None:
    join(client)
    assert table(reset(admin, timestamp, force=force))[Q0] == offset


@pytest.mark.usefixtures("three_messages")
def test_administrators_in_c_have_consumers_told_as_c_reads_it(client: Client, admin: Client) -> None:
    join(client)
    assert table(reset(admin, 0, language=LanguageCode.CPP)) == {Q0: 0, Q1: 0}
    (command,) = pushed(client)
    assert json.loads(command.body) == {
        "offsetTable": [
            {"topic": "T", "brokerName": "broker-a", "queueId": 0, "offset": 0},
            {"topic": "T", "brokerName": "broker-a", "queueId": 1, "offset": 0},
        ]
    }


@pytest.mark.usefixtures("three_messages")
def test_nobody_to_be_told(bench: Bench, client: Client, admin: Client) -> None:
    answer = reset(admin, 5)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark == "Consumer not online, so can not reset offset, Group: CG Topic: T Timestamp: 5"
    answer = reset(admin, 5, topic="None")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "[reset-offset] reset offset failed, no topic in this broker. topic=None"
    answer = reset(admin, 5, group="None")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "THe consumer group <None> not exist")


@pytest.mark.usefixtures("three_messages")
def test_consumers_too_old_to_be_told(bench: Bench, client: Client, admin: Client) -> None:
    join(client)
    old = bench.client(OTHER)
    join(old, "c2", version=V3_0_7_SNAPSHOT - 1)
    pushed(client)
    for answer in (reset(admin, 0), status(admin)):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "the client does not support this feature. version=V3_0_6"
    assert pushed(client) == []


def test_names_of_old_versions() -> None:
    assert old_version_name(0) == "V3_0_0_SNAPSHOT"
    assert old_version_name(V3_0_7_SNAPSHOT) == "V3_0_7_SNAPSHOT"
    assert old_version_name(V3_1_8_SNAPSHOT) == "V3_1_8_SNAPSHOT"
    assert old_version_name(V3_1_8_SNAPSHOT - 1) == "V3_1_7"
    assert old_version_name(-1) == "-1"


# --- status


@pytest.mark.usefixtures("three_messages")
def test_consumers_tell_where_they_are(bench: Bench, client: Client, admin: Client) -> None:
    other = bench.client(OTHER)
    join(client)
    join(other, "c2")
    pushed(client)
    assert status(admin) is None
    request = told(client, GetConsumerStatusBody({Q0: 2}).to_json())
    assert request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert request.ext_fields == {"topic": "T", "group": "CG"}
    assert admin.heard() == []
    told(other, GetConsumerStatusBody({Q1: 0}).to_json())
    (answer,) = admin.heard()
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c1": {Q0: 2}, "c2": {Q1: 0}}


@pytest.mark.usefixtures("three_messages")
def test_a_consumer_of_many_queues_tells_where_it_is(client: Client, admin: Client) -> None:
    join(client)
    pushed(client)
    offsets = {MessageQueue("order-events", "a", number): number for number in range(10_000)}
    assert status(admin) is None
    told(client, GetConsumerStatusBody(offsets).to_json())
    (answer,) = admin.heard()
    assert GetConsumerStatusBody.from_json(answer.body, None).consumer_table == {"c1": offsets}


@pytest.mark.usefixtures("three_messages")
def test_one_consumer_is_asked_by_its_id(bench: Bench, client: Client, admin: Client) -> None:
    other = bench.client(OTHER)
    join(client)
    join(other, "c2")
    pushed(client)
    assert status(admin, client_addr="c2") is None
    assert pushed(client) == []
    told(other, GetConsumerStatusBody({Q1: 0}).to_json())
    (answer,) = admin.heard()
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c2": {Q1: 0}}
    answer = status(admin, client_addr="nobody")
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {}


@pytest.mark.usefixtures("three_messages")
def test_consumers_that_tell_nothing_are_left_out(bench: Bench, client: Client, admin: Client, logged: Logged) -> None:
    others = [bench.client(IPv4Address("TCP", "10.0.0.9", n)) for n in range(4)]
    join(client)
    for n, other in enumerate(others):
        join(other, f"other{n}")
    for each in (client, *others):
        pushed(each)
    assert status(admin) is None
    told(client, GetConsumerStatusBody({Q0: 2}).to_json())
    told(others[0], b'{"messageQueueTable":[]}')  # garbage
    told(others[1], b"", code=1)
    others[2].link.cut()
    bench.turn(4)
    assert admin.heard() == []
    bench.turn(2)  # the last one says nothing
    (answer,) = admin.heard()
    assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c1": {Q0: 2}}
    assert logged.failures == []


def test_nobody_to_be_asked(admin: Client) -> None:
    answer = status(admin)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "No Any Consumer online in the consumer group: [CG]"
