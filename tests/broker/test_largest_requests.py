"""The largest request that the limits of its parts allow is not refused for its length, and is handled in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.broker.requests import client_requests, long_requests
from mqbroker.broker.requests.client_requests import SUBSCRIPTIONS_MAX
from mqbroker.remoting.cooperative_tasks import StepRunner
from mqbroker.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.fastjson import loads
from mqbroker.wire.long_bodies import CONTAINERS_MAX, LONG_BODY_BYTES_MAX, read_heartbeat
from mqbroker.wire.names import TOPIC_LENGTH_MAX
from mqbroker.wire.requests import REQUESTS
from tests.access.acl import ADMIN, ALICE, write_acl
from tests.broker.bench import Bench, Client
from tests.commands import finish

BEAT, LOCK, UNLOCK = RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
NAMED = "t" * (TOPIC_LENGTH_MAX - 5)


def heartbeat(count: int, name: str = NAMED, groups: int = 1) -> bytes:
    """As a Java client writes it."""
    subscriptions = [SubscriptionData(f"{name}{n:05}", sub_version=1_700_000_000_000) for n in range(count)]
    consumers = [ConsumerData(f"G{n}", subscription_data_set=subscriptions) for n in range(groups)]
    return HeartbeatData("client", [ProducerData("P")], consumers).to_json()


def lock(count: int, topic: str = "T", broker: str = "broker-a") -> bytes:
    queues = frozenset(MessageQueue(topic, broker, n) for n in range(count))
    return LockBatchRequestBody("G0", "client", queues).to_json()


def ask(client: Client, code: int, body: bytes) -> tuple[RemotingCommand, int]:
    """The answer, and after how many turns it was there."""
    client.tell(RemotingCommand(code, body=body))
    for turns in range(10_000):
        answers = [each for each in client.heard() if each.is_response]
        if answers:
            return answers[0], turns
        client.bench.clock.advance(0.001)
    raise AssertionError("it is not answered")


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a whole turn."""
    monkeypatch.setattr(StepRunner, "_turn", lambda runner: lambda: True)


@pytest.mark.usefixtures("stepping")
def test_a_heartbeat_of_all_subscriptions_that_a_group_may_have(bench: Bench, client: Client) -> None:
    body = heartbeat(SUBSCRIPTIONS_MAX)
    assert 2_000_000 < len(body) <= REQUESTS[BEAT].body_bytes_max
    answer, turns = ask(client, BEAT, body)
    assert (answer.code, answer.remark) == (0, None)
    assert turns > SUBSCRIPTIONS_MAX / 250
    group = bench.consumers.group("G0")
    assert group is not None
    assert len(group.subscriptions) == SUBSCRIPTIONS_MAX
    assert bench.producers.find("client") is not None
    assert ask(client, BEAT, body)[0].code == 0  # and again


@pytest.mark.usefixtures("stepping")
def test_a_lock_of_all_queues_of_a_topic(bench: Bench, client: Client) -> None:
    for count, topic, broker in ((10_000, "T" * TOPIC_LENGTH_MAX, "b" * 255), (65_535, "T", "broker-a")):
        body = lock(count, topic, broker)
        assert 3_000_000 < len(body) <= REQUESTS[LOCK].body_bytes_max
        answer, turns = ask(client, LOCK, body)
        assert answer.code == 0
        assert turns > count / 250
        assert len(loads(answer.body)["lockOKMQSet"]) == count
        assert ask(client, UNLOCK, body)[0].code == 0
        other = body.replace(b'"clientId":"client"', b'"clientId":"other"')
        assert len(LockBatchResponseBody.from_value(loads(ask(client, LOCK, other)[0].body)).lock_ok_mq_set) == count
        assert ask(client, UNLOCK, other)[0].code == 0


def test_with_accounts_too(make_bench: Callable[..., Bench], tmp_path: Any) -> None:
    write_acl(tmp_path / "home")
    bench = make_bench("acl", acl_enable=True, rocketmq_home=str(tmp_path / "home"))
    for credentials, code in ((ADMIN, 0), (ALICE, ResponseCode.SYSTEM_ERROR)):
        client = bench.client()
        command = RemotingCommand(BEAT, body=heartbeat(SUBSCRIPTIONS_MAX))
        credentials.sign(command.ext_fields, command.body)
        client.tell(command)
        bench.turn(0.5)
        assert [each.code for each in client.heard() if each.is_response] == [code]


@pytest.mark.parametrize("end", ["leaves", "is cut", "stays"])
@pytest.mark.usefixtures("stepping")
def test_who_leaves_meanwhile_is_not_registered(bench: Bench, client: Client, end: str) -> None:
    client.tell(RemotingCommand(BEAT, body=heartbeat(2000)))
    assert bench.consumers.group("G0") is None
    if end == "leaves":
        fields = {"clientID": "client", "consumerGroup": "G0", "producerGroup": "P"}
        client.tell(RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields))
    elif end == "is cut":
        client.link.cut()
    bench.turn(0.5)
    for _ in range(100):
        bench.clock.advance(0.001)
    assert (bench.consumers.group("G0") is not None) == (end == "stays")


@pytest.mark.parametrize("code", [BEAT, LOCK, UNLOCK])
@pytest.mark.parametrize("entry", [b"[]", b"{}", b'{"topic":{}}', b"1,1,1,1,1,1,1,1"])
def test_what_takes_long_to_parse_is_refused_unread(client: Client, code: int, entry: bytes) -> None:
    body = b'{"x":[' + b",".join([entry] * (CONTAINERS_MAX + 10)) + b"]}"
    answer, _ = ask(client, code, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert " at most" in (answer.remark or "")


def test_long_requests_have_a_bound_together(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, stepping: None
) -> None:
    monkeypatch.setattr(long_requests, "BYTES_MAX", 1_500_000)
    body = heartbeat(2000)
    commands = [RemotingCommand(BEAT, body=body) for _ in range(4)]
    client.tell(*commands)
    for _ in range(200):
        bench.clock.advance(0.001)
        client.link.pump()
    codes = sorted(each.code for each in client.heard() if each.is_response)
    assert codes[0] == 0
    assert codes[-1] == ResponseCode.SYSTEM_BUSY
    assert len(codes) == 4
    assert ask(client, BEAT, body)[0].code == 0


def test_each_limit_of_a_body_is_that_of_its_parts() -> None:
    groups = [ProducerData("P" * 255 + str(n)) for n in range(1000)]
    for subscriptions in ([10_000, 10_000], [20] * 1000):
        consumers = [
            ConsumerData(
                f"{'G' * 116}{n:04}",
                subscription_data_set=[SubscriptionData(f"{NAMED}{i:05}", sub_version=1 << 40) for i in range(count)],
            )
            for n, count in enumerate(subscriptions)
        ]
        body = HeartbeatData("c" * 100, groups, consumers).to_json()
        assert len(body) < LONG_BODY_BYTES_MAX
        assert len(finish(read_heartbeat(body)).consumer_data_set) == len(subscriptions)
    assert 3 * SUBSCRIPTIONS_MAX < CONTAINERS_MAX
    assert len(lock(10_000, "T" * TOPIC_LENGTH_MAX, "b" * client_requests.BROKER_NAME_LENGTH_MAX)) < LONG_BODY_BYTES_MAX
