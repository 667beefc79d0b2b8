"""Consumption in order: ours on the Java broker, and in one group with a Java member."""

import threading
from typing import Any

from mqbroker.client import ConsumeFrom, OrderlyResult, PushOptions, ReceivedMessage, blocking
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.processes import eventually
from tests.interop.test_our_clients import Inbox, hashes_of, queues4
from tests.interop.traffic import (
    assigned,
    bodies,
    consumer,
    ours,
    produce,
    pull,
    stop_consumer,
    wait_assigned,
    wait_committed,
)

__all__ = ["queues4"]

ORDERLY = PushOptions(consume_from=ConsumeFrom.FIRST, orderly=True, suspend_queue_s=0.05)


def offsets_of(messages: list[ReceivedMessage], topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for message in messages:
        if message.queue.topic == topic:
            found.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return found


def test_our_member_keeps_order_on_the_java_broker(shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str) -> None:
    sent = produce(shared_fleet, java_namesrv, queues4, count=200)
    inbox, inside, lock = Inbox(), set[int](), threading.Lock()

    def listener(message: ReceivedMessage) -> Any:
        with lock:
            assert message.queue.queue_id not in inside
            inside.add(message.queue.queue_id)
        try:
            if message.queue_offset % 10 == 7 and message.reconsume_times == 0:
                return OrderlyResult.SUSPEND
            inbox(message)
            return None
        finally:
            inside.remove(message.queue.queue_id)

    member = blocking.PushConsumer(java_namesrv.addr, f"{queues4}-group", listener, options=ORDERLY)
    member.subscribe(queues4)
    with member:
        inbox.wait(200)
    assert hashes_of(inbox.messages) == bodies(sent)
    for offsets in offsets_of(inbox.messages, queues4).values():
        assert offsets == list(range(len(offsets)))


def test_a_message_that_is_given_up_is_a_dead_letter_of_the_java_broker(
    shared_fleet: Fleet, java_namesrv: Namesrv, queues4: str
) -> None:
    sent = produce(shared_fleet, java_namesrv, queues4, count=1)
    group, tries = f"{queues4}-group", list[int]()

    def listener(message: ReceivedMessage) -> bool:
        tries.append(message.reconsume_times)
        return False

    options = PushOptions(consume_from=ConsumeFrom.FIRST, orderly=True, suspend_queue_s=0.05, max_reconsume_times=2)
    member = blocking.PushConsumer(java_namesrv.addr, group, listener, options=options)
    member.subscribe(queues4)
    with member:
        eventually("it is tried three times", lambda: tries == [0, 1, 2])
        assert bodies(pull(shared_fleet, java_namesrv, f"%DLQ%{group}", count=1)) == bodies(sent)


def test_an_orderly_group_of_ours_and_java_shares_the_queues(
    shared_fleet: Fleet, java_namesrv: Namesrv, java_broker: Broker, queues4: str
) -> None:
    group = f"{queues4}-group"
    theirs = consumer(shared_fleet, java_namesrv, queues4, group, persist_ms=100, orderly=True)
    wait_assigned(theirs, queues=4)
    first = produce(shared_fleet, java_namesrv, queues4, prefix="first", count=40)
    theirs.wait_events("message", 40)
    inbox = Inbox()
    member = blocking.PushConsumer(java_namesrv.addr, group, inbox, options=ORDERLY)
    member.subscribe(queues4)
    with member:
        wait_assigned(theirs, queues=2, patience_s=15)
        eventually("two queues are ours", lambda: len(ours(member, queues4)) == 2, patience_s=15)
        assert assigned(theirs).isdisjoint(ours(member, queues4))
        sent = produce(shared_fleet, java_namesrv, queues4, count=40)
        inbox.wait(20)
        theirs.wait_events("message", 60)
        wait_committed(java_broker, group, queues4, queues=4, count=80)
        found_by_theirs = stop_consumer(theirs)
        eventually("all queues are ours", lambda: len(ours(member, queues4)) == 4, patience_s=15)
        later = produce(shared_fleet, java_namesrv, queues4, prefix="later", count=8)
        inbox.wait(28)
    assert hashes_of(inbox.messages) + bodies(found_by_theirs) == bodies(first) + bodies(sent) + bodies(later)
    for offsets in offsets_of(inbox.messages, queues4).values():
        assert offsets == sorted(offsets)
