"""Sends the numbers from 1 to 240, twenty a second."""

import time

from mqbroker.client import Message
from mqbroker.client.blocking import Producer

with Producer("127.0.0.1:9876", "tutorial") as producer:
    for number in range(1, 241):
        producer.send(Message("numbers", str(number)))
        time.sleep(0.05)
print("240 numbers are stored")
