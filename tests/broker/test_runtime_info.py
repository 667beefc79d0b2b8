"""What a broker counts, and what it tells of itself: codes 28, 315 and 317."""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqbroker.broker.runtime_info import byte_count, java_double
from mqbroker.wire.admin_bodies import ConsumeStats, ConsumeStatsList, OffsetWrapper
from mqbroker.wire.batch import BatchEntry, encode_batch
from mqbroker.wire.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    KVTable,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetConsumeStatsInBrokerHeader, ViewBrokerStatsDataRequestHeader
from tests.broker.bench import START, Bench, Client, send_command
from tests.broker.test_send_back import send_back
from tests.broker.transacting import HALF, OP, ROLLBACK, Transactor

NONE = BrokerStatsItem()
JAVA = json.loads((Path(__file__).parent.parent / "data" / "runtime-info-4.9.7.json").read_text())


def pass_seconds(bench: Bench, seconds: int) -> None:
    for _ in range(seconds):
        bench.clock.advance(1)
        bench.parts.stats.tick()


def view(client: Client, name: str, key: str) -> BrokerStatsData:
    client = client.bench.client()  # who says nothing for long is disconnected
    answer = client.ask(
        RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    )
    assert answer.code == 0, answer.remark
    return BrokerStatsData.from_json(answer.body)


def last_minute(client: Client, name: str, key: str) -> BrokerStatsItem:
    return view(client, name, key).stats_minute


def is_counted(client: Client, name: str, key: str) -> bool:
    header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    answer = client.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    if answer.code:
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    return not answer.code


def info(client: Client) -> dict[str, str]:
    answer = client.bench.client().ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert answer.code == 0
    return KVTable.from_json(answer.body).table


def size_of(bench: Bench, topic: str, queue_id: int = 0) -> int:
    return sum(record.store_size for record in bench.records(topic, queue_id))


# What is counted


