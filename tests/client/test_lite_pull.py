"""Programs that poll: what counts as consumed, what moves with the group, and where a seek leads."""

from random import Random
from typing import Any, cast

import attrs
import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import BadArgument, ConsumeFrom, LitePullOptions, MemoryOffsets, MessageQueue, Place
from mqbroker.client.errors import ClientClosed, NameServerUnreachable
from mqbroker.client.iteration import Iterated
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.observers import ConsumeObserver, Consumption
from mqbroker.client.queue_requests import Reads
from mqbroker.wire.bodies import HeartbeatData
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import SILENT
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


class Iterating(Iterated[ReceivedMessage]):
    """An iteration over such a consumer."""

    def __init__(self, polling: Polling) -> None:
        self.polling, self._core = polling, polling.core

    def next(self) -> bytes:
        return self.polling.world.result(self.__anext__()).body

    def waiting(self) -> list[bytes]:
        """Gets the next message when it comes."""
        found: list[bytes] = []
        self.polling.world.run(self.__anext__()).addCallbacks(lambda message: found.append(message.body), bool)
        return found


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


def test_resuming_all_resumes_queues_that_it_does_not_have_at_the_moment(one_queue: World, name_server: str) -> None:
    store(one_queue, 2)
    polling = Polling(one_queue, name_server).start()
    polling.core.pause()
    one_queue.faults.refuse[None, RequestCode.GET_CONSUMER_LIST_BY_GROUP] = (ResponseCode.SYSTEM_BUSY, "busy")
    one_queue.cluster.reactor.rightNow += 140  # without a turn of the loop
    assert polling.poll() == []
    assert polling.core.assigned == set(), "it has lost them"
    polling.core.resume()
    one_queue.faults.refuse.clear()
    one_queue.clock.pump([1] * 5)
    assert polling.poll() == [b"0", b"1"]


