"""Two members of a group that each get every message, as caches of prices do."""

import asyncio

from mqbroker.client import (
    ConsumeFrom,
    MemoryOffsets,
    Message,
    MessageModel,
    PushOptions,
    ReceivedMessage,
)
from mqbroker.client.aio import Producer, PushConsumer

CHANGES = 10


class Cache:
    """Has the latest price of each item."""

    def __init__(self) -> None:
        self.prices: dict[str, bytes] = {}
        self.is_whole = asyncio.Event()
        options = PushOptions(
            model=MessageModel.BROADCASTING,
            # Each start reads all: nothing is kept.
            offset_store=MemoryOffsets(),
            consume_from=ConsumeFrom.FIRST,
        )
        self.consumer = PushConsumer(
            "127.0.0.1:9876", "caches", self.change, options=options
        )

    async def change(self, message: ReceivedMessage) -> None:
        self.prices[message.keys[0]] = message.body
        if len(self.prices) == CHANGES:
            self.is_whole.set()


async def main() -> None:
    async with Producer("127.0.0.1:9876", "prices-app") as producer:
        for number in range(CHANGES):
            message = Message("prices", f"{number}.50", keys=[f"item-{number}"])
            await producer.send(message)
    one, other = Cache(), Cache()
    await one.consumer.subscribe("prices")
    await other.consumer.subscribe("prices")
    async with one.consumer, other.consumer:
        await one.is_whole.wait()
        await other.is_whole.wait()
    print(f"both know {len(one.prices)} prices")


asyncio.run(main())
