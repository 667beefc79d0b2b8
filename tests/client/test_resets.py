"""Offsets that brokers have consumers reset."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client.push_consumer import RESET_WAIT_S
from mqbroker.wire.admin_bodies import (
    MessageQueueForC,
    ResetOffsetBodyForC,
)
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.client.asking import ask, committed, fill, pulled_from, reset_to
from tests.client.member import RETRY, A, Member, Q
from tests.client.world import World


def test_a_reset_backwards_delivers_again_from_there(one_queue: World, name_server: str) -> None:
    fill(one_queue, 5)
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(5)
    assert committed(one_queue) == 5
    answer = ask(member, reset_to({Q: 2, MessageQueue("T", "b", 7): 1}))
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")
    assert committed(one_queue) == 2, "it commits at once"
    assert member.bodies[5:] == [b"2", b"3", b"4"]
    assert member.core.assigned == {Q, RETRY}
    one_queue.clock.advance(5)
    assert committed(one_queue) == 5


def test_a_reset_is_committed_at_once_and_drops_what_was_fetched(one_queue: World, name_server: str) -> None:
    fill(one_queue, 50)
    running: list[Any] = []

    def listener(message: Any) -> Any:
        running.append((message.body, Deferred()))
        return running[-1][1]

    member = Member(one_queue, name_server, listener=listener, concurrency=2).start()
    assert [body for body, _ in running] == [b"0", b"1"]
    ask(member, reset_to({Q: 40}))
    assert committed(one_queue) == 40
    assert member.core.positions("T") == {Q: 40}
    pulls = len(pulled_from(one_queue))
    # What the listener is with comes to its end, and does not count; nothing is sent back.
    running[0][1].errback(ValueError("too late"))
    assert len(running) == 2
    assert len(pulled_from(one_queue)) == pulls
    running[1][1].callback(None)
    one_queue.cluster.settle()
    assert pulled_from(one_queue)[pulls] == 40
    assert [body for body, _ in running[2:]] == [b"40", b"41"]
    assert one_queue.cluster.sent_back == []
    one_queue.clock.advance(5)
    assert committed(one_queue) == 40


def test_a_listener_that_does_not_end_holds_a_reset_up_only_so_long(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(one_queue, 3)
    answers: Iterator[Any] = iter([Deferred(), *[None] * 10])
    member = Member(one_queue, name_server, listener=lambda m: next(answers)).start()
    ask(member, reset_to({Q: 1}))
    got = len(member.got)
    one_queue.clock.advance(RESET_WAIT_S - 0.1)
    assert len(member.got) == got
    one_queue.clock.advance(0.1)
    assert member.bodies[got:] == [b"1", b"2"]
    assert "still holds messages" in caplog.text


def test_resets_without_an_end_keep_nothing(one_queue: World, name_server: str) -> None:
    def kept() -> Any:
        gc.collect()
        return sum(type(thing).__name__ in ("ReceivedMessage", "_Signal") for thing in gc.get_objects())

    fill(one_queue, 50)
    running: list[Any] = []

    def listener(message: Any) -> Any:
        running.append(Deferred())
        return running[-1]

    member = Member(one_queue, name_server, listener=listener, concurrency=1).start()
    for count in range(6):
        ask(member, reset_to({Q: 0}))
        one_queue.clock.advance(RESET_WAIT_S)
        if count == 0:  # the message that the listener is with, and its queue, stay
            before = kept()
    assert len(running) == 1
    assert kept() <= before


def test_a_reset_that_is_never_committed_holds_nothing_up(one_queue: World, name_server: str) -> None:
    fill(one_queue, 3)
    member = Member(one_queue, name_server).start()
    one_queue.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET] = (ResponseCode.SYSTEM_ERROR, "no")
    ask(member, reset_to({Q: 1}))
    assert member.bodies == [b"0", b"1", b"2", b"1", b"2"]


def test_resets_one_after_another_wait_together_and_the_last_counts(one_queue: World, name_server: str) -> None:
    fill(one_queue, 5)
    held: Deferred[Any] = Deferred()
    member = Member(one_queue, name_server, listener=lambda m: held, concurrency=1).start()
    for offset in (1, 2, 4):
        ask(member, reset_to({Q: offset}))
    one_queue.clock.advance(1)
    assert member.bodies == [b"0"]
    held.callback(None)
    one_queue.clock.advance(0)
    assert member.bodies == [b"0", b"4"]
    one_queue.clock.advance(5)
    assert committed(one_queue) == 5


def test_a_reset_reaches_the_next_owner_though_its_queue_moves_at_once(one_queue: World, name_server: str) -> None:
    fill(one_queue, 5)
    member = Member(one_queue, name_server, me="c2", listener=lambda m: Deferred()).start()
    one_queue.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET] = (ResponseCode.SYSTEM_ERROR, "no")
    ask(member, reset_to({Q: 3}))
    assert committed(one_queue) is None
    one_queue.faults.refuse.clear()
    one_queue.cluster.join("g", "c1")
    member.core.ids_changed("g")
    one_queue.cluster.settle()
    assert member.core.assigned == frozenset()
    assert committed(one_queue) == 3


def test_a_reset_that_cannot_be_committed_yet_is_kept_and_committed_later(one_queue: World, name_server: str) -> None:
    fill(one_queue, 5)
    member = Member(one_queue, name_server).start()
    one_queue.clock.advance(5)
    one_queue.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET] = (ResponseCode.SYSTEM_ERROR, "no")
    one_queue.faults.refuse[A, RequestCode.PULL_MESSAGE] = (ResponseCode.SYSTEM_ERROR, "no")
    ask(member, reset_to({Q: 2}))
    assert committed(one_queue) == 5
    del one_queue.faults.refuse[A, RequestCode.UPDATE_CONSUMER_OFFSET]
    one_queue.clock.pump([1] * 5)
    assert committed(one_queue) == 2
    one_queue.faults.refuse.clear()
    one_queue.clock.advance(1)
    assert member.bodies[5:] == [b"2", b"3", b"4"]


def test_only_queues_of_the_topic_are_reset(one_queue: World, name_server: str) -> None:
    one_queue.cluster.store(RETRY, b"again", RETRY_TOPIC="T")
    member = Member(one_queue, name_server).start()
    ask(member, reset_to({RETRY: 0}))
    assert pulled_from(one_queue, RETRY) == [0, 1]
    ask(member, reset_to({RETRY: 0}, topic="%RETRY%g"))
    assert pulled_from(one_queue, RETRY) == [0, 1, 0, 1]


def test_a_reset_beyond_the_end_goes_on_at_the_end(one_queue: World, name_server: str) -> None:
    fill(one_queue, 2)
    member = Member(one_queue, name_server).start()
    ask(member, reset_to({Q: 1000}))
    assert committed(one_queue) == 1000
    one_queue.clock.advance(5)
    assert committed(one_queue) == 2
    one_queue.cluster.store(Q, b"new")
    assert member.bodies == [b"0", b"1", b"new"]


def test_a_reset_in_the_form_for_clients_in_c_is_read_too(one_queue: World, name_server: str) -> None:
    fill(one_queue, 3)
    member = Member(one_queue, name_server).start()
    body = ResetOffsetBodyForC([MessageQueueForC("T", "a", 0, 2)]).to_json()
    assert ask(member, reset_to({}, body=body)).code == ResponseCode.SUCCESS
    assert member.bodies == [b"0", b"1", b"2", b"2"]


def test_a_reset_of_as_many_queues_as_a_topic_may_have_is_read(one_queue: World, name_server: str) -> None:
    fill(one_queue, 3)
    member = Member(one_queue, name_server).start()
    others = {MessageQueue("T", "a" * 60, number): 0 for number in range(1, 20_000)}
    assert ask(member, reset_to({Q: 2, **others})).code == ResponseCode.SUCCESS
    assert member.bodies == [b"0", b"1", b"2", b"2"]
