"""A member of the group "tutorial": prints each number, until SIGTERM."""

import signal

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage
from mqbroker.client.blocking import PushConsumer


def take(message: ReceivedMessage) -> None:
    print(message.body.decode(), flush=True)


signal.signal(signal.SIGTERM, lambda *_: None)  # so that `pause` returns
options = PushOptions(concurrency=1, consume_from=ConsumeFrom.FIRST)
consumer = PushConsumer("127.0.0.1:9876", "tutorial", take, options=options)
consumer.subscribe("numbers")
with consumer:
    signal.pause()
