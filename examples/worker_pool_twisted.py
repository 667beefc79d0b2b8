"""A pool of worker processes: each order is worked on by one of four, until SIGTERM.

A thread of the reactor's pool waits for each process.
"""

import hashlib
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage
from mqbroker.client.deferred import PushConsumer
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

NAME_SERVERS = "127.0.0.1:9876"
WORKERS = 4


def seal(body: bytes) -> str:
    """What takes a processor long; it runs in a worker process."""
    return hashlib.pbkdf2_hmac("sha256", body, b"salt", 200_000).hex()


async def main(reactor: IReactorCore) -> None:
    logging.basicConfig(level=logging.INFO)  # the client logs, too
    # Workers are fresh processes, not copies of this one and its connections.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context) as pool:

        async def work(order: ReceivedMessage) -> None:
            # Returning acknowledges the order. If the worker dies, it comes again.
            sealing = pool.submit(seal, order.body)
            print("sealed", await deferToThread(sealing.result))

        # As many calls as workers, and a few that wait for one. A new group begins
        # with the first message that is stored.
        options = PushOptions(concurrency=WORKERS + 2, consume_from=ConsumeFrom.FIRST)
        consumer = PushConsumer(reactor, NAME_SERVERS, "sealers", work, options=options)
        consumer.subscribe("orders", "paid")
        await consumer.run()


if __name__ == "__main__":
    react(lambda reactor: ensureDeferred(main(reactor)))