def test_sends_are_counted_by_topic_and_for_the_broker(bench: Bench, client: Client) -> None:
    client.ask_all(*[send_command("T", b"x" * 100) for _ in range(8)])
    client.send("T", queue_id=1)
    client.send("U")
    pass_seconds(bench, 10)
    size = size_of(bench, "T") + size_of(bench, "T", 1)
    assert last_minute(client, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem(9, 0.9, 1.0)
    assert last_minute(client, "TOPIC_PUT_SIZE", "T") == BrokerStatsItem(size, size / 10, size / 9)
    assert last_minute(client, "TOPIC_PUT_NUMS", "U") == BrokerStatsItem(1, 0.1, 1.0)
    assert last_minute(client, "BROKER_PUT_NUMS", "DefaultCluster") == BrokerStatsItem(10, 1.0, 0.0)
    assert not is_counted(client, "QUEUE_PUT_NUMS", "T@0")


def test_the_longer_windows_come_later(bench: Bench, client: Client) -> None:
    client.send("T")
    pass_seconds(bench, 599)
    assert view(client, "TOPIC_PUT_NUMS", "T") == BrokerStatsData(NONE, NONE, NONE)
    pass_seconds(bench, 1)
    assert view(client, "TOPIC_PUT_NUMS", "T").stats_hour == BrokerStatsItem(1, 1 / 600, 1.0)
    pass_seconds(bench, 3000)
    assert view(client, "TOPIC_PUT_NUMS", "T").stats_day == BrokerStatsItem(1, 1 / 3600, 1.0)


def test_what_waits_for_its_first_look_is_there_without_numbers(bench: Bench, client: Client) -> None:
    client.send("T")
    pass_seconds(bench, 1)
    assert view(client, "TOPIC_PUT_NUMS", "T") == BrokerStatsData(NONE, NONE, NONE)


def test_a_batch_is_one_time(bench: Bench, client: Client) -> None:
    entries = [BatchEntry(0, b"x", b"") for _ in range(5)]
    client.send("T", encode_batch(entries), RequestCode.SEND_BATCH_MESSAGE, batch=True)
    client.send("T")
    pass_seconds(bench, 10)
    assert last_minute(client, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem(6, 0.6, 3.0)


def test_pulls_are_counted_by_group(bench: Bench, client: Client) -> None:
    client.ask_all(*[send_command("T") for _ in range(6)])
    client.pull(max_msg_nums=4)
    client.pull(max_msg_nums=4, queue_offset=4)
    client.pull(queue_offset=6, suspend_timeout_millis=0)
    pass_seconds(bench, 10)
    size = size_of(bench, "T")
    assert last_minute(client, "GROUP_GET_NUMS", "T@CG") == BrokerStatsItem(6, 0.6, 3.0)
    assert last_minute(client, "GROUP_GET_SIZE", "T@CG") == BrokerStatsItem(size, size / 10, size / 2)
    assert last_minute(client, "GROUP_GET_LATENCY", "0@T@CG") == NONE
    assert last_minute(client, "BROKER_GET_NUMS", "DefaultCluster") == BrokerStatsItem(6, 0.6, 0.0)
    assert bench.parts.stats.group_get_tps("CG", "T") == 0.6
    assert bench.parts.stats.group_get_tps("CG", "U") == 0.0
    statistics = bench.store.statistics
    assert (statistics.found, statistics.missed, statistics.got) == (2, 1, 6)


def test_pulls_that_waited_are_counted_when_they_are_answered(bench: Bench, client: Client) -> None:
    client.send("T")
    assert client.pull(queue_offset=1, sys_flag=6) is None
    client.send("T")
    assert len(client.heard()) == 0  # the answer came with that of the send
    pass_seconds(bench, 10)
    assert last_minute(client, "GROUP_GET_NUMS", "T@CG") == BrokerStatsItem(1, 0.1, 1.0)
    assert (bench.store.statistics.found, bench.store.statistics.missed) == (1, 1)


def test_delayed_messages_and_those_sent_back_as_java_counts_them(bench: Bench, client: Client) -> None:
    """The same was sent to a Java broker; this is what it counted."""
    bench.parts.delay.start()
    client.ask_all(*[send_command("T", b"x" * 100) for _ in range(10)])
    client.ask_all(*[send_command("T", b"x" * 100, properties="DELAY\x011") for _ in range(3)])
    bench.turn(2)
    assert send_back(client, bench.records("T")[0], delay_level=1).code == 0
    bench.turn(2)
    pass_seconds(bench, 10)

    def total(name: str, key: str) -> int:
        return last_minute(client, name, key).sum

    assert total("TOPIC_PUT_NUMS", "T") == 13
    assert total("TOPIC_PUT_SIZE", "T") == size_of(bench, "T")
    assert total("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX") == 4
    assert total("TOPIC_PUT_NUMS", "%RETRY%CG") == 1
    assert total("BROKER_PUT_NUMS", "DefaultCluster") == 17
    assert total("SNDBCK_PUT_NUMS", "T@CG") == 1
    assert total("GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER") == 4
    delivered = size_of(bench, "%RETRY%CG") + sum(r.store_size for r in bench.records("T")[10:])
    assert total("GROUP_GET_SIZE", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER") == delivered
    assert total("QUEUE_GET_SIZE", "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER") == delivered
    assert total("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0") == 4
    assert not is_counted(client, "BROKER_GET_NUMS", "DefaultCluster")
    assert info(client)["scheduleMessageOffset_1"] == "4,4"
    assert info(client)["msgPutTotalTodayNow"] == "18"


def test_one_sent_back_before_its_message_arrives(bench: Bench, client: Client) -> None:
    bench.parts.stats.sent_back("CG", "T")
    bench.parts.stats.sent_back("CG", "T")
    client.send("T")
    bench.parts.stats.collect()
    client.ask_all(*[send_command("T") for _ in range(3)])
    pass_seconds(bench, 10)
    assert last_minute(client, "BROKER_PUT_NUMS", "DefaultCluster").sum == 2


def test_of_a_transaction_what_its_producer_sent_counts_once_for_the_broker(bench: Bench) -> None:
    producer = Transactor(bench)
    producer.commit(producer.half(b"one"))
    producer.end(producer.half(b"two"), ROLLBACK)
    producer.half(b"three")
    pass_seconds(bench, 10)
    assert last_minute(producer.client, "BROKER_PUT_NUMS", "DefaultCluster").sum == 3
    assert last_minute(producer.client, "TOPIC_PUT_NUMS", HALF).sum == 3
    assert last_minute(producer.client, "TOPIC_PUT_NUMS", OP).sum == 2
    assert last_minute(producer.client, "TOPIC_PUT_NUMS", "T").sum == 1
    assert info(producer.client)["msgPutTotalTodayNow"] == "6"


def test_without_details(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(enable_detail_stat=False, store={"enable_schedule_message_stats": False})
    client = bench.client()
    bench.parts.delay.start()
    client.send("T")
    client.send("T", properties="DELAY\x011")
    bench.turn(2)
    client.pull()
    pass_seconds(bench, 10)
    assert is_counted(client, "GROUP_GET_LATENCY", "T@CG")
    assert not is_counted(client, "GROUP_GET_LATENCY", "0@T@CG")
    assert not is_counted(client, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0")
    assert not is_counted(client, "GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER")
    assert last_minute(client, "BROKER_PUT_NUMS", "DefaultCluster").sum == 2


def test_light_queues_are_counted_as_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"enable_lmq": True, "enable_multi_dispatch": True})
    client = bench.client()
    client.send("T", properties="INNER_MULTI_DISPATCH\x01%LMQ%lamp,%LMQ%house")
    for group, topic in (("%LMQ%lamp", "%LMQ%lamp"), ("%LMQ%x", "%LMQ%house"), ("CG", "T")):
        assert client.pull(topic, consumer_group=group).code == 0
    pass_seconds(bench, 10)
    assert last_minute(client, "GROUP_GET_NUMS", "%LMQ%@%LMQ%").sum == 2
    assert last_minute(client, "GROUP_GET_NUMS", "T@CG").sum == 1
    assert bench.parts.stats.group_get_tps("%LMQ%lamp", "%LMQ%lamp") == 0.2
    assert last_minute(client, "TOPIC_PUT_NUMS", "T").sum == 1
    assert last_minute(client, "BROKER_PUT_NUMS", "DefaultCluster").sum == 1
    assert not is_counted(client, "TOPIC_PUT_NUMS", "%LMQ%lamp")


def count_all(bench: Bench, client: Client) -> None:
    client.send("T")
    client.send("U")
    bench.store.dispatch_now()
    client.pull("T")
    client.pull("U")
    client.pull("T", consumer_group="OTHER")
    send_back(client, bench.records("T")[0])
    pass_seconds(bench, 1)


OF_TOPIC = [("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_SIZE", "T@CG"), ("GROUP_GET_LATENCY", "0@T@OTHER"),
            ("SNDBCK_PUT_NUMS", "T@CG")]  # fmt: skip
OF_GROUP = [("GROUP_GET_SIZE", "T@CG"), ("GROUP_GET_LATENCY", "0@U@CG"), ("SNDBCK_PUT_NUMS", "T@CG")]
OF_OTHERS = [("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_SIZE", "U@OTHER"), ("GROUP_GET_LATENCY", "0@U@OTHER"),
             ("BROKER_PUT_NUMS", "DefaultCluster")]  # fmt: skip


@pytest.mark.parametrize("forgets", [True, False])
def test_what_is_removed_is_forgotten_where_that_is_wanted(make_bench: Callable[..., Bench], forgets: bool) -> None:
    bench = make_bench(auto_delete_unused_stats=forgets)
    client = bench.client()
    count_all(bench, client)
    client.pull("U", consumer_group="OTHER")
    pass_seconds(bench, 1)
    every = {*OF_TOPIC, *OF_GROUP, *OF_OTHERS}
    assert [each for each in every if not is_counted(client, *each)] == []
    answers = client.ask_all(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG"}))
    assert [answer.code for answer in answers] == [0]
    assert {each for each in every if not is_counted(client, *each)} == (set(OF_GROUP) if forgets else set())
    answers = client.ask_all(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
    assert [answer.code for answer in answers] == [0]
    gone = {*OF_GROUP, *OF_TOPIC} if forgets else set()
    assert {each for each in every if not is_counted(client, *each)} == gone


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "T"), ("nothing", "T"), ("", ""), ("GROUP_GET_FALL_SIZE", "0@T@CG"), ("BROKER_PUT_NUMS", "é"),
     ("__class__", "x" * 500)],
)  # fmt: skip
def test_what_is_not_counted(client: Client, name: str, key: str) -> None:
    assert not is_counted(client, name, key)


def test_a_long_key_is_not_told_back_whole(client: Client) -> None:
    header = ViewBrokerStatsDataRequestHeader(stats_name="n" * 10_000, stats_key="k" * 10_000)
    assert len(client.ask(RequestCode.VIEW_BROKER_STATS_DATA, header).remark) < 1000


@pytest.mark.parametrize("missing", ["statsName", "statsKey"])
def test_a_field_that_is_missing(client: Client, missing: str) -> None:
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    del fields[missing]
    (answer,) = client.ask_all(RemotingCommand(RequestCode.VIEW_BROKER_STATS_DATA, fields))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the custom field <{missing}> is null")


# How the broker is


def form(text: str) -> str:
    """A value with each number in it as 0, or as 0.0 where it has a point."""
    return re.sub(r"\d+(\.\d+)?", lambda found: "0.0" if found[1] else "0", text)


def keys_of(table: dict[str, str]) -> set[str]:
    return {re.sub("_/.*", "_/path", key) for key in table}


def test_the_keys_and_forms_are_those_of_java(bench: Bench, client: Client) -> None:
    """Of a broker that ran for 20 seconds, was sent 14 messages, and delivered delayed ones."""
    bench.parts.delay.start()
    bench.store._retention.watch.look()
    at_rest = info(client)
    assert keys_of(at_rest) == keys_of(JAVA["at_rest"])
    client.ask_all(*[send_command("T") for _ in range(10)])
    client.send("T", properties="DELAY\x011")
    bench.turn(2)
    client.pull()
    pass_seconds(bench, 18)
    used = info(client)
    assert keys_of(used) == keys_of(JAVA["used"])
    #: Java has "null" for its first minute, and no time of the oldest message where segments are small.
    for key in sorted(used.keys() - {"putMessageDistributeTime", "earliestMessageTimeStamp"}):
        if key in JAVA["used"]:
            assert form(used[key]) == form(JAVA["used"][key]), key
    for key in ("putTps", "getFoundTps", "getMissTps", "getTransferedTps", "getTotalTps", "runtime", "putLatency99"):
        assert form(at_rest[key]) == form(JAVA["at_rest"][key]), key
    assert at_rest["earliestMessageTimeStamp"] == JAVA["at_rest"]["earliestMessageTimeStamp"] == "-1"
    for key in ("brokerVersion", "brokerVersionDesc", "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity",
                "queryThreadPoolQueueCapacity", "EndTransactionThreadPoolQueueCapacity", "remainHowManyDataToFlush",
                "remainTransientStoreBufferNumbs", "startAcceptSendRequestTimeStamp"):  # fmt: skip
        assert at_rest[key] == JAVA["at_rest"][key], key


def test_what_was_done(bench: Bench, client: Client) -> None:
    client.ask_all(*[send_command("T") for _ in range(20)])
    client.pull(max_msg_nums=10)
    client.pull(max_msg_nums=10)
    client.pull(queue_offset=20, suspend_timeout_millis=0)
    pass_seconds(bench, 11)
    table = info(client)
    end = bench.store.log_end
    assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "20"
    assert table["msgGetTotalTodayNow"] == "20"
    assert table["putMessageSizeTotal"] == table["commitLogMaxOffset"] == str(end)
    assert table["putMessageAverageSize"] == str(end / 20)
    assert table["earliestMessageTimeStamp"] == table["bootTimestamp"] == f"{START}000"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 11 seconds ]"
    assert table["putTps"] == table["getFoundTps"] == "0.0  "  # it was before the first sample
    assert table["dispatchBehindBytes"] == "0"
    client.send("T")
    assert info(client)["msgPutTotalTodayNow"] == "21"
    pass_seconds(bench, 1)
    assert info(client)["putTps"] == "0.1  "
    pass_seconds(bench, 48)
    classes = "[<=0ms]:21 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 "
    assert info(client)["putMessageDistributeTime"] == classes + "[2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
    assert info(client)["putLatency99"] == "0.95"


def test_settings_that_change_while_it_runs(bench: Bench, client: Client) -> None:
    count_all(bench, client)
    changes = b"autoDeleteUnusedStats=true\nenableScheduleMessageStats=false\nstartAcceptSendRequestTimeStamp=7"
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=changes).code == 0
    assert info(client)["startAcceptSendRequestTimeStamp"] == "7"
    bench.parts.stats.delivered(0, 1, 1)
    assert not is_counted(client, "GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER")
    bench.parts.stats.topic_removed("T")
    assert not is_counted(client, "TOPIC_PUT_NUMS", "T")


