"""Topics, offsets of queues, groups, connections, single messages: codes 17, 21, 29 to 33, 12, 200, 201, 203, 204."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.store.dispatch import IDLE_S
from mqbroker.wire.bodies import (
    ConsumerConnection,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from mqbroker.wire.codes import LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CreateTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from mqbroker.wire.headers.coding import Header
from mqbroker.wire.record import decode_records
from tests.broker.bench import START, Bench, Client
from tests.broker.sending import one
from tests.broker.test_client_requests import beat, consumer
from tests.remoting.logs import Logged


def create(client: Client, name: str = "T", **fields: Any) -> RemotingCommand:
    header = CreateTopicRequestHeader(
        **{"topic": name, "default_topic": "TBW102", "read_queue_nums": 4, "write_queue_nums": 3, "perm": 6,
           "topic_filter_type": "SINGLE_TAG", "topic_sys_flag": 1, "order": False, **fields}
    )  # fmt: skip
    return client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def test_a_topic_is_made_and_changed(bench: Bench, client: Client) -> None:
    assert create(client).code == 0
    assert bench.topics.get("T") == TopicConfig("T", 4, 3, 6, "SINGLE_TAG", 1)
    assert create(client, perm=4, topic_filter_type="MULTI_TAG", topic_sys_flag=None).code == 0
    assert bench.topics.get("T") == TopicConfig("T", 4, 3, 4, "MULTI_TAG", 0)
    answer = client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert TopicConfigSerializeWrapper.from_json(answer.body) == bench.topics.snapshot()


@pytest.mark.parametrize(
    "fields",
    [{"name": name} for name in ("", "../x", "t" * 128, "a b", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x")]
    + [{"read_queue_nums": n} for n in (-1, 65_536, 2**31 - 1)]
    + [{"write_queue_nums": -1}, {"perm": -1}, {"perm": 16}, {"topic_filter_type": "x" * 1000}],
)
def test_what_is_no_topic(bench: Bench, client: Client, fields: dict[str, Any]) -> None:
    before = bench.topics.snapshot()
    answer = create(client, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len(answer.remark) < 200
    assert bench.topics.snapshot() == before


def test_offsets_of_a_queue(bench: Bench, client: Client) -> None:
    for i in range(3):
        client.send(body=b"%d" % i)
        bench.turn(10)

    def offset(code: int, header: Header) -> int:
        answer = client.ask(code, header)
        assert answer.code == 0
        return int(next(iter(answer.ext_fields.values())))

    queue: dict[str, Any] = {"topic": "T", "queue_id": 0}
    assert offset(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(**queue)) == 3
    assert offset(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(**queue)) == 0
    assert offset(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequestHeader(**queue)) == START * 1000
    for milliseconds, wanted in ((-1, 0), (0, 0), (10_000, 1), (20_000, 2)):
        header = SearchOffsetRequestHeader(timestamp=START * 1000 + milliseconds, **queue)
        assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header) == wanted
    for topic, queue_id in (("None", 0), ("T", 99), ("T", -1), ("../x", 0)):
        asked = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
        assert offset(RequestCode.GET_MAX_OFFSET, asked) == 0


# --- groups


def test_a_group_is_made_and_shown(bench: Bench, client: Client) -> None:
    group = SubscriptionGroupConfig("CG", consume_enable=False, retry_max_times=3, retry_queue_nums=2)
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.to_json()).code == 0
    assert bench.groups.find("CG") == group
    answer = client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert SubscriptionGroupWrapper.from_json(answer.body) == bench.groups.snapshot()


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"{}", b'{"groupName":"../x"}', b'{"groupName":7}', b'{"groupName":"G","retryQueueNums":-1}',
     b'{"groupName":"G","retryQueueNums":99999999}', b'{"groupName":"G","consumeEnable":"x"}'],
)  # fmt: skip
def test_what_is_no_group(bench: Bench, client: Client, logged: Logged, body: bytes) -> None:
    before = bench.groups.snapshot()
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bench.groups.snapshot() == before
    assert logged.failures == []


# --- connections


def test_connections_of_a_group(client: Client) -> None:
    beat(client, producers=["PG"], consumers=[consumer("CG", "T", message_model="BROADCASTING")])
    answer = client.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader(consumer_group="CG")
    )
    found = ConsumerConnection.from_json(answer.body)
    (connection,) = found.connection_set
    assert (connection.client_id, connection.client_addr) == ("c1", "10.0.0.2:40000")
    assert (connection.language, connection.version) == (LanguageCode.PYTHON.name, 407)
    assert found.message_model == "BROADCASTING"
    assert list(found.subscription_table) == ["T"]
    answer = client.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequestHeader(producer_group="PG")
    )
    assert [c.client_id for c in ProducerConnection.from_json(answer.body).connection_set] == ["c1"]


def test_groups_that_are_away(client: Client) -> None:
    answer = client.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader(consumer_group="CG")
    )
    assert (answer.code, answer.remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[CG] not online")
    answer = client.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequestHeader(producer_group="PG")
    )
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[PG] not exist")


# --- single messages


def query(
    client: Client,
    key: str = "k",
    topic: str = "T",
    count: int = 10,
    begin: int = 0,
    end: int = 2**62,
    unique: bool = False,
) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic=topic, key=key, max_num=count, begin_timestamp=begin, end_timestamp=end)
    command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    if unique:
        command.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
    return one(client.ask_all(command))


def test_messages_by_key(bench: Bench, client: Client) -> None:
    for i in range(3):
        client.send(body=b"%d" % i, properties=f"KEYS\x01k k{i}\x02UNIQ_KEY\x01U{i}")
    bench.turn(IDLE_S)
    found = query(client)
    assert sorted(record.body for record in decode_records(found.body)) == [b"0", b"1", b"2"]
    assert int(found.ext_fields["indexLastUpdateTimestamp"]) == START * 1000
    assert int(found.ext_fields["indexLastUpdatePhyoffset"]) > 0
    assert [record.body for record in decode_records(query(client, "k1").body)] == [b"1"]
    assert [record.body for record in decode_records(query(client, "U2", unique=True).body)] == [b"2"]
    assert len(decode_records(query(client, count=2).body)) == 2


@pytest.mark.parametrize(
    ("setting", "unique", "count"), [("max_msgs_num_batch", False, 2), ("max_msgs_num_batch", True, 2),
    ("default_query_max_num", True, 2), ("default_query_max_num", False, 3)],
)  # fmt: skip
def test_how_many_messages_by_key_there_are_at_a_time(
    make_bench: Callable[..., Bench], setting: str, unique: bool, count: int
) -> None:
    client = make_bench(store={setting: 2}).client()
    for _ in range(3):
        client.send(properties="KEYS\x01k")
    client.bench.turn(IDLE_S)
    assert len(decode_records(query(client, unique=unique).body)) == count


@pytest.mark.parametrize(
    "fields",
    [{"key": "none"}, {"topic": "None"}, {"topic": "../x"}, {"key": ""}, {"key": "k" * 100_000}, {"begin": 2**62},
     {"end": 0}, {"end": -(2**63)}, {"count": 0}, {"count": -5}],
)  # fmt: skip
def test_nothing_by_that_key(client: Client, logged: Logged, fields: dict[str, Any]) -> None:
    client.send(properties="KEYS\x01k")
    assert query(client, begin=fields.pop("begin", -(2**63)), **fields).code == ResponseCode.QUERY_NOT_FOUND
    assert query(client, begin=-(2**63), end=2**63 - 1).code == 0
    assert logged.failures == []


def test_a_message_by_its_offset(bench: Bench, client: Client) -> None:
    client.send(body=b"first")
    (record,) = bench.records("T")

    def view(offset: int) -> RemotingCommand:
        return client.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))

    assert decode_records(view(record.physical_offset).body)[0].body == b"first"
    for offset in (-1, 1, 7, record.store_size, 2**63 - 1, -(2**63)):
        answer = view(offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"can not find message by the offset, {offset}"


def test_bodies_read_as_java_reads_them(bench: Bench, client: Client) -> None:
    """Numeric keys, sets as arrays: plain JSON all of it, for peers stricter than Fastjson."""
    create(client)
    assert json.loads(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body)["dataVersion"]["counter"] == 1
