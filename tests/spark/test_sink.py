"""Real Spark writes to our own broker: batches, streams, and writers that are killed when all is written."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import mqbroker.spark
from mqbroker.client.send import queue_for_key
from mqbroker.spark import api
from mqbroker.spark.java import JavaMissing, find_java
from mqbroker.wire.bodies import MessageQueue
from tests.daemons.processes import PATIENCE_SECONDS
from tests.spark.session import SOURCE
from tests.spark.test_spark import (  # noqa: F401 - fixtures
    QUEUES,
    Cluster,
    cluster,
    find_processes,
    peak_mib,
    reader,
    said_in,
    sentence_of,
    spark,
    stream,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.daemons,
    pytest.mark.skipif(not api.HAS_SOURCES, reason="PySpark 3.5 has no data sources in Python"),
]

QUEUES_OF_BROKER = range(QUEUES)


def write(frame: Any, cluster: Cluster, topic: str, /, **options: str) -> None:  # noqa: F811
    writer = frame.write.format("rocketmq").mode("append")
    writer.options(**{"nameServer": cluster.name_server, "topic": topic} | options).save()


def texts(spark: Any, cluster: Cluster, topic: str) -> Counter[str]:  # noqa: F811
    rows = reader(spark, cluster, topic).schema("body BINARY").load().selectExpr("CAST(body AS STRING) AS t").collect()
    return Counter(row.t for row in rows)


def test_what_is_written_is_read_back(spark: Any, cluster: Cluster) -> None:  # noqa: F811
    frame = spark.sql(
        "SELECT encode(concat('row ', id), 'UTF-8') AS body, IF(id % 2 = 0, 'even', NULL) AS tags,"
        " array(concat('k', id), 'all') AS keys, map('n', CAST(id AS STRING)) AS properties, CAST(id AS INT) AS flag,"
        " CAST(id % 7 AS STRING) AS shardingKey FROM range(1000)"
    )
    write(frame, cluster, "Sink")
    rows = reader(spark, cluster, "Sink").load().collect()
    queues = [MessageQueue("Sink", "broker-a", n) for n in QUEUES_OF_BROKER]
    by_queue: dict[int, list[int]] = {}
    for row in rows:
        n = row.flag
        assert bytes(row.body) == f"row {n}".encode()
        assert row.tags == (None if n % 2 else "even")
        assert row["keys"] == [f"k{n}", "all"]
        assert row.properties["n"] == str(n)
        assert row.queueId == queue_for_key(queues, str(n % 7)).queue_id
        by_queue.setdefault(row.queueId, []).append(n)
    assert sorted(n for numbers in by_queue.values() for n in numbers) == list(range(1000))


def test_long_bodies_and_delayed_rows(spark: Any, cluster: Cluster) -> None:  # noqa: F811
    frame = spark.sql(
        "SELECT repeat(concat(id, '.'), 3000) AS value, CAST(id % 2 AS INT) AS delayTimeLevel FROM range(4)"
    )
    frame.write.format("rocketmq").mode("append").option("nameServer", cluster.name_server).save("Long")
    found = reader(spark, cluster, "Long").load().collect()
    assert {bytes(row.body) for row in found} >= {b"0." * 3000, b"2." * 3000}
    assert all(row.sysFlag & 1 for row in found)


def test_bodies_as_large_as_may_be_take_the_memory_of_a_few(spark: Any, cluster: Cluster) -> None:  # noqa: F811
    body, few, many = random.Random(1).randbytes(4 << 20), 16, 48
    one = spark.createDataFrame([(bytearray(body),)], "body BINARY")
    # Before 4.1 a piece has a number of rows only.
    setting, value = ("maxBytesPerBatch", "16m") if spark.version >= "4.1" else ("maxRecordsPerBatch", "4")
    setting = f"spark.sql.execution.arrow.{setting}"
    former = spark.conf.get(setting)

    def worker_mib(count: int) -> float:
        """Peak memory of a worker after writing `count` messages in one task, MiB."""
        write(spark.range(0, count, 1, 1).crossJoin(one).select("body"), cluster, "Large")
        return max(peak_mib(pid) for pid in find_processes(os.getpid(), "worker"))

    spark.conf.set(setting, value)
    try:
        peak = worker_mib(few)
        assert worker_mib(many) < peak + 64, peak
    finally:
        spark.conf.set(setting, former)
    sizes = reader(spark, cluster, "Large").schema("body BINARY").load().selectExpr("length(body) AS size")
    assert [tuple(row) for row in sizes.groupBy("size").count().collect()] == [(len(body), few + many)]


SPECULATIVE = "option guarantee: effectively-once is not possible"
#: Columns of two rows, options, and how the sentence begins that the guide quotes.
MISTAKES: list[tuple[list[str], dict[str, str], str]] = [
    (["'x' AS bodi"], {}, "column bodi: "),
    (["'x' AS body"], {"ack": "stored"}, "option ack: "),
    (["'x' AS body"], {"startingOffsets": "latest"}, "option startingOffsets: "),
    (["'x' AS body"], {"nameServer": "127.0.0.1:1"}, "No name server answers: "),
    (["IF(id = 0, 'x', NULL) AS body"], {}, "row 1 of partition 0, column body: is null"),
    (["'x' AS body", "IF(id = 0, array(), array('a b')) AS keys"], {}, "row 1 of partition 0, column keys: "),
    (
        ["'x' AS body", "IF(id = 0, map(), map('TAGS', 'a')) AS properties"],
        {},
        "row 1 of partition 0, column properties: TAGS",
    ),
]


@pytest.mark.parametrize(("columns", "options", "begin"), MISTAKES, ids=[begin for _, _, begin in MISTAKES])
def test_a_mistake_reaches_the_user_in_few_lines(
    spark: Any,  # noqa: F811
    cluster: Cluster,  # noqa: F811
    columns: list[str],
    options: dict[str, str],
    begin: str,
) -> None:
    sentence = sentence_of("write-from-spark", begin)
    frame = spark.range(2).coalesce(1).selectExpr(*columns)
    with pytest.raises(Exception, match=re.escape(sentence)) as caught:
        write(frame, cluster, "Mistakes", **options)
    assert said_in(caught.value).startswith(sentence)
    # Of our own code the frame in which Spark called.
    assert str(caught.value).count("mqbroker/spark/") <= 3


def test_overwriting_is_refused(spark: Any, cluster: Cluster) -> None:  # noqa: F811
    writer = spark.sql("SELECT 'x' AS body").write.format("rocketmq").mode("overwrite")
    with pytest.raises(Exception, match="overwrite is not supported"):
        writer.options(nameServer=cluster.name_server, topic="Over").save()


def run_stream(spark: Any, cluster: Cluster, source: str, topic: str, checkpoint: Path, **options: str) -> None:  # noqa: F811
    frame = stream(spark, cluster, source, startingOffsets="earliest").load().selectExpr("body", "keys", "tags")
    writer = frame.writeStream.format("rocketmq").option("checkpointLocation", str(checkpoint))
    writer = writer.options(nameServer=cluster.name_server, topic=topic, **options)
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)


def forget_commit(checkpoint: Path) -> None:
    """As if the driver had been killed between the write of the last batch and its commit."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("guarantee", "times"), [("at-least-once", 2), ("effectively-once", 1)])
