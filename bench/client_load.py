"""How fast our asyncio client sends and consumes; run by bench/clients.py: python -m bench.client_load NAME_SERVER

Orders come by standard input, and each is answered by a line when it is done, as by the Java client's Load:

    send TOPIC COUNT IN_FLIGHT BYTES
    consume TOPIC GROUP COUNT
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from mqbroker.client.aio import Producer, PushConsumer
from mqbroker.client.messages import Message, ReceivedMessage
from mqbroker.client.options import ConsumeFrom, PushOptions


async def main(name_server: str) -> None:
    async with Producer(name_server, "load-producers") as producer:
        await serve(
            partial(asyncio.to_thread, sys.stdin.readline), partial(send, producer), partial(consume, name_server)
        )


async def serve(
    read_line: Callable[[], Awaitable[str]],
    send: Callable[[str, int, int, int], Awaitable[None]],
    consume: Callable[[str, str, int], Awaitable[Any]],
) -> None:
    """Carry out orders to their end. `send`: (topic, count, in flight, bytes). `consume`: (topic, group, count); it
    returns the consumer, which is closed after the answer."""
    while order := await read_line():
        kind, *words = order.split()
        began, began_cpu = time.monotonic(), time.process_time()
        if kind == "send":
            topic, count, in_flight, size = words[0], *map(int, words[1:])
            await send(topic, count, in_flight, size)
        else:
            topic, group, count = words[0], words[1], int(words[2])
            consumer = await consume(topic, group, count)
        seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
        print(json.dumps({"event": "load", "count": count, "seconds": seconds, "cpu": cpu, "failed": 0}), flush=True)
        if kind == "consume":
            await consumer.close()


async def send(producer: Producer, topic: str, count: int, in_flight: int, size: int) -> None:
    """Send, with so many in flight. Raises MQError."""
    body, left = bytes(size), iter(range(count))

    async def keep_sending() -> None:
        for _ in left:
            await producer.send(Message(topic, body))

    await asyncio.gather(*(keep_sending() for _ in range(in_flight)))


async def consume(name_server: str, topic: str, group: str, count: int) -> PushConsumer:
    """Consume so many messages, from the first on; returns the consumer, which still runs."""
    loop = asyncio.get_running_loop()
    done, left = loop.create_future(), count

    async def take(message: ReceivedMessage) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    consumer = PushConsumer(name_server, group, take, options=PushOptions(consume_from=ConsumeFrom.FIRST))
    await consumer.subscribe(topic)
    await consumer.start()
    await done
    return consumer


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
