"""Long registrations: read while others are served, in order on their connection, and bounded."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.namesrv import broker_requests, route_table
from mqbroker.namesrv.route_table import TOPICS_OF_EVERY_BROKER
from mqbroker.remoting import cooperative_tasks
from mqbroker.wire import registration
from mqbroker.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.registration import body_crc32, encode_registration
from tests.namesrv.conftest import Peer, System
from tests.namesrv.test_every_request import BROKER, register, route

NAMES = [*TOPICS_OF_EVERY_BROKER, *(f"topic-{n}" for n in range(5000 - len(TOPICS_OF_EVERY_BROKER)))]
MANY = {name: TopicConfig(name, 4, 4) for name in NAMES}


@pytest.fixture(autouse=True)
def _step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step a turn."""
    monkeypatch.setattr(cooperative_tasks, "TURN_SECONDS", 0)


def long_request(
    *,
    version: int = 1,
    code: int = RequestCode.REGISTER_BROKER,
    compressed: bool = False,
    opaque: int = 1,
    **changes: Any,
) -> bytes:
    body = encode_registration(
        RegisterBrokerBody(TopicConfigSerializeWrapper(MANY, DataVersion(0, version))), compressed=compressed
    )
    fields = {**BROKER, "bodyCrc32": body_crc32(body), "compressed": str(compressed).lower(), **changes}
    return request(code, body, opaque, fields)


def request(code: int, body: bytes = b"", opaque: int = 1, fields: dict[str, Any] = BROKER) -> bytes:
    ext_fields = {key: str(value) for key, value in fields.items()}
    return encode_command(RemotingCommand(code, ext_fields, body, opaque=opaque, version=407))


def codes(answers: list[RemotingCommand]) -> list[tuple[int, int]]:
    return [(answer.opaque, answer.code) for answer in answers]


@pytest.fixture
def broker(system: System) -> Peer:
    return system.connect()


def wait(system: System, broker: Peer) -> tuple[list[RemotingCommand], int]:
    """Let turns go by until something is answered; return it and how many they were."""
    for turns in range(1, 1000):
        answers = broker.received()
        if answers:
            return answers, turns
        system.reactor.advance(0.001)
    raise AssertionError("no answer")


