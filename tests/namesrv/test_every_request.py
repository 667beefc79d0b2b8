"""What a name server answers: to what a Java broker, client and mqadmin sent, and to what is wrong."""

import json
from collections.abc import Callable
from typing import Any, cast

import attrs
import orjson
import pytest
from twisted.internet.base import DelayedCall
from twisted.internet.testing import MemoryReactorClock

from mqbroker.namesrv import broker_requests, config_requests, route_requests
from mqbroker.namesrv.route_table import TOPICS_OF_EVERY_BROKER
from mqbroker.remoting import cooperative_tasks
from mqbroker.wire import fastjson
from mqbroker.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from mqbroker.wire.codes import FAQ, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command, encode_frame
from mqbroker.wire.registration import body_crc32, encode_registration
from tests.commands import decode_frame
from tests.namesrv.conftest import Peer, System
from tests.remoting.logs import log_kept

BROKER: dict[str, Any] = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": 0,
}


def body_of(*topics: str, version: int = 1, servers: tuple[Any, ...] = ()) -> RegisterBrokerBody:
    table = {name: TopicConfig(name, 4, 4, 6) for name in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(0, version)), list(servers))


def register(peer: Peer, *topics: str, compressed: bool = False, version: int = 407, **changes: Any) -> RemotingCommand:
    body = encode_registration(body_of(*topics), compressed=compressed)
    fields = {**BROKER, "bodyCrc32": body_crc32(body), "compressed": str(compressed).lower(), **changes}
    return peer.ask(RequestCode.REGISTER_BROKER, body, version=version, **fields)


def route(peer: Peer, topic: str, **more: Any) -> RemotingCommand:
    return peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **more)


def without_local_things(
    command: RemotingCommand,
) -> tuple[int, dict[str, str], str | None, int, int, dict[str, Any] | None]:
    """What two peers' answers have in common: all but the language, and the order of lists."""
    body = in_order(fastjson.loads(command.body)) if command.body else None
    return command.code, command.ext_fields, command.remark, command.flag, command.opaque, body


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    return sorted(map(in_order, value), key=repr) if isinstance(value, list) else value


def answer_to(peer: Peer, request: bytes) -> tuple[int, dict[str, str], str | None, int, int, dict[str, Any] | None]:
    (answer,) = peer.send(request)
    return without_local_things(answer)


def test_what_was_recorded_is_answered_as_java_did(recorded: list[tuple[str, bytes, bytes]], system: System) -> None:
    """The master and the slave register first; topics that were made later are asked for before that."""
    broker, client = system.connect(), system.connect()
    pairs = [
        (name, request, without_local_things(decode_frame(response)))
        for name, request, response in recorded
        if response and name != "GET_NAMESRV_CONFIG"
    ]
    unknown = [pair for pair in pairs if pair[2][0] == ResponseCode.TOPIC_NOT_EXIST]
    assert len(unknown) == 4
    assert [answer_to(client, request) for _, request, _ in unknown] == [expected for _, _, expected in unknown]
    registrations = [pair for pair in pairs if pair[0] == "REGISTER_BROKER"]
    assert [answer_to(broker, request) for _, request, _ in registrations] == [pair[2] for pair in registrations]
    asked = [pair for pair in pairs if pair[0] in ("GET_ROUTEINFO_BY_TOPIC", "GET_BROKER_CLUSTER_INFO")]
    known = [pair for pair in asked if pair not in unknown]
    assert len(known) == 6
    assert [answer_to(client, request) for _, request, _ in known] == [expected for _, _, expected in known]
    changes = [pair for pair in pairs if "KV_CONFIG" in pair[0] and pair[0] != "GET_KV_CONFIG"]
    assert [answer_to(client, request) for _, request, _ in changes] == [expected for _, _, expected in changes]


def test_a_recorded_one_way_registration_is_not_answered(recorded: list[tuple[str, bytes, bytes]], peer: Peer) -> None:
    requests = [request for name, request, response in recorded if name == "REGISTER_BROKER" and response is None]
    assert requests
    assert [peer.send(request) for request in requests] == [[]] * len(requests)
    assert route(peer, "BenchmarkTest").code == ResponseCode.SUCCESS


