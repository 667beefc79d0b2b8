"""Groups and offsets looked at, removed and cloned: codes 43, 45, 207, 208, 308, 314 and 328."""

import json
from collections.abc import Callable

import pytest

from mqbroker.wire.admin_bodies import (
    ConsumeStats,
    OffsetWrapper,
    ProducerInfo,
    ProducerTableInfo,
    QueryCorrectionOffsetBody,
)
from mqbroker.wire.bodies import ConsumerOffsetSerializeWrapper, MessageQueue, SubscriptionGroupConfig
from mqbroker.wire.codes import LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryCorrectionOffsetHeader,
)
from tests.broker.bench import START, Bench, Client
from tests.broker.sending import put_topic
from tests.broker.test_client_requests import beat, commit, consumer

NONE_TO_CORRECT = 2**63 - 1


def put_group(bench: Bench, name: str = "CG") -> None:
    bench.groups.put(SubscriptionGroupConfig(name))


def delete_group(client: Client, name: str = "CG", remove_offset: bool = False) -> RemotingCommand:
    header = DeleteSubscriptionGroupRequestHeader(group_name=name, remove_offset=remove_offset)
    return client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


def consume_stats(client: Client, group: str = "CG", topic: str | None = None) -> ConsumeStats:
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
    answer = client.ask(RequestCode.GET_CONSUME_STATS, header)
    assert answer.code == 0
    return ConsumeStats.from_json(answer.body)


def clone(
    client: Client, source: str = "CG", target: str = "NEW", topic: str | None = None, offline: bool = False
) -> RemotingCommand:
    header = CloneGroupOffsetRequestHeader(src_group=source, dest_group=target, topic=topic, offline=offline)
    return client.ask(RequestCode.CLONE_GROUP_OFFSET, header)


def corrections(
    client: Client, compare: str = "CG", topic: str = "T", filter_groups: str | None = None
) -> dict[int, int]:
    header = QueryCorrectionOffsetHeader(compare_group=compare, topic=topic, filter_groups=filter_groups)
    answer = client.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert answer.code == 0
    return QueryCorrectionOffsetBody.from_json(answer.body).correction_offsets


def test_all_offsets(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    commit(client, 5)
    answer = client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert ConsumerOffsetSerializeWrapper.from_json(answer.body).offset_table == {"T@CG": {0: 5}}
    answer = client.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert json.loads(answer.body) == {"offsetTable": {}}


def test_the_offsets_of_delay_levels(bench: Bench, client: Client) -> None:
    bench.parts.delay.start()
    client.send(properties="DELAY\x013")
    bench.turn(11)
    assert client.ask(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{3:1}}'
    bench.parts.delay.stop()


def test_a_deleted_group_may_leave_its_offsets(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    put_group(bench)
    version = bench.groups.data_version
    commit(client, 5)
    assert delete_group(client).code == 0
    assert "CG" not in bench.groups.snapshot().subscription_group_table
    assert bench.groups.data_version.counter == version.counter + 1
    assert bench.offsets.query("CG", "T", 0) == 5
    assert delete_group(client).code == 0  # once more
    assert bench.groups.data_version.counter == version.counter + 1


def test_a_deleted_group_may_take_its_offsets_along(bench: Bench, client: Client) -> None:
    for topic in ("T", "%RETRY%CG"):
        put_topic(client, topic)
        commit(client, 5, topic=topic)
        commit(client, 6, group="XCG", topic=topic)
    assert delete_group(client, remove_offset=True).code == 0
    assert bench.offsets.snapshot().offset_table == {"T@XCG": {0: 6}, "%RETRY%CG@XCG": {0: 6}}


def test_offsets_of_groups_of_light_queues(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"enable_lmq": True, "enable_multi_dispatch": True})
    client = bench.client()
    put_topic(client, "T")
    commit(client, 7, group="%LMQ%a", topic="%LMQ%x")
    commit(client, 5)
    answer = client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"lmqOffsetTable":{"%LMQ%x@%LMQ%a":7}' in answer.body
    assert clone(client, "%LMQ%a", "%LMQ%b").code == 0
    assert bench.offsets.query("%LMQ%b", "%LMQ%x", 0) == 7
    assert clone(client, "CG", "%LMQ%b", "T").code == 0
    assert bench.offsets.query("%LMQ%b", "T", 0) == 5
    assert clone(client, "%LMQ%a", "CG").code == 0
    assert bench.offsets.query("CG", "%LMQ%x", 0) == 7
    assert delete_group(client, "%LMQ%b", remove_offset=True).code == 0
    assert bench.offsets.topics_of("%LMQ%b") == []
    assert bench.offsets.topics_of("%LMQ%a") == ["%LMQ%x"]


def test_how_far_a_group_is(bench: Bench, client: Client) -> None:
    put_topic(client, "T", read_queue_nums=2)
    put_topic(client, "U", read_queue_nums=1)
    for _ in range(3):
        client.send("T")
        bench.turn(10)
    assert consume_stats(client) == ConsumeStats()
    commit(client, 2)
    commit(client, 1, topic="U")
    t0, t1, u0 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1), MessageQueue("U", "broker-a", 0)
    of_t = {t0: OffsetWrapper(3, 2, (START + 10) * 1000), t1: OffsetWrapper()}
    of_u = {u0: OffsetWrapper(0, 1, 0)}
    assert consume_stats(client).offset_table == of_t | of_u
    assert consume_stats(client, topic="U").offset_table == of_u
    assert consume_stats(client, topic=" ").offset_table == of_t | of_u
    assert consume_stats(client, group="None", topic="T").offset_table == {t0: OffsetWrapper(3), t1: OffsetWrapper()}
    assert consume_stats(client, topic="None").offset_table == {}
    beat(client, consumers=[consumer("CG", "U")])  # it has left T
    assert consume_stats(client).offset_table == of_u
    bench.topics.remove("U")
    assert consume_stats(client).offset_table == {}


