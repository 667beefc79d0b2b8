"""Spark writes to the Java broker: Java reads what was written, once, in the queues that its selector chooses."""

from collections import Counter
from hashlib import sha256
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.client import blocking
from mqbroker.client.send import queue_for_key
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.traffic import bodies, pull
from tests.spark.test_spark import spark  # noqa: F401 - a fixture

pytestmark = pytest.mark.spark

ROWS = 3000


def test_what_spark_writes_again_is_in_the_java_broker_once(
    shared_fleet: Fleet,
    java_namesrv: Namesrv,
    java_broker: Broker,
    topic: str,
    spark: Any,  # noqa: F811
) -> None:
    shared_fleet.peer("createtopic", java_namesrv, topic=topic, broker=java_broker.addr, queues=4).finish()
    frame = spark.range(ROWS).selectExpr(
        # Some are compressed, and travel in batches as such.
        "IF(id % 100 = 0, repeat(concat(id, '.'), 2000), CAST(id AS STRING)) AS body",
        "IF(id % 2 = 0, 'even', NULL) AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('n', CAST(id AS STRING)) AS properties",
        "CAST(id % 5 AS STRING) AS shardingKey",
    )
    for _ in range(2):
        writer = frame.write.format("rocketmq").mode("append")
        writer.options(nameServer=java_namesrv.addr, guarantee="effectively-once", writeId="job").save(topic)
    events = pull(shared_fleet, java_namesrv, topic, count=ROWS)
    with blocking.Producer(java_namesrv.addr, "asks") as producer:
        queues = producer.queues(topic)
    sent = [f"{n}." * 2000 if n % 100 == 0 else str(n) for n in range(ROWS)]
    assert bodies(events) == Counter(sha256(body.encode()).hexdigest() for body in sent)
    seen: Counter[int] = Counter()
    for event in events:
        n = int(event["properties"]["n"])
        seen[n] += 1
        assert event["queueId"] == queue_for_key(queues, str(n % 5)).queue_id
        assert event.get("tags") == ("even" if n % 2 == 0 else None)
        assert event["keys"] == f"k{n} all"
    assert seen == Counter(dict.fromkeys(range(ROWS), 1))


def test_what_spark_writes_again_at_least_once_is_in_the_java_broker_again(
    shared_fleet: Fleet,
    java_namesrv: Namesrv,
    java_broker: Broker,
    topic: str,
    spark: Any,  # noqa: F811
) -> None:
    shared_fleet.peer("createtopic", java_namesrv, topic=topic, broker=java_broker.addr, queues=4).finish()
    frame = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS value", "concat('k', id) AS key")
    for _ in range(2):
        frame.write.format("rocketmq").mode("append").option("nameServer", java_namesrv.addr).save(topic)
    events = pull(shared_fleet, java_namesrv, topic, count=2 * ROWS)
    assert bodies(events) == Counter({sha256(b"%d" % n).hexdigest(): 2 for n in range(ROWS)})
    assert Counter(event["keys"] for event in events) == Counter({f"k{n}": 2 for n in range(ROWS)})