def test_the_dialect_and_strict_json(peer: Peer) -> None:
    register(peer, "T")
    addrs = b'"brokerAddrs":{%s0%s:"127.0.0.1:10911"}'
    assert addrs % (b'"', b'"') in route(peer, "T").body
    assert addrs % (b"", b"") in route(peer, "T", version=400).body
    assert addrs % (b'"', b'"') in route(peer, "T", version=400, acceptStandardJsonOnly="true").body
    assert addrs % (b"", b"") in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


def ask_together(peer: Peer, *asked: tuple[dict[str, str], dict[str, int]], **more: Any) -> list[RemotingCommand]:
    """Ask for the routes of several in one read: (ext fields, changes of the command) each."""
    requests = [
        RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, opaque=n, **{"version": 407, **more, **changes})
        for n, (fields, changes) in enumerate(asked)
    ]
    return peer.send(b"".join(map(encode_command, requests)))


def test_questions_of_one_read_are_answered_each(peer: Peer) -> None:
    register(peer, "T", "U")
    answers = ask_together(
        peer,
        ({"topic": "T"}, {}),
        ({"topic": "nowhere"}, {}),
        ({}, {}),
        ({"topic": "U"}, {"flag": 2}),
        ({"topic": "T", "acceptStandardJsonOnly": "maybe"}, {}),
        ({"topic": "U"}, {"serialize_type": 1}),
        ({"topic": "T", "AccessKey": "a"}, {}),
    )
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (0, ResponseCode.SUCCESS),
        (1, ResponseCode.TOPIC_NOT_EXIST),
        (2, ResponseCode.SYSTEM_ERROR),
        (4, ResponseCode.SUCCESS),
        (5, ResponseCode.SUCCESS),
        (6, ResponseCode.SUCCESS),
    ]
    assert answers[2].remark == "the custom field <topic> is null"
    assert answers[4].serialize_type == 1
    assert answers[0].body == answers[4].body == answers[5].body
    assert all(answer.is_response and answer.version == 407 for answer in answers)


@pytest.mark.parametrize("version", [400, 0, None])
def test_older_peers_get_the_dialect_whatever_they_ask_together(peer: Peer, version: int | None) -> None:
    register(peer, "T")
    request = {"code": 105, "extFields": {"topic": "T"}, "flag": 0, "opaque": 1, "version": version}
    strict = {**request, "extFields": {"topic": "T", "acceptStandardJsonOnly": "true"}}
    frames = [encode_frame(0, orjson.dumps(each)) for each in (request, strict)]
    dialect, standard = peer.send(b"".join(frames))
    assert b'{0:"127.0.0.1:10911"}' in dialect.body
    assert b'{"0":"127.0.0.1:10911"}' in standard.body


def test_a_route_changes_with_topics_and_brokers(peer: Peer, system: System) -> None:
    def seen() -> tuple[dict[str, dict[str, str]], list[tuple[str, int]]]:
        found = json.loads(route(peer, "T").body)
        addrs = {data["brokerName"]: data["brokerAddrs"] for data in found["brokerDatas"]}
        return addrs, sorted((q["brokerName"], q["perm"]) for q in found["queueDatas"])

    a, other = {"broker-a": {"0": "127.0.0.1:10911"}}, system.connect()
    register(peer, "T")
    assert seen() == (a, [("broker-a", 6)])
    register(other, "T", brokerName="broker-b", brokerAddr="b:1")
    both = a | {"broker-b": {"0": "b:1"}}
    assert seen() == (both, [("broker-a", 6), ("broker-b", 6)])
    peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-b")
    assert seen() == (both, [("broker-a", 6), ("broker-b", 4)])
    slave = system.connect()
    register(slave, brokerName="broker-b", brokerAddr="b:2", brokerId=1)
    assert seen()[0] == a | {"broker-b": {"0": "b:1", "1": "b:2"}}
    slave.close()
    assert seen()[0] == both
    other.close()
    assert seen() == (a, [("broker-a", 6)])


def test_filter_servers_are_in_the_route_of_those_that_have_them(peer: Peer) -> None:
    body = RegisterBrokerBody(body_of("T").topic_config_serialize_wrapper, ["f:1"])
    assert json.loads(register_body(peer, body))["filterServerTable"] == {"127.0.0.1:10911": ["f:1"]}
    assert json.loads(register_body(peer, body_of("T", version=2)))["filterServerTable"] == {}


