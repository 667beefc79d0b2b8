"""Programs that poll: what counts as consumed, what moves with the group, and where a seek leads."""

from random import Random
from typing import Any, cast

import attrs
import pytest

from mqbroker.client import BadArgument, ConsumeFrom, LitePullOptions, MessageQueue, Place
from mqbroker.client.errors import ClientClosed
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.queue_requests import Reads
from mqbroker.wire.bodies import HeartbeatData
from mqbroker.wire.codes import RequestCode
from tests.client.member import Q
from tests.client.world import FixedIdentity, World


class Polling:
    """A lite pull consumer of group g."""

    def __init__(self, world: World, name_server: str, me: str = "me", **options: Any) -> None:
        self.world = world
        options = {"consume_from": ConsumeFrom.FIRST, "suspend_s": 1.0, **options}
        self.core = LitePullConsumerCore(
            world.net(), (name_server,), "g", LitePullOptions(**options), FixedIdentity(me)
        )

    def start(self, topic: str | None = "T") -> "Polling":
        if topic:
            self.world.result(self.core.subscribe(topic))
        self.world.result(self.core.start())
        return self

    def poll(self, count: int = 100) -> list[bytes]:
        return [message.body for message in self.world.result(self.core.poll(0, count))]


def committed(world: World) -> Any:
    return world.cluster.offsets.get(("g", Q))


def store(world: World, count: int, queue: MessageQueue = Q) -> None:
    for n in range(count):
        world.cluster.store(queue, b"%d" % n)


