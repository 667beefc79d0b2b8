"""Sends orders in every way there is, on asyncio."""

import asyncio

from mqbroker.client import Message
from mqbroker.client.aio import Producer


async def main() -> None:
    async with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = await producer.send(
            Message("orders", "order 1", tags="paid", keys=["o-1"])
        )
        print(result.status, "in", result.queue.broker_name)

        # One key, one queue: its consumer gets the messages in this order.
        await producer.send(Message("orders", "shipped", tags="shipped"), key="o-1")
        await producer.send_batch(
            [Message("orders", "order 2"), Message("orders", "order 3")]
        )
        await producer.send_oneway(Message("orders", "no response is waited for"))

        # A hundred at once: they travel together.
        orders = [
            Message("orders", f"order {number}", tags="paid") for number in range(100)
        ]
        results = await asyncio.gather(*(producer.send(order) for order in orders))
        print(len(results), "sent at once")


asyncio.run(main())
