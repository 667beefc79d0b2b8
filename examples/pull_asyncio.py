"""Reads a topic's queues from the group's offsets to their ends, on asyncio."""

import asyncio

from mqbroker.client.aio import PullConsumer


async def main() -> None:
    read = 0
    async with PullConsumer("127.0.0.1:9876", "reports") as consumer:
        for queue in await consumer.queues("orders"):
            offset = await consumer.committed(queue) or await consumer.min_offset(queue)
            while offset < await consumer.max_offset(queue):
                result = await consumer.pull(queue, offset)
                read += len(result.messages)
                offset = result.next_offset
            await consumer.commit(queue, offset)
    print(read, "messages read")


asyncio.run(main())
