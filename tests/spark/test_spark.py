"""Real Spark on our own broker: batches, streams, and streams whose driver or broker is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.client import Message, SendFailed
from mqbroker.client.blocking import Producer, PullConsumer
from mqbroker.spark.java import JavaMissing, find_java
from mqbroker.wire.bodies import MessageQueue
from tests.daemons.processes import PATIENCE_SECONDS, Process, wait_for
from tests.spark.session import SOURCE, session_environment, start_session

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

QUEUES = 4
Row = tuple[int, int, str]


@attrs.define
class Cluster:
    """A name server and a broker, `broker-a`, that can be killed and started again on its port."""

    folder: Path
    name_server: str
    broker: Process
    port: int
    lives: int = 1

    def restart_broker(self) -> None:
        self.lives += 1
        self.broker = start_broker(
            self.folder / f"broker{self.lives}", self.folder / "store", self.name_server, self.port
        )


def start_daemon(name: str, folder: Path, *settings: str) -> Process:
    folder.mkdir()
    options = [part for setting in ("bindAddress=127.0.0.1", *settings) for part in ("-o", setting)]
    return Process(folder, ["-m", f"mqbroker.daemons.{name}", *options, "--ports-file", "ports.json"])


def start_broker(folder: Path, store: Path, name_server: str, port: int) -> Process:
    settings = {
        "namesrvAddr": name_server,
        "listenPort": port,
        "haListenPort": 0,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 16 << 20,
        "maxIndexNum": 4000,
        "maxHashSlotNum": 1000,
        "diskMaxUsedSpaceRatio": 99,
        "defaultTopicQueueNums": QUEUES,
    }
    broker = start_daemon("broker", folder, *(f"{key}={value}" for key, value in settings.items()))
    broker.wait_for_port()
    broker.wait_for_line("boot success")
    return broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    namesrv = start_daemon("namesrv", folder / "namesrv", "listenPort=0", f"kvConfigPath={folder / 'kv.json'}")
    try:
        name_server = f"127.0.0.1:{namesrv.wait_for_port()}"
        broker = start_broker(folder / "broker1", folder / "store", name_server, 0)
        cluster = Cluster(folder, name_server, broker, broker.wait_for_port())
        try:
            yield cluster
        finally:
            cluster.broker.end()
    finally:
        namesrv.end()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in session_environment(scratch).items():
            patch.setenv(name, value)
        session = start_session(scratch)
        yield session
        session.stop()


def publish(cluster: Cluster, topic: str, count: int, first: int = 0, **fields: Any) -> list[Row]:
    """Send messages; returns queue, offset and body of each."""
    rows = []
    with Producer(cluster.name_server, "publisher") as producer:
        for n in range(first, first + count):
            result = producer.send(Message(topic, f"message {n}", **fields))
            rows.append((result.queue.queue_id, result.queue_offset, f"message {n}"))
    return rows


def reader(spark: Any, cluster: Cluster, topic: str, /, **options: str) -> Any:
    return spark.read.format("rocketmq").options(**{"nameServer": cluster.name_server, "topic": topic} | options)


def stream(spark: Any, cluster: Cluster, topic: str, **options: str) -> Any:
    return spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, topic=topic, **options)


def rows_of(frame: Any) -> list[Row]:
    found = frame.selectExpr("queueId", "queueOffset", "CAST(body AS STRING) AS text").collect()
    return sorted((row.queueId, row.queueOffset, row.text) for row in found)


def test_a_batch_reads_every_message_once(spark: Any, cluster: Cluster) -> None:
    sent = publish(cluster, "Batch", 100)
    frame = reader(spark, cluster, "Batch").load()
    assert rows_of(frame) == sorted(sent)
    assert frame.rdd.getNumPartitions() == QUEUES


def test_the_columns_of_a_message(spark: Any, cluster: Cluster) -> None:
    with Producer(cluster.name_server, "publisher") as producer:
        message = Message("Columns", "x" * 10_000, tags="paid", keys=["k1", "k2"], properties={"shop": "7"}, flag=5)
        result = producer.send(message)
    (row,) = reader(spark, cluster, "Columns").load().collect()
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == (
        "Columns",
        "broker-a",
        result.queue.queue_id,
        0,
    )
    assert (row.tags, row["keys"], row.flag, row.reconsumeTimes) == ("paid", ["k1", "k2"], 5, 0)
    assert (row.msgId, row.uniqKey) == (result.offset_msg_id, result.msg_id)
    assert row.properties["shop"] == "7"
    assert row.bornHost.startswith("127.0.0.1:")
    assert row.storeHost == f"127.0.0.1:{cluster.port}"
    # Long bodies travel compressed.
    assert row.sysFlag & 1
    assert row.storeSize < 1000
    assert bytes(row.body) == b"x" * 10_000
    assert row.bornTimestamp <= row.storeTimestamp


def test_offsets_and_a_schema_choose(spark: Any, cluster: Cluster) -> None:
    sent = publish(cluster, "Choose", 40)
    offsets = {"Choose": {"broker-a": {"0": 3, "1": -2}}}
    ends = {"Choose": {"broker-a": {"0": 7, "1": 2, "2": 0}}}
    frame = (
        reader(spark, cluster, "Choose", startingOffsets=json.dumps(offsets), endingOffsets=json.dumps(ends))
        .schema("BODY binary, queueOffset bigint, queueId int")
        .load()
    )
    assert frame.columns == ["BODY", "queueOffset", "queueId"]
    wanted = [row for row in sent if (row[0] == 0 and 3 <= row[1] < 7) or (row[0] == 1 and row[1] < 2) or row[0] == 3]
    assert rows_of(frame) == sorted(wanted)


def test_a_query_that_wants_few_rows_leaves_clean_connections(spark: Any, cluster: Cluster) -> None:
    with Producer(cluster.name_server, "publisher") as producer:
        for _ in range(20):
            producer.send_batch([Message("Few", "x" * 1000) for _ in range(1000)])
    frame = reader(spark, cluster, "Few").load()
    for _ in range(3):
        assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 20_000


def test_several_topics_at_once(spark: Any, cluster: Cluster) -> None:
    publish(cluster, "Left", 5)
    publish(cluster, "Right", 7)
    counts = {
        row.topic: row["count"]
        for row in reader(spark, cluster, "Left,Right").load().groupBy("topic").count().collect()
    }
    assert counts == {"Left": 5, "Right": 7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "newest"}, "'newest' is not 'earliest' or 'latest'"),
        ({"topic": "NoSuchTopic"}, "No route info of this topic: NoSuchTopic"),
    ],
)
def test_mistakes_reach_the_user(spark: Any, cluster: Cluster, options: dict[str, str], message: str) -> None:
    publish(cluster, "Mistakes", 1)
    with pytest.raises(Exception, match=message):
        reader(spark, cluster, "Mistakes", **options).load().count()


@pytest.fixture
def run_available(spark: Any, cluster: Cluster, tmp_path: Path) -> Callable[..., list[Any]]:
    def run(topic: str, **options: str) -> list[Any]:
        messages = stream(spark, cluster, topic, **options).load()
        writer = messages.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "sink"))
        assert query.awaitTermination(PATIENCE_SECONDS)
        return list(query.recentProgress)

    return run


def test_runs_of_what_is_available_take_each_message_once(
    spark: Any, cluster: Cluster, tmp_path: Path, run_available: Callable[..., list[Any]]
) -> None:
    sent = publish(cluster, "Available", 50)
    progress = run_available("Available", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert [p.numInputRows for p in progress if p.numInputRows] == [20, 20, 10]
    sent += publish(cluster, "Available", 30, 50)
    run_available("Available", startingOffsets="earliest")
    run_available("Available", startingOffsets="earliest")
    assert rows_of(spark.read.parquet(str(tmp_path / "sink"))) == sorted(sent)


class Publishing:
    """Sends messages from a thread until it is stopped; `sent` is what was acknowledged, `tried` what was attempted."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.sent: set[Row] = set()
        self.tried = 0
        self._cluster = cluster
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        goal = len(self.sent) + count
        wait_for(lambda: len(self.sent) >= goal, f"{goal} messages sent")

    def _run(self) -> None:
        with Producer(self._cluster.name_server, "publisher") as producer:
            while not self._stop.wait(0.002):
                self.tried += 1
                text = f"message {self.tried}"
                try:
                    result = producer.send(Message(self._topic, text))
                except SendFailed:
                    continue
                self.sent.add((result.queue.queue_id, result.queue_offset, text))


