"""Sends numbers, twenty a second, until SIGTERM, each once, and counts what fails."""

import signal
import sys
import threading

from mqbroker.client import Message, ProducerOptions
from mqbroker.client.blocking import Producer
from mqbroker.errors import MQError

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
sent = failed = 0
with Producer(
    "127.0.0.1:9876", "steady", options=ProducerOptions(retries=0)
) as producer:
    while not ended.wait(0.05):
        try:
            producer.send(Message("orders", str(sent + failed)))
            sent += 1
        except MQError as error:
            failed += 1
            print(error, file=sys.stderr)
print(f"{sent} sent, {failed} failed")
