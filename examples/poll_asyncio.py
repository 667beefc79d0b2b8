"""Reads the topic "orders" as the group "audit", until nothing comes for 2 s."""

import asyncio

from mqbroker.client import ConsumeFrom, LitePullOptions
from mqbroker.client.aio import LitePullConsumer


async def main() -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST)
    consumer = LitePullConsumer("127.0.0.1:9876", "audit", options=options)
    await consumer.subscribe("orders")
    async with consumer:
        count = 0
        while messages := await consumer.poll(timeout_s=2):
            count += len(messages)
        print(f"{count} orders read, {(await consumer.lag()).total} are left")


asyncio.run(main())