def test_how_long_it_runs(bench: Bench, client: Client) -> None:
    bench.clock.advance(2 * 86_400 + 3 * 3600 + 4 * 60 + 5.9)
    assert info(client)["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"


def test_the_disk(bench: Bench, client: Client) -> None:
    assert "commitLogDirCapacity" not in info(client)  # nobody looked yet
    bench.store._retention.watch.look()
    table = info(client)
    space = bench.store.stats.log_space
    ratio = str(space.used_percent / 100)
    assert table["commitLogDiskRatio"] == table["consumeQueueDiskRatio"] == ratio
    assert table[f"commitLogDiskRatio_{bench.settings.store.store_path_commit_log}"] == ratio
    size = shutil.disk_usage(bench.settings.store.store_path_root_dir).total
    assert space.size_bytes == size
    assert table["commitLogDirCapacity"] == f"Total : {byte_count(size)}, Free : {byte_count(space.available_bytes)}."


def test_a_store_that_refuses(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"disk_free_bytes_min": 2**62})
    client = bench.client()
    client.send("T")
    bench.store._retention.watch.look()
    client.ask_all(send_command("T"), send_command("T"))
    assert info(client)["putMessageFailedTimes"] == "2"
    assert info(client)["putMessageTimesTotal"] == "1"


def test_the_transient_pool(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store={"transient_store_pool_enable": True, "transient_store_pool_size": 3})
    client = bench.client()
    assert info(client)["remainTransientStoreBufferNumbs"] == "2"
    assert info(client)["remainHowManyDataToCommit"] == "0 B"
    client.send("T", b"x" * 2000)
    assert info(client)["remainHowManyDataToCommit"] == byte_count(bench.store.stats.uncommitted) != "0 B"
    bench.turn(1)
    assert info(client)["remainHowManyDataToCommit"] == "0 B"


