"""The lag of consumers: asked for, and told to observers; and what observers see of polled messages."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from mqbroker.client import (
    ConsumeFrom,
    ConsumeObserver,
    ConsumeResult,
    Consumption,
    Counters,
    Lag,
    LitePullOptions,
    Message,
    MessageQueue,
    PushOptions,
)
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.member import RETRY, Member
from tests.client.world import World

Q = MessageQueue("T", "a", 0)
FIRST: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST}


def test_a_push_consumer_tells_its_lag(face: Any, cluster: Any, producer: Any) -> None:
    for n in range(5):
        producer.send(Message("T", b"%d" % n), queue=Q)
    counters, got = Counters(), SimpleQueue[Any]()
    options = PushOptions(takeover_pause_s=0.0, observers=[counters], **FIRST)
    member = face.make("PushConsumer", "g", lambda message: got.put(message.body), options=options)
    member.subscribe("T")
    with member:
        for _ in range(5):
            face.get(got)
        while (lag := member.lag()).total:
            face.turn()
        assert lag.queues[Q] == 0
        member._face.wait(lambda: suspended(face, member))
        # What was pulled already still comes: it is more than one pull can have.
        for n in range(100):
            producer.send(Message("T", b"%d" % n), queue=Q)
        while (lag := member.lag()).total > 100 - got.qsize():
            face.turn()
        assert lag.total == sum(lag.queues.values()) > 0


def suspended(face: Any, member: Any) -> Any:
    async def coroutine() -> None:
        member._client.suspend()

    is_blocking = face.module.__name__ == "mqbroker.client.blocking"
    return member._client.suspend() if is_blocking else face.awaitable(coroutine())


@pytest.fixture
def held(one_queue: World, name_server: str) -> Any:
    """A member with a listener that takes the first two messages of five."""
    for n in range(5):
        one_queue.cluster.store(Q, b"%d" % n)
    counters, listener = Counters(), (lambda message: int(message.body) < 2)
    return one_queue, counters, Member(one_queue, name_server, listener=listener, observers=[counters], orderly=True)


def test_counters_have_the_lag_by_queue_and_in_sum(held: Any) -> None:
    world, counters, member = held
    member.start()
    assert (counters.lag, counters.lag_by_queue) == (0, {})
    world.clock.pump([1.0] * 11)
    assert counters.lag == 3
    assert counters.lag_by_queue == {Q: 3, RETRY: 0}
    world.cluster.store(Q, b"5")
    world.clock.pump([1.0] * 10)
    assert counters.lag == 4
    world.faults.refuse[None, RequestCode.GET_MAX_OFFSET] = (ResponseCode.SYSTEM_ERROR, "no")
    world.clock.pump([1.0] * 10)
    assert (counters.lag, counters.lag_by_queue) == (0, {})  # the broker does not say
    world.faults.refuse.clear()
    world.clock.pump([1.0] * 10)
    assert counters.lag == 4
    closing = world.run(member.core.close())
    world.clock.pump([1.0] * 10)
    assert closing.called
    assert (counters.lag, counters.lag_by_queue) == (0, {})


def test_brokers_are_asked_for_the_lag_where_somebody_counts_it(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, observers=[ConsumeObserver()]).start()
    before = len(one_queue.faults.asked(RequestCode.GET_MAX_OFFSET))
    one_queue.clock.pump([1.0] * 30)
    assert len(one_queue.faults.asked(RequestCode.GET_MAX_OFFSET)) == before
    assert one_queue.result(member.core.lag()) == Lag(dict.fromkeys(sorted(member.core.assigned), 0))


def test_counters_add_what_several_consumers_have_left() -> None:
    counters = Counters()
    other = attrs.evolve(Q, queue_id=1)
    counters.lagging("g", "one", Lag({Q: 2, other: -1}))
    counters.lagging("g", "two", Lag({other: 3}))
    counters.lagging("h", "one", Lag({Q: 4}))
    assert (counters.lag, counters.lag_by_queue) == (9, {Q: 6, other: 3})
    counters.lagging("g", "one", Lag({}))
    assert len(counters._lags) == 2  # members that are closed are forgotten
    assert (counters.lag, counters.lag_by_queue) == (7, {Q: 4, other: 3})


class Notes(ConsumeObserver):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_consume(self, consumption: Consumption) -> None:
        (message,) = consumption.messages
        consumption.messages = [attrs.evolve(message, tags="seen")]
        self.seen.append((consumption.group, message.body, consumption.is_handed_out))

    def after_consume(self, consumption: Consumption, outcome: ConsumeResult | BaseException) -> None:
        self.seen.append((consumption.messages[0].body, outcome))


def test_observers_see_what_polls_return_and_what_becomes_of_it(face: Any, cluster: Any, producer: Any) -> None:
    for n in range(3):
        producer.send(Message("T", b"%d" % n), queue=Q)
    notes, counters = Notes(), Counters()
    options = LitePullOptions(observers=[notes, counters], **FIRST)
    reader = face.make("LitePullConsumer", "g", options=options)
    reader.assign([Q])
    with reader:
        found: list[Any] = []
        while len(found) < 2:
            found += reader.poll(max_count=2 - len(found))
        assert [message.tags for message in found] == ["seen", "seen"]
        assert notes.seen[-1] == ("g", b"1", True)
        assert reader.poll(max_count=1)[0].body == b"2"
        assert counters.consumed == 2
        assert counters.consuming == 1
    success, again = ConsumeResult.SUCCESS, ConsumeResult.RETRY
    ended = [each for each in notes.seen if len(each) == 2]
    assert ended == [(b"0", success), (b"1", success), (b"2", again)]  # the last one comes again
    assert (counters.consuming, counters.retried) == (0, 1)
