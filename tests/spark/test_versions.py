"""What every supported version of PySpark does, and where they differ: `tox -e spark35,spark40,spark41,spark42`.

Those that are marked `repeats` show nothing of the newest PySpark that test_spark, test_sink, test_programs and
test_kills do not show.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import mqbroker.spark
from mqbroker.client.blocking import PullConsumer
from mqbroker.client.send import queue_for_key
from mqbroker.spark import api, connections
from mqbroker.spark.errors import BadCheckpoint
from mqbroker.spark.schema import COLUMNS
from mqbroker.wire.bodies import MessageQueue
from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.spark.driver import copy_to_files
from tests.spark.session import SOURCE
from tests.spark.test_spark import (  # noqa: F401 - fixtures
    QUEUES,
    Cluster,
    Publishing,
    cluster,
    publish,
    rows_of,
    spark,
)

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

#: Drivers that are killed, the first of them in batch 0, and the moments: more and others at will.
KILLS = int(os.environ.get("MQBROKER_SPARK_KILLS", "2"))
SEED = int(os.environ.get("MQBROKER_SPARK_SEED", "43"))
#: 4.0 and 4.1 run one batch where all that is available is asked for.
ONE_BATCH_A_RUN = api.HAS_SOURCES and not api.TELLS_START


@attrs.define
class Query:
    """Reads topics, in the way of this version, into Parquet files; `checkpoint` and `sink` are directories."""

    spark: Any
    cluster: Cluster
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def sink(self) -> Path:
        return self.folder / "sink"

    def batch(self, topic: str, columns: str | None = None, **options: str) -> Any:
        if not api.HAS_SOURCES:
            return mqbroker.spark.read(self.spark, columns, nameServer=self.cluster.name_server, topic=topic, **options)
        reader = self.spark.read.format("rocketmq")
        reader = reader.options(nameServer=self.cluster.name_server, topic=topic, **options)
        return (reader if columns is None else reader.schema(columns)).load()

    def stream(self, topic: str, **options: str) -> Any:
        return self.spark.readStream.format("rocketmq").options(
            nameServer=self.cluster.name_server, topic=topic, **options
        )

    def run(self, topic: str, process: Callable[[Any, int], None] | None = None, **options: str) -> list[int]:
        """Process what is available; returns the number of rows of each batch that has some."""
        counts: list[int] = []

        def keep(frame: Any, batch: int) -> None:
            if process is not None:
                process(frame, batch)
            elif count := frame.count():
                counts.append(count)
                # A batch that is repeated replaces its own files.
                frame.write.mode("overwrite").parquet(str(self.sink / f"batch={batch}"))

        if api.HAS_SOURCES:
            writer = self.stream(topic, **options).load().writeStream.foreachBatch(keep)
            writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
            assert writer.start().awaitTermination(PATIENCE_SECONDS)
        else:
            given: dict[str, Any] = {"nameServer": self.cluster.name_server, "topic": topic, **options}
            mqbroker.spark.stream(self.spark, keep, checkpoint=str(self.checkpoint), available_now=True, **given)
        return counts

    def run_until_it_fails(self, topic: str, process: Callable[[Any, int], None], **options: str) -> None:
        """Process what comes. Raises what `process` raises, within an error of Spark."""
        if api.HAS_SOURCES:
            writer = self.stream(topic, **options).load().writeStream.foreachBatch(process)
            writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(processingTime="50 milliseconds")
            writer.start().awaitTermination(PATIENCE_SECONDS)
        else:
            given: dict[str, Any] = {"nameServer": self.cluster.name_server, "topic": topic, **options}
            mqbroker.spark.stream(self.spark, process, checkpoint=str(self.checkpoint), trigger_s=0.05, **given)

    def write(self, frame: Any, topic: str, **options: str) -> None:
        given = {"nameServer": self.cluster.name_server, "topic": topic} | options
        if api.HAS_SOURCES:
            frame.write.format("rocketmq").mode("append").options(**given).save()
        else:
            mqbroker.spark.write(frame, **given)

    def rows(self) -> list[Any]:
        return rows_of(self.spark.read.parquet(str(self.sink)))

    def forget_commit(self) -> None:
        """As if the driver had been killed before the commit of the last batch."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def clients_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the clients of the driver: `stream`, and all that PySpark 3.5 plans, leave them open for the next query."""
    opened: list[PullConsumer] = []

    def consumer(*args: Any, **kwargs: Any) -> PullConsumer:
        opened.append(PullConsumer(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(connections, "PullConsumer", consumer)
    yield
    for each in opened:
        each.close()
    connections._client.cache_clear()
    connections._consumer.cache_clear()


@pytest.fixture
def query(spark: Any, cluster: Cluster, tmp_path: Path, clients_end: None) -> Query:  # noqa: F811
    return Query(spark, cluster, tmp_path)


def test_a_batch_has_every_message_and_every_column(query: Query) -> None:
    sent = publish(query.cluster, "VBatch", 100, tags="paid", keys=["k1", "k2"], properties={"shop": "7"})
    frame = query.batch("VBatch")
    assert frame.columns == [column.name for column in COLUMNS]
    assert rows_of(frame) == sorted(sent)
    row = frame.filter("queueId = 0 AND queueOffset = 0").first()
    assert (row.topic, row.brokerName, row.tags, row["keys"]) == ("VBatch", "broker-a", "paid", ["k1", "k2"])
    assert row.properties["shop"] == "7"
    assert row.bornTimestamp <= row.storeTimestamp
    assert frame.rdd.getNumPartitions() == QUEUES
    few = query.batch("VBatch", "queueOffset BIGINT, tags STRING", minPartitions="8")
    assert few.rdd.getNumPartitions() == 8
    assert few.groupBy("tags").count().collect() == [("paid", 100)]
    assert query.batch("VBatch", startingOffsets="latest").count() == 0


@pytest.mark.repeats
def test_runs_of_what_is_available_take_each_message_once(query: Query) -> None:
    sent = publish(query.cluster, "VAvailable", 50)
    assert query.run("VAvailable", startingOffsets="earliest") == [50]
    sent += publish(query.cluster, "VAvailable", 30, 50)
    assert query.run("VAvailable", startingOffsets="earliest") == [30]
    assert query.run("VAvailable", startingOffsets="earliest") == []
    assert query.rows() == sorted(sent)


def test_a_limit_is_one_of_each_batch(query: Query) -> None:
    sent = publish(query.cluster, "VLimit", 50)
    runs = [query.run("VLimit", startingOffsets="earliest", maxOffsetsPerTrigger="20") for _ in range(3)]
    assert runs == ([[20], [20], [10]] if ONE_BATCH_A_RUN else [[20, 20, 10], [], []])
    assert query.rows() == sorted(sent)


def test_a_limit_in_bytes_is_one_of_each_batch(query: Query) -> None:
    sent = publish(query.cluster, "VBytes", 2 * QUEUES)
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1"}
    runs = [query.run("VBytes", **options) for _ in range(3)]
    # Each queue gets a message at least.
    assert runs == ([[QUEUES], [QUEUES], []] if ONE_BATCH_A_RUN else [[QUEUES, QUEUES], [], []])
    assert query.rows() == sorted(sent)


def test_a_run_of_what_is_available_waits_for_no_minimum(query: Query) -> None:
    sent = publish(query.cluster, "VMinimum", 50)
    options: dict[str, Any] = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "100", "maxTriggerDelay": "1h"}
    runs = [query.run("VMinimum", **options)]
    sent += publish(query.cluster, "VMinimum", 60, 50)
    runs.append(query.run("VMinimum", **options))
    # 4.0 and 4.1 do not say that what is available is asked for.
    assert runs == ([[], [110]] if ONE_BATCH_A_RUN else [[50], [60]])
    assert query.rows() == sorted(sent)


def test_a_batch_that_fails_ends_the_stream_and_is_repeated(query: Query) -> None:
    sent = publish(query.cluster, "VFails", 20)
    seen: list[tuple[int, Any]] = []

    def process(frame: Any, batch: int) -> None:
        if not (rows := rows_of(frame)):
            return
        seen.append((batch, rows))
        if len(seen) == 1:
            # The stream still runs, and takes what comes.
            sent.extend(publish(query.cluster, "VFails", 10, 20))
        elif len(seen) == 2:
            raise RuntimeError("the second batch fails")

    with pytest.raises(Exception, match="the second batch fails"):
        query.run_until_it_fails("VFails", process, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.run("VFails", process, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert len(seen) == 3
    assert seen[1] == seen[2]
    assert sorted(seen[0][1] + seen[1][1]) == sorted(sent)


def test_what_is_written_is_read_back(query: Query) -> None:
    frame = query.spark.sql(
        "SELECT concat('row ', id) AS body, IF(id % 2 = 0, 'even', NULL) AS tags, array(concat('k', id)) AS keys,"
        " map('n', CAST(id AS STRING)) AS properties, CAST(id % 7 AS STRING) AS shardingKey FROM range(200)"
    )
    for _ in range(2):
        query.write(frame, "VWritten", guarantee="effectively-once", writeId="once")
    rows = query.batch("VWritten").collect()
    found = sorted((int(row.properties["n"]), bytes(row.body).decode(), row.tags, *row["keys"]) for row in rows)
    assert found == [(n, f"row {n}", None if n % 2 else "even", f"k{n}") for n in range(200)]
    queues = [MessageQueue("VWritten", "broker-a", n) for n in range(QUEUES)]
    for row in rows:
        assert row.queueId == queue_for_key(queues, str(int(row.properties["n"]) % 7)).queue_id
    with pytest.raises(Exception, match="column bodi: messages have no such column; did you mean body"):
        query.write(frame.selectExpr("body AS bodi"), "VWritten")


def test_what_chooses_messages(query: Query) -> None:
    sent = publish(query.cluster, "VChosen", 40, tags="paid", properties={"shop": "7"})
    sent += publish(query.cluster, "VChosen", 40, 40, tags="open", properties={"shop": "8"})
    assert rows_of(query.batch("VChosen", tags="open")) == sorted(sent[40:])
    rows = query.batch("VChosen").orderBy("storeTimestamp").collect()
    middle = rows[50].storeTimestamp.timestamp() * 1000
    late = {(row.queueId, row.queueOffset) for row in rows if row.storeTimestamp.timestamp() * 1000 >= middle}
    found = query.batch("VChosen", startingTimestamp=str(round(middle))).collect()
    assert {(row.queueId, row.queueOffset) for row in found} == late
    ends = json.dumps({"VChosen": {"broker-a": {"0": 3, "1": 0, "2": 0, "3": 0}}})
    assert query.batch("VChosen", endingOffsets=ends, maxRecordsPerPartition="2").rdd.getNumPartitions() == 2
    shops = query.batch("VChosen", propertyColumns="shop").groupBy("prop_shop").count().collect()
    assert sorted(map(tuple, shops)) == [("7", 40), ("8", 40)]
    kafka = query.batch("VChosen", schema="kafka")
    assert kafka.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert kafka.filter("headers[0].key = 'shop'").count() == 80


def test_a_stream_from_the_end_begins_where_its_first_run_was(query: Query) -> None:
    publish(query.cluster, "VLatest", 20)
    assert query.run("VLatest") == []
    sent = publish(query.cluster, "VLatest", 10, 20)
    # The commit of the batch that reads nothing is lost: where the query starts is known all the same.
    query.forget_commit()
    counts = query.run("VLatest") + query.run("VLatest")
    assert counts == [10]
    assert query.rows() == sorted(sent)


def test_a_batch_that_is_repeated_has_the_same_messages(query: Query) -> None:
    sent = publish(query.cluster, "VRepeated", 20)
    assert query.run("VRepeated", startingOffsets="earliest") == [20]
    query.forget_commit()
    sent += publish(query.cluster, "VRepeated", 10, 20)
    runs = query.run("VRepeated", startingOffsets="earliest") + query.run("VRepeated", startingOffsets="earliest")
    assert runs == [20, 10]
    assert query.rows() == sorted(sent)


@pytest.mark.repeats
def test_mistakes_reach_the_user(query: Query) -> None:
    publish(query.cluster, "VMistakes", 1)
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        query.batch("VMistakes", startingOffset="latest").count()
    with pytest.raises(Exception, match="column bodi: messages have no such column; did you mean body"):
        query.batch("VMistakes", "bodi BINARY").count()


@pytest.mark.repeats
def test_each_batch_of_a_stream_is_written_to_a_topic_once(query: Query) -> None:
    publish(query.cluster, "VFrom", 200)
    sink = mqbroker.spark.foreach_batch(nameServer=query.cluster.name_server, topic="VTo", guarantee="effectively-once")

    def write(frame: Any, batch: int) -> None:
        sink(frame.select("body", "tags"), batch)

    query.run("VFrom", write, startingOffsets="earliest")
    query.forget_commit()
    query.run("VFrom", write, startingOffsets="earliest")
    texts = Counter(row[2] for row in rows_of(query.batch("VTo")))
    assert texts == Counter(f"message {n}" for n in range(200))


@pytest.mark.repeats
@pytest.mark.skipif(not api.HAS_SOURCES, reason="PySpark 3.5 has no sinks in Python")
def test_a_stream_is_written_to_a_topic_by_the_format(query: Query) -> None:
    publish(query.cluster, "VStream", 100, tags="a", properties={"n": "1"}, keys=["k"])
    frame = query.stream("VStream", startingOffsets="earliest").load()
    frame = frame.selectExpr("body", "tags", "keys", "map('n', properties['n']) AS properties")
    writer = frame.writeStream.format("rocketmq").option("checkpointLocation", str(query.checkpoint))
    writer = writer.options(nameServer=query.cluster.name_server, topic="VCopy", guarantee="effectively-once")
    for _ in range(2):
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)
        query.forget_commit()
    copies = query.batch("VCopy").collect()
    assert sorted(bytes(row.body).decode() for row in copies) == sorted(f"message {n}" for n in range(100))
    assert {(row.tags, tuple(row["keys"]), row.properties["n"]) for row in copies} == {("a", ("k",), "1")}


@pytest.mark.repeats
@pytest.mark.skipif(not api.HAS_SOURCES, reason="PySpark 3.5 has no listener of queries that read this format")
def test_a_listener_knows_what_a_limit_leaves(query: Query) -> None:
    from mqbroker.spark.listener import ProgressListener

    seen: list[int] = []

    class Listener(ProgressListener):
        def onQueryProgress(self, event: Any) -> None:
            super().onQueryProgress(event)
            seen.extend(sum(each.messages for each in lag.queues.values()) for lag in self.lags())

    publish(query.cluster, "VLag", 50)
    listener = Listener()
    query.spark.streams.addListener(listener)
    frame = query.stream("VLag", startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    running = frame.writeStream.format("noop").option("checkpointLocation", str(query.checkpoint)).start()
    try:
        wait_for(lambda: 0 in seen, "all is read", PATIENCE_SECONDS)
    finally:
        running.stop()
        query.spark.streams.removeListener(listener)
    # From 4.2 on the first batch has no rows, and is behind by all of them.
    assert seen[: seen.index(0) + 1] == [50, 30, 10, 0][not api.TELLS_START :]


def damage(path: Path, data: bytes | None, *, checksum: bool = False) -> None:
    """Replace a file, or delete it, with Hadoop's checksum of it unless that is to be noticed."""
    if not checksum:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def test_a_damaged_checkpoint_is_told_in_a_sentence(query: Query) -> None:
    publish(query.cluster, "VDamage", 1)

    def run(checkpoint: Path = query.checkpoint) -> None:
        given: dict[str, Any] = {"nameServer": query.cluster.name_server, "topic": "VDamage"}
        mqbroker.spark.stream(query.spark, lambda *_: None, checkpoint=str(checkpoint), available_now=True, **given)

    run()
    first, metadata = (query.checkpoint / "offsets" / "0"), query.checkpoint / "metadata"
    whole = {path: path.read_bytes() for path in (first, metadata)}
    later = json.dumps(json.loads(whole[metadata]) | {"version": 2}).encode()
    for path, data, checksum, said in (
        (first, whole[first][:-9], True, "offsets/0 cannot be read: ChecksumException: "),
        (first, whole[first][:-9], False, "offsets/0 is damaged: its "),
        (first, None, False, "offsets/0 is missing, although batch 0 is done; "),
        (metadata, later, False, "it has version 2, of a later mqbroker, "),
        (metadata, None, False, "metadata is missing, "),
    ):
        damage(path, data, checksum=checksum)
        with pytest.raises(BadCheckpoint, match=f"^checkpoint {query.checkpoint}: {said}"):
            run()
        damage(path, whole[path])
        run()
    with pytest.raises(BadCheckpoint, match=r"metadata cannot be used|cannot be used: \w+: "):
        run(first)
    if api.HAS_SOURCES:
        query.stream("VDamage").load().writeStream.format("noop").trigger(availableNow=True).option(
            "checkpointLocation", str(query.folder / "other")
        ).start().awaitTermination(PATIENCE_SECONDS)
        with pytest.raises(BadCheckpoint, match="it is one of a query that Spark drives, with writeStream"):
            run(query.folder / "other")


@pytest.mark.skipif(find_spec("pandas") is None, reason="functions on data frames need pandas")
def test_the_program_without_data_sources(query: Query) -> None:
    publish(query.cluster, "orders", 5, tags="paid")
    program = [sys.executable, f"{SOURCE}/examples/spark_35.py", query.cluster.name_server]
    printed = [
        subprocess.run(
            program, cwd=query.folder, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert ["batch 1 is done" in text for text in printed] == [True, False]
    assert "|paid|    5|" in printed[0]
    assert sorted(query.spark.read.text(f"{query.folder}/orders.text").select("value").toPandas()["value"]) == [
        f"message {n}" for n in range(5)
    ]


def start_driver(query: Query, topic: str, life: int) -> "subprocess.Popen[bytes]":
    scratch = query.folder / f"driver{life}"
    scratch.mkdir()
    with open(scratch / "output", "wb") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.spark.driver", query.cluster.name_server, topic),
                *(str(query.checkpoint), str(query.sink), str(scratch)),
            ],
            cwd=SOURCE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def kill_in_batch(driver: "subprocess.Popen[bytes]", checkpoint: Path, batch: int, pause_s: float) -> None:
    """Kill the driver, its JVM too, `pause_s` after `batch` is written down: while it is planned, read, written or
    committed, or one that follows."""
    try:
        wait_for(
            lambda: driver.poll() is not None or (checkpoint / "offsets" / str(batch)).exists(),
            f"batch {batch} begins",
            PATIENCE_SECONDS,
        )
        time.sleep(pause_s)
        output = Path(cast(list[str], driver.args)[-1]) / "output"
        assert driver.poll() is None, f"the driver ended by itself: {output.read_text()[-5000:]}"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.repeats
def test_a_stream_whose_driver_is_killed_neither_loses_nor_repeats(query: Query) -> None:
    topic, moments = "Killed", random.Random(SEED)
    publish(query.cluster, topic, 20)
    batch = 0
    with Publishing(query.cluster, topic) as publishing:
        for life in range(KILLS):
            # It starts at the end of the topic: where that was is known only once batch 0 is written down.
            kill_in_batch(
                start_driver(query, topic, life),
                query.checkpoint,
                batch,
                moments.choice((0, 0.1, 1)) * moments.random(),
            )
            if not life:  # Spark keeps the offsets of the last hundred batches
                first = json.loads((query.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
            publishing.wait_for_more(50)
            batch = 3 + max(int(path.name) for path in (query.checkpoint / "offsets").glob("[0-9]*"))
    # The first run may be one batch that is repeated.
    for _ in range(2):
        where = (query.cluster.name_server, topic, str(query.checkpoint), str(query.sink))
        copy_to_files(query.spark, *where, available_now=True)
    started = first[topic]["broker-a"]
    wanted = {row for row in publishing.sent if row[1] >= started[str(row[0])]}
    assert len(wanted) >= 50 * KILLS
    found = query.rows()
    assert len(found) == len(set(found))
    assert set(found) == wanted
    with PullConsumer(query.cluster.name_server, "checker") as consumer:
        ends = {n: consumer.max_offset(MessageQueue(topic, "broker-a", n)) for n in range(QUEUES)}
    assert [row[:2] for row in found] == [(n, at) for n in range(QUEUES) for at in range(started[str(n)], ends[n])]
