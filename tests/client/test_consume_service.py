"""How messages come to the listener on an event loop: one after the other, or many at once where it suspends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import attrs

from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.client.listener_calls import LoopConsumeService
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.process_queue import ProcessQueue
from mqbroker.client.running_info import ConsumerStats
from mqbroker.wire.bodies import MessageQueue
from tests.client.records import a_record

QUEUE = MessageQueue("T", "a", 0)


class Net(AioNet):
    """Each look at the clock takes a millisecond."""

    time_s = 1000.0

    def now(self) -> float:
        self.time_s += 0.001
        return self.time_s

    steady = now


@attrs.define
class Owner:
    queue: MessageQueue = QUEUE
    dropped: bool = False


class Consuming:
    """`count` messages, which `listener` gets, and `meanwhile` runs beside."""

    def __init__(self, listener: Callable[[ReceivedMessage], Any]) -> None:
        net = self.net = Net(decline, random.Random(1))
        self.stats = ConsumerStats(net.now)
        send_back: Any = None
        self.service = LoopConsumeService(net, listener, send_back, self.stats, concurrency=20, local_retry_s=1.0)

    def run(self, count: int, meanwhile: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            held = ProcessQueue(QUEUE, 0, messages_max=1000, bytes_max=1000, span_max=1000)
            messages = [ReceivedMessage.of_record(a_record(queue_offset=n), "a") for n in range(count)]
            self.service.put(Owner(), held.add(messages, count))
            found = await meanwhile()
            for _ in range(5):
                await asyncio.sleep(0)
            assert (held.count, held.committable, self.service._is_idle) == (0, count, True)
            assert self.stats.of("T").status().consume_ok_tps > 0
            await self.net.close()
            return found

        return asyncio.run(main())


def test_a_listener_that_never_suspends_lets_others_have_their_turns() -> None:
    seen: list[tuple[int, int]] = []
    consuming = Consuming(lambda message: seen.append((message.queue_offset, len(consuming.service._runs))))

    async def others() -> list[int]:
        turns = [0]
        while len(seen) < 60:
            await asyncio.sleep(0)
            turns.append(len(seen))
        return turns

    turns = consuming.run(60, others)
    assert seen == [(n, 1) for n in range(60)]
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 5


def test_where_the_listener_suspends_others_get_the_next_messages() -> None:
    gates: list[asyncio.Future[None]] = []

    async def listener(message: ReceivedMessage) -> None:
        gates.append(asyncio.get_running_loop().create_future())
        await gates[-1]

    async def others() -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        at_once = len(gates)
        for n in range(50):
            gates[n].set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        return at_once

    assert Consuming(listener).run(50, others) == 20
    assert len(gates) == 50


def test_a_listener_that_suspends_after_a_while_gets_the_next_messages_too() -> None:
    gates: list[asyncio.Future[None]] = []

    def listener(message: ReceivedMessage) -> Any:
        if message.queue_offset < 20:  # more than a turn
            return None
        gates.append(asyncio.get_running_loop().create_future())
        return gates[-1]

    async def others() -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        at_once = len(gates)
        for gate in gates:
            gate.set_result(None)
        return at_once

    assert Consuming(listener).run(30, others) == 10


def test_what_was_held_waits_until_a_member_that_was_away_is_back() -> None:
    seen: list[str] = []

    @attrs.define
    class Watch:
        was_away: bool = False

        async def ensure_member(self) -> None:
            seen.append("back")
            self.was_away = False

    watch: Any = Watch()

    def listener(message: ReceivedMessage) -> None:
        seen.append(str(message.queue_offset))
        if message.queue_offset < 2:  # it blocks the loop
            consuming.net.time_s += 140
            watch.was_away = True

    async def others() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    consuming = Consuming(listener)
    consuming.service.watch = watch
    consuming.run(4, others)
    assert seen == ["0", "back", "1", "back", "2", "3"]
