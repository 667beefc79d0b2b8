"""A service with threads: writes a receipt for each order, until SIGTERM.

Run it twice, and the two share the work.
"""

import logging
import signal
import threading

from mqbroker.client import Message, PushOptions, ReceivedMessage
from mqbroker.client.blocking import Producer, PushConsumer

NAME_SERVERS = "127.0.0.1:9876"

logging.basicConfig(level=logging.INFO)  # the client logs, too
stopped = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stopped.set())

with Producer(NAME_SERVERS, "receipts-service") as producer:

    def write_receipt(order: ReceivedMessage) -> None:
        """Called on one of 16 threads, which share the producer."""
        # Returning acknowledges the order. If the send fails, it comes again.
        producer.send(
            Message("receipts", b"receipt for " + order.body, keys=order.keys)
        )

    options = PushOptions(concurrency=16)
    consumer = PushConsumer(
        NAME_SERVERS, "receipts-service", write_receipt, options=options
    )
    consumer.subscribe("orders", "paid")
    with consumer:
        print("ready")
        stopped.wait()
    # The listeners have ended, offsets are committed. Now the producer closes.
