"""How a member leaves: closed inside its listener, by the end of its loop, or by the end of its program."""

import asyncio
import re
import subprocess
import sys
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import PushOptions, aio
from mqbroker.client.options import ConsumeFrom
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from tests.client.faults import Passage
from tests.client.loopback import Loopback
from tests.client.member import A, B, Member, Q
from tests.client.world import World

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, suspend_s=0, concurrency=1)
COUNT = 400


@pytest.fixture
def topic(server: Loopback) -> Any:
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    for n in range(COUNT):
        server.store(Q, b"%d" % n)
    return server


# --- close() inside the listener


def test_closed_inside_its_listener_a_member_waits_for_it_and_commits(one_queue: World, name_server: str) -> None:
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)
    inside: list[Any] = []
    go_on: Deferred[Any] = Deferred()

    async def listener(message: Any) -> None:
        await member.core.close()
        inside.append(message.body)
        await go_on

    member = Member(one_queue, name_server, listener=listener, concurrency=1)
    member.start()
    assert inside == [b"0"], "close() returned at once"
    outside: list[Any] = []
    one_queue.run(member.core.close()).addBoth(outside.append)
    assert outside == []
    go_on.callback(None)
    one_queue.clock.advance(0)
    assert outside == [None]
    assert one_queue.cluster.offsets["g", Q] == 1
    assert one_queue.cluster.members("g") == []
    one_queue.clock.advance(60)
    assert not one_queue.clock.getDelayedCalls()


def test_two_listeners_may_close_at_once(one_queue: World, name_server: str) -> None:
    for n in range(2):
        one_queue.cluster.store(Q, b"%d" % n)
    gates: list[Any] = []

    async def listener(message: Any) -> None:
        gates.append(Deferred())
        await gates[-1]
        await member.core.close()

    member = Member(one_queue, name_server, listener=listener, concurrency=2)
    member.start()
    for gate in gates:
        gate.callback(None)
    one_queue.cluster.settle()
    assert one_queue.cluster.offsets["g", Q] == 2
    assert one_queue.cluster.members("g") == []


def test_a_call_that_has_ended_is_waited_for_by_none(one_queue: World, name_server: str) -> None:
    """What the listener started goes on after it, and may close as any other."""
    one_queue.cluster.store(Q, b"0")
    gate: Deferred[Any] = Deferred()
    closed: list[Any] = []

    async def later() -> None:
        await gate
        await member.core.close()
        closed.append(one_queue.cluster.members("g"))

    member = Member(one_queue, name_server, listener=lambda message: one_queue.run(later()) and None)
    member.start()
    gate.callback(None)
    one_queue.cluster.settle()
    assert closed == [[]]


def test_what_an_earlier_call_has_started_closes_without_waiting_for_the_next_one(
    one_queue: World, name_server: str
) -> None:
    for n in range(2):
        one_queue.cluster.store(Q, b"%d" % n)
    gate, held = Deferred[Any](), Deferred[Any]()
    closed: list[Any] = []

    async def later() -> None:
        await gate
        await member.core.close()
        closed.append(one_queue.cluster.members("g"))

    async def listener(message: Any) -> None:
        if message.body == b"0":
            one_queue.run(later())
        else:
            await held

    member = Member(one_queue, name_server, listener=listener, concurrency=1)
    member.start()
    gate.callback(None)
    one_queue.cluster.settle()
    assert len(closed) == 1
    assert closed[0] != []
    held.callback(None)
    one_queue.cluster.settle()
    assert one_queue.cluster.offsets["g", Q] == 2
    assert one_queue.cluster.members("g") == []


def test_at_the_end_the_first_offset_of_a_topic_is_confirmed_before_the_others_go(
    world: World, name_server: str
) -> None:
    """A 4.9.7 broker keeps only one of several offsets that come at once and are the first of a group in a topic."""
    world.cluster.add_topic("T", queues=3)
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(3)]
    for queue in queues:
        world.cluster.store(queue)
    kept: list[Passage] = []
    world.faults.refuse[None, RequestCode.UPDATE_CONSUMER_OFFSET] = kept.append
    member = Member(world, name_server).start()
    left: list[Any] = []
    world.run(member.core.close()).addBoth(left.append)

    def waiting() -> list[str]:
        return sorted(passage.connection.addr for passage in kept)

    assert waiting() == [A, B]
    kept.pop(0).pass_on()
    assert waiting() == [B]
    kept.pop(0).pass_on()
    assert waiting() == [A, A, B, B]
    for passage in kept:
        assert left == []
        passage.pass_on()
    assert left == [None]
    assert [world.cluster.offsets["g", queue] for queue in queues] == [1] * 6


# --- left without close()


def test_a_loop_that_ends_sends_nothing_back_and_starts_nothing_more(topic: Loopback) -> None:
    got = []

    async def main() -> None:
        began = asyncio.Event()

        async def listener(message: Any) -> None:
            got.append(message.body)
            began.set()
            await asyncio.Event().wait()

        consumer = aio.PushConsumer(topic.addr, "g", listener, options=FROM_FIRST)
        consumer.subscribe("T")
        await consumer.start()
        await asyncio.wait_for(began.wait(), 20)
        # What asyncio.run does at its end.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await consumer._net.close()

    asyncio.run(main())
    assert got == [b"0"]
    assert topic.sent_back == []
    assert topic.offsets.get(("g", Q), 0) == 0


PROGRAM = """
import sys, threading, time
from mqbroker.client import PushOptions
from mqbroker.client.options import ConsumeFrom
from mqbroker.client.blocking import PushConsumer

all_busy, handled, wait_for_ever = threading.Event(), [], sys.argv[2:] == ["for ever"]

def listener(message):
    handled.append(message.body)
    if len(handled) == 4:
        all_busy.set()
    while wait_for_ever or not consumer._was_closed:  # until the interpreter is ending
        time.sleep(0.001)

options = PushOptions(
    consume_from=ConsumeFrom.FIRST, suspend_s=0, concurrency=4, close_timeout_s=2.0 if wait_for_ever else 10.0
)
consumer = PushConsumer(sys.argv[1], "g", listener, options=options)
consumer.subscribe("T")
consumer.start()
all_busy.wait()
print("leaving")
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_program_that_ends_without_close_keeps_what_no_listener_saw(topic: Loopback, host: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, f"{host}:{topic.addr.rpartition(':')[2]}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
    assert topic.sent_back == []
    # The four that were with listeners are done: they are waited for; then the member commits and leaves.
    assert topic.offsets["g", Q] == 4
    assert topic.members("g") == []
    assert topic.faults.asked(RequestCode.UNREGISTER_CLIENT)


def test_a_listener_that_never_returns_does_not_keep_the_process_and_is_named(topic: Loopback) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, topic.addr, "for ever"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "leaving\n")
    assert re.fullmatch(
        r"listeners of g still run after 1 s, and their messages will come again: listener at"
        r" __main__\.listener\(<string>:\d+\)( \(4 times\))?\n",
        done.stderr,
    )
    assert topic.offsets.get(("g", Q), 0) == 0
    assert topic.members("g") == []
