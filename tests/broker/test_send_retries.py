"""Sends that are stored elsewhere first: retries, delays and half messages."""

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.properties import encode_properties
from tests.broker.bench import CLIENT_HOST, HOST, Bench, Client
from tests.broker.sending import BATCH, V1, V2, one
from tests.broker.test_send_back import send_back


def test_a_retry_topic_is_made_with_its_first_message(bench: Bench, client: Client) -> None:
    assert one(client.send("%RETRY%CG", queue_id=0, reconsume_times=1)).code == 0
    assert bench.topics.get("%RETRY%CG").write_queue_nums >= 1
    assert bench.groups.find("CG") is not None


@pytest.mark.parametrize("times_max", [None, 3])
def test_a_message_retried_often_enough_is_a_dead_letter(bench: Bench, client: Client, times_max: int | None) -> None:
    limit = 16 if times_max is None else times_max
    kept = one(client.send("%RETRY%CG", reconsume_times=limit - 1, max_reconsume_times=times_max))
    dead = one(
        client.send("%RETRY%CG", reconsume_times=limit, max_reconsume_times=times_max, body=b"dead",
                    properties="DELAY\x013\x02TAGS\x01A")
    )  # fmt: skip
    assert (kept.code, dead.code) == (0, 0)
    assert len(bench.records("%RETRY%CG")) == 1
    (record,) = bench.records("%DLQ%CG")
    assert record.body == b"dead"
    assert record.properties["DELAY"] == "3"  # which it keeps, as with Java's broker, that delays it first
    assert bench.topics.get("%DLQ%CG").write_queue_nums == 1


def test_a_plain_retry_is_counted_too(bench: Bench, client: Client) -> None:
    for times in (15, 16):
        client.send("%RETRY%CG", reconsume_times=times)
    assert len(bench.records("%RETRY%CG")) == len(bench.records("%DLQ%CG")) == 1


