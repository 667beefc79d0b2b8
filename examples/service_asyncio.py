"""A service on asyncio: writes a receipt for each order, until SIGTERM.

Run it twice, and the two share the work.
"""

import asyncio
import logging
import signal

from mqbroker.client import Message, ReceivedMessage
from mqbroker.client.aio import Producer, PushConsumer

NAME_SERVERS = "127.0.0.1:9876"


async def main() -> None:
    logging.basicConfig(level=logging.INFO)  # the client logs, too
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    async with Producer(NAME_SERVERS, "receipts-service") as producer:

        async def write_receipt(order: ReceivedMessage) -> None:
            # Returning acknowledges the order. If the send fails, it comes again.
            await producer.send(
                Message("receipts", b"receipt for " + order.body, keys=order.keys)
            )

        consumer = PushConsumer(NAME_SERVERS, "receipts-service", write_receipt)
        consumer.subscribe("orders", "paid")
        async with consumer:
            print("ready")
            await stopped.wait()
        # The listeners have ended, offsets are committed. Now the producer closes.


asyncio.run(main())
