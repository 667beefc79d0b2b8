"""Heartbeats, farewells, who consumes, offsets and locks: codes 34, 35, 46, 14, 15, 38, 41, 42."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred

from mqbroker.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CreateTopicRequestHeader,
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.bench import Bench, Client
from tests.broker.sending import put_topic
from tests.remoting.logs import Logged

OTHER = IPv4Address("TCP", "10.0.0.3", 5)


def heartbeat(client_id: str = "c1", producers: Sequence[str] = (), consumers: Sequence[ConsumerData] = ()) -> bytes:
    return HeartbeatData(client_id, [ProducerData(name) for name in producers], list(consumers)).to_json()


def consumer(group: str = "CG", *topics: str, **fields: Any) -> ConsumerData:
    return ConsumerData(group, subscription_data_set=[SubscriptionData(topic) for topic in topics], **fields)


def beat(client: Client, **fields: Any) -> RemotingCommand:
    return client.ask(RequestCode.HEART_BEAT, body=heartbeat(**fields))


def pushed(client: Client) -> list[RemotingCommand]:
    client.bench.turn(0.01)
    return [command for command in client.heard() if not command.is_response]


def consumer_ids(client: Client, group: str = "CG") -> RemotingCommand | list[str]:
    answer = client.ask(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(consumer_group=group)
    )
    return GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list if answer.code == 0 else answer


# --- heartbeats


def test_a_heartbeat_makes_groups_and_retry_topics(bench: Bench, client: Client) -> None:
    assert beat(client, producers=["PG"], consumers=[consumer("CG", "T", "%RETRY%CG")]).code == 0
    assert bench.topics.get("%RETRY%CG").read_queue_nums == 1
    assert bench.groups.find("CG") is not None
    assert consumer_ids(client) == ["c1"]
    assert len(bench.producers.group("PG")) == 1


def test_a_consumer_of_a_unit_has_a_retry_topic_of_that_kind(bench: Bench, client: Client) -> None:
    assert beat(client, consumers=[consumer("CG", "T", unit_mode=True)]).code == 0
    assert bench.topics.get("%RETRY%CG").topic_sys_flag == 2


def test_a_disconnected_consumer_is_told_to_the_others(bench: Bench, client: Client) -> None:
    second = bench.client(OTHER)
    beat(client, consumers=[consumer("CG", "T")])
    beat(second, client_id="c2", consumers=[consumer("CG", "T")])
    assert [command.code for command in pushed(client)] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert consumer_ids(client) == ["c1", "c2"]
    pushed(client)
    second.link.cut()
    (note,) = pushed(client)
    assert note.is_oneway
    assert note.ext_fields == {"consumerGroup": "CG"}
    assert consumer_ids(client) == ["c1"]


ILLEGAL = ["", "../x", "a b", "g" * 256, "é", "a\u0000b"]


@pytest.mark.parametrize("name", ILLEGAL)
@pytest.mark.parametrize("where", ["producer", "consumer", "topic", "client id"])
def test_a_heartbeat_with_an_illegal_name_takes_nothing(bench: Bench, client: Client, name: str, where: str) -> None:
    groups, topics = bench.groups.snapshot(), bench.topics.snapshot()
    data: dict[str, Any] = {
        "producer": {"producers": ["Good", name], "consumers": [consumer("Fine", "T")]},
        "consumer": {"producers": ["Good"], "consumers": [consumer("Fine", "T"), consumer(name, "T")]},
        "topic": {"producers": ["Good"], "consumers": [consumer("Fine", "T", name)]},
        "client id": {"client_id": "" if name != "g" * 256 else name, "consumers": [consumer("Fine", "T")]},
    }
    assert beat(client, **data[where]).code == ResponseCode.SYSTEM_ERROR
    assert (bench.groups.snapshot(), bench.topics.snapshot()) == (groups, topics)
    assert bench.producers.group("Good") == {}
    assert bench.consumers.group("Fine") is None


def test_a_subscription_without_tags_takes_nothing(bench: Bench, client: Client) -> None:
    bad = ConsumerData("CG", subscription_data_set=[SubscriptionData("T", "||")])
    assert beat(client, consumers=[consumer("Fine"), bad]).code == ResponseCode.SYSTEM_ERROR
    assert bench.consumers.group("Fine") is None


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'{"clientID":7}', b'{"clientID":"c","consumerDataSet":{}}', b"\xff", b"{" * 100_000,
     b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T","codeSet":["x"]}]}]}',
     b'{"clientID":"\\ud800"}', b'{"clientID":"c","consumerDataSet":[null]}'],
)  # fmt: skip
def test_a_heartbeat_that_is_none(bench: Bench, client: Client, logged: Logged, body: bytes) -> None:
    answer = client.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert logged.failures == []
    assert bench.consumers.group("G") is None


def test_a_long_group_name_has_no_retry_topic(bench: Bench, client: Client) -> None:
    """A group's name may be longer than a topic's; clients subscribe to its retry topic all the same."""
    name = "g" * 200
    assert beat(client, consumers=[consumer(name, "T", f"%RETRY%{name}")]).code == 0
    assert consumer_ids(client, name) == ["c1"]
    assert beat(client, consumers=[consumer("other", f"%RETRY%{name}")]).code == ResponseCode.SYSTEM_ERROR
    assert not [topic for topic in bench.topics.names() if len(topic) > 127]


def test_without_automatic_groups_a_heartbeat_is_taken_all_the_same(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(auto_create_subscription_group=False)
    client = bench.client()
    assert beat(client, consumers=[consumer("CG", "T")]).code == 0
    assert consumer_ids(client) == ["c1"]
    assert bench.topics.get("%RETRY%CG") is None


def test_a_silent_client_leaves_its_group_and_stays_connected(bench: Bench, client: Client) -> None:
    beat(client, consumers=[consumer("CG", "T")])
    for _ in range(3):
        bench.turn(45)
        client.ask(9999)
    bench.consumers.expire()
    client.link.pump()
    assert not client.peer.lost
    assert bench.consumers.group("CG") is None
    assert beat(client, consumers=[consumer("CG", "T")]).code == 0
    assert consumer_ids(client) == ["c1"]


# --- farewells


def test_farewells(bench: Bench, client: Client) -> None:
    other = bench.client(OTHER)
    beat(other, client_id="c2", consumers=[consumer("CG", "T")])
    beat(client, producers=["PG"], consumers=[consumer("CG", "T")])
    other.heard()
    header = UnregisterClientRequestHeader(client_id="c1", producer_group="PG", consumer_group="CG")
    assert client.ask(RequestCode.UNREGISTER_CLIENT, header).code == 0
    assert len(pushed(other)) == 1
    assert consumer_ids(other) == ["c2"]
    assert bench.producers.group("PG") == {}
    assert client.ask(RequestCode.UNREGISTER_CLIENT, header).code == 0
    assert client.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id="c1")).code == 0
    assert pushed(other) == []


def test_a_group_may_want_no_notices(bench: Bench, client: Client) -> None:
    bench.groups.put(SubscriptionGroupConfig("CG", notify_consumer_ids_changed_enable=False))
    other = bench.client(OTHER)
    beat(client, consumers=[consumer("CG", "T")])
    beat(other, client_id="c2", consumers=[consumer("CG", "T")])
    assert pushed(client) == []


def test_the_group_nobody_consumes(client: Client) -> None:
    answer = consumer_ids(client, "Nobody")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, Nobody")


@pytest.mark.parametrize(("kind", "code"), [("TAG", 0), ("SQL92", ResponseCode.SYSTEM_ERROR)])
def test_which_subscriptions_can_be_served(client: Client, kind: str, code: int) -> None:
    body = CheckClientRequestBody("c1", "CG", SubscriptionData("T", "a > 1", expression_type=kind)).to_json()
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


# --- offsets


def commit(client: Client, offset: int = 5, group: str = "CG", topic: str = "T", queue_id: int = 0) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def query(client: Client, group: str = "CG", topic: str = "T", queue_id: int = 0) -> int | RemotingCommand:
    header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id)
    answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return int(answer.ext_fields["offset"]) if answer.code == 0 else answer


def test_offsets(client: Client) -> None:
    put_topic(client, "T")
    assert query(client) == 0
    assert commit(client).code == 0
    assert commit(client, 9, queue_id=3).code == 0
    assert [query(client, queue_id=n) for n in range(4)] == [5, 0, 0, 9]


@pytest.mark.parametrize(
    "fields",
    [{"topic": "None"}, {"topic": "../x"}, {"group": "../x"}, {"group": ""}, {"queue_id": -1}, {"queue_id": 2**31 - 1},
     {"offset": -1}, {"group": "a@b"}, {"topic": "T@CG"}],
)  # fmt: skip
def test_what_cannot_be_committed(bench: Bench, client: Client, fields: dict[str, Any]) -> None:
    put_topic(client, "T")
    answer = commit(client, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bench.offsets.snapshot().offset_table == {}


def test_a_new_group_on_an_old_queue_is_told_there_is_no_offset(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(client, "T")
    monkeypatch.setattr(bench.store, "min_offset", lambda topic, queue_id: 100)
    answer = query(client)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


# --- locks


def queues(*numbers: int) -> frozenset[MessageQueue]:
    return frozenset(MessageQueue("T", "broker-a", n) for n in numbers)


def lock(client: Client, client_id: str = "c1", numbers: tuple[int, int] = (0, 1), group: str = "CG") -> set[int]:
    answer = client.ask(
        RequestCode.LOCK_BATCH_MQ, body=LockBatchRequestBody(group, client_id, queues(*numbers)).to_json()
    )
    assert answer.code == 0, answer
    return {queue.queue_id for queue in LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set}


def test_locks(client: Client) -> None:
    assert lock(client) == {0, 1}
    assert lock(client, "c2", (1, 2)) == {2}
    body = LockBatchRequestBody("CG", "c1", queues(1)).to_json()
    assert client.ask(RequestCode.UNLOCK_BATCH_MQ, body=body).code == 0
    assert lock(client, "c2", (0, 1)) == {1}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    "changes",
    [{"consumerGroup": ""}, {"consumerGroup": "g" * 256}, {"consumerGroup": 7}, {"clientId": ""},
     {"clientId": "c" * 999},
     {"mqSet": [{"topic": "t" * 999, "brokerName": "b", "queueId": 0}]},
     {"mqSet": [{"topic": "T", "brokerName": "b" * 999, "queueId": 0}]},
     {"mqSet": [{"topic": "T", "brokerName": "b", "queueId": "x"}]}, {"mqSet": 7}],
)  # fmt: skip
def test_locks_leave_nothing_long_behind(client: Client, logged: Logged, code: int, changes: dict[str, Any]) -> None:
    body = {"consumerGroup": "CG", "clientId": "c1", "mqSet": [], **changes}
    answer = client.ask(code, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert logged.failures == []


def test_a_topic_is_answered_for_when_name_servers_have_heard_of_it(bench: Bench, client: Client) -> None:
    told = Deferred[Any]()
    bench.topics.announcers.append(lambda: told)
    header = CreateTopicRequestHeader(
        topic="T", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
        topic_filter_type="SINGLE_TAG", order=False,
    )  # fmt: skip
    assert client.ask_all(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)) == []
    told.callback(None)
    client.link.pump()
    assert [answer.code for answer in client.heard()] == [ResponseCode.SUCCESS]