def test_others_are_served_meanwhile(system: System, broker: Peer, peer: Peer) -> None:
    assert broker.send(long_request()) == []
    for _ in range(3):
        system.reactor.advance(0.001)
        # Nothing of it is to be seen before all of it is.
        assert route(peer, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST
    answers, turns = wait(system, broker)
    assert codes(answers) == [(1, 0)]
    assert turns > 3
    assert len(json.loads(peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)["topicList"]) == 5000


def test_what_is_said_again_to_the_byte_is_not_read_again(
    system: System, broker: Peer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(long_request())
    wait(system, broker)
    monkeypatch.setattr(broker_requests, "read_registration", None)
    broker.send(long_request())
    assert codes(wait(system, broker)[0]) == [(1, 0)]
    # The broker is alive for as long as after any other registration.
    for _ in range(11):
        system.reactor.advance(10)
        peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert route(peer, "topic-1").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("change", [{"haServerAddr": "h:1"}, {"clusterName": "D"}, {"brokerId": 1}])
def test_what_is_said_otherwise_is_read_again(system: System, broker: Peer, peer: Peer, change: dict[str, Any]) -> None:
    register(broker, "T")
    register(broker, "T", **change)
    if "haServerAddr" in change:
        answer = register(peer, brokerAddr="127.0.0.1:2", brokerId=1)
        assert answer.ext_fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "h:1"}
    else:
        info = peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body.decode()
        assert ('"D"' in info) or ('{1:"127.0.0.1:10911"}' in info)


def test_a_broker_whose_place_was_taken_is_read_again(system: System, broker: Peer, peer: Peer) -> None:
    register(broker, "T")
    register(peer, "T", brokerAddr="127.0.0.1:2")
    register(broker, "T")
    assert b'{0:"127.0.0.1:10911"}' in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


def test_a_broker_that_leaves_at_once_is_gone(system: System, broker: Peer, peer: Peer) -> None:
    broker.send(long_request(opaque=1))
    broker.send(request(RequestCode.UNREGISTER_BROKER, opaque=2))
    answers, _ = wait(system, broker)
    assert codes(answers) == [(1, 0), (2, 0)]
    assert route(peer, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_short_registration_waits_for_the_long_one_before_it(system: System, broker: Peer, peer: Peer) -> None:
    broker.send(long_request(opaque=1, version=1))
    body = encode_registration(
        RegisterBrokerBody(TopicConfigSerializeWrapper({"topic-1": TopicConfig("topic-1", 9, 9)}, DataVersion(0, 2))),
        compressed=False,
    )
    broker.send(request(RequestCode.REGISTER_BROKER, body, opaque=2))
    broker.send(request(RequestCode.QUERY_DATA_VERSION, DataVersion(0, 2).to_json(), opaque=3))
    answers, _ = wait(system, broker)
    while len(answers) < 3:
        answers += wait(system, broker)[0]
    assert codes(answers) == [(1, 0), (2, 0), (3, 0)]
    assert answers[2].ext_fields == {"changed": "false"}
    assert json.loads(route(peer, "topic-1").body)["queueDatas"][0]["readQueueNums"] == 9


def test_many_requests_behind_a_long_one_nest_nothing(system: System, broker: Peer) -> None:
    broker.send(long_request(opaque=1))
    waiting = b"".join(request(RequestCode.UNREGISTER_BROKER, opaque=n) for n in range(2, 5000))
    broker.send(waiting)
    answers, _ = wait(system, broker)
    assert codes(answers) == [(n, 0) for n in range(1, 5000)]


def test_a_connection_that_closes_meanwhile_leaves_nothing(system: System, broker: Peer, peer: Peer) -> None:
    broker.send(long_request())
    system.reactor.advance(0.001)
    broker.close()
    for _ in range(200):
        system.reactor.advance(0.001)
    assert route(peer, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST
    assert b"broker-a" not in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


def test_a_wrong_long_registration_is_refused_and_the_next_is_taken(system: System, broker: Peer, peer: Peer) -> None:
    broker.send(long_request(bodyCrc32=1))
    ((answer,), _) = wait(system, broker)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    broker.send(request(RequestCode.REGISTER_BROKER, b"x" * 300_000))
    ((answer,), _) = wait(system, broker)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("RegisterBrokerBody")
    assert register(broker, "T").code == ResponseCode.SUCCESS


def test_a_compressed_one_is_read_in_turns_too(
    system: System, broker: Peer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_requests, "SHORT_BYTES", 1000)
    monkeypatch.setattr(registration, "STEP_TOPICS", 500)
    assert broker.send(long_request(compressed=True)) == []
    assert wait(system, broker)[1] > 10
    assert route(peer, "topic-1").code == ResponseCode.SUCCESS


def test_what_waits_is_bounded(start_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_requests, "WAITING_BYTES_MAX", 1_000_000)
    system = start_system()
    broker, other = system.connect(), system.connect()
    broker.send(long_request(opaque=1))
    (answer,) = other.send(long_request(opaque=2, brokerName="broker-b", brokerAddr="b:1"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert codes(wait(system, broker)[0]) == [(1, 0)]
    other.send(long_request(opaque=3, brokerName="broker-b", brokerAddr="b:1"))
    assert codes(wait(system, other)[0]) == [(3, 0)]


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr"])
def test_names_without_end_are_refused(peer: Peer, field: str) -> None:
    answer = register(peer, "T", **dict[str, Any]({field: "x" * 2000}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is longer than 1024 characters" in (answer.remark or "")


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName"])
def test_brokers_are_bounded(peer: Peer, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setattr(route_table, "BROKERS_MAX", 1)
    assert register(peer, "T").code == ResponseCode.SUCCESS
    answer = register(peer, "T", **dict[str, Any]({field: "another"}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the name server has no room for more than 1 brokers"
    assert register(peer, "T").code == ResponseCode.SUCCESS
