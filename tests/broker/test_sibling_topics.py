"""Topics that sends create on one shard of a broker, and what the others are told of them."""

from collections.abc import Callable

import pytest

from mqbroker.broker.sibling_topics import SiblingTopics
from mqbroker.wire.bodies import TopicConfig
from tests.broker.bench import Bench, Client
from tests.broker.sending import put_topic
from tests.remoting.logs import Logged


@pytest.fixture
def told() -> list[TopicConfig]:
    return []


@pytest.fixture
def siblings(bench: Bench, told: list[TopicConfig]) -> SiblingTopics:
    made = SiblingTopics(told.append)
    made.attach(bench.topics)
    return made


@pytest.mark.usefixtures("siblings")
def test_only_topics_that_sends_create_are_told(bench: Bench, client: Client, told: list[TopicConfig]) -> None:
    put_topic(client, "Created")
    client.send("Created")
    client.send("Sent", default_topic_queue_nums=3)
    client.send("Sent")
    assert told == [bench.topics.get("Sent")]
    assert (told[0].topic_name, told[0].write_queue_nums) == ("Sent", 3)
    client.send("bad topic")
    assert len(told) == 1


def test_a_topic_of_a_sibling_is_created_and_not_told_on(
    bench: Bench, siblings: SiblingTopics, told: list[TopicConfig]
) -> None:
    version = bench.topics.data_version
    topic = TopicConfig("Theirs", 3, 3)
    for _ in range(2):
        siblings.told(TopicConfig.from_value(topic.to_value()))
    assert bench.topics.get("Theirs") == topic
    assert bench.topics.data_version.counter == version.counter + 1
    siblings.told(TopicConfig("Theirs", 9, 9))
    assert bench.topics.get("Theirs") == topic
    assert told == []


@pytest.mark.parametrize("name", ["bad topic", "", "x" * 200, "../x"])
def test_a_topic_that_cannot_be_is_not_created(
    bench: Bench, siblings: SiblingTopics, logged: Logged, name: str
) -> None:
    before = bench.topics.names()
    siblings.told(TopicConfig(name, 3, 3))
    assert bench.topics.names() == before
    assert "is not created here" in logged.lines[-1]


def test_one_too_many_is_not_created(make_bench: Callable[..., Bench], logged: Logged) -> None:
    bench = make_bench(topics_max=1)
    siblings = SiblingTopics(lambda topic: None)
    siblings.attach(bench.topics)
    siblings.told(TopicConfig("T", 3, 3))
    assert bench.topics.get("T") is None
    assert "topicsMax" in logged.lines[-1]


def test_a_slave_has_the_topics_of_its_master(bench: Bench, siblings: SiblingTopics) -> None:
    siblings.attach(None)
    siblings.told(TopicConfig("Theirs", 3, 3))
    assert bench.topics.get("Theirs") is None