def test_what_a_poll_returned_counts_at_the_next_one(one_queue: World, name_server: str) -> None:
    store(one_queue, 5)
    polling = Polling(one_queue, name_server).start()
    assert polling.poll(3) == [b"0", b"1", b"2"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 0
    assert polling.poll(1) == [b"3"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3
    one_queue.result(polling.core.close())
    assert committed(one_queue) == 3


def test_without_auto_commit_nothing_is_committed_but_by_hand(one_queue: World, name_server: str) -> None:
    store(one_queue, 5)
    polling = Polling(one_queue, name_server, auto_commit=False).start()
    polling.poll(3)
    polling.poll(1)
    one_queue.clock.pump([5] * 3)
    assert committed(one_queue) is None
    one_queue.result(polling.core.commit())
    assert committed(one_queue) == 4
    one_queue.result(polling.core.commit({Q: 2}))
    assert committed(one_queue) == 2
    one_queue.result(polling.core.close())
    assert committed(one_queue) == 2


def test_the_heartbeat_says_that_it_polls(one_queue: World, name_server: str) -> None:
    Polling(one_queue, name_server).start()
    data = HeartbeatData.from_json(one_queue.faults.asked(RequestCode.HEART_BEAT)[0].body).consumer_data_set[0]
    assert (data.consume_type, [s.topic for s in data.subscription_data_set]) == ("CONSUME_ACTIVELY", ["T"])


def test_queues_move_with_the_group(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2)
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(2)]
    first, second = (Polling(world, name_server, me=me).start() for me in ("c1", "c2"))
    first.core.ids_changed("g")
    world.cluster.settle()
    world.clock.advance(0.3)
    assert (first.core.assigned, second.core.assigned) == (set(queues[:2]), set(queues[2:]))
    for queue in queues:
        world.cluster.store(queue, f"{queue.broker_name}{queue.queue_id}".encode())
    assert sorted(first.poll() + second.poll()) == [b"a0", b"a1", b"b0", b"b1"]
    world.result(first.core.close())
    second.core.ids_changed("g")
    world.clock.advance(0.3)
    assert second.core.assigned == set(queues)
    assert sorted(second.poll()) == [b"a0", b"a1"]  # those that no later poll of the first has confirmed


def test_named_queues_are_read_without_the_group(one_queue: World, name_server: str) -> None:
    store(one_queue, 3)
    polling = Polling(one_queue, name_server)
    one_queue.result(polling.core.assign([Q]))
    polling.start(None)
    assert polling.poll() == [b"0", b"1", b"2"]
    assert one_queue.faults.asked(RequestCode.HEART_BEAT) == []
    one_queue.result(polling.core.assign([]))
    store(one_queue, 1)
    one_queue.clock.pump([1] * 3)
    assert (polling.poll(), polling.core.assigned) == ([], frozenset())


def test_a_seek_drops_what_was_fetched_and_is_committed(one_queue: World, name_server: str) -> None:
    store(one_queue, 10)
    polling = Polling(one_queue, name_server).start()
    assert polling.poll(2) == [b"0", b"1"]
    one_queue.result(polling.core.seek(Q, 8))
    one_queue.cluster.settle()
    assert polling.poll() == [b"8", b"9"]
    one_queue.result(polling.core.seek(Q, Place.BEGIN))
    one_queue.cluster.settle()
    one_queue.clock.advance(5)
    assert committed(one_queue) == 0
    assert polling.poll(1) == [b"0"]


def test_a_paused_queue_keeps_its_place(one_queue: World, name_server: str) -> None:
    store(one_queue, 4)
    polling = Polling(one_queue, name_server).start()
    assert polling.poll(2) == [b"0", b"1"]
    polling.core.pause([Q])
    assert polling.poll() == []
    polling.core.resume()
    assert polling.poll() == [b"2", b"3"]


def test_what_is_not_polled_bounds_what_is_fetched(one_queue: World, name_server: str) -> None:
    store(one_queue, 500)
    polling = Polling(one_queue, name_server, queue_messages_max=50).start()
    one_queue.clock.pump([1] * 5)
    assert sum(portion.end - portion.next for portion in polling.core._waiting) < 50 + 32
    found: list[bytes] = []
    for _ in range(100):
        found += polling.poll(20)
        one_queue.cluster.settle()
    assert found == [b"%d" % n for n in range(500)]


def test_the_lag_is_what_was_not_returned(one_queue: World, name_server: str) -> None:
    store(one_queue, 10)
    polling = Polling(one_queue, name_server).start()
    polling.poll(4)
    lag = one_queue.result(polling.core.lag())
    assert (dict(lag.queues), lag.total) == ({Q: 6}, 6)


@pytest.mark.parametrize(("committed_at", "behind"), [(None, 6), (4, 2), (6, 0)])
def test_before_a_queue_has_a_position_the_committed_offset_counts(
    one_queue: World, name_server: str, committed_at: int | None, behind: int
) -> None:
    store(one_queue, 6)
    if committed_at is not None:
        one_queue.cluster.offsets["g", Q] = committed_at
    Polling(one_queue, name_server, me="z", auto_commit=False).start()  # it has the queue, and may still commit
    polling = Polling(one_queue, name_server, takeover_pause_s=5.0).start()
    assert polling.core.assigned == {Q}
    assert dict(one_queue.result(polling.core.lag()).queues) == {Q: behind}
    one_queue.clock.advance(5)
    assert polling.poll() == [b"%d" % n for n in range(6 - behind, 6)]


def test_a_program_is_told_of_other_queues(one_queue: World, name_server: str) -> None:
    polling = Polling(one_queue, name_server, route_age_s=5.0).start()
    told: list[frozenset[MessageQueue]] = []
    one_queue.result(polling.core.watch_queues("T", told.append))
    one_queue.cluster.add_topic("T", queues=2, brokers=["a"])
    one_queue.clock.pump([1] * 15)
    assert told == [frozenset({Q, MessageQueue("T", "a", 1)})]


def test_a_reset_of_an_administrator_is_followed(one_queue: World, name_server: str) -> None:
    store(one_queue, 3)
    polling = Polling(one_queue, name_server).start()
    polling.poll()
    polling.core.reset("T", {Q: 1})
    one_queue.cluster.settle()
    assert polling.poll() == [b"1", b"2"]


def test_closing_ends_a_poll(one_queue: World, name_server: str) -> None:
    polling = Polling(one_queue, name_server).start()
    found: list[Any] = []
    one_queue.run(polling.core.poll(60)).addCallback(found.append)
    one_queue.result(polling.core.close())
    assert found == [[]]
    one_queue.clock.advance(100)
    assert not one_queue.clock.getDelayedCalls()


def test_what_cannot_be_done_says_so(one_queue: World, name_server: str) -> None:
    polling = Polling(one_queue, name_server)
    with pytest.raises(ClientClosed, match="after its start"):
        one_queue.result(polling.core.poll(0))
    polling.start()
    with pytest.raises(BadArgument, match="left out after subscribe"):
        one_queue.result(polling.core.assign([Q]))
    for bad in (-1, "begin", None):
        with pytest.raises(BadArgument):
            one_queue.result(polling.core.seek(Q, bad))  # type: ignore[arg-type]
    with pytest.raises(BadArgument):
        one_queue.result(polling.core.poll(-1))
    with pytest.raises(BadArgument):
        one_queue.result(polling.core.commit({Q: -1}))
    with pytest.raises(ClientClosed, match="started only once"):
        one_queue.result(polling.core.start())


@attrs.frozen
class Stored:
    queue_offset: int
    store_timestamp_ms: int


@pytest.mark.parametrize("seed", range(20))
def test_the_first_message_of_a_time_is_found_whatever_the_hint(one_queue: World, seed: int) -> None:
    rng = Random(seed)
    time, messages = 1000, []
    for offset in range(rng.randint(0, 40)):
        time += rng.choice([0, 0, 1, 5])
        if rng.random() < 0.8:  # others are gone
            messages.append(Stored(offset, time))
    end = messages[-1].queue_offset + 1 if messages else 0

    class Bounds:
        async def min(self, queue: Any) -> int:
            return messages[0].queue_offset if messages else 0

        async def max(self, queue: Any) -> int:
            return end

        async def at_time(self, queue: Any, time: Any) -> int:
            return rng.randint(0, end + 3)

    class Store(Reads):
        async def messages(self, queue: Any, offset: int, max_count: int) -> Any:
            return [each for each in messages if each.queue_offset >= offset][:max_count]

    anything: Any = None
    reads = Store(anything, anything, "g", cast(Any, Bounds()), 1000)
    for wanted in range(990, time + 10):
        expected = next((each for each in messages if each.store_timestamp_ms >= wanted), None)
        assert one_queue.result(reads.message_by_time(Q, wanted)) == expected, wanted
