"""Topics that one shard of a broker creates for their first message, and what the others are told of them."""

from collections.abc import Callable

import pytest

from mqbroker.broker.sibling_topics import SiblingTopics
from mqbroker.wire.bodies import SubscriptionGroupConfig, TopicConfig
from mqbroker.wire.codes import TopicSysFlag
from tests.broker.bench import Bench, Client
from tests.broker.sending import put_topic
from tests.broker.test_client_requests import beat, consumer
from tests.broker.test_send_back import send_back, stored
from tests.broker.transacting import GIVEN_UP, HALF, Transactor, bodies, round_of_checks
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
def test_a_topic_of_a_send_is_told_and_one_of_an_administrator_is_not(
    bench: Bench, client: Client, told: list[TopicConfig]
) -> None:
    put_topic(client, "Created")
    client.send("Created")
    client.send("Sent", default_topic_queue_nums=3)
    client.send("Sent")
    assert told == [bench.topics.get("Sent")]
    assert (told[0].topic_name, told[0].write_queue_nums) == ("Sent", 3)
    client.send("bad topic")
    assert len(told) == 1


@pytest.mark.usefixtures("siblings")
def test_topics_that_the_broker_creates_for_messages_are_told_once(
    bench: Bench, client: Client, told: list[TopicConfig]
) -> None:
    put_topic(client, "T")
    record = stored(bench, client)
    for _ in range(2):
        assert send_back(client, record, unit_mode=True).code == 0
    assert told == [TopicConfig("%RETRY%CG", 1, 1, topic_sys_flag=TopicSysFlag.UNIT_SUB)]
    for _ in range(2):
        assert send_back(client, record, delay_level=-1).code == 0
    assert told[1:] == [TopicConfig("%DLQ%CG", 1, 1)]
    # More retry queues are those of this shard's group.
    bench.groups.on_change.clear()
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=3))
    assert send_back(client, record).code == 0
    assert bench.topics.get("%RETRY%CG").read_queue_nums == 3
    assert len(told) == 2


@pytest.mark.usefixtures("siblings")
def test_topics_that_each_shard_creates_by_itself_are_not_told(
    bench: Bench, client: Client, told: list[TopicConfig]
) -> None:
    assert beat(client, consumers=[consumer()]).code == 0
    assert bench.topics.get("%RETRY%CG") is not None
    bench.parts.checks.start()
    round_of_checks(bench)
    assert bench.topics.get(HALF) is not None
    assert told == []


def test_the_topic_of_half_messages_that_are_given_up_is_told(
    make_bench: Callable[..., Bench], told: list[TopicConfig]
) -> None:
    bench = make_bench(transaction_check_max=1)
    SiblingTopics(told.append).attach(bench.topics)
    put_topic(bench.client(), "T")
    bench.parts.checks.start()
    producer = Transactor(bench)
    producer.half(b"one")
    for _ in range(3):
        producer.beat()
        round_of_checks(bench)
    assert bodies(bench, GIVEN_UP) == [b"one"]
    assert [topic.topic_name for topic in told] == [GIVEN_UP]


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
