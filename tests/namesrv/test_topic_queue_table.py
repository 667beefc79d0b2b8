"""Which topics lie where: shared by those that lie alike, changed together, bounded."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from mqbroker.errors import Refused
from mqbroker.namesrv import topic_queue_table
from mqbroker.namesrv.topic_queue_table import TopicQueueTable
from mqbroker.wire.bodies import QueueData
from mqbroker.wire.registration import QueueNumbers
from tests.commands import finish

FOUR, EIGHT = QueueNumbers(4, 4, 6, 0), QueueNumbers(8, 8, 6, 1)


@pytest.fixture
def table() -> TopicQueueTable:
    table = TopicQueueTable()
    table.put("a", {"T": FOUR, "U": FOUR, "V": EIGHT})
    return table


def whole(table: TopicQueueTable) -> list[Any]:
    return [(topic, queues) for topic in table._topics if (queues := table.get(topic)) is not None]


def test_topics_that_lie_alike_share_one(table: TopicQueueTable) -> None:
    assert table.get("T") is table.get("U")
    assert table.get("T") is not table.get("V")
    table.put("b", {"T": EIGHT})
    assert table.get("T").queues == (QueueData("a", 4, 4, 6, 0), QueueData("b", 8, 8, 6, 1))
    table.put("b", {"U": EIGHT})
    assert table.get("T") is table.get("U")


def test_what_nobody_has_is_forgotten(table: TopicQueueTable) -> None:
    table.put("a", {"T": EIGHT, "U": EIGHT})
    assert len(table._by_queues) == 1
    assert [len(groups) for groups in table._by_broker.values()] == [1]


def test_a_topic_on_one_broker_is_replaced_in_its_place(table: TopicQueueTable) -> None:
    table.put("b", {"T": FOUR})
    table.put("a", {"T": EIGHT})
    assert [queues.broker_name for queues in table.get("T").queues] == ["a", "b"]
    assert table.get("T").of("a") == QueueData("a", 8, 8, 6, 1)
    assert table.get("T").of("c") is None


def test_a_whole_table_removes_what_is_not_in_it_and_keeps_the_order_of_brokers(table: TopicQueueTable) -> None:
    table.put("b", {"T": FOUR, "U": FOUR, "W": FOUR})
    table.replace("a", {"T": EIGHT, "X": FOUR}, 5)
    a, b = QueueData("a", 8, 8, 4, 1), QueueData("b", 4, 4, 6, 0)
    assert lay(table) == {"T": [a, b], "U": [b], "W": [b], "X": [QueueData("a", 4, 4, 4, 0)]}
    table.replace("b", {})
    assert lay(table) == {"T": [a], "X": [QueueData("a", 4, 4, 4, 0)]}


def test_a_whole_table_without_room_changes_nothing(table: TopicQueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lay(table)
    monkeypatch.setattr(topic_queue_table, "TOPICS_MAX", 4)
    with pytest.raises(Refused, match="no room for 5 topics"):
        table.replace("a", {"W": FOUR, "X": FOUR})
    assert lay(table) == before


def test_removing(table: TopicQueueTable) -> None:
    table.put("b", {"T": FOUR})
    table.remove_from("T", ["a", "c"])
    assert table.get("T").queues == (QueueData("b", 4, 4, 6, 0),)
    table.remove_from("T", ["b"])
    table.remove_from("T", ["b"])
    assert table.get("T") is None
    table.remove("U")
    table.remove("U")
    assert {topic for topic, _ in whole(table)} == {"V"}
    table.remove_brokers(["b"])
    table.remove_brokers(["a"])
    assert len(table) == 0


def test_permissions(table: TopicQueueTable) -> None:
    table.put("b", {"W": FOUR})
    assert finish(table.set_permission("a", lambda perm: perm & 4)) == 3
    assert {topic: [queues.perm for queues in topic_queues.queues] for topic, topic_queues in whole(table)} == {
        "T": [4], "U": [4], "V": [4], "W": [6],
    }  # fmt: skip
    assert finish(table.set_permission("a", lambda perm: perm & 4)) == 3
    assert finish(table.set_permission("nobody", lambda perm: 0)) == 0


def test_what_a_broker_registers_between_the_steps_of_a_permission_gets_it_too(table: TopicQueueTable) -> None:
    table.put("b", {"T": FOUR, "V": FOUR})
    steps = table.set_permission("a", lambda _: 4)
    next(steps)
    table.put("a", {"T": EIGHT, "U": FOUR, "V": FOUR, "W": EIGHT})
    table.remove_from("V", ["a"])
    finish(steps)
    perms = {topic: {queues.broker_name: queues.perm for queues in each.queues} for topic, each in whole(table)}
    assert perms == {"T": {"a": 4, "b": 6}, "U": {"a": 4}, "V": {"b": 6}, "W": {"a": 4}}
    lay(table)


def test_a_permission_comes_to_an_end_though_its_broker_registers_at_each_step(table: TopicQueueTable) -> None:
    steps = table.set_permission("a", lambda _: 4)
    for _ in range(100):
        if next(steps, "end") == "end":
            break
        table.put("a", {"T": EIGHT, "U": FOUR})
    else:
        raise AssertionError("it goes on")


def test_it_is_bounded(table: TopicQueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_queue_table, "TOPICS_MAX", 4)
    table.put("b", {"T": FOUR, "U": FOUR, "W": FOUR})
    with pytest.raises(Refused, match="no room for 5 topics"):
        table.put("b", {"T": EIGHT, "X": FOUR})
    assert table.get("T").of("b").read_queue_nums == 4
    assert table.get("X") is None


def lay(table: TopicQueueTable) -> dict[str, list[QueueData]]:
    """How topics lie, as a table of the plainest kind says it; with what is kept beside it checked."""
    groups = {id(group): group for group in map(topic_queue_table._last, table._topics.values()) if group.topic_queues}
    assert {group.topic_queues.queues: id(group) for group in groups.values()} == {
        queues: id(group) for queues, group in table._by_queues.items()
    }
    of_topics = [table._group_of(topic) for topic in table._topics]
    assert all(group.count == of_topics.count(group) for group in of_topics)
    assert {name: set(map(id, found)) for name, found in table._by_broker.items()} == {
        name: {id(group) for group in groups.values() if group.topic_queues.is_on([name])} for name in table._by_broker
    }
    found = {topic: list(topic_queues.queues) for topic, topic_queues in whole(table)}
    assert len(table) == len(found)
    assert {topic for part in table.parts(2) for topic, _ in part} == found.keys()
    assert {topic: list(table.get(topic).queues) for topic in found} == found
    return found


def take(step: str, rng: Random, table: TopicQueueTable, model: dict[str, dict[str, QueueNumbers]]) -> None:
    """The same change to a table and to a model of it: topic to broker to numbers."""
    broker, topic = rng.choice("abcd"), f"T{rng.randrange(6)}"
    brokers = set(rng.choices("abcd", k=rng.randrange(3)))
    match step:
        case "put":
            queues = {f"T{n}": rng.choice([FOUR, FOUR, EIGHT]) for n in rng.sample(range(6), rng.randrange(7))}
            table.put(broker, queues)
            for name, numbers in queues.items():
                model.setdefault(name, {})[broker] = numbers
        case "replace":
            queues = {f"T{n}": rng.choice([FOUR, FOUR, EIGHT]) for n in rng.sample(range(6), rng.randrange(7))}
            table.replace(broker, queues)
            for name in model.keys() | queues.keys():
                known = model.setdefault(name, {}) | {broker: queues.get(name)}  # in its place
                model[name] = {each: kept for each, kept in known.items() if kept is not None}
        case "remove":
            table.remove(topic)
            model.pop(topic, None)
        case "remove_from":
            table.remove_from(topic, brokers)
            model[topic] = {name: kept for name, kept in model.get(topic, {}).items() if name not in brokers}
        case "remove_brokers":
            table.remove_brokers(brokers)
            for name, known in model.items():
                model[name] = {name: kept for name, kept in known.items() if name not in brokers}
        case "set_permission":
            perm = rng.choice([4, 6])
            theirs = [known for known in model.values() if broker in known]
            assert finish(table.set_permission(broker, lambda _: perm)) == len(theirs)
            for known in theirs:
                known[broker] = known[broker]._replace(perm=perm)


@pytest.mark.parametrize("dead_min", [0, 1000])
def test_it_says_what_a_table_of_each_topic_says(monkeypatch: pytest.MonkeyPatch, dead_min: int) -> None:
    monkeypatch.setattr(topic_queue_table, "DEAD_MIN", dead_min)
    steps = [
        "put",
        "put",
        "put",
        "replace",
        "replace",
        "remove",
        "remove_from",
        "remove_brokers",
        "remove_brokers",
        "set_permission",
    ]
    for seed in range(60):
        rng = Random(seed)
        table, model = TopicQueueTable(), dict[Any, Any]()
        for step in rng.choices(steps, k=40):
            take(step, rng, table, model)
            assert lay(table) == {
                topic: [QueueData(broker, *numbers) for broker, numbers in known.items()]
                for topic, known in model.items()
                if known
            }


def test_a_broker_that_goes_takes_a_look_at_its_groups_alone(table: TopicQueueTable) -> None:
    """And at no topic, of however many."""
    table.put("a", {f"topic-{n}": FOUR for n in range(100)})
    table.put("b", {f"topic-{n}": FOUR for n in range(0, 100, 2)})

    class NotWalked(dict):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all topics are looked at")

        items = keys = values = __iter__  # type: ignore[assignment]

    table._topics = NotWalked(table._topics)
    table.remove_brokers(["a"])
    assert finish(table.set_permission("b", lambda perm: 4)) == 50
    table.replace("c", {f"topic-{n}": FOUR for n in range(20)})
    table.replace("c", {})
    assert table.get("topic-1") is None
    assert table.get("topic-2").queues == (QueueData("b", 4, 4, 4, 0),)
    assert len(table) == 50
