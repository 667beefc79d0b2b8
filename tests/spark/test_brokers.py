"""Brokers that come and go under a stream of real Spark."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.0")
pytest.importorskip("pyarrow")

from mqbroker.client import Message
from mqbroker.client.blocking import Producer
from mqbroker.wire.codes import RequestCode
from tests.daemons.processes import PATIENCE_SECONDS, Process, ask, wait_for
from tests.spark.test_spark import (  # noqa: F401 - fixtures
    QUEUES,
    Cluster,
    cluster,
    spark,
    start_broker,
    stream,
)

pytestmark = [pytest.mark.spark, pytest.mark.daemons]

TOPIC = "Brokers"
Place = tuple[str, int, int, str]


def send(cluster: Cluster, brokers: set[str]) -> list[Place]:  # noqa: F811
    """Send messages to these brokers, which take them in turn once the name server lists them."""
    places: list[Place] = []

    def send_some() -> bool:
        # Each producer asks for the route anew.
        with Producer(cluster.name_server, "publisher") as producer:
            results = [(text, producer.send(Message(TOPIC, text))) for text in map(str, range(4 * QUEUES))]
        places.extend((at.queue.broker_name, at.queue.queue_id, at.queue_offset, text) for text, at in results)
        return {at.queue.broker_name for _, at in results} == brokers

    wait_for(send_some, f"messages on {brokers}", PATIENCE_SECONDS)
    return places


def test_a_broker_is_added_and_removed_under_a_stream(spark: Any, cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    def start_other(life: str, port: int = 0) -> Process:
        return start_broker(tmp_path / life, tmp_path / "store", cluster.name_server, port, "broker-b")

    sent = send(cluster, {"broker-a"})
    messages = stream(spark, cluster, TOPIC, startingOffsets="earliest").load()
    query = messages.writeStream.format("memory").queryName("brokers").start()

    def wait_for_all(what: str) -> None:
        columns = "brokerName", "queueId", "queueOffset", "CAST(body AS STRING)"

        def has_all() -> bool:
            if (error := query.exception()) is not None:
                raise error
            return sorted(map(tuple, spark.table("brokers").selectExpr(*columns).collect())) == sorted(sent)

        wait_for(has_all, what, PATIENCE_SECONDS)

    other = None
    try:
        wait_for_all("the messages of one broker")
        other = start_other("first")
        topic: dict[str, Any] = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        port = other.wait_for_port()
        assert ask(port, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic).code == 0
        sent += send(cluster, {"broker-a", "broker-b"})
        wait_for_all("those of both")
        # It says good-bye, so that the name server does not list it any more.
        other.stop()
        sent += send(cluster, {"broker-a"})
        wait_for_all("those of the one that is left")
        other.end()
        other = start_other("second", port)
        sent += send(cluster, {"broker-a", "broker-b"})
        wait_for_all("those of both again")
    finally:
        query.stop()
        if other is not None:
            other.end()