def test_totals_of_days(bench: Bench, client: Client) -> None:
    def totals() -> list[tuple[int, int]]:
        table = info(client)
        names = ("YesterdayMorning", "TodayMorning", "TodayNow")
        return [(int(table[f"msgPutTotal{name}"]), int(table[f"msgGetTotal{name}"])) for name in names]

    def pass_midnight() -> list[tuple[int, int]]:
        now = time.localtime(bench.clock.seconds())
        bench.clock.advance(86_400 - (now.tm_hour * 60 + now.tm_min) * 60 - now.tm_sec - 1)
        bench.parts.stats.tick()
        before = totals()
        pass_seconds(bench, 1)
        return before

    client.ask_all(send_command("T"), send_command("T"))
    client.pull()
    assert pass_midnight() == [(0, 0), (0, 0), (2, 2)]
    assert totals() == [(0, 0), (2, 2), (2, 2)]
    bench.client().send("T")
    assert pass_midnight() == [(0, 0), (2, 2), (3, 2)]
    assert totals() == [(2, 2), (3, 2), (3, 2)]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1024.0 KiB"), (2**20, "1.0 MiB"),
     (270_582_939_648, "252.0 GiB"), (2**63, "8.0 EiB"), (2**73, "8192.0 EiB")],
)  # fmt: skip
def test_bytes_for_people(size: int, text: str) -> None:
    assert byte_count(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (0, "0.0"), (1, "1.0"), (242.33333333333334, "242.33333333333334"), (0.001, "0.001"),
     (0.0009, "9.0E-4"), (1.25e-5, "1.25E-5"), (9999999.5, "9999999.5"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
     (-1.5e10, "-1.5E10"), (1e22, "1.0E22"), (5e-324, "4.9E-324"), (float("inf"), "Infinity"),
     (float("-inf"), "-Infinity"), (float("nan"), "NaN")],
)  # fmt: skip
def test_doubles_as_java_writes_them(value: float, text: str) -> None:
    # Java before 19 has more digits than it takes for the least of all.
    assert java_double(value) == text.replace("4.9E-324", "5.0E-324")


