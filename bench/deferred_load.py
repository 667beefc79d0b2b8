"""As client_load, of our Twisted client: python -m bench.deferred_load NAME_SERVER"""

import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from bench.client_load import serve
from mqbroker.client.deferred import Producer, PushConsumer
from mqbroker.client.messages import Message, ReceivedMessage
from mqbroker.client.options import ConsumeFrom, PushOptions


async def main(name_server: str) -> None:
    producer = Producer(reactor, name_server, "load-producers")
    await producer.start()
    await serve(partial(deferToThread, sys.stdin.readline), partial(send, producer), partial(consume, name_server))
    await producer.close()


async def send(producer: Producer, topic: str, count: int, in_flight: int, size: int) -> None:
    """Send, with so many in flight. Raises MQError."""
    body, left = bytes(size), iter(range(count))

    async def keep_sending() -> None:
        for _ in left:
            await producer.send(Message(topic, body))

    await gatherResults([ensureDeferred(keep_sending()) for _ in range(in_flight)])


async def consume(name_server: str, topic: str, group: str, count: int) -> PushConsumer:
    """Consume so many messages, from the first on; returns the consumer, which still runs."""
    done: Deferred[None] = Deferred()
    left = count

    async def take(message: ReceivedMessage) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.callback(None)

    consumer = PushConsumer(reactor, name_server, group, take, options=PushOptions(consume_from=ConsumeFrom.FIRST))
    await consumer.subscribe(topic)
    await consumer.start()
    await done
    return consumer


def run(_: Any, name_server: str) -> Deferred[None]:
    running: Coroutine[Any, Any, None] = main(name_server)
    return ensureDeferred(running)


if __name__ == "__main__":
    react(run, sys.argv[1:])
