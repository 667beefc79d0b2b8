"""Which topics and queues take sends, and how topics are made by them."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.names import check_topic
from tests.broker.bench import BODY_MAX, HOST, START, Bench, Client
from tests.broker.sending import BATCH, V1, V2, one, put_topic
from tests.fakes import SteppedWorker


@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_what_is_sent_to_a_new_topic_is_answered_when_the_topic_is_on_the_disk(
    make_bench: Callable[..., Bench], tmp_path: Path, code: int
) -> None:
    """A message whose topic is forgotten by a broker that is killed is one that nobody finds."""
    worker = SteppedWorker(at_once=False)
    bench = make_bench(table_worker=worker)
    first, second, third = bench.client(), bench.client(), bench.client()
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    assert first.send("New", code=code, body=body) == []
    assert second.send("New", code=code, body=body) == []
    assert third.send("", body=b"refused")[0].code != 0
    assert len(bench.records("New")) == 2
    worker.work()
    assert one(first.heard()).code == 0
    assert one(second.heard()).code == 0
    assert b'"New"' in (tmp_path / "store" / "config" / "topics.json").read_bytes()
    assert one(second.send("New", code=code, body=body)).code == 0


def test_where_topics_cannot_be_written_a_send_is_answered_all_the_same(make_bench: Callable[..., Bench]) -> None:
    worker = SteppedWorker(at_once=False)
    client = make_bench(table_worker=worker).client()
    assert client.send("New") == []
    worker.fail(OSError(28, "No space left on device"))
    assert one(client.heard()).code == 0
    assert one(client.send("New")).code == 0


def test_an_unknown_topic_is_made_from_the_template(bench: Bench, client: Client) -> None:
    assert one(client.send("New", default_topic_queue_nums=5)).code == 0
    topic = bench.topics.get("New")
    assert (topic.read_queue_nums, topic.write_queue_nums) == (5, 5)
    assert topic.perm == Perm.READ | Perm.WRITE  # no INHERIT: it is no template itself
    assert one(client.send("Capped", default_topic_queue_nums=100)).code == 0
    assert bench.topics.get("Capped").write_queue_nums == 8


def test_without_automatic_creation_an_unknown_topic_is_refused(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(auto_create_topic_enable=False)
    answer = one(bench.client().send("New"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("topic[New] not exist, apply first please!")
    assert bench.topics.get("New") is None


@pytest.mark.parametrize("template", ["", "NoSuchTopic", "SELF_TEST_TOPIC", "../x"])
def test_only_a_topic_that_may_be_inherited_is_a_template(bench: Bench, client: Client, template: str) -> None:
    assert one(client.send("New", default_topic=template)).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("template", ["TBW102", "DefaultCluster", "broker-a", "Mine"])
def test_without_automatic_creation_no_topic_is_a_template(make_bench: Callable[..., Bench], template: str) -> None:
    bench = make_bench()
    client = bench.client()
    put_topic(client, "Mine", perm=7)
    assert one(client.send("Made", default_topic=template)).code == 0
    bench.parts.live.change({"autoCreateTopicEnable": "false"})
    for _ in range(2):
        assert one(client.send("New", default_topic=template)).code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.topics.get("New") is None
    # A template that the file still has is none after a start either.
    bench.close()
    bench = make_bench(auto_create_topic_enable=False)
    assert one(bench.client().send("New", default_topic=template)).code == ResponseCode.TOPIC_NOT_EXIST
    assert one(bench.client().send("Made", default_topic=template)).code == 0


@pytest.mark.parametrize("code", [V1, V2, BATCH])
@pytest.mark.parametrize("count", [-1, -(2**31), 0])
def test_no_topic_is_made_without_queues(bench: Bench, client: Client, code: int, count: int) -> None:
    body = encode_batch([BatchEntry(0, b"x", b"")])
    for template in ("TBW102", "DefaultCluster", "broker-a"):
        answer = one(client.send("New", body, code, default_topic=template, default_topic_queue_nums=count))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark.startswith(f"topic[New] not exist, and is not created with {count} queues, apply first")
    assert bench.topics.get("New") is None
    # A retry topic has at least one.
    for _ in range(2):
        assert one(client.send("%RETRY%CG", default_topic_queue_nums=count)).code == 0
    assert bench.topics.get("%RETRY%CG").write_queue_nums == 1


@pytest.mark.parametrize("topic", ["New", "%RETRY%CG"])
@pytest.mark.parametrize(
    "refused",
    [
        {"queue_id": 4},
        {"body": b"x" * (BODY_MAX + 1)},
        {"properties": "K\x01" + "v" * 40_000},
        {"sys_flag": 4},
        {"code": BATCH, "body": b"no batch"},
    ],
)
def test_a_refused_send_makes_no_topic(bench: Bench, client: Client, topic: str, refused: dict[str, Any]) -> None:
    before = bench.topics.names()
    assert one(client.send(topic, **refused)).code != 0
    assert bench.topics.names() == before


def test_a_retry_of_an_unknown_group_makes_no_topic(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(auto_create_subscription_group=False)
    before = bench.topics.names()
    assert one(bench.client().send("%RETRY%CG")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.topics.names() == before


def test_a_refused_dead_letter_makes_no_topic(bench: Bench, client: Client) -> None:
    before = bench.topics.names()
    properties = "K\x01" + "v" * 40_000
    assert one(client.send("%RETRY%CG", reconsume_times=16, properties=properties)).code != 0
    assert bench.topics.names() == before
    assert one(client.send("%RETRY%CG", reconsume_times=16)).code == 0
    assert set(bench.topics.names()) - set(before) == {"%RETRY%CG", "%DLQ%CG"}


HOSTILE_NAMES = ["", " ", ".", "..", "../x", "a/b", "a\0b", "é", "中", "%RETRY%../x", "x" * 128, "a b", "a.b"]


@pytest.mark.parametrize("code", [V1, V2, BATCH])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_illegal_name_is_refused(bench: Bench, client: Client, tmp_path: Path, code: int, name: str) -> None:
    before = set(bench.topics.names())
    answer = one(client.send(name, code=code, body=encode_batch([BatchEntry(0, b"x", b"")])))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "The specified topic" in (answer.remark or "") or "is null" in (answer.remark or "")
    assert set(bench.topics.names()) == before
    for made in bench.topics.names():
        check_topic(made)


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"])
def test_topics_of_the_system_take_no_sends(client: Client, name: str) -> None:
    answer = one(client.send(name))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        f"Sending message to topic[{name}] is forbidden.",
    )


def test_permissions(bench: Bench, client: Client, make_bench: Callable[..., Bench]) -> None:
    put_topic(client, "ReadOnly", perm=Perm.READ)
    answer = one(client.send("ReadOnly"))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[ReadOnly] sending message is forbidden",
    )


def test_a_broker_that_is_being_emptied_takes_all_but_what_must_stay_in_order(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("read-only", broker_permission=Perm.READ)
    client = bench.client()
    assert one(client.send()).code == 0
    bench.topics.put(TopicConfig("Ordered", 4, 4, order=True))
    for _ in range(2):
        answer = one(client.send("Ordered"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == f"the broker[{HOST}] sending message is forbidden"


def test_sends_are_taken_from_a_moment_on(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("later", start_accept_send_request_timestamp_ms=START * 1000 + 1500)
    client = bench.client()
    until = datetime.fromtimestamp(START + 1).strftime("%Y-%m-%d %H:%M:%S") + ",500"
    for code in (V1, V2, BATCH):
        answer = one(client.send(code=code))
        expected = (ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        assert (answer.code, answer.remark) == expected
    assert bench.topics.get("T") is None
    bench.turn(1.5)
    assert one(client.send()).code == 0


def test_the_moment_may_be_one_that_no_calendar_has(make_bench: Callable[..., Bench]) -> None:
    client = make_bench("never", start_accept_send_request_timestamp_ms=2**63 - 1).client()
    assert one(client.send()).remark == f"broker unable to service, until {2**63 - 1}"


@pytest.mark.parametrize(("name", "flag"), [("T", 1), ("%RETRY%CG", 2)])
def test_topics_of_a_unit_say_so(bench: Bench, client: Client, name: str, flag: int) -> None:
    client.send(name, unit_mode=True)
    client.send("Plain")
    assert bench.topics.get(name).topic_sys_flag == flag
    assert bench.topics.get("Plain").topic_sys_flag == 0


def test_a_change_of_the_topic_counts_for_the_next_send(client: Client) -> None:
    put_topic(client, "T")
    assert [one(client.send(queue_id=3)).code for _ in range(2)] == [0, 0]
    put_topic(client, "T", read_queue_nums=2, write_queue_nums=2)
    assert one(client.send(queue_id=3)).code == ResponseCode.SYSTEM_ERROR
    assert [one(client.send(queue_id=1)).code for _ in range(2)] == [0, 0]
    put_topic(client, "T", perm=Perm.READ)
    assert one(client.send(queue_id=1)).code == ResponseCode.NO_PERMISSION


def test_a_multi_tag_topic_marks_its_messages(bench: Bench, client: Client) -> None:
    put_topic(client, "T", topic_filter_type="MULTI_TAG")
    for _ in range(2):
        client.send(sys_flag=1)
    assert [record.sys_flag for record in bench.records("T")] == [3, 3]


@pytest.mark.parametrize("queue_id", [4, 100, 2**31 - 1])
def test_a_queue_id_out_of_range_is_refused(bench: Bench, client: Client, queue_id: int) -> None:
    client.send()
    answer = one(client.send(queue_id=queue_id))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        f"request queueId[{queue_id}] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, "
        "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 10.0.0.2:40000"
    )


def test_queues_that_are_only_read_take_sends_too(client: Client) -> None:
    """As in Java: a topic that is made smaller is first closed for its producers, who go on for a while."""
    put_topic(client, "T", read_queue_nums=4, write_queue_nums=2)
    assert [one(client.send(queue_id=3)).code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("read_queues", [0, 2])
@pytest.mark.parametrize("code", [V1, V2, BATCH, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_topic_without_write_queues_has_none_to_choose_for_a_send(
    bench: Bench, client: Client, read_queues: int, code: int
) -> None:
    put_topic(client, "T", read_queue_nums=read_queues, write_queue_nums=0)
    end = bench.store.max_offset("T", 0), bench.store.raw_log.end
    kinds = ("", "DELAY\x013") if code == BATCH else ("", "DELAY\x013", "TRAN_MSG\x01true", "REPLY_TO_CLIENT\x01c")
    body = encode_batch([BatchEntry(0, b"x", b"")]) if code == BATCH else b"x"
    for properties in kinds * 2:
        answer = one(client.send(queue_id=-1, code=code, body=body, properties=properties))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark.startswith("request queueId[-1] is illegal, TopicConfig [topicName=T, ")
        assert answer.remark.endswith("it has no write queues, set them with `mqadmin updateTopic -t T -r 8 -w 8`")
    assert (bench.store.max_offset("T", 0), bench.store.raw_log.end) == end
    # Those that are only read still take the messages of producers that choose a queue.
    assert one(client.send(queue_id=0)).code == (0 if read_queues else ResponseCode.SYSTEM_ERROR)
    put_topic(client, "T", read_queue_nums=2, write_queue_nums=1)
    assert one(client.send(queue_id=-1)).code == 0


def test_a_negative_queue_id_is_any_queue(bench: Bench, client: Client) -> None:
    put_topic(client, "T")
    answers = [one(client.send(queue_id=-1 - i)) for i in range(40)]
    assert {answer.code for answer in answers} == {0}
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2", "3"}
    for queue_id in range(4):
        count = len(bench.records("T", queue_id))
        assert count == sum(answer.ext_fields["queueId"] == str(queue_id) for answer in answers)


def test_a_drained_broker_refuses_ordered_messages_of_a_topic_that_was_not_ordered_before(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    client = bench.client()
    bench.parts.live.change({"brokerPermission": "4"})
    for ordered, code in [((), 0), (("T",), ResponseCode.NO_PERMISSION), (("U",), 0), (("T", "U"), 16)]:
        bench.topics.set_order_topics(frozenset(ordered))
        assert [one(client.send("T")).code for _ in range(3)] == [code] * 3


def test_a_topic_that_a_send_creates_is_not_ordered_as_its_template_is(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.topics.set_order_topics(frozenset(("TBW102",)))
    bench.parts.live.change({"brokerPermission": "4"})
    client = bench.client()
    assert [one(client.send("New")).code for _ in range(3)] == [0, 0, 0]
    assert not bench.topics.get("New").order