# How far all groups are


def consume_stats(client: Client, is_order: bool = False) -> tuple[str, dict[str, list[Any]], int]:
    answer = client.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=is_order))
    assert answer.code == 0
    stats = ConsumeStatsList.from_json(answer.body)
    by_group = {}
    for each in stats.consume_stats_list:
        by_group.update(each)
    assert len(by_group) == len(stats.consume_stats_list)
    return stats.broker_addr, by_group, stats.total_diff


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def test_all_groups_with_their_topics(bench: Bench, client: Client) -> None:
    bench.topics.put(TopicConfig("T", 2, 2))
    bench.topics.put(TopicConfig("U", 1, 1, order=True))
    bench.groups.put(SubscriptionGroupConfig("CG"))
    client.ask_all(*[send_command("T", queue_id=1) for _ in range(5)], send_command("U"))
    client.pull("T", queue_id=1)
    bench.offsets.commit("CG", "T", 1, 3)
    bench.offsets.commit("CG", "U", 0, 1)
    bench.offsets.commit("CG", "GONE", 0, 1)
    bench.offsets.commit("no such group", "T", 0, 1)
    pass_seconds(bench, 10)
    addr, groups, behind = consume_stats(client)
    assert addr == "10.0.0.1:10911"
    stored = START * 1000
    of_u = ConsumeStats({queue("U", 0): OffsetWrapper(1, 1, stored)}, 0.0)
    assert groups["CG"] == [
        ConsumeStats({queue("T", 0): OffsetWrapper(0, 0, 0), queue("T", 1): OffsetWrapper(5, 3, stored)}, 0.5), of_u
    ]  # fmt: skip
    assert groups["TOOLS_CONSUMER"] == []
    assert "no such group" not in groups
    assert behind == 2
    _, groups, behind = consume_stats(client, is_order=True)
    assert (groups["CG"], behind) == ([of_u], 0)


