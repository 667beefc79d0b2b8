"""Sends that are stored elsewhere first: retries, delays and half messages."""

from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import (
    HOST,
    Bench,
    Client,
)
from tests.broker.sending import V1, V2, one


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
    assert "DELAY" not in record.properties
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


def test_level_zero_is_no_delay(bench: Bench, client: Client) -> None:
    assert one(client.send(properties="DELAY\x010")).code == 0
    assert len(bench.records("T")) == 1


@pytest.mark.parametrize("level", ["-1", "NaN", "1e3", "1.5", "", " 1", "9" * 5000, "x"])
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