def test_a_retry_for_an_unknown_group_is_refused(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(auto_create_subscription_group=False)
    answer = one(bench.client().send("%RETRY%CG"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(("level", "queue"), [("1", 0), ("3", 2), ("18", 17), ("19", 17), ("999999999", 17)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(
    bench: Bench, client: Client, level: str, queue: int
) -> None:
    client.send()
    answer = one(client.send(queue_id=2, properties=f"TAGS\x01A\x02DELAY\x01{level}"))
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    (record,) = bench.records("SCHEDULE_TOPIC_XXXX", queue)
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["REAL_QID"] == "2"
    assert record.properties["DELAY"] == str(queue + 1)
    assert bench.records("T", 2) == []


@pytest.mark.parametrize("level", ["0", "-0", "+0", "-1", "-2147483648"])
@pytest.mark.parametrize("code", [V1, V2, BATCH])
def test_a_level_of_zero_or_less_is_no_delay(bench: Bench, client: Client, level: str, code: int) -> None:
    """As in Java, whose dead letters have level 0."""
    properties = f"DELAY\x01{level}"
    body = encode_batch([BatchEntry(0, b"x", properties.encode())]) if code == BATCH else b"x"
    for _ in range(2):  # the topic is known to the compiled path then
        assert one(client.send(properties=properties, body=body, code=code)).code == 0
    assert [record.properties["DELAY"] for record in bench.records("T")] == [level] * 2


TIMERS = [
    {"TIMER_DELAY_MS": "5000"}, {"TIMER_DELAY_SEC": "5"}, {"TIMER_DELIVER_MS": "1700000005000"},
    {"TIMER_DELAY_MS": "never"}, {"DELAY": "0", "TIMER_DELAY_SEC": "5"}, {"DELAY": "-1", "TIMER_DELAY_SEC": "5"},
]  # fmt: skip


@pytest.mark.parametrize("timer", TIMERS)
@pytest.mark.parametrize("path", ["compiled", "general", "batch", "shared by a batch", "half", "retry", "reply"])
def test_a_delay_that_only_a_broker_of_5_3_knows_is_refused(
    bench: Bench, client: Client, path: str, timer: dict[str, str]
) -> None:
    for _ in range(2):  # the topic is known to the compiled path then
        client.send()
    more = {"half": {"TRAN_MSG": "true", "PGROUP": "PG"}, "reply": {"REPLY_TO_CLIENT": "c"}}.get(path, {})
    properties = encode_properties({"UNIQ_KEY": "k", "WAIT": "true", **timer, **more})
    code, topic, body, text = V2, "T", b"x", properties.decode()
    if path == "general":
        code = V1
    elif path == "retry":
        topic = "%RETRY%CG"
        bench.groups.find("CG")
    elif path == "reply":
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    elif path == "batch":
        code, body, text = BATCH, encode_batch([BatchEntry(0, b"x", b""), BatchEntry(0, b"x", properties)]), ""
    elif path == "shared by a batch":
        code, body = BATCH, encode_batch([BatchEntry(0, b"x", b"")])
    end = bench.store.log_end
    answer = one(client.send(topic, body=body, code=code, properties=text))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, timerWheelEnable is false",
    )
    assert bench.store.log_end == end


@pytest.mark.parametrize("timer", TIMERS[:4])
def test_a_level_counts_instead_of_it(bench: Bench, client: Client, timer: dict[str, str]) -> None:
    """As with 5.3: the other delays are dropped."""
    for _ in range(3):
        assert one(client.send(properties=encode_properties({"DELAY": "1", **timer}).decode())).code == 0
    assert [record.properties.keys() & timer.keys() for record in bench.records("SCHEDULE_TOPIC_XXXX")] == [set()] * 3


def test_what_a_broker_of_5_3_has_delayed_so_is_sent_on(bench: Bench, client: Client) -> None:
    for _ in range(2):
        assert one(client.send(properties="TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x011700000000000")).code == 0
    assert len(bench.records("T")) == 2


@pytest.mark.parametrize("delay_level", [0, -1])
def test_a_stored_message_with_such_a_delay_can_be_sent_back(bench: Bench, client: Client, delay_level: int) -> None:
    """As with 5.3, which drops it for the level of the retry. Java's 4.9.7 stored it; if its dead letter was refused,
    its consumer would handle it for ever."""
    client.send()
    message = (b"T", 0, 0, 0, 0, CLIENT_HOST, 0, 0, b"x", b"K\x01v\x02TIMER_DELAY_MS\x015")
    [(offset, *_)] = bench.store.append([message])
    assert send_back(client, offset, delay_level=delay_level).code == 0
    (again,) = bench.records("%DLQ%CG") if delay_level else bench.records("SCHEDULE_TOPIC_XXXX", 2)
    assert "TIMER_DELAY_MS" not in again.properties


@pytest.mark.parametrize("level", ["-2147483649", "2147483648", "-", "NaN", "1e3", "1.5", "", " 1", "9" * 5000, "x"])
def test_a_delay_that_is_no_level(bench: Bench, client: Client, level: str) -> None:
    answer = one(client.send(properties=f"DELAY\x01{level}"))
    if level == "":  # a property without a value is none
        assert answer.code == 0
        return
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(answer.remark) < 200
    assert bench.records("T") == []


def test_what_a_producer_says_of_the_real_topic_does_not_count(bench: Bench, client: Client) -> None:
    client.send(properties="DELAY\x011\x02REAL_TOPIC\x01../../x\x02REAL_QID\x01-7")
    (record,) = bench.records("SCHEDULE_TOPIC_XXXX", 0)
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize("how", [{"sys_flag": 4}, {"sys_flag": 12}, {"sys_flag": 5}])
@pytest.mark.parametrize("code", [V1, V2])
def test_flags_of_a_transaction_without_its_property_are_refused(
    bench: Bench, client: Client, how: dict[str, Any], code: int
) -> None:
    """The Java broker stores such a message where nobody finds it."""
    client.send()
    answer = one(client.send(code=code, **how))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"the broker[{HOST}] sending transaction message is forbidden"
    assert len(bench.records("T")) == 1


def test_half_messages_are_refused_where_the_broker_is_to_refuse_them(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(reject_transaction_message=True)
    answer = one(bench.client().send(properties="TRAN_MSG\x01true", sys_flag=4))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"the broker[{HOST}] sending transaction message is forbidden"
    assert bench.records("RMQ_SYS_TRANS_HALF_TOPIC") == []