def register_body(peer: Peer, body: RegisterBrokerBody) -> bytes:
    assert peer.ask(RequestCode.REGISTER_BROKER, body.to_json(), **BROKER).code == ResponseCode.SUCCESS
    return route(peer, "T").body


def test_a_topic_without_a_route(peer: Peer) -> None:
    answer = route(peer, "T")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == f"No topic route info in name server for the topic: T{FAQ}"


@pytest.mark.parametrize("compressed", [False, True])
def test_registering_in_both_forms(peer: Peer, compressed: bool) -> None:
    answer = register(peer, "T", compressed=compressed)
    assert (answer.code, answer.ext_fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    assert json.loads(route(peer, "T").body)["queueDatas"][0]["readQueueNums"] == 4


def test_a_registration_without_a_body(peer: Peer) -> None:
    assert peer.ask(RequestCode.REGISTER_BROKER, **BROKER).code == ResponseCode.SUCCESS
    assert b"broker-a" in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


def test_a_registration_of_before_3_0_11(peer: Peer) -> None:
    body = body_of("T").topic_config_serialize_wrapper.to_json()
    assert peer.ask(RequestCode.REGISTER_BROKER, body, version=36, **BROKER).code == ResponseCode.SUCCESS
    assert route(peer, "T").code == ResponseCode.SUCCESS


def test_a_slave_is_told_its_master(peer: Peer) -> None:
    register(peer, "T")
    answer = register(peer, brokerAddr="127.0.0.1:11911", brokerId=1, haServerAddr="127.0.0.1:11912")
    assert answer.ext_fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}


