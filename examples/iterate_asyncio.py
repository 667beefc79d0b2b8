"""Four workers that share a member of the group "packing", for five seconds."""

import asyncio

from mqbroker.client import ConsumeFrom, PushOptions
from mqbroker.client.aio import PushConsumer


async def pack(consumer: PushConsumer) -> int:
    packed = 0
    async for message in consumer:
        if message.body == b"order 13" and message.reconsume_times == 0:
            message.nack(delay_level=1)  # it comes again in a second
            continue
        message.ack()
        packed += 1
    return packed


async def main() -> None:
    options = PushOptions(consume_from=ConsumeFrom.FIRST, unacked_max=100)
    consumer = PushConsumer("127.0.0.1:9876", "packing", options=options)
    consumer.subscribe("orders", "paid || refund")
    async with consumer:
        workers = [asyncio.create_task(pack(consumer)) for _ in range(4)]
        await asyncio.sleep(5)
    print(f"{sum([await worker for worker in workers])} orders packed")


asyncio.run(main())
