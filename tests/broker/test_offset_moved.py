"""Pulls that were sent to another offset are told of in a topic."""

import json
from collections.abc import Sequence

from mqbroker.broker.requests.pull_message import EVENTS_PER_SECOND_MAX
from mqbroker.errors import StoreUnwritable
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.names import java_hash
from mqbroker.wire.record import NewMessage
from tests.broker.bench import HOST, START, Bench, Client
from tests.remoting.logs import Logged
from tests.store.harness import now

TOPIC = "OFFSET_MOVED_EVENT"
MOVED = ResponseCode.PULL_OFFSET_MOVED


def test_an_event_says_who_and_from_where_to_where(bench: Bench, client: Client) -> None:
    client.send(queue_id=1)
    bench.store.dispatch_now()
    assert client.pull(queue_id=1).code == 0
    assert client.pull(queue_id=1, queue_offset=77).code == MOVED
    (event,) = bench.records(TOPIC)
    assert json.loads(event.body) == {
        "consumerGroup": "CG",
        "messageQueue": {"brokerName": "broker-a", "queueId": 1, "topic": "T"},
        "offsetNew": 1,
        "offsetRequest": 77,
    }
    assert event.properties == {"KEYS": "CG", "TAGS": "CG"}
    assert (event.born_host, event.born_timestamp, event.sys_flag) == ((HOST, 10911), START * 1000, 0)
    (found,) = now(bench.store).query(TOPIC, "CG", 10, 0, 2**62)
    assert found
    wanted = frozenset({java_hash("CG")})
    assert now(bench.store).get(TOPIC, 0, 0, 10, None, wanted).count == 1


def test_a_queue_that_has_nothing_yet(bench: Bench, client: Client) -> None:
    client.send()
    assert client.pull(queue_id=2, queue_offset=5).code == MOVED
    (event,) = bench.records(TOPIC)
    assert (json.loads(event.body)["offsetRequest"], json.loads(event.body)["offsetNew"]) == (5, 0)


def test_so_many_a_second(bench: Bench, client: Client) -> None:
    client.send()
    for _ in range(EVENTS_PER_SECOND_MAX + 20):
        assert client.pull(queue_offset=9).code == MOVED
    assert len(bench.records(TOPIC)) == EVENTS_PER_SECOND_MAX
    bench.turn(1)
    assert client.pull(queue_offset=9).code == MOVED
    assert len(bench.records(TOPIC)) == EVENTS_PER_SECOND_MAX + 1


def test_a_disk_that_takes_none_changes_nothing_for_the_pull(bench: Bench, client: Client, logged: Logged) -> None:
    client.send()

    def refuse(messages: Sequence[NewMessage]) -> None:
        raise StoreUnwritable("full")

    append, bench.store.append = bench.store.append, refuse
    assert client.pull(queue_offset=9).code == MOVED
    bench.store.append = append
    assert bench.records(TOPIC) == []
    assert [line for line in logged.lines if line.startswith("no event of a moved offset is stored: ")]
