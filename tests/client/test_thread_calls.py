"""How messages come to the listener on threads: what it has consumed counts soon, whatever another call does."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.client.consume_service import LOOKS_MAX
from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.process_queue import ProcessQueue
from mqbroker.client.running_info import ConsumerStats
from mqbroker.client.thread_calls import ThreadConsumeService
from mqbroker.wire.bodies import MessageQueue
from tests.client.records import a_record

QUEUE = MessageQueue("T", "a", 0)
COUNT = 32


@attrs.define(eq=False)
class Owner:
    queue: MessageQueue = QUEUE
    dropped: bool = False


class Consuming:
    """The messages of one pull, of which the listener does not return for those in `hang` before `go_on` is set."""

    def __init__(
        self, *, hang: set[int], concurrency: int = 1, result: Callable[[int], object] = lambda _: None
    ) -> None:
        self._hang, self._concurrency, self._result = hang, concurrency, result
        self.seen: list[int] = []
        self.sent_back: list[int] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.owner = Owner()
        self.watch: Any = None
        self.held = ProcessQueue(QUEUE, 0, messages_max=1000, bytes_max=1000, span_max=1000)

    def _listen(self, message: ReceivedMessage) -> object:
        self.seen.append(message.queue_offset)
        if message.queue_offset in self._hang:
            self.entered.set()
            assert self.go_on.wait(20)
        return self._result(message.queue_offset)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        self.sent_back.append(message.queue_offset)

    def run(self, meanwhile: Callable[[], Awaitable[None]], *, left: int = 0) -> None:
        """Hand them out, with `meanwhile` beside, until all but `left` count."""

        async def main() -> None:
            self.net = AioNet(decline, random.Random(1))
            self.stats = ConsumerStats(lambda: 1000.0)  # over ten seconds
            self.service = ThreadConsumeService(
                self.net,
                self._listen,
                self._send_back,
                self.stats,
                concurrency=self._concurrency,
                local_retry_s=1.0,
            )
            self.service.watch = self.watch
            messages = [ReceivedMessage.of_record(a_record(queue_offset=n), "a") for n in range(COUNT)]
            self.service.put(self.owner, self.held.add(messages, COUNT))
            try:
                await asyncio.to_thread(self.entered.wait, 20)
                await meanwhile()
                self.go_on.set()
                await self.until(lambda: self.held.count == left and not self.service._runs)
            finally:
                self.go_on.set()
                assert await self.service.close(20)
                await self.net.close()

        asyncio.run(main())

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it has not come true in 20 s")


@pytest.mark.parametrize("hangs_at", [1, 10, COUNT - 1])
def test_what_was_consumed_before_a_call_that_hangs_counts(hangs_at: int) -> None:
    consuming = Consuming(hang={hangs_at})

    async def meanwhile() -> None:
        await consuming.until(lambda: consuming.held.count == COUNT - hangs_at)
        assert consuming.held.committable == hangs_at
        assert not await consuming.service.ended(QUEUE, 0.0)
        assert consuming.stats.of("T").status().consume_ok_tps * 10 == hangs_at

    consuming.run(meanwhile)
    assert (consuming.seen, consuming.held.committable) == ([*range(COUNT)], COUNT)
    assert consuming.stats.of("T").status().consume_ok_tps * 10 == COUNT


def test_other_threads_take_what_waits_behind_a_call_that_hangs() -> None:
    consuming = Consuming(hang={3}, concurrency=2)

    async def meanwhile() -> None:
        await consuming.until(lambda: consuming.held.count == 1)
        assert consuming.held.committable == 3

    consuming.run(meanwhile)
    assert sorted(consuming.seen) == [*range(COUNT)]


def test_what_is_sent_back_while_the_listener_has_it_counts_once_and_goes_back_once() -> None:
    consuming = Consuming(hang={3}, result=lambda offset: ConsumeResult.RETRY if offset == 3 else None)

    async def meanwhile() -> None:
        for _ in range(LOOKS_MAX + 2):
            await consuming.service.send_back_overdue()
        await consuming.until(lambda: consuming.held.count == COUNT - 4)

    consuming.run(meanwhile)
    assert (consuming.sent_back, consuming.held.committable) == ([3], COUNT)


def test_a_message_that_fails_goes_back_although_the_one_before_it_was_sent_back_meanwhile() -> None:
    is_looked_at = threading.Event()

    def result(offset: int) -> ConsumeResult | None:
        return ConsumeResult.RETRY if offset == 4 and is_looked_at.wait(20) else None

    class GoingOn(Consuming):
        async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
            await super()._send_back(message, delay_level)
            if message.queue_offset == 3:
                self.go_on.set()
                await self.until(lambda: 4 in self.seen)

    consuming = GoingOn(hang={3}, result=result)

    async def meanwhile() -> None:
        for _ in range(LOOKS_MAX + 1):
            await consuming.service.send_back_overdue()
        is_looked_at.set()

    consuming.run(meanwhile)
    assert (consuming.sent_back, consuming.held.committable) == ([3, 4], COUNT)


def test_a_message_that_is_consumed_although_it_was_sent_back_counts_once() -> None:
    consuming = Consuming(hang={3})

    async def meanwhile() -> None:
        for _ in range(LOOKS_MAX + 1):
            await consuming.service.send_back_overdue()

    consuming.run(meanwhile)
    assert (consuming.sent_back, consuming.held.committable) == ([3], COUNT)


def test_each_message_that_fails_goes_back_and_the_others_count() -> None:
    failing = {0, 7, COUNT - 1}
    consuming = Consuming(hang={0}, result=lambda offset: offset not in failing)

    async def meanwhile() -> None:
        pass

    consuming.run(meanwhile)
    assert (sorted(consuming.sent_back), consuming.held.committable) == (sorted(failing), COUNT)


def test_nothing_more_of_a_queue_that_was_dropped_is_handed_out() -> None:
    consuming = Consuming(hang={3})

    async def meanwhile() -> None:
        await consuming.until(lambda: consuming.held.count == COUNT - 3)
        consuming.owner.dropped = True
        consuming.service.forget_dropped()

    consuming.run(meanwhile, left=COUNT - 4)
    assert consuming.seen == [0, 1, 2, 3]


def test_what_a_thread_holds_waits_until_a_member_that_was_away_is_back() -> None:
    consuming = Consuming(hang={3})
    came_back: list[int] = []

    class Watch:
        away_at = float("inf")

        @property
        def was_away(self) -> bool:
            return self.away_at < consuming.net.steady()

        async def ensure_member(self) -> None:
            came_back.append(len(consuming.seen))
            self.away_at = float("inf")

    async def meanwhile() -> None:
        consuming.watch.away_at = float("-inf")

    consuming.watch = Watch()

    consuming.run(meanwhile)
    assert (came_back, consuming.seen) == ([4], [*range(COUNT)])
