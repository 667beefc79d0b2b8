"""Queues that change hands while messages come: none is delivered twice as long as listeners are quick."""

import threading
from collections import Counter
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mqbroker.client import PushOptions, blocking
from mqbroker.client.options import ConsumeFrom
from mqbroker.wire.bodies import MessageQueue
from tests.client.loopback import Loopback
from tests.client.member import Member, Q
from tests.client.world import World

QUEUES = [MessageQueue("T", broker, n) for broker in "ab" for n in range(3)]
STEP_S = 0.05


class Traffic:
    """One message for each queue in each step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = 0
        world.cluster.add_topic("T", queues=3)
        world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            for queue in QUEUES:
                self.world.cluster.store(queue, b"%d" % self.sent)
                self.sent += 1
            self.world.clock.advance(STEP_S)


def balance(*members: Member) -> None:
    for member in members:
        member.core.ids_changed("g")
    members[0].world.cluster.settle()


def test_a_join_and_a_leave_repeat_nothing(world: World, name_server: str) -> None:
    traffic = Traffic(world)

    def listener(message: Any) -> Any:
        return deferLater(world.clock, 0.12, lambda: None)  # type: ignore[arg-type]

    first, second = (Member(world, name_server, me=me, listener=listener).start() for me in ("c1", "c2"))
    balance(first, second)
    traffic.run(2)
    third = Member(world, name_server, me="c3", listener=listener).start()
    balance(first, second)
    traffic.run(2)
    assert third.got
    closed = world.run(third.core.close())
    traffic.run(0.2)
    assert closed.called
    balance(first, second)
    traffic.run(2)
    world.clock.pump([0.1] * 20)
    delivered = Counter(first.bodies + second.bodies + third.bodies)
    assert len(delivered) == traffic.sent
    assert {body: count for body, count in delivered.items() if count > 1} == {}


def test_a_queue_that_has_left_is_handed_out_no_further(one_queue: World, name_server: str) -> None:
    for n in range(5):
        one_queue.cluster.store(Q, b"%d" % n)
    waiting: list[Deferred[None]] = []

    def listener(message: Any) -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    member = Member(one_queue, name_server, me="c2", listener=listener, concurrency=2).start()
    one_queue.cluster.join("g", "c1")
    balance(member)
    assert member.core.assigned == frozenset()
    for each in waiting:
        each.callback(None)
    one_queue.cluster.settle()
    assert member.bodies == [b"0", b"1"]
    assert one_queue.cluster.offsets["g", Q] == 2


def test_what_is_sent_back_soon_after_its_queue_has_left_comes_once(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(Q, b"0")
    waiting: Deferred[None] = Deferred()
    member = Member(one_queue, name_server, me="c2", listener=lambda message: waiting).start()
    one_queue.cluster.join("g", "c1")
    balance(member)
    waiting.errback(ValueError("no"))
    one_queue.cluster.settle()
    assert len(one_queue.cluster.sent_back) == 1
    assert one_queue.cluster.offsets["g", Q] == 1


def test_a_queue_that_comes_back_at_once_begins_after_what_the_listener_has(one_queue: World, name_server: str) -> None:
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)

    def listener(message: Any) -> Any:
        return deferLater(one_queue.clock, 0.1, lambda: None)  # type: ignore[arg-type]

    member = Member(one_queue, name_server, listener=listener, concurrency=1).start()
    for expression in ("*", "*"):  # each gives the queues up, and takes them again
        one_queue.run(member.core.subscribe("T", expression))
    one_queue.clock.pump([0.1] * 10)
    assert member.bodies == [b"0", b"1", b"2"]


def test_closed_soon_after_a_queue_has_left_a_member_commits_what_ended_meanwhile(
    one_queue: World, name_server: str
) -> None:
    one_queue.cluster.store(Q, b"0")
    waiting: Deferred[None] = Deferred()
    member = Member(one_queue, name_server, me="c2", listener=lambda message: waiting).start()
    one_queue.cluster.join("g", "c1")
    balance(member)
    closed = one_queue.run(member.core.close())
    waiting.callback(None)
    one_queue.clock.advance(0)
    assert closed.called
    assert one_queue.cluster.offsets["g", Q] == 1


@pytest.mark.parametrize("result", [None, True])
def test_a_thread_that_ends_soon_after_its_queue_has_left_counts(server: Loopback, result: Any) -> None:
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    server.store(Q, b"0")
    server.store(Q, b"1")
    begun, go_on = threading.Event(), threading.Event()
    bodies: list[bytes] = []

    def listener(message: Any) -> Any:
        bodies.append(message.body)
        begun.set()
        go_on.wait(10)
        return result

    # The queue waits for the listener for two thirds of the pause.
    options = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0, concurrency=1, takeover_pause_s=30)
    consumer = blocking.PushConsumer(server.name_server, "g", listener, options=options)
    consumer.subscribe("T")
    with consumer:
        assert begun.wait(10)
        consumer.unsubscribe("T")
        go_on.set()
    assert bodies == [b"0"]
    assert server.offsets["g", Q] == 1
