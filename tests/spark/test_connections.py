"""One client of a process for each way to the servers: who asks, and how it is encrypted, count."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from mqbroker.client.messages import RawPull
from mqbroker.errors import MQError, Unreachable
from mqbroker.spark import connections
from mqbroker.spark.options import parse_options
from mqbroker.spark.sink_options import parse_sink_options
from mqbroker.wire.bodies import MessageQueue
from tests.spark.fake_log import FakeLog, Want

WAY = connections.Way(("h:1",), "g", "", None, None)
GOOD = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


@pytest.fixture(autouse=True)
def none_before() -> None:
    connections._client.cache_clear()
    connections._consumer.cache_clear()


@pytest.mark.parametrize(
    "other",
    [
        {"accessKey": "a", "secretKey": "b"},
        {"tls": "true"},
        {"consumerGroup": "g"},
        {"namespace": "n"},
        {"nameServer": "h:1"},
    ],
)
def test_queries_that_differ_in_it_share_no_client(other: dict[str, str]) -> None:
    first = connections.client_for(parse_options(GOOD, streaming=False))
    assert connections.client_for(parse_options(GOOD | {"topic": "bills"}, streaming=True)) is first
    assert connections.client_for(parse_options(GOOD | other, streaming=False)) is not first


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_without_the_compiled_module_says_so_once(
    is_there: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "compiled", object() if is_there else None)
    for get in (
        lambda: connections.client_for(parse_options(GOOD, streaming=False)),
        lambda: connections.sender_for(parse_sink_options(GOOD)),
    ):
        connections._say_if_not_compiled.cache_clear()
        caplog.clear()
        for _ in range(2):
            get()
        said = [] if is_there else ["mqbroker's compiled module is not there, as with a bundle: reads and writes take"]
        assert [record.getMessage().partition(" more CPU")[0] for record in caplog.records] == said
    connections._sender.cache_clear()


def test_a_client_has_the_account_and_the_encryption() -> None:
    given = GOOD | {"accessKey": "a", "secretKey": "b", "tlsInsecure": "true"}
    wanted = parse_options(given, streaming=False)
    client = connections.client_for(wanted)._pulls[0]
    assert (client._options.credentials, client._options.tls) == (wanted.credentials, wanted.tls)
    assert wanted.credentials is not None


class Brokers:
    """Pulls and bounds of one broker of each set, as a pull consumer gives them; `is_up` says whether it answers."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.is_up = True
        self.asked: list[str] = []

    def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "a", 0)]

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        self.asked += [queue.topic for queue in queues]
        return [(0, self.end) if self.is_up else Unreachable("down") for _ in queues]

    def fetch_ahead(self, wants: Sequence[Want], *, tags: object = "*") -> Any:
        log = FakeLog()
        log.add(wants[0][0], self.end)
        log.down |= set() if self.is_up else {"a"}
        return log.fetch_ahead(wants)


def test_where_any_broker_may_be_read_a_slave_answers_for_a_master_that_is_away() -> None:
    master, slave = Brokers(10), Brokers(8)
    client = connections.QueueClient([master, slave], [master, slave], WAY)  # type: ignore[list-item]
    queue = MessageQueue("orders", "a", 0)
    assert client.bounds([queue]) == [(0, 10)]
    master.is_up = False
    assert client.bounds([queue]) == [(0, 8)]
    (failed,) = client.fetch_ahead([(queue, 0, 1)]).finish()
    assert isinstance(failed, Unreachable)
    (found,) = client.fetch_ahead([(queue, 0, 1)]).finish()
    assert isinstance(found, RawPull)
    assert found.next_offset == 1


def test_brokers_know_topics_by_their_namespace_and_users_without() -> None:
    master = Brokers(10)
    client = connections.QueueClient([master], [master], attrs.evolve(WAY, namespace="shop"))  # type: ignore[list-item]
    (queue,) = client.queues("orders")
    assert queue == MessageQueue("orders", "a", 0)
    client.bounds([queue, MessageQueue("%RETRY%g", "a", 0)])
    assert master.asked == ["shop%orders", "%RETRY%shop%g"]
