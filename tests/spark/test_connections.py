"""One client of a process for each way to the servers: who asks, and how it is encrypted, count."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from mqbroker.client.messages import PullStatus, RawPull
from mqbroker.errors import MQError, Unreachable
from mqbroker.spark import connections
from mqbroker.spark.options import parse_options
from mqbroker.spark.sink_options import parse_sink_options
from mqbroker.wire.bodies import ConsumerData, MessageQueue
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
        self.lost: set[str] = set()
        self.asked: list[str] = []

    def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "a", 0)]

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        self.asked += [queue.topic for queue in queues]
        return [
            (0, self.end) if self.is_up and queue.topic not in self.lost else Unreachable("down") for queue in queues
        ]

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
    # The next one that fails has its turn end, too.
    slave.is_up, master.is_up = False, True
    for wanted in (Unreachable, RawPull, RawPull):
        (found,) = client.fetch_ahead([(queue, 0, 1)]).finish()
        assert isinstance(found, wanted)


def test_a_broker_that_answers_for_one_queue_is_there() -> None:
    pull = RawPull(PullStatus.FOUND, 1, 0, 1, b"")
    failures: list[int] = []
    for answers, has_failed in (
        ([pull, Unreachable("down")], False),
        ([Unreachable("down"), pull], False),
        ([Unreachable("down")] * 2, True),
    ):
        pulls: Any = SimpleNamespace(finish=lambda answers=answers: answers)
        failures.clear()
        assert connections._Watched(pulls, lambda: failures.append(1)).finish() == answers
        assert bool(failures) is has_failed


def test_the_ends_of_queues_that_one_broker_does_not_know_are_those_of_another() -> None:
    master, slave = Brokers(10), Brokers(8)
    client = connections.QueueClient([master, slave], [master, slave], WAY)  # type: ignore[list-item]
    queues = [MessageQueue(topic, "a", 0) for topic in ("there", "lost", "there", "lost")]
    master.lost = {"lost"}
    assert client.bounds(queues) == [(0, 10), (0, 8), (0, 10), (0, 8)]
    assert slave.asked == ["lost", "lost"]
    slave.lost = {"lost"}
    assert [isinstance(each, Unreachable) for each in client.bounds(queues)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("read_from", "streaming", "pulls", "bounds"),
    [
        ("master", False, [0], [0]),
        ("slave", False, [1], [1]),
        ("any", False, [0, 1], [0, 1]),
        ("master", True, [0], [0]),
        ("slave", True, [1], [0]),
        ("any", True, [0, 1], [0]),
    ],
)
def test_a_stream_asks_masters_for_ends_wherever_it_reads(
    read_from: str, streaming: bool, pulls: list[int], bounds: list[int]
) -> None:
    client = connections.client_for(parse_options(GOOD | {"readFrom": read_from}, streaming=streaming))
    assert [each._options.read_from for each in client._pulls] == pulls
    assert [each._options.read_from for each in client._bounds] == bounds


def test_a_send_that_may_be_stored_is_looked_up_before_it_is_sent_again() -> None:
    connections._sender.cache_clear()
    once = connections.sender_for(parse_sink_options(GOOD | {"guarantee": "effectively-once"}))
    often = connections.sender_for(parse_sink_options(GOOD))
    assert once._producer._options.retries == 0
    assert often._producer._options.retries != 0
    connections._sender.cache_clear()


def test_a_producer_is_started_once() -> None:
    starts: list[int] = []
    producer: Any = SimpleNamespace(start=lambda: starts.append(1), queues=lambda topic: [])
    sender = connections.ClientSender(producer)
    for _ in range(3):
        sender.queues("T")
    assert starts == [1]

    def refused() -> None:
        starts.append(2)
        raise Unreachable("down")

    producer.start = refused
    sender = connections.ClientSender(producer)
    for _ in range(2):
        with pytest.raises(Unreachable):
            sender.queues("T")
    assert starts == [1, 2, 2]


class Group:
    """A pull consumer whose group's offsets are reported: what was committed, and how often it sent heartbeats."""

    def __init__(self) -> None:
        self.committed: list[dict[MessageQueue, int]] = []
        self.beats: list[list[str]] = []
        self.is_up = True
        self._core = self.offsets = self

    def _parts(self) -> Any:
        return SimpleNamespace(submit=self._submit), self

    def _submit(self, asking: Any) -> Future[None]:
        future: Future[None] = Future()
        with pytest.raises(StopIteration):
            asking.send(None)
        future.set_result(None)
        return future

    def heartbeats(self, identity: object, data: Callable[[], ConsumerData]) -> Any:
        async def send_to_all() -> None:
            self.beats.append([each.topic for each in data().subscription_data_set])

        return SimpleNamespace(send_to_all=send_to_all)

    async def queues(self, topic: str) -> list[MessageQueue]:
        return []

    async def commit_many(self, offsets: dict[MessageQueue, int]) -> None:
        if not self.is_up:
            raise Unreachable("down")
        self.committed.append(offsets)


def test_reported_offsets_are_committed_once_and_again_if_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=clock.seconds, time=clock.seconds))
    group: Any = Group()
    client = connections.QueueClient([group], [group], WAY)
    a, b = MessageQueue("T", "a", 0), MessageQueue("U", "a", 0)
    client.report({a: 5, b: 7})
    client.report({a: 5, b: 8})
    client.report({a: 5, b: 8})
    assert group.committed == [{a: 5, b: 7}, {b: 8}, {}]
    group.is_up = False
    client.report({a: 6, b: 8})
    assert "the offsets of group g are not committed: down" in caplog.text
    group.is_up = True
    client.report({a: 6, b: 8})
    assert group.committed[3:] == [{a: 6}]
    assert group.beats == [["T", "U"]]
    for seconds, count in ((29, 1), (1, 2), (29, 2), (1, 3)):
        clock.advance(seconds)
        client.report({a: 6})
        assert len(group.beats) == count
    assert group.beats[-1] == ["T", "U"], "the group subscribes to what it has read before"


def test_brokers_know_topics_by_their_namespace_and_users_without() -> None:
    master = Brokers(10)
    client = connections.QueueClient([master], [master], attrs.evolve(WAY, namespace="shop"))  # type: ignore[list-item]
    (queue,) = client.queues("orders")
    assert queue == MessageQueue("orders", "a", 0)
    client.bounds([queue, MessageQueue("%RETRY%g", "a", 0)])
    assert master.asked == ["shop%orders", "%RETRY%shop%g"]
