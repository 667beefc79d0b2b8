"""Topics that an elected master has messages of, but did not get with its master's tables."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mqbroker.broker.topic_repair import NAMES_MAX, CopiedTopics, TopicRepair
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import SubscriptionGroupConfig, TopicConfig
from tests.broker.bench import Bench
from tests.remoting.logs import Logged
from tests.store.harness import message


def store_messages(store: MessageStore, *queues: tuple[str, int]) -> None:
    for topic, queue_id in queues:
        store.append([message(topic=topic, queue_id=queue_id)])
    store.dispatch_now()


def repair(bench: Bench, *, is_elected: bool = True) -> None:
    file = JsonFile(str(Path(bench.settings.store.store_path_root_dir) / "copied.json"), InlineWorker(), OsDisk())
    copied = CopiedTopics(file)
    endpoints = ("http://10.0.0.8:2379",) if is_elected else ()
    settings = attrs.evolve(bench.settings, default_topic_queue_nums=4, etcd_endpoints=endpoints)
    TopicRepair(bench.topics, bench.groups, bench.offsets, bench.store, copied, settings).start()


def queues_of(bench: Bench, *names: str) -> dict[str, int | None]:
    found = {name: bench.topics.get(name) for name in names}
    return {name: None if topic is None else topic.write_queue_nums for name, topic in found.items()}


@pytest.mark.parametrize("is_elected", [False, True])
def test_an_elected_master_creates_the_topics_that_it_has_messages_of(
    make_bench: Callable[..., Bench], is_elected: bool
) -> None:
    bench = make_bench("lost")
    store_messages(bench.store, ("Lost", 0), ("Lost", 3), ("Wide", 7), ("Known", 0))
    bench.topics.create_internal("Known", 1)
    lost = 4 if is_elected else None
    for _ in range(2):
        repair(bench, is_elected=is_elected)
        wide = 8 if is_elected else None
        assert queues_of(bench, "Lost", "Wide", "Known") == {"Lost": lost, "Wide": wide, "Known": 1}


def test_lost_topics_that_brokers_create_have_as_many_queues_as_they_had(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("internal")
    names = ("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%CG", "%RETRY%Other")
    store_messages(bench.store, *((name, 0) for name in names), ("%RETRY%CG", 0))
    bench.groups.on_change.clear()
    bench.groups.put(SubscriptionGroupConfig("CG", retry_queue_nums=3))
    repair(bench)
    assert queues_of(bench, *names, "%RETRY%CG") == dict.fromkeys(names, 1) | {"%RETRY%CG": 3}


def test_queues_that_need_no_topic_get_none(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("own", auto_create_topic_enable=False)
    names = ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "TBW102", "%LMQ%light")
    store_messages(bench.store, *((name, 0) for name in names))
    known = set(bench.topics.snapshot().topic_config_table)
    repair(bench)
    assert set(bench.topics.snapshot().topic_config_table) == known


def test_a_lost_topic_that_cannot_be_created_is_named_and_the_others_are_created(
    make_bench: Callable[..., Bench], logged: Logged
) -> None:
    bench = make_bench("many", topics_max=len(make_bench("few").topics.snapshot().topic_config_table) + 1)
    store_messages(bench.store, ("Lost", 0), ("Other", 0), ("Other", 1))
    repair(bench)
    assert queues_of(bench, "Lost", "Other") == {"Lost": 4, "Other": None}
    (line,) = [line for line in logged.lines if "cannot be created" in line]
    assert line.startswith("Other has 2 messages, but was not among the topics of the former master")
    assert "topicsMax" in line


def test_topics_without_queues_are_reported_at_the_start(make_bench: Callable[..., Bench], logged: Logged) -> None:
    bench = make_bench("empty")
    for name, queues in [("Read", (1, 0)), ("Written", (0, 1)), ("B", (0, 0)), ("A", (0, -1))]:
        bench.topics.put(TopicConfig(name, *queues))
    repair(bench)
    (line,) = [line for line in logged.lines if "0 queues" in line]
    assert line == (
        "topics with 0 queues, which refuse all sends: A, B; set them with `mqadmin updateTopic -t TOPIC -r 8 -w 8`, "
        "or delete these topics"
    )
    for number in range(NAMES_MAX):
        bench.topics.put(TopicConfig(f"C{number:02}", 0, 0))
    repair(bench)
    assert "A, B, C00," in logged.lines[-1]
    assert "C17 and 2 more; set" in logged.lines[-1]


def test_no_topic_without_queues_is_no_line(make_bench: Callable[..., Bench], logged: Logged) -> None:
    repair(make_bench("full"))
    assert not [line for line in logged.lines if "0 queues" in line]
