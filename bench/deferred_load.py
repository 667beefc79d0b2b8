"""As client_load, of our Twisted client, `send` and `consume` of it: python -m bench.deferred_load NAME_SERVER"""

import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from bench.client_load import CONSUMERS, PRODUCERS, Done, Order, serve
from mqbroker.client.deferred import Producer, PushConsumer
from mqbroker.client.messages import Message, ReceivedMessage


async def main(name_server: str) -> None:
    producer = Producer(reactor, name_server, "load-producers", options=PRODUCERS["plain"])
    await producer.start()
    orders: dict[str, Order] = {"send": partial(send, producer), "consume": partial(consume, name_server)}
    await serve(partial(deferToThread, sys.stdin.readline), orders)
    await producer.close()


async def send(producer: Producer, topic: str, count: int, in_flight: int, size: int) -> None:
    body, left = bytes(size), iter(range(count))

    async def keep_sending() -> None:
        for _ in left:
            await producer.send(Message(topic, body))

    await gatherResults([ensureDeferred(keep_sending()) for _ in range(in_flight)])


async def consume(name_server: str, topic: str, count: int, group: str, mode: str) -> Done:
    done: Deferred[None] = Deferred()
    left = count

    async def take(message: ReceivedMessage) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.callback(None)

    consumer = PushConsumer(reactor, name_server, group, take, options=CONSUMERS[mode])
    await consumer.subscribe(topic)
    await consumer.start()
    await done
    return Done(close=consumer.close)


def run(_: Any, name_server: str) -> Deferred[None]:
    running: Coroutine[Any, Any, None] = main(name_server)
    return ensureDeferred(running)


if __name__ == "__main__":
    react(run, sys.argv[1:])
