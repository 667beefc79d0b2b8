"""How fast our asyncio client sends and consumes; run by bench/clients.py: python -m bench.client_load NAME_SERVER

Orders come by standard input, and each is answered by a line when it is done, as by the Java client's Load:

    send TOPIC COUNT IN_FLIGHT BYTES [VARIANT]    each result awaited; VARIANT: plain, linger, hook, trace
    request TOPIC COUNT IN_FLIGHT BYTES           round trips with a consumer in the same process
    transact TOPIC COUNT IN_FLIGHT BYTES          committed
    consume TOPIC COUNT GROUP MODE                from the first on; MODE: push, orderly, broadcasting, lite
    watch TOPIC COUNT GROUP                       COUNT more messages, by a push consumer that stays
    pace TOPIC COUNT RATE                         numbered messages, RATE a second
    topic TOPIC 0 QUEUES                          create a topic
    join TOPIC 0 GROUP MS                         become a member whose listener takes so long
    leave TOPIC 0                                 close that member; the answer lists the numbers that it got, in "seen"
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import attrs

from mqbroker.client.aio import LitePullConsumer, Producer, PushConsumer, TransactionProducer
from mqbroker.client.messages import Message, ReceivedMessage
from mqbroker.client.observers import SendObserver
from mqbroker.client.options import ConsumeFrom, LitePullOptions, MessageModel, ProducerOptions, PushOptions
from mqbroker.client.transactions import TransactionState

PRODUCERS = {
    "plain": ProducerOptions(),
    "linger": ProducerOptions(linger_s=0.0),
    "hook": ProducerOptions(observers=[SendObserver()]),
    "trace": ProducerOptions(trace_topic="traces"),
}
CONSUMERS = {
    "push": PushOptions(consume_from=ConsumeFrom.FIRST),
    "orderly": PushOptions(consume_from=ConsumeFrom.FIRST, orderly=True),
    "broadcasting": PushOptions(consume_from=ConsumeFrom.FIRST, model=MessageModel.BROADCASTING),
}
LITE = LitePullOptions(consume_from=ConsumeFrom.FIRST)
TIMEOUT_S = 30.0


@attrs.frozen
class Done:
    """What the answer says beside time and count, and what is closed after it."""

    also: Mapping[str, Any] = attrs.field(factory=dict)
    close: Callable[[], Awaitable[Any]] | None = None


Order = Callable[..., Awaitable[Done | None]]


async def serve(read_line: Callable[[], Awaitable[str]], orders: Mapping[str, Order]) -> None:
    """Carry out orders to their end. Numbers in an order are given as such."""
    while line := await read_line():
        kind, *words = line.split()
        given: list[Any] = [int(word) if word.isdigit() else word for word in words]
        began, began_cpu = time.monotonic(), time.process_time()
        done = await orders[kind](*given) or Done()
        seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
        answer = {"event": "load", "count": given[1], "seconds": seconds, "cpu": cpu, "failed": 0, "rss_mib": rss_mib()}
        print(json.dumps({**answer, **done.also}), flush=True)
        if done.close is not None:
            await done.close()


def rss_mib() -> float:
    """What the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Seen:
    """Counts messages, and notes their numbers if `notes`; `tell` is called at the last one."""

    def __init__(self, count: int, tell: Callable[[], Any], *, notes: bool = False) -> None:
        self.left, self._tell, self._notes = count, tell, notes
        self.numbers: list[int] = []

    def see(self, message: ReceivedMessage) -> None:
        if self._notes:
            self.numbers.append(int(message.body))
        self.left -= 1
        if not self.left:
            self._tell()


