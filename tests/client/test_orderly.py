"""Messages of a queue in their order, under a lock; and listeners that get several messages."""

import random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import (
    BadArgument,
    ConsumeResult,
    FirstConsumed,
    MemoryOffsets,
    MessageModel,
    MessageQueue,
    OrderlyResult,
    PushOptions,
    RetryLater,
    SuspendQueue,
)
from mqbroker.client.orderly import QueueLocks
from mqbroker.client.routes import Routes
from mqbroker.wire.bodies import LockBatchRequestBody
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.client.member import A, Member, Q
from tests.client.world import FixedIdentity, World

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def committed(world: World, queue: MessageQueue = Q) -> Any:
    return world.cluster.offsets.get(("g", queue))


def store(world: World, *bodies: str, queue: MessageQueue = Q) -> None:
    for body in bodies:
        world.cluster.store(queue, body.encode())


class Suspending:
    """Suspends a queue at one message, so many times."""

    def __init__(self, body: bytes, times: int, result: Any = OrderlyResult.SUSPEND) -> None:
        self.body, self.times, self.result = body, times, result

    def __call__(self, message: Any) -> Any:
        if message.body == self.body and message.reconsume_times < self.times:
            if isinstance(self.result, Exception):
                raise self.result
            return self.result
        return None


@pytest.mark.parametrize(
    ("result", "pause_s"),
    [
        (OrderlyResult.SUSPEND, 1.0),
        (ConsumeResult.RETRY, 1.0),
        (ValueError("no"), 1.0),
        (SuspendQueue(5), 5.0),
        (RetryLater(3), 1.0),
    ],
)
def test_a_message_that_is_not_consumed_has_its_queue_wait(
    one_queue: World, name_server: str, result: Any, pause_s: float
) -> None:
    store(one_queue, "one", "two", "three")
    member = Member(one_queue, name_server, listener=Suspending(b"two", 2, result), orderly=True).start()
    assert member.bodies == [b"one", b"two"]
    one_queue.clock.advance(pause_s - 0.01)
    assert member.bodies == [b"one", b"two"]
    one_queue.clock.advance(0.01)
    assert [(m.body, m.reconsume_times) for m in member.got[2:]] == [(b"two", 1)]
    one_queue.clock.advance(pause_s)
    assert member.bodies == [b"one", b"two", b"two", b"two", b"three"]
    assert one_queue.cluster.sent_back == []
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3


def test_a_message_that_was_tried_often_enough_is_a_dead_letter_and_its_queue_goes_on(
    one_queue: World, name_server: str
) -> None:
    store(one_queue, "bad", "good")
    member = Member(
        one_queue, name_server, listener=Suspending(b"bad", 99), orderly=True, max_reconsume_times=1
    ).start()
    one_queue.clock.advance(1)
    assert [(m.body, m.reconsume_times) for m in member.got] == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
    (header,) = one_queue.cluster.sent_back
    assert (header.delay_level, header.offset) == (-1, 0)
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def test_without_a_maximum_it_is_tried_for_ever(one_queue: World, name_server: str) -> None:
    store(one_queue, "bad", "good")
    member = Member(one_queue, name_server, listener=Suspending(b"bad", 10**9), orderly=True).start()
    one_queue.clock.pump([1] * 100)
    assert set(member.bodies) == {b"bad"}
    assert len(member.got) == 101
    assert one_queue.cluster.sent_back == []


def test_a_listener_may_give_a_message_up_at_once(one_queue: World, name_server: str) -> None:
    store(one_queue, "bad", "good")
    member = Member(one_queue, name_server, listener=Suspending(b"bad", 1, RetryLater(-1)), orderly=True).start()
    assert member.bodies == [b"bad", b"good"]
    assert [header.delay_level for header in one_queue.cluster.sent_back] == [-1]


def test_a_dead_letter_that_no_broker_takes_keeps_the_queue_waiting(one_queue: World, name_server: str) -> None:
    store(one_queue, "bad", "good")
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        one_queue.faults.refuse[A, code] = (ResponseCode.SYSTEM_ERROR, "no")
    listener = Suspending(b"bad", 99)
    member = Member(one_queue, name_server, listener=listener, orderly=True, max_reconsume_times=0).start()
    one_queue.clock.pump([1] * 3)
    assert set(member.bodies) == {b"bad"}
    one_queue.faults.refuse.clear()
    one_queue.clock.pump([1] * 3)
    assert member.bodies[-1] == b"good"


def test_one_message_of_a_queue_at_a_time_and_several_queues_at_once(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2, brokers=["a"])
    other = MessageQueue("T", "a", 1)
    store(world, "a0", "a1")
    store(world, "b0", "b1", queue=other)
    waiting: list[tuple[bytes, Deferred[Any]]] = []

    def listener(message: Any) -> Any:
        waiting.append((message.body, Deferred()))
        return waiting[-1][1]

    Member(world, name_server, listener=listener, orderly=True).start()
    assert sorted(body for body, _ in waiting) == [b"a0", b"b0"]
    waiting[0][1].callback(None)
    world.cluster.settle()
    assert len(waiting) == 3
    assert waiting[2][0][:1] == waiting[0][0][:1]


