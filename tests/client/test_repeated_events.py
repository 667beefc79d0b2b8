"""Brokers, name servers, listeners and members that fail and come back again and again: each time is as the first."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import Message, SendFailed
from mqbroker.client.listeners import TELL_EVERY_S
from mqbroker.client.routes import Routes
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.faults import SILENT
from tests.client.member import A, B, Member, Q
from tests.client.test_producer import make
from tests.client.world import World

PULL = RequestCode.PULL_MESSAGE
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
BEAT = RequestCode.HEART_BEAT
ROUNDS = range(1, 4)
NO = ResponseCode.SYSTEM_ERROR, "no"


def committed(world: World) -> int | None:
    return world.cluster.offsets.get(("g", Q))


def lines(caplog: pytest.LogCaptureFixture, text: str, level: str = "WARNING") -> int:
    return len([each for each in caplog.records if text in each.getMessage() and each.levelname == level])


def test_pulls_that_fail_again_go_on_again_and_have_a_line_each_time(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(one_queue, name_server, pull_error_pause_s=3.0).start()
    for number in ROUNDS:
        one_queue.faults.refuse[A, PULL] = NO
        one_queue.cluster.store(Q, b"a%d" % number)  # which ends the pull that is held
        one_queue.cluster.store(Q, b"b%d" % number)
        before = len(one_queue.faults.asked(PULL))
        one_queue.clock.pump([0.5] * 60)
        assert len(one_queue.faults.asked(PULL)) - before <= 2 * 10 + 4, "each 3 s, of two queues"
        assert lines(caplog, "queueId=0") <= 2 * number
        assert lines(caplog, f"{Q}: ") == number
        one_queue.faults.refuse.clear()
        one_queue.clock.pump([0.5] * 8)
        assert member.bodies[-2:] == [b"a%d" % number, b"b%d" % number]
        assert len(member.got) == 2 * number
        one_queue.clock.pump([0.5] * 10)
        assert committed(one_queue) == 2 * number


def test_connections_that_are_lost_again_are_made_again(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    for number in ROUNDS:
        one_queue.faults.down.add(A)
        one_queue.faults.cut(A)
        one_queue.clock.pump([0.5] * 20)
        assert committed(one_queue) == (number - 1 or None)
        one_queue.faults.down.clear()
        one_queue.cluster.store(Q, b"%d" % number)
        one_queue.clock.pump([0.5] * 8)
        assert member.bodies == [b"%d" % n for n in range(1, number + 1)]
        one_queue.clock.pump([0.5] * 12)
        assert committed(one_queue) == number


def test_commits_that_fail_again_are_made_up_for_again(one_queue: World, name_server: str) -> None:
    Member(one_queue, name_server).start()
    for number in ROUNDS:
        one_queue.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET] = SILENT
        one_queue.cluster.store(Q, b"%d" % number)
        one_queue.clock.pump([0.5] * 30)
        assert committed(one_queue) == (number - 1 or None)
        one_queue.faults.refuse.clear()
        one_queue.clock.pump([0.5] * 10)
        assert committed(one_queue) == number


def test_routes_that_cannot_be_refreshed_again_have_a_line_each_time_and_change_again(
    world: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.add_topic("T", 1, brokers=["a"])
    routes = Routes(world.net(), (name_server,), age_s=30.0)
    world.result(routes.get("T"))
    for number in ROUNDS:
        world.faults.refuse[None, ROUTE] = NO
        world.cluster.add_topic("T", 1 + number, brokers=["a"])
        for _ in range(3):
            world.clock.advance(31)
            assert len(world.result(routes.get("T")).subscribe_queues) == number
        assert lines(caplog, "keeping the former route") == number
        routes.mark_stale("T")
        world.faults.refuse.clear()
        world.clock.advance(0.9)
        assert len(world.result(routes.get("T")).subscribe_queues) == number
        world.clock.advance(0.1)
        assert len(world.result(routes.get("T")).subscribe_queues) == number + 1
        asked = len(world.faults.asked(ROUTE))
        world.clock.advance(29)
        world.result(routes.get("T"))
        assert len(world.faults.asked(ROUTE)) == asked, "it is stale no longer"


def test_a_balance_that_fails_again_is_tried_again_soon_at_first(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server).start()
    tries = []
    for number in ROUNDS:
        one_queue.faults.refuse[A, MEMBERS] = NO
        member.core.ids_changed("g")
        one_queue.cluster.settle()
        before = len(one_queue.faults.asked(MEMBERS))
        one_queue.clock.pump([0.5] * 30)
        tries.append(len(one_queue.faults.asked(MEMBERS)) - before)
        one_queue.clock.pump([0.5] * 200)
        one_queue.faults.refuse.clear()
        one_queue.clock.pump([0.5] * 40)
        before = len(one_queue.faults.asked(MEMBERS))
        one_queue.clock.pump([0.5] * 120)
        assert len(one_queue.faults.asked(MEMBERS)) - before == 2 * 3, "of two topics, each 20 s"
        one_queue.cluster.store(Q, b"%d" % number)
        assert len(member.got) == number
    assert tries[0] > 2 * 3
    assert tries == [tries[0]] * 3


def test_heartbeats_that_fail_again_are_sent_again(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    Member(one_queue, name_server).start()
    for number in ROUNDS:
        one_queue.faults.refuse[A, BEAT] = NO
        one_queue.clock.pump([1] * 31)
        failures = lines(caplog, f"heartbeat to {A} failed")
        assert failures >= number
        # The next balance makes up for it, and the period goes on.
        one_queue.faults.refuse.clear()
        before = one_queue.faults.asked_of(BEAT).count(A)
        one_queue.clock.pump([1] * 20)
        assert one_queue.faults.asked_of(BEAT).count(A) > before
        before = one_queue.faults.asked_of(BEAT).count(A)
        one_queue.clock.pump([1] * 60)
        assert one_queue.faults.asked_of(BEAT).count(A) - before == 2
        assert lines(caplog, f"heartbeat to {A} failed") == failures


def test_a_message_that_is_not_taken_back_again_comes_again_each_time(one_queue: World, name_server: str) -> None:
    one_queue.faults.refuse[A, BACK] = one_queue.faults.refuse[A, RequestCode.SEND_MESSAGE_V2] = NO
    member = Member(one_queue, name_server, listener=lambda m: m.reconsume_times == 3).start()
    for number in ROUNDS:
        one_queue.cluster.store(Q, b"%d" % number)
        one_queue.clock.pump([0.5] * 40)
        assert [(m.body, m.reconsume_times) for m in member.got] == [
            (b"%d" % n, times) for n in range(1, number + 1) for times in range(4)
        ]
        assert committed(one_queue) == number


def test_each_message_that_is_overdue_goes_back_once_and_the_next_one_has_all_its_time(
    one_queue: World, name_server: str
) -> None:
    waiting: list[Deferred[Any]] = []

    def listener(message: Any) -> Deferred[Any] | None:
        if message.reconsume_times:
            return None
        waiting.append(Deferred())
        return waiting[-1]

    Member(one_queue, name_server, listener=listener, concurrency=1).start()
    for number in ROUNDS:
        for name in "ab":
            one_queue.cluster.store(Q, f"{name}{number}".encode())
        for sent, back in enumerate(range(2 * number - 2, 2 * number), start=2 * number - 1):
            assert len(waiting) == sent
            one_queue.clock.pump([60] * 14)
            assert len(one_queue.cluster.sent_back) == back
            one_queue.clock.pump([60] * 6)
            assert len(one_queue.cluster.sent_back) == back + 1
            waiting[-1].callback(False)  # too late: it is back already
            one_queue.cluster.settle()
        one_queue.clock.pump([60] * 2)
        assert committed(one_queue) == 2 * number


def test_each_message_that_keeps_a_queue_from_being_pulled_is_named_once_a_minute(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting: list[Deferred[Any]] = []

    def listener(message: Any) -> Deferred[Any] | None:
        if message.body == b"stuck":
            waiting.append(Deferred())
            return waiting[-1]
        return None

    member = Member(one_queue, name_server, listener=listener, queue_span_max=50).start()
    for number in ROUNDS:
        for pauses in range(2):
            one_queue.cluster.store(Q, b"stuck")
            for _ in range(150):
                one_queue.cluster.store(Q, b"good")
            one_queue.clock.pump([1] * 5)
            assert len(member.got) < 2 * 151 * number
            assert lines(caplog, "pulling is paused until message") == number, pauses
            waiting[-1].callback(None)
            one_queue.clock.pump([1] * 5)
        assert len(member.got) == 2 * 151 * number
        one_queue.clock.pump([1] * int(TELL_EVERY_S))


def test_wrong_results_of_a_listener_are_counted_anew_each_minute(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    Member(one_queue, name_server, listener=lambda m: None if m.reconsume_times else "wrong").start()
    for number in ROUNDS:
        for _ in range(3):
            one_queue.cluster.store(Q, b"x")
        one_queue.clock.pump([1] * int(TELL_EVERY_S))
        assert lines(caplog, "which is not a valid result") == number
        assert lines(caplog, "(and 2 times more before that)") == number - 1


def test_a_member_that_comes_and_goes_again_takes_its_share_and_leaves_it(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2)
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    queues = {MessageQueue("T", broker, n) for broker in "ab" for n in range(2)}

    def mine(member: Member) -> set[MessageQueue]:
        return {queue for queue in member.core.assigned if queue.topic == "T"}

    first = Member(world, name_server, me="c1").start()
    for number in ROUNDS:
        other = Member(world, name_server, me="c2").start()
        first.core.ids_changed("g")
        world.clock.pump([0.5] * 4)
        assert mine(first) | mine(other) == queues
        assert (len(mine(first)), len(mine(other))) == (2, 2)
        for queue in queues:
            world.cluster.store(queue, b"%d" % number)
        world.clock.pump([0.5] * 2)
        assert len(other.got) == 2
        world.result(other.core.close())
        first.core.ids_changed("g")
        world.clock.pump([0.5] * 4)
        assert mine(first) == queues
        assert len(first.got) == 2 * number, "none twice"


def test_a_producer_whose_brokers_fail_again_sends_again(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=1)
    producer = make(world, name_server, avoid_slow_brokers=False)
    for number in ROUNDS:
        for away in ({A}, {B}, {A, B}):
            world.faults.down |= away
            for addr in away:
                world.faults.cut(addr)
            found: list[Any] = []
            world.run(producer.send(Message("T", b"%d" % number))).addBoth(found.append)
            world.clock.pump([0.25] * 16)
            if len(away) == 1:
                assert found[0].queue.broker_name == ("b" if away == {A} else "a")
            else:
                assert found[0].check(SendFailed)
            world.faults.down.clear()
            world.clock.pump([0.5] * 8)
            sent = [world.result(producer.send(Message("T", b"x"))).queue.broker_name for _ in range(4)]
            assert set(sent) == {"a", "b"}
    world.result(producer.close())