class SlowOffsets(MemoryOffsets):
    """Whose commits wait until the test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Deferred[None]] = []

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        self.waiting.append(Deferred())
        await self.waiting[-1]
        await super().commit_oneway(queue, offset)


def test_a_queue_that_comes_back_while_others_are_committed_is_read(one_queue: World, name_server: str) -> None:
    one_queue.cluster.add_topic("T", queues=2, brokers=["a"])
    queues = [MessageQueue("T", "a", number) for number in range(2)]
    offsets = SlowOffsets()
    polling = Polling(one_queue, name_server, offset_store=offsets, commit_s=1000.0).start(None)
    one_queue.result(polling.core.assign(queues))
    for queue in queues:
        store(one_queue, 1, queue)
    assert (polling.poll(), polling.poll()) == ([b"0", b"0"], [])
    one_queue.run(polling.core.assign([]))
    assert polling.core.assigned == set(), "it waits with none of them in its hands"
    one_queue.run(polling.core.assign(queues))
    while offsets.waiting:
        offsets.waiting.pop().callback(None)
        one_queue.cluster.settle()
    for queue in queues:
        one_queue.cluster.store(queue, b"later")
    assert polling.poll().count(b"later") == 2


@pytest.mark.parametrize("suspend_s", [0, 0.0004])
def test_pulls_that_the_broker_is_not_to_hold_follow_after_a_pause(
    one_queue: World, name_server: str, suspend_s: float
) -> None:
    Polling(one_queue, name_server, suspend_s=suspend_s).start()
    one_queue.clock.pump([0.5] * 7)
    assert 3 <= len(one_queue.faults.asked(RequestCode.PULL_MESSAGE)) <= 5
    one_queue.cluster.store(Q, b"x")


def test_what_is_not_polled_bounds_what_is_fetched(one_queue: World, name_server: str) -> None:
    store(one_queue, 500)
    polling = Polling(one_queue, name_server, queue_messages_max=50).start()
    one_queue.clock.pump([1] * 5)
    assert sum(portion.end - portion.next for portion in polling.core._polled.waiting) < 50 + 32
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


def test_queues_that_are_watched_before_the_start_are_watched_until_the_end(one_queue: World, name_server: str) -> None:
    polling = Polling(one_queue, name_server, route_age_s=5.0)
    told: list[frozenset[MessageQueue]] = []
    one_queue.result(polling.core.watch_queues("T", told.append))
    polling.start()
    one_queue.result(polling.core.close())
    one_queue.cluster.add_topic("T", queues=2, brokers=["a"])
    one_queue.clock.pump([1] * 15)
    assert told == []
    assert not one_queue.clock.getDelayedCalls()


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
    with pytest.raises(BadArgument, match="offsets must be a mapping"):
        one_queue.result(polling.core.commit([Q]))  # type: ignore[arg-type]
    for wrong in (Q, 5):
        for call in (polling.core.pause, polling.core.resume):
            with pytest.raises(BadArgument, match="queues must be several"):
                call(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="queues must be several"):
            one_queue.result(Polling(one_queue, name_server).core.assign(wrong))  # type: ignore[arg-type]
    with pytest.raises(ClientClosed, match="started only once"):
        one_queue.result(polling.core.start())


def test_a_subscription_that_fails_after_the_start_may_be_made_again(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    polling = Polling(one_queue, name_server).start(None)
    one_queue.faults.refuse[None, RequestCode.GET_ROUTEINFO_BY_TOPIC] = ResponseCode.SYSTEM_ERROR, "no"
    with pytest.raises(NameServerUnreachable):
        one_queue.result(polling.core.subscribe("T"))
    one_queue.faults.refuse.clear()
    one_queue.result(polling.core.subscribe("T"))
    one_queue.cluster.settle()
    assert polling.poll() == [b"0"]
    one_queue.result(polling.core.close())


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


@pytest.mark.parametrize("seed", range(8))
def test_an_iterated_message_counts_when_the_next_one_is_requested(
    one_queue: World, name_server: str, seed: int
) -> None:
    rng = Random(seed)
    store(one_queue, 120)
    polling = Polling(one_queue, name_server, queue_messages_max=rng.choice([1, 40, 1000])).start()
    iterating = Iterating(polling)
    came = consumed = 0
    while came < 120:
        for _ in range(rng.choice([1, 1, 31, 32, 33])):
            if came < 120:
                consumed = came
                assert iterating.next() == b"%d" % came
                came += 1
            assert polling.core.positions("T") == {Q: consumed}
        what = rng.randrange(6)
        if what == 0:
            consumed = came
            bodies = polling.poll(rng.choice([1, 5, 50]))
            assert bodies == [b"%d" % n for n in range(came, came + len(bodies))]
            came += len(bodies)
        elif what == 1:
            polling.core.pause()
            one_queue.run(polling.core.poll(60)).addErrback(bool).cancel()
            consumed = came
            polling.core.resume()
        elif what == 2:
            assert one_queue.result(polling.core.lag()).total == 120 - came
        elif what == 3:
            one_queue.clock.advance(5)
            assert committed(one_queue) == consumed
        elif what == 4:
            consumed = came
            one_queue.result(polling.core.commit())
            assert committed(one_queue) == consumed
        assert polling.core.positions("T") == {Q: consumed}
    one_queue.result(polling.core.close())
    assert committed(one_queue) == consumed
    assert polling.core._assigned[Q]._process_queue is None


def test_a_pause_ends_the_portion_that_is_iterated_over(one_queue: World, name_server: str) -> None:
    store(one_queue, 4)
    polling = Polling(one_queue, name_server).start()
    iterating = Iterating(polling)
    assert [iterating.next(), iterating.next()] == [b"0", b"1"]
    polling.core.pause([Q])
    one_queue.clock.advance(5)
    assert committed(one_queue) == 1
    found = iterating.waiting()
    one_queue.cluster.settle()
    assert found == []
    polling.core.resume()
    one_queue.cluster.settle()
    assert (found, iterating.next()) == ([b"2"], b"3")


def test_a_seek_and_a_close_end_the_portion_that_is_iterated_over(one_queue: World, name_server: str) -> None:
    store(one_queue, 10)
    polling = Polling(one_queue, name_server).start()
    iterating = Iterating(polling)
    assert [iterating.next(), iterating.next()] == [b"0", b"1"]
    one_queue.result(polling.core.seek(Q, 7))
    one_queue.cluster.settle()
    assert [iterating.next(), iterating.next()] == [b"7", b"8"]
    one_queue.faults.refuse[None, RequestCode.UPDATE_CONSUMER_OFFSET] = SILENT
    closing = one_queue.run(polling.core.close())
    with pytest.raises(StopAsyncIteration):
        iterating.next()
    assert not closing.called
    one_queue.clock.pump([1] * 10)
    assert closing.called


def test_several_iterations_share_the_messages(one_queue: World, name_server: str) -> None:
    polling = Polling(one_queue, name_server).start()
    iterating = Iterating(polling)
    polling.core.pause()
    store(one_queue, 9)
    one_queue.clock.pump([1] * 2)
    found = [iterating.waiting() for _ in range(3)]
    polling.core.resume()
    one_queue.cluster.settle()
    rest = [iterating.next() for _ in range(6)]
    assert sorted(sum(found, rest)) == [b"%d" % n for n in range(9)]


def test_an_iteration_that_was_blocked_for_long_takes_its_queues_anew(one_queue: World, name_server: str) -> None:
    store(one_queue, 8)
    iterating = Iterating(Polling(one_queue, name_server).start())
    assert [iterating.next(), iterating.next()] == [b"0", b"1"]
    one_queue.cluster.reactor.rightNow += 140  # without a turn of the loop
    one_queue.cluster.offsets["g", Q] = 6  # another member consumes
    found = iterating.waiting()
    one_queue.clock.pump([1] * 5)
    assert (found, iterating.next()) == ([b"6"], b"7")


def test_observers_see_each_message_of_an_iteration(one_queue: World, name_server: str) -> None:
    seen: list[Any] = []

    class Sees(ConsumeObserver):
        def before_consume(self, consumption: Consumption) -> None:
            seen.extend(message.body for message in consumption.messages)

        def after_consume(self, consumption: Consumption, outcome: Any) -> None:
            seen.append(outcome.name)

    store(one_queue, 3)
    iterating = Iterating(Polling(one_queue, name_server, observers=[Sees()]).start())
    for _ in range(3):
        iterating.next()
    assert seen == [b"0", "SUCCESS", b"1", "SUCCESS", b"2"]


def test_what_comes_again_while_it_is_iterated_over_is_not_handed_out_twice(one_queue: World, name_server: str) -> None:
    store(one_queue, 4)
    polling = Polling(one_queue, name_server, queue_span_max=1).start()
    iterating = Iterating(polling)
    assert [iterating.next(), iterating.next()] == [b"0", b"1"]
    held = polling.core._assigned[Q]._process_queue
    assert held is not None
    held._forget({1, 2, 3})
    assert (held.committable, held.span, held.is_stretched) == (4, (0, 0), False)
    held.add(one_queue.result(polling.core._reads.messages(Q, 3, 1)), 4)
    assert (held.committable, held.span) == (3, (3, 3))
