"""The tables of topics, groups and committed offsets, over their files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogLevel

from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import Refused, StoreDamaged
from mqbroker.store.jsonfile import PIECES_PER_TURN, JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import (
    QUEUES_MAX,
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from mqbroker.wire.codes import Perm
from tests.broker.bench import START, live_settings
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "config"


def topic_table(root: Path, **changes: int) -> TopicTable:
    return TopicTable(
        JsonFile(str(root / "topics.json"), InlineWorker(), OsDisk()), lambda: START, live_settings(root, **changes)
    )


def group_table(root: Path, auto_create: bool = True) -> GroupTable:
    live = live_settings(auto_create_subscription_group=auto_create)
    return GroupTable(JsonFile(str(root / "subscriptionGroup.json"), InlineWorker(), OsDisk()), lambda: START, live)


def offset_table(root: Path, worker: SteppedWorker | None = None) -> OffsetTable:
    return OffsetTable(JsonFile(str(root / "consumerOffset.json"), worker or InlineWorker(), OsDisk()), live_settings())


def written(root: Path, name: str) -> dict[str, dict[str, Any]]:
    return json.loads((root / name).read_text())


# --- topics


def test_ordered_topics_are_those_of_the_name_server(root: Path) -> None:
    table = topic_table(root)
    changes: list[Any] = []
    table.on_change.append(changes.append)
    table.put(TopicConfig("T"))
    table.put(TopicConfig("U", order=True))
    version, heard = table.data_version, list(changes)
    table.set_order_topics(frozenset({"T", "nowhere"}))
    assert (table.get("T").order, table.get("U").order) == (True, False)
    assert written(root, "topics.json")["topicConfigTable"]["T"]["order"] is True
    assert table.data_version.counter == version.counter + 1
    # It is told to the name servers with the next that is told: two that differ must not make a broker talk for ever.
    assert changes == heard
    table.set_order_topics(frozenset({"T", "nowhere"}))
    assert table.data_version.counter == version.counter + 1


def test_the_topics_every_broker_has(root: Path) -> None:
    table = topic_table(root)
    assert {name: table.get(name).write_queue_nums for name in table.names()} == {
        "SELF_TEST_TOPIC": 1,
        "TBW102": 8,
        "BenchmarkTest": 1024,
        "DefaultCluster": 16,
        "broker-a": 1,
        "OFFSET_MOVED_EVENT": 1,
        "SCHEDULE_TOPIC_XXXX": 18,
        "DefaultCluster_REPLY_TOPIC": 1,
    }
    assert table.get("TBW102").perm == Perm.READ | Perm.WRITE | Perm.INHERIT
    assert table.get("DefaultCluster").perm == Perm.READ | Perm.WRITE | Perm.INHERIT


def test_settings_change_them(root: Path) -> None:
    table = topic_table(
        root, auto_create_topic_enable=False, trace_topic_enable=True, cluster_topic_enable=False,
        broker_topic_enable=False,
    )  # fmt: skip
    assert table.get("TBW102") is None
    assert table.get("RMQ_SYS_TRACE_TOPIC").write_queue_nums == 1
    assert table.get("DefaultCluster").perm == table.get("broker-a").perm == Perm.INHERIT
    assert topic_table(root, default_topic_queue_nums=3).get("TBW102").write_queue_nums == 3


def test_a_change_is_written_and_told_and_counted(root: Path) -> None:
    table, told = topic_table(root), list[Any]()
    table.on_change.append(told.append)
    counter = table.data_version.counter
    table.put(TopicConfig("T", 4, 2))
    assert told == ["T"]
    assert (table.data_version.counter, table.data_version.timestamp) == (counter + 1, START * 1000)
    assert written(root, "topics.json")["topicConfigTable"]["T"] == {
        "topicName": "T", "readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    table.remove("T")
    table.remove("T")
    assert told == ["T", "T"]
    assert table.get("T") is None
    again = topic_table(root)
    assert again.get("T") is None
    assert again.data_version == table.data_version


def test_a_restart_brings_topics_back(root: Path) -> None:
    topic_table(root).put(TopicConfig("T", 4, 2, perm=2, topic_filter_type="MULTI_TAG", order=True))
    assert topic_table(root).get("T") == TopicConfig("T", 4, 2, perm=2, topic_filter_type="MULTI_TAG", order=True)


def test_a_file_that_java_wrote(root: Path) -> None:
    """Fastjson writes numeric keys without quotes, and fields this program does not know."""
    root.mkdir()
    (root / "topics.json").write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000001\n\t},\n\t'
        '"topicConfigTable":{\n\t\t"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":4}\n\t}\n}'
    )
    (root / "consumerOffset.json").write_text('{\n\t"offsetTable":{\n\t\t"T@CG":{0:12,3:4\n\t\t}\n\t}\n}')
    table = topic_table(root)
    assert table.get("T").read_queue_nums == 4
    assert (table.data_version.counter, table.data_version.timestamp) == (3, 1700000000001)
    assert offset_table(root).query("CG", "T", 3) == 4


def test_topics_with_more_queues_than_a_broker_may_have_are_left_out(root: Path, logged: Logged) -> None:
    root.mkdir()
    sizes = {"A": (QUEUES_MAX, 1), "B": (QUEUES_MAX + 1, 1), "C": (1, 2**31 - 1)}
    topics = {name: TopicConfig(name, *numbers) for name, numbers in sizes.items()}
    values = {name: topic.to_value() for name, topic in topics.items()}
    (root / "topics.json").write_text(json.dumps({"topicConfigTable": values}))
    table = topic_table(root)
    assert [name for name in sizes if table.get(name) is not None] == ["A"]
    assert [line.rpartition(": ")[2] for line in logged.lines if "is ignored" in line] == [
        "it has 65536 queues, 65535 at most",
        "it has 2147483647 queues, 65535 at most",
    ]
    master = TopicConfigSerializeWrapper(
        {**topics, "D": TopicConfig("D")}, DataVersion(table.data_version.timestamp + 1, 1)
    )
    table.follow(master)
    assert [name for name in master.topic_config_table if table.get(name) is not None] == ["A", "D"]


def test_illegal_names_in_a_file_are_left_out(root: Path, logged: Logged) -> None:
    root.mkdir()
    good = TopicConfig("Good").to_value()
    names = ["../../x", "Good", "a/b", "", "t" * 128]
    (root / "topics.json").write_text(json.dumps({"topicConfigTable": dict.fromkeys(names, good)}))
    table = topic_table(root)
    assert table.get("Good") is not None
    assert not {"../../x", "a/b", "", "t" * 128} & set(table.names())
    assert len([line for line in logged.lines if "is ignored" in line]) == 4
    groups = {"../../x": SubscriptionGroupConfig("../../x").to_value(), "G": SubscriptionGroupConfig("G").to_value()}
    (root / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))
    kept = group_table(root).snapshot().subscription_group_table
    assert "G" in kept
    assert "../../x" not in kept


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
@pytest.mark.parametrize("content", ["", "{", "null", "[]", "7", '{"topicConfigTable":[]}', "\0" * 50, "[" * 5000])
def test_a_damaged_file_names_itself(root: Path, name: str, content: str) -> None:
    root.mkdir()
    (root / name).write_text(content)
    make: dict[str, Callable[[Path], Any]] = {
        "topics.json": topic_table,
        "subscriptionGroup.json": group_table,
        "consumerOffset.json": offset_table,
    }
    if content == '{"topicConfigTable":[]}' and name != "topics.json":
        make[name](root)
        return
    with pytest.raises(StoreDamaged) as caught:
        make[name](root)
    assert caught.value.path == os.path.join(root, name)


def test_internal_topics(root: Path) -> None:
    table = topic_table(root)
    made = table.create_internal("%RETRY%CG", 2)
    assert made == TopicConfig("%RETRY%CG", 2, 2, 6)
    assert table.create_internal("%RETRY%CG", 1) is made
    assert table.create_internal("%RETRY%CG", 9) == TopicConfig("%RETRY%CG", 9, 9, 6)
    for name in ("%RETRY%" + "g" * 121, "%DLQ%../x"):
        with pytest.raises(Refused):
            table.create_internal(name, 1)
        assert table.get(name) is None


def test_a_snapshot_does_not_change(root: Path) -> None:
    table = topic_table(root)
    before = table.snapshot()
    table.put(TopicConfig("T"))
    assert "T" not in before.topic_config_table


# --- groups


def test_groups_are_made_when_first_asked_for(root: Path) -> None:
    table = group_table(root)
    group = table.find("CG")
    assert group == SubscriptionGroupConfig("CG")
    assert written(root, "subscriptionGroup.json")["subscriptionGroupTable"]["CG"]["retryMaxTimes"] == 16
    counter = table.data_version.counter
    assert table.find("CG") is group
    assert table.data_version.counter == counter
    again = group_table(root, auto_create=False)
    assert again.find("CG") == group
    assert again.find("Other") is None
    assert again.find("CID_RMQ_SYS_x") is not None


@pytest.mark.parametrize("name", ["", "../x", "a b", "g" * 256])
def test_no_illegal_group_is_made(root: Path, name: str) -> None:
    table = group_table(root)
    assert table.find(name) is None
    with pytest.raises(Refused):
        table.put(SubscriptionGroupConfig(name))


def test_system_groups_are_there(root: Path) -> None:
    table = group_table(root, auto_create=False)
    assert table.find("TOOLS_CONSUMER").consume_broadcast_enable
    assert table.find("SELF_TEST_C_GROUP") is not None


# --- offsets


def test_offsets_are_kept_and_written_when_asked(root: Path) -> None:
    table = offset_table(root)
    assert table.query("CG", "T", 0) is None
    table.commit("CG", "T", 0, 5)
    table.commit("CG", "T", 3, 7)
    table.commit("Other", "T", 0, 1)
    assert not (root / "consumerOffset.json").exists()
    table.persist()
    again = offset_table(root)
    assert [again.query("CG", "T", queue) for queue in (0, 1, 3)] == [5, None, 7]
    assert again.query("Other", "T", 0) == 1


def test_nothing_is_written_where_nothing_changed(root: Path) -> None:
    worker = SteppedWorker(at_once=False)
    table = offset_table(root, worker)
    table.persist()
    assert worker.waiting == []
    table.commit("CG", "T", 0, 5)
    table.persist()
    worker.work()
    table.commit("CG", "T", 0, 5)
    table.persist()
    assert worker.waiting == []


def test_a_failed_write_is_tried_again(root: Path) -> None:
    worker = SteppedWorker(at_once=False)
    table = offset_table(root, worker)
    table.commit("CG", "T", 0, 5)
    table.persist()
    worker.fail(OSError(28, "No space left on device"))
    table.persist()
    worker.work()
    assert offset_table(root).query("CG", "T", 0) == 5


def test_a_change_during_a_write_is_not_forgotten(root: Path) -> None:
    worker = SteppedWorker(at_once=False)
    table = offset_table(root, worker)
    table.commit("CG", "T", 0, 5)
    table.persist()
    table.commit("CG", "T", 0, 6)
    worker.work()
    table.persist()
    worker.work()
    assert offset_table(root).query("CG", "T", 0) == 6


def test_going_back_is_done_and_said(root: Path, logged: Logged) -> None:
    table = offset_table(root)
    table.commit("CG", "T", 0, 5)
    table.commit("CG", "T", 0, 2)
    assert table.query("CG", "T", 0) == 2
    assert "CG commits a lower offset in T 0: 2 after 5" in logged.lines
    assert {event["log_level"] for event in logged} <= {LogLevel.info}, "each rebalance may do so"


def committed(root: Path) -> dict[str, dict[int, int]]:
    return ConsumerOffsetSerializeWrapper.from_json((root / "consumerOffset.json").read_bytes()).offset_table


def test_many_offsets_are_written_in_turns_while_they_change(root: Path) -> None:
    turns: list[Any] = []
    table = OffsetTable(
        JsonFile(str(root / "consumerOffset.json"), InlineWorker(), OsDisk(), turns.append), live_settings()
    )
    count = 2 * PIECES_PER_TURN
    for number in range(count):
        table.commit(f"G{number}", "T", 0, number)
    table.persist()
    assert not (root / "consumerOffset.json").exists()
    table.commit("another", "T", 0, 1)
    table.commit("one more", "T", 0, 1)
    table.remove_group(f"G{count - 1}")
    table.commit(f"G{count - 2}", "T", 0, 10**6)
    while turns:
        turns.pop(0)()
    first = committed(root)
    assert len(first) == count
    assert first[f"T@G{count - 2}"] == {0: 10**6}
    table.persist()
    while turns:
        turns.pop(0)()
    assert committed(root).keys() == first.keys() - {f"T@G{count - 1}"} | {"T@another", "T@one more"}