def test_offsets_are_cloned(bench: Bench, client: Client) -> None:
    for topic in ("T", "U"):
        put_topic(client, topic)
    commit(client, 5)
    commit(client, 6, queue_id=1)
    commit(client, 7, topic="U")
    commit(client, 1, group="NEW", queue_id=3)
    assert clone(client, topic="T").code == 0
    assert bench.offsets.by_queue("NEW", "T") == {0: 5, 1: 6}
    assert bench.offsets.by_queue("NEW", "U") == {}
    commit(client, 9)
    assert bench.offsets.by_queue("NEW", "T") == {0: 5, 1: 6}  # a copy
    assert clone(client).code == 0
    assert (bench.offsets.by_queue("NEW", "T"), bench.offsets.by_queue("NEW", "U")) == ({0: 9, 1: 6}, {0: 7})
    assert clone(client, source="None").code == 0
    assert clone(client, target="../x").code == ResponseCode.SYSTEM_ERROR


def test_topics_a_group_has_left_are_cloned_only_when_it_is_taken_for_offline(bench: Bench, client: Client) -> None:
    for topic in ("T", "U"):
        put_topic(client, topic)
        commit(client, 5, topic=topic)
    beat(client, consumers=[consumer("CG", "U")])
    assert clone(client).code == 0
    assert bench.offsets.topics_of("NEW") == ["U"]
    assert clone(client, offline=True).code == 0
    assert sorted(bench.offsets.topics_of("NEW")) == ["T", "U"]


def test_clones_are_written(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    commit(client, 5)
    bench.offsets.persist()
    clone(client)
    bench.offsets.persist()
    with open(bench.offsets._file.path, "rb") as file:
        assert ConsumerOffsetSerializeWrapper.from_json(file.read()).offset_table["T@NEW"] == {0: 5}


def test_offsets_to_be_corrected(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    commit(client, 5, group="CG")
    commit(client, 8, group="CG", queue_id=1)
    commit(client, 3, group="B")
    commit(client, 9, group="B", queue_id=1)
    commit(client, 1, group="C", queue_id=2)
    assert corrections(client) == {0: 3, 1: 8, 2: 1}
    # Without itself, as its clients ask: it is behind the others in queue 1.
    assert corrections(client, filter_groups="CG,X") == {0: 3, 1: NONE_TO_CORRECT, 2: 1}
    assert corrections(client, filter_groups="CG,B") == {0: NONE_TO_CORRECT, 1: NONE_TO_CORRECT, 2: 1}
    assert corrections(client, compare="None") == {0: 3, 1: 8, 2: 1}
    assert corrections(client, topic="None") == {}
    assert bench.offsets.groups_of("T") == ["CG", "B", "C"]  # who is left out of an answer keeps its offsets


def test_offsets_of_messages_that_are_gone_do_not_count(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(client, "T")
    commit(client, 5, group="CG")
    commit(client, 3, group="B")
    monkeypatch.setattr(bench.store, "min_offset", lambda topic, queue_id: 4)
    assert corrections(client, compare="None") == {0: 5}
    commit(client, 4, group="B")  # the oldest message is there
    assert corrections(client, compare="None") == {0: 4}


def test_all_producers(bench: Bench, client: Client) -> None:
    beat(client, producers=["PG", "QG"])
    bench.turn(1)
    info = ProducerInfo("c1", "/10.0.0.2:40000", LanguageCode.PYTHON.name, 407, START * 1000)
    answer = client.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    assert ProducerTableInfo.from_json(answer.body).data == {"PG": [info], "QG": [info]}


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, "groupName"),
        (RequestCode.GET_CONSUME_STATS, "consumerGroup"),
        (RequestCode.CLONE_GROUP_OFFSET, "srcGroup"),
        (RequestCode.QUERY_CORRECTION_OFFSET, "compareGroup"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, "topic"),
        (RequestCode.GET_TOPIC_STATS_INFO, "topic"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, "topic"),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, "topic"),
    ],
)
def test_what_must_be_there(client: Client, code: int, field: str) -> None:
    answer = client.ask(code)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{field}> is null")