def test_a_batch_of_a_stream_that_is_repeated(
    spark: Any,  # noqa: F811
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    guarantee: str,
    times: int,
) -> None:
    source, topic = f"From-{times}", f"To-{times}"
    write(spark.range(300).selectExpr("CAST(id AS STRING) AS body"), cluster, source)
    run_stream(spark, cluster, source, topic, tmp_path, guarantee=guarantee)
    assert texts(spark, cluster, topic) == Counter({str(n): 1 for n in range(300)})
    forget_commit(tmp_path)
    run_stream(spark, cluster, source, topic, tmp_path, guarantee=guarantee)
    assert texts(spark, cluster, topic) == Counter({str(n): times for n in range(300)})


def test_an_update_stream_is_written_by_foreach_batch(spark: Any, cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    write(spark.range(100).selectExpr("CAST(id % 3 AS STRING) AS body"), cluster, "Words")
    words = (
        stream(spark, cluster, "Words", startingOffsets="earliest").load().selectExpr("CAST(body AS STRING) AS word")
    )
    counts = words.groupBy("word").count().selectExpr("word AS key", "concat(word, ' ', count) AS value")

    def run() -> None:
        sink = mqbroker.spark.foreach_batch(
            nameServer=cluster.name_server, topic="Counts", guarantee="effectively-once", idColumns="key"
        )
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path))
        assert writer.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)

    run()
    forget_commit(tmp_path)
    run()
    wanted = Counter({"0 34": 1, "1 33": 1, "2 33": 1})
    assert texts(spark, cluster, "Counts") == wanted


def test_complete_mode_is_refused(spark: Any, cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    write(spark.sql("SELECT 'x' AS body"), cluster, "Complete")
    counts = stream(spark, cluster, "Complete").load().groupBy("body").count().selectExpr("body")
    writer = counts.writeStream.format("rocketmq").outputMode("complete").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="complete writes all rows again"):
        writer.options(nameServer=cluster.name_server, topic="X").start().awaitTermination(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def driven(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:  # noqa: F811
    """The errors of the writes of `sink_driver`, by topic."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    arguments = [cluster.name_server, "2000", str(tmp_path_factory.mktemp("driver"))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.sink_driver", *arguments],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


@pytest.mark.parametrize("times", [2, 1], ids=["at-least-once-2", "effectively-once-1"])
def test_writers_that_are_killed_between_write_and_commit(
    spark: Any,  # noqa: F811
    cluster: Cluster,  # noqa: F811
    driven: dict[str, str | None],
    times: int,
) -> None:
    assert driven[f"Killed-{times}"] is None
    assert texts(spark, cluster, f"Killed-{times}") == Counter({str(n): times for n in range(2000)})


def test_effectively_once_is_refused_where_tasks_run_speculatively(driven: dict[str, str | None]) -> None:
    assert sentence_of("write-from-spark", SPECULATIVE) in (driven["Speculative"] or "")