def test_a_queue_is_locked_before_it_is_pulled_and_unlocked_at_the_end(one_queue: World, name_server: str) -> None:
    store(one_queue, "0")
    member = Member(one_queue, name_server, orderly=True).start()
    assert len(one_queue.faults.asked(LOCK)) == 2  # of the retry topic too
    one_queue.clock.advance(20)
    assert len(one_queue.faults.asked(LOCK)) == 3
    one_queue.result(member.core.close())
    assert len(one_queue.faults.asked(UNLOCK)) == 1
    other = Member(one_queue, name_server, me="c2", orderly=True).start()
    store(one_queue, "1")
    one_queue.cluster.settle()
    assert other.bodies == [b"1"]


def test_all_queues_of_a_topic_of_10000_are_locked_and_unlocked(world: World, name_server: str) -> None:
    topic = "T" * 127
    world.cluster.add_topic(topic, queues=10_000, brokers=["a"])
    queues = [MessageQueue(topic, "a", n) for n in range(10_000)]

    def locks(me: str) -> QueueLocks:
        net = world.net()
        routes = Routes(net, (name_server,), age_s=30.0)
        return QueueLocks(net, routes, FixedIdentity(me), "g", 3000)

    def done(asking: Any) -> Any:
        found: list[Any] = []
        world.run(asking).addBoth(found.append)
        for _ in range(1000):
            if found:
                return found[0]
            world.clock.advance(0.001)
        raise AssertionError("it is not answered")

    first, second = locks("c1"), locks("c2")
    assert done(first.lock(queues)) == set()
    assert all(map(first.holds, queues))
    assert done(second.lock(queues)) == set(queues)
    done(first.unlock(queues))
    assert done(second.lock(queues)) == set()


def test_a_queue_that_another_member_has_locked_is_waited_for(one_queue: World, name_server: str) -> None:
    store(one_queue, "0")
    waiting: Deferred[Any] = Deferred()
    first = Member(one_queue, name_server, me="c2", listener=lambda _: waiting, orderly=True).start()
    second = Member(one_queue, name_server, me="c1", orderly=True).start()
    first.core.ids_changed("g")
    one_queue.cluster.settle()
    assert Q not in first.core.assigned
    one_queue.clock.pump([1] * 100)  # the lock is renewed as long as the listener has a message of it
    assert second.got == []
    waiting.callback(None)
    one_queue.clock.pump([1] * 3)
    assert first.bodies == [b"0"]
    assert second.got == []  # what the first one consumed was committed
    store(one_queue, "1")
    one_queue.clock.pump([1] * 2)
    assert (first.bodies, second.bodies) == ([b"0"], [b"1"])


def test_without_a_lock_that_counts_nothing_is_handed_out(one_queue: World, name_server: str) -> None:
    store(one_queue, "0", "1")
    member = Member(one_queue, name_server, orderly=True, listener=Suspending(b"0", 60)).start()
    one_queue.faults.refuse[A, LOCK] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.clock.pump([1] * 40)
    count = len(member.got)
    assert count < 33
    one_queue.clock.pump([1] * 10)
    assert len(member.got) == count
    one_queue.faults.refuse.clear()
    one_queue.clock.pump([1] * 40)
    assert member.bodies[-1] == b"1"


