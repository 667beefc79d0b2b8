"""The steps of each order go to the listener in their order, several orders at once."""

import asyncio

from mqbroker.client import ConsumeFrom, Message, PushOptions, ReceivedMessage
from mqbroker.client.aio import Producer, PushConsumer

STEPS = ["created", "paid", "packed", "shipped"]
seen: dict[str, list[str]] = {f"o-{number}": [] for number in range(5)}
done = asyncio.Event()


async def follow(message: ReceivedMessage) -> None:
    steps = seen[message.keys[0]]
    steps.append(message.body.decode())
    if all(len(steps) == len(STEPS) for steps in seen.values()):
        done.set()


async def main() -> None:
    async with Producer("127.0.0.1:9876", "orders-app") as producer:
        for step in STEPS:
            for order in seen:
                # One key, one queue.
                await producer.send(Message("steps", step, keys=[order]), key=order)
    options = PushOptions(orderly=True, consume_from=ConsumeFrom.FIRST)
    consumer = PushConsumer("127.0.0.1:9876", "followers", follow, options=options)
    await consumer.subscribe("steps")
    async with consumer:
        await done.wait()
    for order, steps in seen.items():
        print(order, *steps)


asyncio.run(main())
