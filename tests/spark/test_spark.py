"""Real Spark on our own broker: batches, streams, and streams whose driver or broker is killed."""

import json
import os
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.client import Message, ProducerOptions, SendFailed
from mqbroker.client.blocking import Producer
from mqbroker.spark import api
from mqbroker.spark.java import JavaMissing, find_java
from mqbroker.wire.bodies import MessageQueue
from tests.daemons.processes import PATIENCE_SECONDS, Process, wait_for
from tests.spark.processes import find_processes
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


def start_broker(folder: Path, store: Path, name_server: str, port: int, name: str = "broker-a") -> Process:
    settings = {
        "namesrvAddr": name_server,
        "listenPort": port,
        "haListenPort": 0,
        "brokerName": name,
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


def sentences_of(page: str) -> list[str]:
    """What is printed by the tables of "What goes wrong" of a how-to page, up to the dots of what differs."""
    whole = Path(SOURCE, "docs/howto", f"{page}.rst").read_text().partition("\nWhat goes wrong\n")[2]
    found = re.findall(r"\n     - ``(.*?)``\n", whole + "\n", re.DOTALL)
    return [" ".join(each.split()).removesuffix("...").strip() for each in found]


#: PySpark 4.0 and 4.1 say in one more that an exception was thrown.
FIRST_LINES = 5 if api.TELLS_START else 6


def said_in(error: BaseException, lines: int = FIRST_LINES) -> str:
    """The sentence of an error that Spark has wrapped: behind the name of its class, in the first lines."""
    # Python underlines code of installed modules, but not of the archive which programs of users have: see homes.py.
    shown = [line for line in str(error).splitlines() if not line.strip() or line.strip(" ^~")]
    (line,) = [line for line in shown[:lines] if line.startswith("mqbroker.")]
    return line.partition(": ")[2]


def sentence_of(page: str, begin: str) -> str:
    """The one of them that begins so."""
    (found,) = [each for each in sentences_of(page) if each.startswith(begin.strip())]
    return found


#: Options, and a schema, that are wrong, and the sentence that the guide quotes.
MISTAKES: list[tuple[dict[str, str], str | None, str]] = [
    ({"nameServer": ""}, None, "option nameServer: is required: host:port, or several joined by ';'."),
    (
        {"topic": ""},
        None,
        "option topic: is required: a topic, or several joined by commas; or subscribePattern, or assign",
    ),
    ({"topic": "my orders"}, None, "option topic: 'my orders': "),
    (
        {"subscribePattern": "ord.*"},
        None,
        "option topic: set one of topic and subscribePattern: each says what is read",
    ),
    ({"nameServer": "127.0.0.1:1"}, None, "No name server answers: 127.0.0.1:1: Unreachable: connect to 127.0.0.1:1"),
    ({"topic": "order"}, None, "No route info of this topic: order, asked "),
    (
        {"startingOffset": "latest"},
        None,
        "option startingoffset: there is no such option; did you mean startingOffsets",
    ),
    ({"kafka.bootstrap.servers": "h:1"}, None, "option kafka.bootstrap.servers: is an option of Spark's Kafka source"),
    ({"startingOffsets": "newest"}, None, "option startingOffsets: 'newest' is not 'earliest' or 'latest', or JSON"),
    (
        {"startingOffsets": '{"orders":{"broker-a":{"0":99}}}'},
        None,
        "option startingOffsets: 99 is beyond the end of queue 0 of topic orders on broker broker-a, which is 1",
    ),
    (
        {"startingOffsets": '{"orders":{"broker-a":{"77":0}}}'},
        None,
        "option startingOffsets: queue 77 of topic orders on broker broker-a does not exist; these do: ",
    ),
    (
        {"startingTimestamp": "2026-01-01T00:00:00"},
        None,
        "option startingTimestamp: '2026-01-01T00:00:00' has no time zone and is ambiguous; use milliseconds ",
    ),
    (
        {"endingTimestamp": "2100-01-01T00:00:00Z"},
        None,
        "option endingTimestamp: '2100-01-01T00:00:00Z' is in the future: no message is stored then yet; leave it out ",
    ),
    (
        {"startingOffsets": '{"bills":{"broker-a":{"0":1}}}'},
        None,
        "option startingOffsets: topic 'bills' is not among those read: orders",
    ),
    (
        {"startingOffsets": '{"orders":{"broker-a":{"0":1}}}', "endingOffsets": '{"orders":{"broker-a":{"0":0}}}'},
        None,
        "option endingOffsets: 0 is before the start, 1, of queue 0 of topic orders on broker broker-a",
    ),
    (
        {"startingOffsets": "latest", "startingTimestamp": "2026-01-01T00:00:00Z"},
        None,
        "option startingTimestamp: set one of startingTimestamp and startingOffsets: each says where the query starts",
    ),
    (
        {"expectBrokers": "broker-b", "retryTimeoutMs": "0"},
        None,
        "expected brokers are not registered with the name servers: broker-b; these are: broker-a",
    ),
    ({}, "bodi BINARY", "column bodi: messages have no such column; did you mean body? "),
    ({}, "body STRING", "column body: its type is binary, not string; read it as it is, and cast after that"),
]


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> None:
    """The topic of the guide, with a message in each queue."""
    publish(cluster, "orders", QUEUES)


@pytest.mark.usefixtures("orders")
def test_spark_prints_the_sentence_of_each_mistake_that_the_guide_has(spark: Any, cluster: Cluster) -> None:
    for options, columns, begin in MISTAKES:
        sentence = sentence_of("jobs-on-spark", begin)
        given = reader(spark, cluster, "orders", **options)
        with pytest.raises(Exception, match=re.escape(sentence)) as caught:
            (given if columns is None else given.schema(columns)).load().count()
        assert said_in(caught.value).startswith(sentence)


#: As `MISTAKES`, of streams: the options, the offsets that the checkpoint of a query gets, which has read a message of
#: each queue, and how the sentence begins.
STREAM_MISTAKES: list[tuple[dict[str, str], dict[str, int], str]] = [
    (
        {"endingOffsets": "latest"},
        {},
        "option endingOffsets: a stream has no end; use it with spark.read, or leave it out",
    ),
    (
        {},
        {"0": 99},
        "ROCKETMQ_DATA_LOSS.CUT_SHORT: topic orders, broker broker-a, queue 0: ",
    ),
]


@pytest.mark.usefixtures("orders")
def test_spark_prints_the_sentence_of_a_stream_that_ends(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    def run(**options: str) -> None:
        frame = stream(spark, cluster, "orders", **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/checkpoint")
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)

    run(startingOffsets="earliest")
    offsets = tmp_path / "checkpoint" / "offsets"
    last = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    before = last.read_text()
    for options, changed, begin in STREAM_MISTAKES:
        sentence = sentence_of("jobs-on-spark", begin)
        lines = before.splitlines()
        position = json.loads(lines[-1])
        position["orders"]["broker-a"] |= changed
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        last.write_text("\n".join([*lines[:-1], json.dumps(position)]))
        with pytest.raises(Exception, match=re.escape(sentence)) as caught:
            run(**options)
        # Spark's process for streams prints two frames of its own.
        assert said_in(caught.value, 9).startswith(sentence)


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


def test_large_bodies_take_the_memory_of_a_few(spark: Any, cluster: Cluster) -> None:
    body, few, many = random.Random(1).randbytes(4 << 20), 16, 80
    queue = MessageQueue("Large", "broker-a", 0)
    publish(cluster, "Large", 1)
    with Producer(cluster.name_server, "large", options=ProducerOptions(compress_over_bytes=2**30)) as producer:
        ends = [producer.send(Message("Large", body), queue=queue).queue_offset + 1 for _ in range(many)]

    def worker_mib(count: int) -> float:
        """Peak memory of a worker after reading `count` messages, MiB."""
        until = json.dumps({"Large": {"broker-a": {"0": ends[count - 1], "1": 0, "2": 0, "3": 0}}})
        frame = reader(spark, cluster, "Large", endingOffsets=until).schema("body BINARY").load()
        sizes = frame.selectExpr("length(body) AS size").filter("size > 100").agg({"*": "count", "size": "sum"})
        assert sorted(sizes.collect()[0]) == [count, count * len(body)]
        return max(peak_mib(pid) for pid in find_processes(os.getpid(), "worker"))

    peak = worker_mib(few)
    assert worker_mib(many) < peak + 32, peak


def peak_mib(pid: int) -> float:
    """Peak memory of a process, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


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