def test_a_stream_outlives_its_broker(spark: Any, cluster: Cluster) -> None:
    sent = set(publish(cluster, "Outlive", 20))
    messages = stream(spark, cluster, "Outlive", startingOffsets="earliest").load()
    query = messages.writeStream.format("memory").queryName("outlive").start()
    try:
        seen = spark.table("outlive")
        wait_for(lambda: seen.count() == 20, "the messages before the kill", PATIENCE_SECONDS)
        # SIGKILL, as `end` does it: the broker cannot say good-bye.
        cluster.broker.end()
        cluster.restart_broker()
        sent |= set(publish(cluster, "Outlive", 20, 20))
        wait_for(lambda: query.exception() or seen.count() >= 40, "the messages after the restart", PATIENCE_SECONDS)
        assert query.exception() is None
        assert rows_of(seen) == sorted(sent)
    finally:
        query.stop()


def start_driver(cluster: Cluster, topic: str, folder: Path, life: int) -> "subprocess.Popen[bytes]":
    scratch = folder / f"driver{life}"
    scratch.mkdir()
    with (scratch / "output").open("wb") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.spark.driver", cluster.name_server, topic),
                *(str(folder / "checkpoint"), str(folder / "sink"), str(scratch)),
            ],
            cwd=SOURCE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def kill_in_batch(driver: "subprocess.Popen[bytes]", checkpoint: Path, batch: int) -> None:
    """Kill the driver, its JVM too, as soon as `batch` is written down: most likely before it is done."""
    try:
        wait_for(
            lambda: driver.poll() is not None or (checkpoint / "offsets" / str(batch)).exists(),
            f"batch {batch} begins",
            PATIENCE_SECONDS,
        )
        output = Path(cast(list[str], driver.args)[-1]) / "output"
        assert driver.poll() is None, f"the driver ended by itself: {output.read_text()[-5000:]}"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_stream_whose_driver_is_killed_neither_loses_nor_repeats(
    spark: Any, cluster: Cluster, tmp_path: Path, run_available: Callable[..., list[Any]]
) -> None:
    topic, checkpoint = "Killed", tmp_path / "checkpoint"
    publish(cluster, topic, 20)
    with Publishing(cluster, topic) as publishing:
        # It starts at the end of the topic: where that was is known only once the first batch is written down.
        kill_in_batch(start_driver(cluster, topic, tmp_path, 1), checkpoint, 0)
        publishing.wait_for_more(50)
        kill_in_batch(start_driver(cluster, topic, tmp_path, 2), checkpoint, 4)
        publishing.wait_for_more(50)
    run_available(topic)
    started = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[-1])[topic]["broker-a"]
    wanted = {row for row in publishing.sent if row[1] >= started[str(row[0])]}
    assert len(wanted) >= 100
    found = rows_of(spark.read.parquet(str(tmp_path / "sink")))
    assert len(found) == len(set(found))
    assert set(found) == wanted
    with PullConsumer(cluster.name_server, "checker") as consumer:
        ends = {n: consumer.max_offset(MessageQueue(topic, "broker-a", n)) for n in range(QUEUES)}
    assert [row[:2] for row in found] == [(n, at) for n in range(QUEUES) for at in range(started[str(n)], ends[n])]
