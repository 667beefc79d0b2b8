"""A member of the group "billing", with blocking calls, until Ctrl-C or SIGTERM."""

import signal
import threading

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage, RetryLater
from mqbroker.client.blocking import PushConsumer

stopped = threading.Event()


def bill(message: ReceivedMessage) -> None:
    """Called on one of eight threads."""
    if message.body == b"order 13" and message.reconsume_times == 0:
        raise RetryLater(delay_level=1)  # in a second; other exceptions: in ten
    print(f"billed {message.body.decode()}")


for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stopped.set())
options = PushOptions(concurrency=8, consume_from=ConsumeFrom.FIRST)
consumer = PushConsumer("127.0.0.1:9876", "billing", bill, options=options)
consumer.subscribe("orders", "paid || refund")
with consumer:
    print("ready")
    stopped.wait()
