"""Sends a message that consumers get five seconds later, and waits for it."""

import time
from queue import Queue

from mqbroker.client import Message
from mqbroker.client.blocking import Producer, PushConsumer

received: Queue = Queue()
consumer = PushConsumer("127.0.0.1:9876", "reminders", received.put)
consumer.subscribe("reminders")
with Producer("127.0.0.1:9876", "reminders-app") as producer:
    began = time.monotonic()
    producer.send(Message("reminders", "sent at once"))
    producer.send(Message("reminders", "sent on level 2", delay_level=2))
    with consumer:
        for _ in range(2):
            text = received.get().body.decode()
            print(f"after {time.monotonic() - began:.0f} s: {text}")