def test_a_queue_that_others_have_locked_meanwhile_is_begun_anew(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    store(one_queue, "0", "1")
    listener = Suspending(b"0", 10**9)
    member = Member(one_queue, name_server, orderly=True, listener=listener).start()
    for code, client_id in ((UNLOCK, "me"), (LOCK, "other")):
        body = LockBatchRequestBody("g", client_id, frozenset({Q})).to_json()
        one_queue.cluster._tell(RemotingCommand.request(code, body=body), A)
    one_queue.clock.pump([1] * 21)
    assert "lost the lock of" in caplog.text
    count = len(member.got)
    one_queue.clock.pump([1] * 19)
    assert len(member.got) == count
    listener.times = 0
    one_queue.clock.pump([1] * 40)  # the broker gives the other's lock up after 60 s
    assert member.bodies[-1] == b"1"


def test_what_is_not_committed_by_hand_comes_again(one_queue: World, name_server: str) -> None:
    store(one_queue, "0", "1", "end", "2", "end")
    results = iter([None, None, OrderlyResult.ROLLBACK, None, OrderlyResult.SUCCESS, OrderlyResult.COMMIT, None])
    member = Member(
        one_queue, name_server, listener=lambda _: next(results, None), orderly=True, auto_commit=False
    ).start()
    assert member.bodies == [b"0", b"1", b"end"]
    one_queue.clock.advance(1)
    assert member.bodies == [b"0", b"1", b"end", b"0", b"1", b"end", b"2", b"end"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3


def test_suspending_keeps_what_was_consumed_by_hand(one_queue: World, name_server: str) -> None:
    store(one_queue, "0", "1")
    results = iter([None, OrderlyResult.SUSPEND, OrderlyResult.COMMIT])
    member = Member(one_queue, name_server, listener=lambda _: next(results), orderly=True, auto_commit=False).start()
    one_queue.clock.advance(1)
    assert member.bodies == [b"0", b"1", b"1"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2


def test_a_broadcasting_member_keeps_order_without_locks(one_queue: World, name_server: str) -> None:
    store(one_queue, "0", "1")
    offsets = MemoryOffsets()
    member = Member(
        one_queue,
        name_server,
        listener=Suspending(b"0", 1),
        orderly=True,
        model=MessageModel.BROADCASTING,
        offset_store=offsets,
    ).start()
    one_queue.clock.advance(1)
    assert member.bodies == [b"0", b"0", b"1"]
    assert one_queue.faults.asked(LOCK) == []


def test_a_listener_gets_several_messages(one_queue: World, name_server: str) -> None:
    store(one_queue, *"0123456")
    batches: list[list[bytes]] = []

    def listener(messages: Any) -> None:
        batches.append([message.body for message in messages])

    Member(one_queue, name_server, listener=listener, batch_max=3).start()
    assert sorted(body for batch in batches for body in batch) == [b"%d" % n for n in range(7)]
    assert max(map(len, batches)) <= 3
    one_queue.clock.advance(5)
    assert committed(one_queue) == 7


@pytest.mark.parametrize(
    ("result", "back"), [(FirstConsumed(2), [b"2"]), (FirstConsumed(9), []), (False, [b"0", b"1", b"2"])]
)
def test_what_it_did_not_consume_of_them_goes_back(
    one_queue: World, name_server: str, result: Any, back: list[bytes]
) -> None:
    store(one_queue, *"012")
    places = {record.physical_offset: record.body for record in one_queue.cluster.stored(Q)}
    Member(
        one_queue, name_server, listener=lambda messages: result if len(messages) > 1 else False, batch_max=3
    ).start()
    assert [places[header.offset] for header in one_queue.cluster.sent_back] == back
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3


def test_in_order_the_first_of_them_count_and_the_others_come_again(one_queue: World, name_server: str) -> None:
    store(one_queue, *"012")
    got: list[list[bytes]] = []

    def listener(messages: Any) -> Any:
        got.append([message.body for message in messages])
        return FirstConsumed(1) if len(messages) > 1 else None

    Member(one_queue, name_server, me="c2", listener=listener, orderly=True, batch_max=3).start()
    one_queue.clock.pump([1] * 3)
    flat = [body for batch in got for body in batch]
    assert [body for n, body in enumerate(flat) if body not in flat[:n]] == [b"0", b"1", b"2"]
    assert got[-1] == [b"2"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 3


@pytest.mark.parametrize("seed", range(5))
def test_members_that_come_and_go_hold_no_queue_twice_and_keep_order(world: World, name_server: str, seed: int) -> None:
    rng = random.Random(seed)
    world.cluster.add_topic("T", queues=3)
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(3)]
    with_listener: dict[MessageQueue, str] = {}
    order: dict[MessageQueue, list[bytes]] = {queue: [] for queue in queues}

    def member(me: str) -> Member:
        def listener(message: Any) -> Any:
            queue = message.queue
            assert with_listener.setdefault(queue, me) == me, "two members have one queue"
            done: Deferred[Any] = Deferred()

            def end() -> None:
                with_listener.pop(queue, None)
                if not order[queue] or order[queue][-1] != message.body:
                    order[queue].append(message.body)
                done.callback(False if rng.random() < 0.1 else None)

            world.clock.callLater(rng.choice([0.01, 0.1, 0.5]), end)
            return done

        return Member(
            world, name_server, me=me, listener=listener, orderly=True, rebalance_s=5.0, suspend_queue_s=0.1
        ).start()

    numbers = dict.fromkeys(queues, 0)
    members = {"c0": member("c0")}
    for turn in range(30):
        for queue in rng.choices(queues, k=rng.randint(0, 5)):
            world.cluster.store(queue, b"%d" % numbers[queue])
            numbers[queue] += 1
        if rng.random() < 0.3 and len(members) < 4:
            members[f"c{turn + 1}"] = member(f"c{turn + 1}")
        elif rng.random() < 0.2 and len(members) > 1:
            world.run(members.pop(rng.choice(sorted(members))).core.close())
        for each in members.values():
            each.core.ids_changed("g")
        world.clock.pump([0.25] * 4)
    world.clock.pump([0.5] * 120)
    assert order == {queue: [b"%d" % n for n in range(numbers[queue])] for queue in queues}
    for each in members.values():
        world.run(each.core.close())
    world.clock.pump([1] * 15)


@pytest.mark.parametrize(
    "option", [{"orderly": 1}, {"batch_max": 0}, {"batch_max": True}, {"auto_commit": False}, {"suspend_queue_s": 31}]
)
def test_options_that_cannot_be_are_refused(option: Any) -> None:
    with pytest.raises(BadArgument):
        PushOptions(**option)


@pytest.mark.parametrize("make", [lambda: SuspendQueue(0), lambda: SuspendQueue("1")])  # type: ignore[arg-type]
def test_a_pause_that_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="SuspendQueue"):
        make()