def test_a_wrong_crc32_is_refused(peer: Peer) -> None:
    answer = register(peer, "T", bodyCrc32=1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert route(peer, "T").code == ResponseCode.TOPIC_NOT_EXIST
    assert register(peer, "T", bodyCrc32=0).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":3}}}', b"\xff"]
)
@pytest.mark.parametrize("compressed", ["true", "false"])
def test_a_body_that_is_none_is_refused(peer: Peer, body: bytes, compressed: str) -> None:
    answer = peer.ask(RequestCode.REGISTER_BROKER, body, **BROKER, compressed=compressed)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith(("RegisterBrokerBody", "TopicConfig must", "the compressed registration "))
    assert fastjson.loads(peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"] == {}


@pytest.mark.parametrize("missing", sorted(BROKER))
def test_a_missing_field_is_named(peer: Peer, missing: str) -> None:
    fields: dict[str, Any] = {key: value for key, value in BROKER.items() if key != missing}
    answer = peer.ask(RequestCode.REGISTER_BROKER, **fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{missing}> is null")


def test_topics_with_illegal_names_get_no_routes(peer: Peer) -> None:
    assert register(peer, "T", "../x", "", "%RETRY%" + "g" * 200).code == ResponseCode.SUCCESS
    topics = json.loads(peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)["topicList"]
    assert sorted(topics) == ["%RETRY%" + "g" * 200, "T"]


def test_unregistering(peer: Peer) -> None:
    register(peer, "T")
    assert peer.ask(RequestCode.UNREGISTER_BROKER, **BROKER).code == ResponseCode.SUCCESS
    assert route(peer, "T").code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.ask(RequestCode.UNREGISTER_BROKER, **BROKER).code == ResponseCode.SUCCESS


def test_the_data_version(peer: Peer) -> None:
    def query(version: int) -> tuple[dict[str, str], bytes]:
        body = DataVersion(0, version).to_json()
        answer = peer.ask(RequestCode.QUERY_DATA_VERSION, body, **BROKER)
        assert answer.code == ResponseCode.SUCCESS
        return answer.ext_fields, answer.body

    assert query(1) == ({"changed": "true"}, b"")
    register(peer, "T", *TOPICS_OF_EVERY_BROKER)
    assert query(1) == ({"changed": "false"}, b'{"timestamp":0,"counter":1}')
    assert query(2) == ({"changed": "true"}, b'{"timestamp":0,"counter":1}')


def test_a_query_of_the_version_keeps_a_broker_alive(system: System, peer: Peer) -> None:
    register(peer, "T", *TOPICS_OF_EVERY_BROKER)
    for _ in range(5):
        system.reactor.pump([10.0] * 10)
        peer.ask(RequestCode.QUERY_DATA_VERSION, DataVersion(0, 1).to_json(), **BROKER)
    assert route(peer, "T").code == ResponseCode.SUCCESS


def test_write_permission(peer: Peer) -> None:
    register(peer, "T", "U")
    wiped = peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext_fields == {"wipeTopicCount": "2"}
    assert json.loads(route(peer, "T").body)["queueDatas"][0]["perm"] == 4
    added = peer.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext_fields == {"addTopicCount": "2"}
    assert json.loads(route(peer, "T").body)["queueDatas"][0]["perm"] == 6


def test_the_log_says_how_long_write_permission_is_wiped(system: System) -> None:
    body = encode_registration(body_of("T", *TOPICS_OF_EVERY_BROKER), compressed=False)
    fields = {**BROKER, "bodyCrc32": str(body_crc32(body)), "compressed": "false"}

    def register_at(opaque: int) -> list[str]:
        """What is logged of it, up to a colon."""
        peers.pop().close()
        peers.append(system.connect())
        with log_kept() as logged:
            peers[0].send(encode_command(RemotingCommand(RequestCode.REGISTER_BROKER, fields, body, opaque=opaque)))
        return [line.partition(":")[0] for line in logged.lines if "restart" in line]

    peers = [system.connect()]
    assert register_at(20) == []
    for opaque in (21, 2):  # after the first start, and after the second
        with log_kept() as logged:
            peers[0].ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert logged.lines[-1].endswith("until addWritePerm or until its restart")
        assert register_at(opaque) == ["broker broker-a registered again without a restart"]
        assert register_at(1) == ["broker broker-a was restarted"]
        assert register_at(1) == []


def test_permissions_beside_many_queues_are_changed_in_turns_one_request_after_another(
    system: System, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_requests, "SHORT_QUEUES", 0)
    monkeypatch.setattr(cooperative_tasks, "TURN_SECONDS", 0)
    names = [f"T{number}" for number in range(6)]
    register(peer, *names)
    for number, name in enumerate(names):  # topics with queues that nothing else has
        register(peer, name, brokerName=f"b{number}", brokerAddr=f"10.0.0.{number}:1")
    wipe = RemotingCommand(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, opaque=1)
    other = system.connect()
    assert peer.send(encode_command(wipe)) == []
    assert other.send(encode_command(attrs.evolve(wipe, code=RequestCode.ADD_WRITE_PERM_OF_BROKER))) == []

    def perms() -> list[int]:
        found = [json.loads(route(system.connect(), name).body)["queueDatas"] for name in names]
        return [queues["perm"] for topic in found for queues in topic if queues["brokerName"] == "broker-a"]

    seen: list[list[int]] = []
    for _ in range(200):
        system.reactor.advance(cooperative_tasks.NEXT_TURN_SECONDS)
        if not seen or perms() != seen[-1]:
            seen.append(perms())
    fewer = [[4] * count + [6] * (6 - count) for count in range(7)]
    assert [each for each in seen if each in fewer][-1] == [6] * 6
    assert seen[: seen.index([4] * 6) + 1] == fewer[seen[0].count(4) :]
    assert seen[seen.index([4] * 6) :] == [[6] * count + [4] * (6 - count) for count in range(7)]
    assert peer.received()[0].ext_fields == {"wipeTopicCount": "6"}
    assert other.received()[0].ext_fields == {"addTopicCount": "6"}


def test_lists_and_deleting(peer: Peer) -> None:
    register(peer, "T", "U")

    def topics(code: int, **fields: Any) -> list[str]:
        return sorted(json.loads(peer.ask(code, **fields).body)["topicList"])

    assert topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T", "U"]
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == ["T", "U"]
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="D") == []
    system_topics = json.loads(peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert system_topics == {"topicList": ["C", "broker-a"], "brokerAddr": "127.0.0.1:10911"}
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T").code == ResponseCode.SUCCESS
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="U", clusterName="C").code == ResponseCode.SUCCESS
    assert topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []


def test_long_tables_are_kept_until_they_change(peer: Peer, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_requests, "LONG_BYTES", 0)
    made = []
    to_json = TopicList.to_json
    monkeypatch.setattr(TopicList, "to_json", lambda body: made.append(body) or to_json(body))

    def lists() -> tuple[list[str], int]:
        """Of all topics, of two clusters, and how many of them were made anew."""
        found = []
        before = len(made)
        asked: list[tuple[int, dict[str, Any]]] = [
            (206, {}),
            (224, {"cluster": "C"}),
            (224, {"cluster": "D"}),
            (304, {}),
        ]
        for code, fields in asked:
            found.append("".join(sorted(json.loads(peer.ask(code, **fields).body)["topicList"])))
        return found, len(made) - before

    assert lists() == (["", "", "", ""], 4)
    register(peer, "T", "U")
    assert lists() == (["TU", "TU", "", "Cbroker-a"], 4)
    passing = system.connect()
    passing.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    passing.close()  # a peer that is no broker
    assert lists() == (["TU", "TU", "", "Cbroker-a"], 1)  # the system's topics are few, and made each time
    peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="U")
    assert lists() == (["T", "T", "", "Cbroker-a"], 4)
    register(peer, "T", "V", version=408)
    register(peer, "T", clusterName="D")
    assert lists()[0][2] != ""
    peer.ask(RequestCode.UNREGISTER_BROKER, **BROKER)
    assert lists() == (["", "", "", ""], 4)


