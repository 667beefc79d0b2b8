"""Spark reads from the Java broker: each way of choosing messages, compared with what a Java consumer sees."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.java import JavaSystem
from tests.interop.peers import PeerHost
from tests.interop.processes import eventually
from tests.interop.spark_rows import kept, options_for, place_of, places_of, rows_of, run_available, view_of
from tests.interop.test_replication import follows, start_slave
from tests.interop.traffic import Event, consumer, produce, pull, stop_consumer, wait_committed
from tests.spark.test_spark import spark  # noqa: F401 - a fixture

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@attrs.frozen
class Topic:
    """A topic of the Java broker, and what a Java consumer sees in it."""

    name: str
    name_server: str
    events: list[Event]

    def read(self, spark: Any, **options: str) -> Any:  # noqa: F811
        given = options if options.keys() & {"subscribePattern", "assign"} else {"topic": self.name} | options
        return spark.read.format("rocketmq").options(**options_for(self.name_server, **given)).load()

    def places(self, *, wanted: Any = lambda event: True) -> list[Any]:
        return sorted(place_of(event) for event in self.events if wanted(event))


@pytest.fixture(scope="module")
def mixed(shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker) -> Topic:
    """Messages one by one, in batches of one time, and long ones that the client compresses."""
    name = "SparkReads-mixed"
    shared_fleet.peer("createtopic", java_namesrv, topic=name, broker=java_broker.addr, queues=4).finish()
    produce(shared_fleet, java_namesrv, name, count=60, keys=True, tags="Aa,BB,paid")
    produce(shared_fleet, java_namesrv, name, count=90, mode="batch", batch=10, keys=True, tags="Aa", prefix="batch")
    produce(shared_fleet, java_namesrv, name, count=10, keys=True, size=20_000, prefix="long")
    events = pull(shared_fleet, java_namesrv, name)
    assert len(events) == 160
    return Topic(name, java_namesrv.addr, events)


def test_batches_and_streams_have_what_a_java_consumer_sees(mixed: Topic, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    assert rows_of(mixed.read(spark)) == view_of(mixed.events)
    given = options_for(mixed.name_server, topic=mixed.name, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    run_available(spark, given, tmp_path)
    assert rows_of(spark.read.parquet(f"{tmp_path}/rows")) == view_of(mixed.events)


def test_times_are_exact_though_the_broker_finds_the_nearest(mixed: Topic, spark: Any) -> None:  # noqa: F811
    times = Counter(event["storeTimestamp"] for event in mixed.events)
    shared = [time for time, count in times.most_common(3) if count > 1]
    assert shared
    between = next(time + 1 for time in sorted(times) if time + 1 not in times)
    for start in (*shared, between, min(times), max(times)):
        iso = datetime.fromtimestamp(start / 1000, UTC).isoformat(timespec="milliseconds")
        since = mixed.read(spark, startingTimestamp=iso, startingOffsetsByTimestampStrategy="latest")
        assert places_of(since) == mixed.places(wanted=lambda event, start=start: event["storeTimestamp"] >= start)
        until = mixed.read(spark, endingTimestamp=str(start))
        assert places_of(until) == mixed.places(wanted=lambda event, start=start: event["storeTimestamp"] < start)
    by_queue = json.dumps({mixed.name: {mixed.events[0]["broker"]: {"1": shared[0]}}})
    given = {"startingOffsetsByTimestamp": by_queue, "startingOffsetsByTimestampStrategy": "latest"}
    assert places_of(mixed.read(spark, **given)) == mixed.places(
        wanted=lambda event: event["queueId"] != 1 or event["storeTimestamp"] >= shared[0]
    )


def test_patterns_and_queues_choose(
    shared_fleet: Fleet,
    java_namesrv: Namesrv,
    mixed: Topic,
    topic: str,
    tmp_path: Path,
    spark: Any,  # noqa: F811
) -> None:
    produce(shared_fleet, java_namesrv, "SparkReads-more", count=5)
    more = Topic("SparkReads-more", java_namesrv.addr, pull(shared_fleet, java_namesrv, "SparkReads-more"))
    both = sorted(mixed.places() + more.places())
    assert places_of(mixed.read(spark, subscribePattern="SparkReads-.*")) == both
    queues = {mixed.name: {mixed.events[0]["broker"]: [0, 3]}}
    wanted = mixed.places(wanted=lambda event: event["queueId"] in (0, 3))
    assert places_of(mixed.read(spark, assign=json.dumps(queues))) == wanted
    # A topic that is new at a later trigger is read from its first message.
    given = options_for(java_namesrv.addr, subscribePattern=f"{topic}.*", startingOffsets="earliest")
    produce(shared_fleet, java_namesrv, f"{topic}-1", count=8)
    run_available(spark, given, tmp_path)
    produce(shared_fleet, java_namesrv, f"{topic}-2", count=8)
    run_available(spark, given, tmp_path)
    found = [pull(shared_fleet, java_namesrv, f"{topic}-{n}") for n in (1, 2)]
    # The first trigger that sees it writes its start down; a run of what is available ends there.
    run_available(spark, given, tmp_path)
    assert kept(spark, tmp_path) == sorted(place_of(event) for event in [*found[0], *found[1]])


def test_a_batch_starts_where_a_java_group_stands(
    shared_fleet: Fleet,
    java_namesrv: Namesrv,
    java_broker: Broker,
    topic: str,
    spark: Any,  # noqa: F811
) -> None:
    shared_fleet.peer("createtopic", java_namesrv, topic=topic, broker=java_broker.addr, queues=4).finish()
    produce(shared_fleet, java_namesrv, topic, count=20)
    group = f"{topic}-group"
    member = consumer(shared_fleet, java_namesrv, topic, group, count=20, instance=topic)
    member.wait_events("message", 20)
    stop_consumer(member)
    wait_committed(java_broker, group, topic, 4, 20)
    produce(shared_fleet, java_namesrv, topic, count=13, prefix="later")
    every = Topic(topic, java_namesrv.addr, pull(shared_fleet, java_namesrv, topic))
    assert len(every.events) == 33
    later = every.read(spark, startingOffsets="group", consumerGroup=group)
    before = every.read(spark, endingOffsets="group", consumerGroup=group)
    assert later.count() == 13
    assert before.count() == 20
    assert sorted(places_of(later) + places_of(before)) == every.places()
    stranger = every.read(spark, startingOffsets="group:latest", consumerGroup=f"{topic}-stranger")
    # The broker tells 0 of a young queue in which a group has committed nothing.
    assert places_of(stranger) == every.places()


def test_queues_are_cut_into_tasks(mixed: Topic, spark: Any) -> None:  # noqa: F811
    for options, least in (({"minPartitions": "16"}, 16), ({"maxRecordsPerPartition": "7"}, 23)):
        frame = mixed.read(spark, **options)
        assert frame.rdd.getNumPartitions() >= least
        assert places_of(frame) == mixed.places()


def test_the_index_finds_messages_by_their_keys(mixed: Topic, spark: Any) -> None:  # noqa: F811
    event = mixed.events[42]
    spark.conf.set(PUSHDOWN, "true")
    try:
        for column, value in (("uniqKey", f"'{event['msgId']}'"), ("keys", f"array('{event['keys']}')")):
            frame = mixed.read(spark, indexLookup="true").where(f"{column} = {value}")
            assert places_of(frame) == mixed.places(
                wanted=lambda each, column=column: (
                    each["msgId"] == event["msgId"] if column == "uniqKey" else each["keys"] == event["keys"]
                )
            )
            # PySpark 4.0 pushes no filters down.
            assert frame.rdd.getNumPartitions() == 1 or spark.version < "4.1"
        wanted = mixed.places(wanted=lambda each: each.get("tags") in ("BB", "paid") and each["queueOffset"] < 9)
        assert places_of(mixed.read(spark).where("tags IN ('BB', 'paid') AND queueOffset < 9")) == wanted
    finally:
        spark.conf.unset(PUSHDOWN)


def test_tags_of_the_same_hash_are_told_apart(mixed: Topic, spark: Any) -> None:  # noqa: F811
    for tag in ("Aa", "BB"):
        wanted = mixed.places(wanted=lambda event, tag=tag: event.get("tags") == tag)
        assert wanted
        assert places_of(mixed.read(spark, tags=tag)) == wanted


@attrs.frozen
class Set:
    """A Java master that flushes and replicates before it answers, filters by properties, and has a Java slave."""

    fleet: Fleet
    namesrv: Namesrv
    master: Broker
    slave: Broker


@pytest.fixture
def pair(java: JavaSystem, host: PeerHost, tmp_path: Path) -> Iterator[Set]:
    fleet = Fleet(tmp_path, java, host)
    try:
        namesrv = fleet.namesrv("java")
        settings: dict[str, Any] = {
            "brokerRole": "SYNC_MASTER",
            "flushDiskType": "SYNC_FLUSH",
            "enablePropertyFilter": "true",
        }
        master = fleet.broker("java", namesrv, **settings)
        yield Set(fleet, namesrv, master, start_slave(fleet, namesrv, master, "java"))
    finally:
        fleet.stop_all()


def test_acks_and_reads_of_a_set_of_brokers(pair: Set, topic: str, tmp_path: Path, spark: Any) -> None:  # noqa: F811
    fleet, namesrv = pair.fleet, pair.namesrv
    fleet.peer("createtopic", namesrv, topic=topic, broker=pair.master.addr, queues=4).finish()
    frame = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS body", "map('shop', CAST(id % 3 AS STRING)) AS properties"
    )

    def write(acks: str) -> None:
        writer = frame.write.format("rocketmq").mode("append")
        writer.options(**options_for(namesrv.addr, topic=topic, acks=acks, batchBytes="2000")).save()

    write("stored")
    eventually("the slave follows", lambda: follows(pair.slave, pair.master), patience_s=60)
    write("flushed")
    write("replicated")
    eventually("the slave has all", lambda: follows(pair.slave, pair.master), patience_s=60)
    every = Topic(topic, namesrv.addr, pull(fleet, namesrv, topic, count=300))
    assert len(every.events) == 300
    assert Counter(event["sha256"] for event in every.events).most_common(1)[0][1] == 3

    wanted = every.places(wanted=lambda event: event["properties"]["shop"] == "2")
    assert places_of(every.read(spark, sql92="shop = '2'")) == wanted
    for read_from in ("slave", "any"):
        given = options_for(namesrv.addr, topic=topic, startingOffsets="earliest", readFrom=read_from)
        run_available(spark, given, tmp_path / read_from)
        assert kept(spark, tmp_path / read_from) == every.places()

    pair.master.process.kill()
    for read_from in ("slave", "any"):
        assert places_of(every.read(spark, readFrom=read_from)) == every.places()
    with pytest.raises(Exception, match=r"NotReadable|NoBrokerForTopic|TopicNotFound"):
        every.read(spark, retryTimeoutMs="1000").collect()

    fleet.restart(pair.master)
    pair.slave.process.kill()
    with pytest.raises(Exception, match=r"with SLAVE_NOT_AVAILABLE, and acks=replicated requires that"):
        write("replicated")
    write("flushed")
