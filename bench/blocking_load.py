"""As client_load, of our blocking client: python -m bench.blocking_load NAME_SERVER

threads TOPIC COUNT THREADS BYTES    `send` on THREADS threads; with one the answer has "p50_us"
send TOPIC COUNT IN_FLIGHT BYTES     `send_async`, as often as it returns, whatever IN_FLIGHT says
consume, join, leave                 as of client_load
"""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from bench.client_load import CONSUMERS, PRODUCERS, Done, Order, Seen, serve
from mqbroker.client.blocking import Producer, PushConsumer
from mqbroker.client.messages import Message, ReceivedMessage, SendResult


class Load:
    """Carries out the orders on threads."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._producer = Producer(name_server, "load-producers", options=PRODUCERS["plain"])
        self._member: tuple[PushConsumer, Seen] | None = None

    @property
    def orders(self) -> dict[str, Order]:
        names = ("threads", "send", "consume", "join", "leave")
        return {name: partial(asyncio.to_thread, getattr(self, name)) for name in names}

    def threads(self, topic: str, count: int, threads: int, size: int) -> Done:
        took: list[float] = []

        def send(many: int) -> None:
            body, send, clock = bytes(size), self._producer.send, time.perf_counter
            for _ in range(many):
                began = clock()
                send(Message(topic, body))
                took.append(clock() - began)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(send, [count // threads] * threads))
        return Done({"p50_us": statistics.median(took) * 1e6})

    def send(self, topic: str, count: int, in_flight: int, size: int) -> None:
        body, send, left, done = bytes(size), self._producer.send_async, count, threading.Event()
        failed: list[BaseException] = []

        def ended(future: Future[SendResult]) -> None:  # on the clients' thread
            nonlocal left
            if (error := future.exception()) is not None:
                failed.append(error)
            left -= 1
            if not left:
                done.set()

        for _ in range(count):
            send(Message(topic, body)).add_done_callback(ended)
        done.wait()
        if failed:
            raise failed[0]

    def consume(self, topic: str, count: int, group: str, mode: str) -> Done:
        done = threading.Event()
        seen, lock = Seen(count, done.set), threading.Lock()

        def take(message: ReceivedMessage) -> None:
            with lock:
                seen.see(message)

        consumer = self._consumer(topic, group, take, mode)
        done.wait()
        return Done(close=partial(asyncio.to_thread, consumer.close))

    def join(self, topic: str, count: int, group: str, took_ms: int) -> None:
        seen = Seen(0, lambda: None, notes=True)

        def take(message: ReceivedMessage) -> None:
            seen.see(message)
            time.sleep(took_ms / 1000)

        self._member = self._consumer(topic, group, take, "push"), seen

    def leave(self, topic: str, count: int) -> Done:
        assert self._member is not None
        consumer, seen = self._member
        consumer.close()
        return Done({"seen": seen.numbers})

    def _consumer(self, topic: str, group: str, take: Callable[[ReceivedMessage], None], mode: str) -> PushConsumer:
        consumer = PushConsumer(self._name_server, group, take, options=CONSUMERS[mode])
        consumer.subscribe(topic)
        consumer.start()
        return consumer


if __name__ == "__main__":
    asyncio.run(serve(partial(asyncio.to_thread, sys.stdin.readline), Load(sys.argv[1]).orders))
