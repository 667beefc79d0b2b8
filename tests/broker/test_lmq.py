"""Light message queues: what a client of a %LMQ% topic asks of a broker that has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import LmqConsumerOffsets, SubscriptionGroupConfig, TopicConfig
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqbroker.wire.record import decode_records
from tests.broker.bench import Bench, Client, live_settings, send_command

QUEUE = "%LMQ%home%lamp+#"
GROUP = "%LMQ%client.1"
LMQ = {"enable_lmq": True, "enable_multi_dispatch": True, "max_lmq_consume_queue_num": 3}


@pytest.fixture
def lmq(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(store=LMQ)


def named(names: str, **fields: Any) -> RemotingCommand:
    return send_command(properties=f"INNER_MULTI_DISPATCH\x01{names}\x02TAGS\x01t\x02WAIT\x01true", **fields)


def test_a_sent_message_is_pulled_from_each_queue_that_it_names(lmq: Bench) -> None:
    client = lmq.client()
    answers = client.ask_all(named(f"{QUEUE},%LMQ%b", body=b"0"), send_command(body=b"1"), named("%LMQ%b", body=b"2"))
    assert [(answer.code, answer.ext_fields["queueOffset"]) for answer in answers] == [(0, "0"), (0, "1"), (0, "2")]
    for topic, bodies in ((QUEUE, [b"0"]), ("%LMQ%b", [b"0", b"2"]), ("T", [b"0", b"1", b"2"])):
        answer = client.pull(topic, consumer_group=GROUP)
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in decode_records(answer.body)] == bodies
        assert answer.ext_fields["maxOffset"] == str(len(bodies))
        maximum = client.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=0))
        minimum = client.ask(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=0))
        assert (maximum.ext_fields["offset"], minimum.ext_fields["offset"]) == (str(len(bodies)), "0")


def test_a_pull_that_waits_is_woken(lmq: Bench) -> None:
    client = lmq.client()
    assert client.pull(QUEUE, consumer_group=GROUP, sys_flag=6) is None
    sent, pulled = sorted(client.ask_all(named(QUEUE, body=b"x")), key=lambda answer: -answer.opaque)
    assert (sent.code, pulled.code) == (0, 0)
    assert [record.body for record in decode_records(pulled.body)] == [b"x"]


def test_only_queue_0_is_there(lmq: Bench) -> None:
    answer = lmq.client().pull(QUEUE, consumer_group=GROUP, queue_id=1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topicConfig.readQueueNums:[1]" in (answer.remark or "")


def test_each_send_is_told_for_itself_what_it_cannot_have(lmq: Bench) -> None:
    client = lmq.client()
    answers = client.ask_all(
        send_command(body=b"0"),
        named("%LMQ%a,%LMQ%b", body=b"1"),
        named("%LMQ%c,%LMQ%d", body=b"2"),
        named("../x", body=b"3"),
        named("%LMQ%a", body=b"4"),
    )
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR, 0]
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5]
    assert answers[2].remark == (
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
        "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
    )
    assert answers[3].remark.startswith("UNKNOWN_ERROR INNER_MULTI_DISPATCH: '../x'")
    assert [record.body for record in lmq.records("T")] == [b"0", b"1", b"4"]
    assert [record.body for record in lmq.records("%LMQ%a")] == [b"1", b"4"]
    assert [answers[i].ext_fields["queueOffset"] for i in (0, 1, 4)] == ["0", "1", "2"]


def test_where_all_are_refused_all_are_told(lmq: Bench) -> None:
    answers = lmq.client().ask_all(named("../x"), named("a,,b"))
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 2
    assert lmq.store.log_end == 0


def test_a_record_larger_than_a_segment_is_refused_alone(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"mapped_file_size_commit_log": 32 * 1024, "max_message_size": 64 * 1024})
    client = bench.client()
    large = send_command(body=bytes(16_000), properties="K\x01" + "k" * 32_000)
    answers = client.ask_all(send_command(body=b"0"), large, send_command(body=b"1"))
    assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert answers[1].remark == (
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg properties length {2 + 32_000 + 23}B, 1024B must stay free for delays and retries, "
        "msg body length limit 16384B, msg properties length limit 32KB."
    )
    assert [record.body for record in bench.records("T")] == [b"0", b"1"]


def test_a_message_that_would_not_fit_a_segment_with_the_properties_of_a_copy_is_refused(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(store={"mapped_file_size_commit_log": 32 * 1024, "max_message_size": 64 * 1024})
    client = bench.client()
    client.send(topic="T" * 127)
    fitting = bench.rules._message_bytes_max - 1024 - 23 - 2
    codes = [
        client.send(topic="T" * 127, body=bytes(16_000), properties="K\x01" + "k" * (fitting - 16_000 + more))[0].code
        for more in (0, 1)
    ]
    assert codes == [0, ResponseCode.MESSAGE_ILLEGAL]
    assert len(bench.records("T" * 127)) == 2


def commit(client: Client, topic: str, group: str, offset: int, queue_id: int = 0) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def query(client: Client, topic: str, group: str, queue_id: int = 0) -> RemotingCommand:
    return client.ask(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id),
    )


def test_offsets_of_lmq_groups_are_kept_apart(lmq: Bench, tmp_path: Path) -> None:
    client = lmq.client()
    client.ask_all(named(QUEUE))
    assert query(client, QUEUE, GROUP).ext_fields["offset"] == "0"
    assert commit(client, QUEUE, GROUP, 7).code == 0
    assert commit(client, "T", "CG", 3, queue_id=2).code == 0
    assert commit(client, QUEUE, "CG", 4).code == 0
    assert query(client, QUEUE, GROUP).ext_fields["offset"] == "7"
    assert query(client, "T", "CG", 2).ext_fields["offset"] == "3"
    lmq.offsets.persist()
    config = tmp_path / "store" / "config"
    assert (config / "lmqConsumerOffset.json").read_text() == (
        f'{{"lmqOffsetTable":{{"{QUEUE}@{GROUP}":7}},"offsetTable":{{"T@CG":{{2:3}},"{QUEUE}@CG":{{0:4}}}}}}'
    )
    assert not (config / "consumerOffset.json").exists()


def tables(root: Path) -> tuple[JsonFile, JsonFile]:
    def file(name: str) -> JsonFile:
        return JsonFile(str(root / name), InlineWorker(), OsDisk())

    return file("consumerOffset.json"), file("lmqConsumerOffset.json")


def test_a_broker_that_gets_them_goes_on_where_its_groups_were(tmp_path: Path) -> None:
    plain, lmq = tables(tmp_path)
    former = OffsetTable(plain, live_settings())
    former.commit("CG", "T", 1, 5)
    former.persist()
    table = OffsetTable(plain, live_settings(), lmq)
    assert table.query("CG", "T", 1) == 5
    table.commit("CG", "T", 1, 6)
    table.commit(GROUP, QUEUE, 0, 9)
    table.persist()
    again = OffsetTable(plain, live_settings(), lmq)
    assert (again.query("CG", "T", 1), again.query(GROUP, QUEUE, 0), again.query(GROUP, "T", 0)) == (6, 9, None)


def test_a_file_of_javas_is_read(tmp_path: Path) -> None:
    (tmp_path / "lmqConsumerOffset.json").write_text(
        '{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":12},"offsetTable":{"T@CG":{0:1,3:4}}}'
    )
    plain, lmq = tables(tmp_path)
    table = OffsetTable(plain, live_settings(), lmq)
    assert (table.query("%LMQ%g", "%LMQ%a", 0), table.query("CG", "T", 3)) == (12, 4)


def test_offsets_of_a_light_group_in_other_queues_stay_in_the_file(tmp_path: Path) -> None:
    """As a broker without enableLmq has left them."""
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@%LMQ%g":{0:1,3:4},"U@%LMQ%g":{2:7}}}')
    plain, lmq = tables(tmp_path)
    table = OffsetTable(plain, live_settings(), lmq)
    table.commit("%LMQ%h", "T", 0, 5)
    table.persist()
    written = LmqConsumerOffsets.from_json((tmp_path / "lmqConsumerOffset.json").read_bytes())
    assert written.lmq_offset_table == {"T@%LMQ%h": 5}
    assert written.offset_table == {"T@%LMQ%g": {0: 1, 3: 4}, "U@%LMQ%g": {2: 7}}


def test_topics_and_groups_are_in_no_table(lmq: Bench, tmp_path: Path) -> None:
    names = lmq.topics.names()
    lmq.topics.put(TopicConfig(QUEUE, 8, 8, 6))
    lmq.groups.put(SubscriptionGroupConfig(GROUP, consume_enable=False))
    assert lmq.topics.names() == names
    assert lmq.topics.get(QUEUE) == TopicConfig(QUEUE, 1, 1, 6)
    assert lmq.groups.find(GROUP) == SubscriptionGroupConfig(GROUP)
    assert GROUP not in lmq.groups.snapshot().subscription_group_table
    assert lmq.topics.get("%LMQ%a/b") is None


def test_a_send_to_such_a_topic_needs_no_topic(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store=LMQ, auto_create_topic_enable=False)
    client = bench.client()
    answers = client.ask_all(send_command("%LMQ%a", body=b"0"), named("%LMQ%a", topic="%LMQ%b", body=b"1"))
    assert [answer.code for answer in answers] == [0, 0]
    assert [record.body for record in bench.records("%LMQ%a")] == [b"0", b"1"]
    assert bench.rules.plain_targets == {}


def test_a_broker_without_them_knows_no_such_topic(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(auto_create_subscription_group=False)
    client = bench.client()
    assert client.pull("%LMQ%a", consumer_group="TOOLS_CONSUMER").code == ResponseCode.TOPIC_NOT_EXIST
    assert client.pull("%LMQ%a", consumer_group="%LMQ%g").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert commit(client, "%LMQ%a", "%LMQ%g", 1).code == ResponseCode.SYSTEM_ERROR