LISTS: tuple[tuple[RequestCode, dict[str, Any], str], ...] = (
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "ABCDEF"),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}, "ABCDEF"),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "other"}, ""),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}, ""),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, ""),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, ""),
)


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of topics are made in turns of two topics, whatever their length, and kept."""
    monkeypatch.setattr(route_requests, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(route_requests, "STEP_TOPICS", 1)
    monkeypatch.setattr(route_requests, "LONG_BYTES", 0)
    monkeypatch.setattr(cooperative_tasks, "STEPS_PER_TURN", 2)


def turn(reactor: MemoryReactorClock) -> None:
    """Make the calls that are due, and none that these make due."""
    for call in [cast(DelayedCall, call) for call in reactor.getDelayedCalls() if call.getTime() <= reactor.seconds()]:
        reactor.calls.remove(call)
        call.called = 1
        call.func(*call.args, **call.kw)


def listed(answers: list[RemotingCommand]) -> str:
    (answer,) = answers
    return "".join(sorted(json.loads(answer.body)["topicList"]))


@pytest.mark.parametrize(("code", "fields", "topics"), LISTS)
def test_a_list_of_many_topics_is_made_in_turns_and_others_are_served_between(
    system: System, peer: Peer, in_turns: None, code: int, fields: dict[str, str], topics: str
) -> None:
    register(peer, *"ABCDEF")
    request = encode_command(RemotingCommand(code, fields))
    answers = peer.send(request)
    for _ in range(3):
        assert answers == []
        assert route(system.connect(), "F").code == ResponseCode.SUCCESS
        turn(system.reactor)
        answers = peer.received()
    assert listed(answers) == topics
    assert listed(peer.send(request)) == topics  # kept


def taken_in_turns(system: System, peer: Peer, request: RemotingCommand) -> tuple[RemotingCommand, int]:
    """The answer, and how many turns it takes."""
    answers, turns = peer.send(encode_command(request)), 0
    while not answers:
        turn(system.reactor)
        answers, turns = peer.received(), turns + 1
    return answers[0], turns


def test_thousands_of_brokers_are_listed_in_turns_as_few_are_at_once(
    system: System, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        register(peer, "T", brokerName=f"b{number}", brokerAddr=f"10.0.0.{number}:1")
    request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
    at_once, turns = taken_in_turns(system, peer, request)
    assert turns == 0
    monkeypatch.setattr(route_requests, "BROKERS_AT_ONCE_MAX", 39)
    monkeypatch.setattr(cooperative_tasks, "STEPS_PER_TURN", 2)
    monkeypatch.setattr(cooperative_tasks, "PIECES_PER_STEP", 10)
    in_turns, turns = taken_in_turns(system, peer, request)
    assert turns > 3
    assert without_local_things(in_turns) == without_local_things(at_once)


def test_thousands_of_keys_are_listed_in_turns_as_they_were_when_asked_for(
    system: System, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_requests, "KEYS_AT_ONCE_MAX", 49)
    monkeypatch.setattr(cooperative_tasks, "STEPS_PER_TURN", 1)
    for number in range(50):
        peer.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key=f"k{number}", value="v")
    request = RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    other = system.connect()
    assert peer.send(encode_command(request)) == []
    other.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="later", value="v")
    answers: list[Any] = []
    while not answers:
        turn(system.reactor)
        answers = peer.received()
    assert json.loads(answers[0].body) == {"table": {f"k{number}": "v" for number in range(50)}}


def test_what_changes_while_a_list_is_made_is_not_kept(system: System, peer: Peer, in_turns: None) -> None:
    register(peer, *"ABCDEF")
    request = encode_command(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert peer.send(request) == []
    other = system.connect()
    for topic in "AF":
        other.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic)
    other.ask(RequestCode.GET_BROKER_CLUSTER_INFO)  # what is kept is of now
    system.reactor.pump([0] * 3)
    assert listed(peer.received()) == "ABCDE"
    assert peer.send(request) == []
    system.reactor.pump([0] * 3)
    assert listed(peer.received()) == "BCDE"


def test_thousands_who_want_one_list_are_given_it_some_in_a_turn(system: System, peer: Peer, in_turns: None) -> None:
    register(peer, *"ABCDEF")
    request = encode_command(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert peer.send(request * 100) == []
    counts: list[Any] = []
    while sum(counts) < 100:
        turn(system.reactor)
        counts.append(len(peer.received()))
    assert max(counts) <= cooperative_tasks.TASKS_OF_ADDRESS_MAX


def test_unit_topics(peer: Peer) -> None:
    flags = {"Plain": 0, "Unit": 1, "Sub": 2, "Both": 3}
    table = {name: TopicConfig(name, topic_sys_flag=flag) for name, flag in flags.items()}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table)).to_json()
    assert peer.ask(RequestCode.REGISTER_BROKER, body, **BROKER).code == ResponseCode.SUCCESS

    def topics(code: int) -> list[str]:
        return sorted(json.loads(peer.ask(code).body)["topicList"])

    assert topics(RequestCode.GET_UNIT_TOPIC_LIST) == ["Both", "Unit"]
    assert topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["Both", "Sub"]
    assert topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["Sub"]


def test_a_full_key_value_configuration_refuses_more(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_requests, "BYTES_MAX", 10)
    answer = peer.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="x" * 20)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("the key-value configuration is full")
    assert peer.ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k").code == ResponseCode.QUERY_NOT_FOUND


def test_the_key_value_configuration(peer: Peer) -> None:
    key: dict[str, Any] = {"namespace": "N", "key": "k"}
    answer = peer.ask(RequestCode.GET_KV_CONFIG, **key)
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: N Key: k")
    answer = peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: N")
    assert peer.ask(RequestCode.PUT_KV_CONFIG, **key, value="v").code == ResponseCode.SUCCESS
    assert peer.ask(RequestCode.GET_KV_CONFIG, **key).ext_fields == {"value": "v"}
    assert peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N").body == b'{"table":{"k":"v"}}'
    assert peer.ask(RequestCode.DELETE_KV_CONFIG, **key).code == ResponseCode.SUCCESS
    assert peer.ask(RequestCode.GET_KV_CONFIG, **key).code == ResponseCode.QUERY_NOT_FOUND


def put_order(peer: Peer) -> None:
    fields: dict[str, Any] = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert peer.ask(RequestCode.PUT_KV_CONFIG, **fields).code == ResponseCode.SUCCESS


def test_brokers_are_told_of_ordered_topics(peer: Peer) -> None:
    put_order(peer)
    assert register(peer, "T").body == b'{"table":{"T":"broker-a:4"}}'


@pytest.mark.parametrize(("enable", "conf"), [(True, "broker-a:4"), (False, None)])
def test_clients_are_told_of_ordered_topics_where_that_is_wanted(
    start_system: Callable[..., System], enable: bool, conf: str | None
) -> None:
    peer = start_system(order_message_enable=enable).connect()
    put_order(peer)
    register(peer, "T")
    assert json.loads(route(peer, "T").body).get("orderTopicConf") == conf


def test_other_requests_are_not_supported(peer: Peer) -> None:
    assert peer.ask(RequestCode.PULL_MESSAGE).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