def test_offsets_behind_the_end_of_a_queue_spoil_no_sum(bench: Bench, client: Client) -> None:
    """Any account that may consume can commit the largest there is."""
    bench.topics.put(TopicConfig("T", 3, 3))
    bench.groups.put(SubscriptionGroupConfig("CG"))
    client.ask_all(*[send_command("T", queue_id=2) for _ in range(5)])
    for queue_id, offset in enumerate((2**63 - 1, 2**63 - 1, 1)):
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": str(queue_id), "commitOffset": str(offset)}
        (answer,) = client.ask_all(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        assert answer.code == 0
    _, groups, behind = consume_stats(client)
    assert [each.consumer_offset for each in groups["CG"][0].offset_table.values()] == [2**63 - 1, 2**63 - 1, 1]
    assert behind == 4


def test_the_tps_of_consume_stats_of_one_group(bench: Bench, client: Client) -> None:
    client.send("T")
    client.pull()
    bench.offsets.commit("CG", "T", 0, 1)
    pass_seconds(bench, 10)
    (answer,) = client.ask_all(RemotingCommand(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"}))
    assert ConsumeStats.from_json(answer.body).consume_tps == 0.1


def test_is_order_must_be_there(client: Client) -> None:
    (answer,) = client.ask_all(RemotingCommand(RequestCode.GET_BROKER_CONSUME_STATS, {}))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the custom field <isOrder> is null")
