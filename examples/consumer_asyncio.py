"""A member of the group "billing", on asyncio, until Ctrl-C or SIGTERM."""

import asyncio
import signal

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage, RetryLater
from mqbroker.client.aio import PushConsumer


async def bill(message: ReceivedMessage) -> None:
    if message.body == b"order 13" and message.reconsume_times == 0:
        raise RetryLater(delay_level=1)  # in a second; other exceptions: in ten
    print(f"billed {message.body.decode()}")


async def main() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    options = PushOptions(concurrency=8, consume_from=ConsumeFrom.FIRST)
    consumer = PushConsumer("127.0.0.1:9876", "billing", bill, options=options)
    consumer.subscribe("orders", "paid || refund")
    async with consumer:
        print("ready")
        await stopped.wait()


asyncio.run(main())
