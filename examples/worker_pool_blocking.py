"""A pool of worker processes: each order is worked on by one of four, until SIGTERM.

The listener's threads only wait for the processes.
"""

import hashlib
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage
from mqbroker.client.blocking import PushConsumer

NAME_SERVERS = "127.0.0.1:9876"
WORKERS = 4


def seal(body: bytes) -> str:
    """What takes a processor long; it runs in a worker process."""
    return hashlib.pbkdf2_hmac("sha256", body, b"salt", 200_000).hex()


def main() -> None:
    logging.basicConfig(level=logging.INFO)  # the client logs, too
    # Workers are fresh processes, not copies of this one and its threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context) as pool:

        def work(order: ReceivedMessage) -> None:
            # Returning acknowledges the order. If the worker dies, it comes again.
            print(f"sealed {pool.submit(seal, order.body).result()}")

        # As many threads as workers, and a few that wait for one. A new group begins
        # with the first message that is stored.
        options = PushOptions(concurrency=WORKERS + 2, consume_from=ConsumeFrom.FIRST)
        consumer = PushConsumer(NAME_SERVERS, "sealers", work, options=options)
        consumer.subscribe("orders", "paid")
        consumer.run()


if __name__ == "__main__":
    main()
