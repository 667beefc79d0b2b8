"""Messages that a program takes one by one: how many it may hold, and what becomes of those that it does not settle."""

from typing import Any

import attrs
import pytest

from mqbroker.client import ConsumeFrom, ConsumeResult, MessageQueue, PushOptions, by_iteration
from mqbroker.client.observers import ConsumeObserver, Consumption
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.wire.codes import RequestCode
from tests.client.member import Q
from tests.client.world import FixedIdentity, World


class Iterating:
    """A member of group g that is iterated over."""

    def __init__(self, world: World, name_server: str, me: str = "me", **options: Any) -> None:
        self.world = world
        options = {"consume_from": ConsumeFrom.FIRST, **options}
        self.core = PushConsumerCore(
            world.net(), (name_server,), "g", by_iteration, PushOptions(**options), FixedIdentity(me)
        )
        world.result(self.core.subscribe("T"))
        world.result(self.core.start())

    def take(self, count: int = 1000) -> list[Any]:
        """Those that are there."""
        found: list[Any] = []
        while len(found) < count:
            taken: list[Any] = []
            waiting = self.world.run(self.core.next_messages(count - len(found)))
            waiting.addCallbacks(taken.extend, lambda _: None)
            if not taken:
                waiting.cancel()
                break
            found += taken
        return found


def committed(world: World) -> Any:
    return world.cluster.offsets.get(("g", Q))


def store(world: World, count: int) -> None:
    for n in range(count):
        world.cluster.store(Q, b"%d" % n)


def test_no_more_are_handed_out_than_may_be_held(one_queue: World, name_server: str) -> None:
    store(one_queue, 10)
    member = Iterating(one_queue, name_server, unacked_max=3)
    first = member.take()
    assert [each.body for each in first] == [b"0", b"1", b"2"]
    waiting = one_queue.run(member.core.next_messages(5))
    assert not waiting.called
    first[2].ack()
    one_queue.cluster.settle()
    assert waiting.called
    one_queue.clock.advance(5)
    assert committed(one_queue) == 0  # the first is not acknowledged


def test_what_is_not_settled_in_time_goes_back_and_makes_room(one_queue: World, name_server: str) -> None:
    store(one_queue, 3)
    member = Iterating(one_queue, name_server, unacked_max=1, consume_timeout_s=15.0)
    (held,) = member.take()
    one_queue.clock.pump([1] * 20)
    assert [header.delay_level for header in one_queue.cluster.sent_back] == [3]
    assert [each.body for each in member.take()] == [b"1"]
    held.nack()
    one_queue.clock.pump([1] * 3)
    assert len(one_queue.faults.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


def test_several_may_wait_at_once_and_each_message_is_for_one(one_queue: World, name_server: str) -> None:
    member = Iterating(one_queue, name_server)
    got: list[Any] = []
    for _ in range(5):
        one_queue.run(member.core.next_messages(1)).addCallback(got.extend)
    store(one_queue, 5)
    one_queue.clock.pump([1] * 2)
    assert sorted(each.body for each in got) == [b"0", b"1", b"2", b"3", b"4"]


def test_closing_ends_the_iteration_and_does_not_wait_for_what_is_held(one_queue: World, name_server: str) -> None:
    store(one_queue, 2)
    member = Iterating(one_queue, name_server)
    first, second = member.take()
    first.ack()
    ended: list[Any] = []
    one_queue.run(member.core.next_messages(1)).addCallback(ended.append)
    one_queue.result(member.core.close())
    assert ended == [[]]
    second.ack()
    assert committed(one_queue) == 1


def test_what_is_settled_after_its_queue_has_moved_does_not_count(one_queue: World, name_server: str) -> None:
    store(one_queue, 2)
    member = Iterating(one_queue, name_server, me="c2")
    first, second = member.take()
    one_queue.cluster.join("g", "c1")
    member.core.ids_changed("g")
    one_queue.cluster.settle()
    one_queue.clock.advance(0.2)  # for so long it is waited for
    first.nack()
    second.ack()
    one_queue.clock.pump([1] * 6)
    assert one_queue.cluster.sent_back == []
    assert committed(one_queue) == 0


def test_an_administrators_message_is_refused(one_queue: World, name_server: str) -> None:
    store(one_queue, 1)
    member = Iterating(one_queue, name_server)
    (held,) = member.take()
    result = one_queue.result(member.core.consume_directly(held.message))
    assert result.consume_result == "CR_THROW_EXCEPTION"
    assert "iterates" in (result.remark or "")


def test_a_delivery_is_the_message(one_queue: World, name_server: str) -> None:
    store(one_queue, 1)
    (held,) = Iterating(one_queue, name_server).take()
    assert (held.topic, held.queue, held.queue_offset, held.body) == ("T", Q, 0, b"0")
    assert "Delivery(" in repr(held)
    with pytest.raises(AttributeError):
        _ = held.nothing


def test_observers_see_what_is_taken_and_what_becomes_of_it(one_queue: World, name_server: str) -> None:
    seen: list[Any] = []

    class Sees(ConsumeObserver):
        def before_consume(self, consumption: Consumption) -> None:
            seen.append(consumption.messages[0].body)
            consumption.messages = [attrs.evolve(each, tags="seen") for each in consumption.messages]

        def after_consume(self, consumption: Consumption, outcome: Any) -> None:
            seen.append(outcome)

    store(one_queue, 2)
    first, second = Iterating(one_queue, name_server, observers=[Sees()]).take()
    assert (first.tags, seen) == ("seen", [b"0", b"1"])
    first.ack()
    second.nack()
    assert seen[2:] == [ConsumeResult.SUCCESS, ConsumeResult.RETRY]


def test_topics_in_a_namespace_are_as_the_program_knows_them(world: World, name_server: str) -> None:
    world.cluster.add_topic("ns%T", queues=1, brokers=["a"])
    world.cluster.store(MessageQueue("ns%T", "a", 0), b"0")
    (held,) = Iterating(world, name_server, namespace="ns").take()
    assert held.topic == "T"


def test_a_member_that_was_away_hands_out_nothing_of_before(one_queue: World, name_server: str) -> None:
    store(one_queue, 8)
    member = Iterating(one_queue, name_server)
    (first,) = member.take(1)
    assert first.body == b"0"
    one_queue.cluster.reactor.rightNow += 140  # without a turn of the loop
    one_queue.cluster.offsets["g", Q] = 6  # another member consumes
    assert member.core.next_at_once() is None
    got: list[Any] = []
    one_queue.run(member.core.next_messages(5)).addCallback(got.extend)
    one_queue.clock.pump([1] * 5)
    assert [each.body for each in [*got, *member.take()]] == [b"6", b"7"]
