"""What Spark's driver commits for a stream, without Spark: mqadmin shows the lag of the group, on each broker."""

import re

import pytest

from mqbroker.client import Message, MessageQueue
from mqbroker.client.blocking import Producer
from mqbroker.spark import connections
from mqbroker.spark.options import parse_options
from tests.interop.fleet import Fleet, Kind
from tests.interop.processes import eventually
from tests.interop.test_topic_bounds import kinds


@kinds
@pytest.mark.parametrize("namespace", ["", "shop"])
def test_mqadmin_shows_how_far_a_stream_is_behind(fleet: Fleet, topic: str, kind: Kind, namespace: str) -> None:
    namesrv = fleet.namesrv(kind)
    broker = fleet.broker(kind, namesrv)
    group, prefix = f"{topic}-readers", f"{namespace}%" if namespace else ""
    fleet.mqadmin("updateTopic", "-n", namesrv.addr, "-b", broker.addr, "-t", f"{prefix}{topic}", "-r", "2", "-w", "2")
    with Producer(namesrv.addr, "ours") as producer:
        inside = [MessageQueue(f"{prefix}{topic}", broker.name, n) for n in range(2)]
        eventually("the topic is known", lambda: producer.queues(f"{prefix}{topic}") == inside)
        for queue in inside:
            for n in range(5):
                producer.send(Message(queue.topic, b"%d" % n), queue=queue)
    given = {"nameServer": namesrv.addr, "topic": topic, "consumerGroup": group, "commitOffsetsToBroker": "true"}
    client = connections.client_for(parse_options(given | {"namespace": namespace}, streaming=True))
    queues = [MessageQueue(topic, broker.name, n) for n in range(2)]

    def is_shown(positions: list[int], behind: int) -> bool:
        client.report(dict(zip(queues, positions, strict=True)))
        shown = fleet.mqadmin("consumerProgress", "-n", namesrv.addr, "-g", f"{prefix}{group}")
        return re.search(rf"Diff Total: {behind}\b", shown) is not None

    try:
        eventually("what is not read yet", lambda: is_shown([5, 2], 3))
        eventually("that all is read", lambda: is_shown([5, 5], 0))
    finally:
        client._bounds[0].close()
        connections._client.cache_clear()
        connections._consumer.cache_clear()