class Load:
    """Carries out the orders on one event loop."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._producers: dict[str, Producer] = {}
        self._transactions: TransactionProducer | None = None
        self._watched: tuple[PushConsumer, Seen, asyncio.Event] | None = None
        self._replying: dict[str, PushConsumer] = {}
        self._member: tuple[PushConsumer, Seen] | None = None
        self._paced = 0

    @property
    def orders(self) -> Mapping[str, Order]:
        names = ("send", "request", "transact", "consume", "watch", "pace", "topic", "join", "leave")
        return {name: getattr(self, name) for name in names}

    async def _producer(self, variant: str = "plain") -> Producer:
        if variant not in self._producers:
            self._producers[variant] = Producer(self._name_server, f"load-{variant}", options=PRODUCERS[variant])
            await self._producers[variant].start()
        return self._producers[variant]

    async def send(self, topic: str, count: int, in_flight: int, size: int, variant: str = "plain") -> None:
        producer, body = await self._producer(variant), bytes(size)
        await repeat(count, in_flight, lambda: producer.send(Message(topic, body)))

    async def request(self, topic: str, count: int, in_flight: int, size: int) -> None:
        producer, body = await self._producer(), bytes(size)
        if topic not in self._replying:

            async def reply(message: ReceivedMessage) -> None:
                await producer.send(Message.reply_to(message, b"done"))

            options = attrs.evolve(CONSUMERS["push"], concurrency=in_flight)
            self._replying[topic] = await self._consumer(topic, f"{topic}-replies", reply, options)
        await repeat(count, in_flight, lambda: producer.request(Message(topic, body), timeout_s=TIMEOUT_S))

    async def transact(self, topic: str, count: int, in_flight: int, size: int) -> None:
        def commit(message: object) -> TransactionState:
            return TransactionState.COMMIT

        body = bytes(size)
        if self._transactions is None:
            self._transactions = TransactionProducer(self._name_server, "load-transactions", commit)
            await self._transactions.start()
        producer = self._transactions
        await repeat(count, in_flight, lambda: producer.send_in_transaction(Message(topic, body), commit))

    async def consume(self, topic: str, count: int, group: str, mode: str) -> Done:
        if mode == "lite":
            return await self._iterate(topic, count, group)
        done = asyncio.Event()
        seen = Seen(count, done.set)

        async def take(message: ReceivedMessage) -> None:
            seen.left -= 1
            if not seen.left:
                done.set()

        consumer = await self._consumer(topic, group, take, CONSUMERS[mode])
        await done.wait()
        return Done(close=consumer.close)

    async def _iterate(self, topic: str, count: int, group: str) -> Done:
        consumer = LitePullConsumer(self._name_server, group, options=LITE)
        await consumer.subscribe(topic)
        await consumer.start()
        async for _ in consumer:
            count -= 1
            if not count:
                break
        return Done(close=consumer.close)

    async def watch(self, topic: str, count: int, group: str) -> None:
        if self._watched is None:
            done = asyncio.Event()
            seen = Seen(0, done.set)

            async def take(message: ReceivedMessage) -> None:
                seen.see(message)

            self._watched = await self._consumer(topic, group, take, CONSUMERS["push"]), seen, done
        _, seen, done = self._watched
        seen.left += count
        if seen.left > 0:
            done.clear()
            await done.wait()

    async def pace(self, topic: str, count: int, rate: int) -> None:
        producer, began, sends = await self._producer(), time.monotonic(), set()
        for number in range(count):
            if (ahead_s := number / rate - (time.monotonic() - began)) > 0:
                await asyncio.sleep(ahead_s)
            sends.add(asyncio.ensure_future(producer.send(Message(topic, b"%d" % (self._paced + number)))))
        await asyncio.gather(*sends)
        self._paced += count

    async def topic(self, topic: str, count: int, queues: int) -> None:
        await (await self._producer()).create_topic(topic, queues)

    async def join(self, topic: str, count: int, group: str, took_ms: int) -> None:
        seen = Seen(0, lambda: None, notes=True)

        async def take(message: ReceivedMessage) -> None:
            seen.see(message)
            await asyncio.sleep(took_ms / 1000)

        self._member = await self._consumer(topic, group, take, CONSUMERS["push"]), seen

    async def leave(self, topic: str, count: int) -> Done:
        assert self._member is not None
        consumer, seen = self._member
        await consumer.close()
        return Done({"seen": seen.numbers})

    async def _consumer(
        self, topic: str, group: str, take: Callable[[ReceivedMessage], Awaitable[None]], options: PushOptions
    ) -> PushConsumer:
        consumer = PushConsumer(self._name_server, group, take, options=options)
        await consumer.subscribe(topic)
        await consumer.start()
        return consumer


async def repeat(count: int, in_flight: int, call: Callable[[], Awaitable[object]]) -> None:
    """Await `count` calls, with `in_flight` of them at a time. Raises MQError."""
    left = iter(range(count))

    async def keep_calling() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(keep_calling() for _ in range(in_flight)))


if __name__ == "__main__":
    asyncio.run(serve(partial(asyncio.to_thread, sys.stdin.readline), Load(sys.argv[1]).orders))
