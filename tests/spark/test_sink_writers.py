"""The writers as Spark calls them: made on the driver, pickled for each process, committed and aborted in others."""

import logging
import pickle
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from mqbroker.client.blocking import PullConsumer
from mqbroker.client.errors import NameServerUnreachable, TopicNotFound
from mqbroker.spark import connections, sink
from mqbroker.spark.errors import BadOption, NotOnExecutors
from mqbroker.spark.sink import BatchWriter, Done, StreamWriter
from mqbroker.spark.source import RocketMQDataSource
from tests.spark.test_spark import Cluster, cluster  # noqa: F401 - a fixture
from tests.spark.test_writing import ONCE, Broker, Clock, texts

SCHEMA = StructType([StructField("body", BinaryType())])


def another(writer: Any) -> Any:
    """The writer in another process."""
    return pickle.loads(pickle.dumps(writer))


def batch_writer(**options: str) -> BatchWriter:
    return RocketMQDataSource({"nameserver": "a:1", "topic": "T"} | options).writer(SCHEMA, overwrite=False)


def stream_writer(**options: str) -> StreamWriter:
    return RocketMQDataSource({"nameserver": "a:1", "topic": "T"} | options).streamWriter(SCHEMA, overwrite=False)


def rows(*numbers: int) -> Any:
    return pa.record_batch({"body": pa.array([b"%d" % n for n in numbers], pa.binary())})


def test_a_commit_may_come_twice_and_without_the_messages_of_tasks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    messages = [Done(0, 5, 0), None, Done(2, 1, 3)]
    for writer, args in ((batch_writer(), ()), (stream_writer(), (7,))):
        for _ in range(2):
            another(writer).commit(messages, *args)
    said = "of 3 partitions: 6 rows sent, 3 were already there"
    assert caplog.messages == [f"a write {said}"] * 2 + [f"batch 7 {said}"] * 2


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_an_abort_while_a_sibling_writes_takes_nothing_from_it(monkeypatch: pytest.MonkeyPatch, guarantee: str) -> None:
    broker = Broker(Clock())
    monkeypatch.setattr(connections, "sender_for", lambda options: broker)
    writer = batch_writer(guarantee=guarantee)

    def batches() -> Iterator[Any]:
        yield rows(*range(4))
        another(writer).abort([None, Done(1, 2, 0)])
        yield rows(*range(4, 9))

    another(writer).abort([None])
    assert another(writer).write(batches()) == Done(0, 9, 0)
    assert broker.bodies == texts(9)


def test_attempts_of_a_write_have_the_same_keys_and_another_write_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(Clock())
    monkeypatch.setattr(connections, "sender_for", lambda options: broker)
    writer = batch_writer(**ONCE)
    assert another(writer).write(iter([rows(1, 2)])) == Done(0, 2, 0)
    assert another(writer).write(iter([rows(1, 2)])) == Done(0, 0, 2)
    assert batch_writer(**ONCE).write(iter([rows(1, 2)])) == Done(0, 2, 0)
    assert broker.bodies == ["1", "1", "2", "2"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Spark tells a task."""
    told: dict[str, str] = {}
    monkeypatch.setattr(sink, "_local_property", lambda name: told.get(name, ""))
    return told


def test_a_batch_of_a_stream_has_the_same_keys_again_and_the_next_one_others(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    broker = Broker(Clock())
    monkeypatch.setattr(connections, "sender_for", lambda options: broker)
    for query, batch, is_new in (("q", "1", True), ("q", "1", False), ("q", "2", True), ("r", "2", True)):
        told.update({"sql.streaming.queryId": query, "streaming.sql.batchId": batch})
        wanted = Done(0, 2, 0) if is_new else Done(0, 0, 2)
        assert another(stream_writer(**ONCE)).write(iter([rows(1, 2)])) == wanted
    told.update({"sql.streaming.queryId": "of another checkpoint"})
    named = stream_writer(**ONCE, writeid="q")
    assert another(named).write(iter([rows(1, 2)])) == Done(0, 0, 2)


@pytest.mark.parametrize("kind", [batch_writer, stream_writer])
def test_two_attempts_at_once_cannot_write_effectively_once(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], kind: Callable[..., Any]
) -> None:
    broker = Broker(Clock())
    monkeypatch.setattr(connections, "sender_for", lambda options: broker)
    told["spark.speculation"] = "true"
    with pytest.raises(BadOption, match=r"spark\.speculation=true"):
        kind(**ONCE).write(iter([rows(1)]))
    assert broker.stored == []
    assert kind().write(iter([rows(1)])) == Done(0, 1, 0)
    told["spark.speculation"] = "false"
    assert kind(**ONCE).write(iter([rows(1)])) == Done(0, 1, 0)


def test_tasks_of_one_moment_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(Clock())
    monkeypatch.setattr(connections, "sender_for", lambda options: broker)
    moment = SimpleNamespace(time=lambda: 1_700_000_000.0, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(sink, "time", moment)
    for _ in range(3):
        another(batch_writer()).write(iter([rows(1, 2)]))
    assert len({key for key, _ in broker.stored}) == 6


def test_rows_of_an_older_spark_are_written_some_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_ROWS_TOGETHER", 3)
    schema = StructType([*SCHEMA.fields, StructField("tags", StringType())])
    for count, sizes in ((0, []), (1, [1]), (3, [3]), (4, [3, 1]), (7, [3, 3, 1])):
        given = [(b"%d" % n, f"t{n}") for n in range(count)]
        batches = list(sink._batches(iter(given), schema))
        assert [len(batch) for batch in batches] == sizes
        assert [(row["body"], row["tags"]) for batch in batches for row in batch.to_pylist()] == given


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_a_name_server_that_does_not_listen_is_told_within_3_seconds(guarantee: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        writer = batch_writer(nameserver=f"127.0.0.1:{unused.getsockname()[1]}", guarantee=guarantee)
        began = time.monotonic()
        with pytest.raises(NameServerUnreachable, match="Check the address"):
            another(writer).write(iter([rows(1)]))
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("kind", [batch_writer, stream_writer])
def test_a_package_that_a_worker_lacks_is_named_with_its_python(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[], Any]
) -> None:
    monkeypatch.delitem(sys.modules, "mqbroker.spark.packing")
    monkeypatch.setitem(sys.modules, "numpy", None)
    why = f"the Python of the executors ({sys.executable}) cannot import numpy: install it there with `pip install"
    with pytest.raises(NotOnExecutors, match=re.escape(why)):
        kind().write(iter([rows(1)]))


@pytest.mark.daemons
@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_rows_are_written_within_a_namespace(cluster: Cluster, guarantee: str) -> None:  # noqa: F811
    topic, written = f"Namespaced-{guarantee}", {"at-least-once": 2, "effectively-once": 1}[guarantee]
    given = {"nameserver": cluster.name_server, "topic": topic, "namespace": "shop", "guarantee": guarantee}
    schema = StructType().add("body", BinaryType()).add("shardingKey", StringType())
    batch = pa.record_batch({"body": pa.array([b"1", b"2"]), "shardingKey": pa.array(["k", None])})
    writer = RocketMQDataSource(given).writer(schema, overwrite=False)
    for _ in range(2):
        writer.write(iter([batch]))
    connections.sender_for(writer._options)._producer.close()
    connections._sender.cache_clear()
    with PullConsumer(cluster.name_server, "checker") as consumer:
        found = [each.body for queue in consumer.queues(f"shop%{topic}") for each in consumer.pull(queue, 0).messages]
        with pytest.raises(TopicNotFound):
            consumer.queues(topic)
    assert sorted(found) == sorted([b"1", b"2"] * written)
