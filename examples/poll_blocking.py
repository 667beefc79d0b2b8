"""Reads the topic "orders" as the group "audit-2", until nothing comes for 2 s."""

from mqbroker.client import ConsumeFrom, LitePullOptions
from mqbroker.client.blocking import LitePullConsumer

options = LitePullOptions(consume_from=ConsumeFrom.FIRST)
consumer = LitePullConsumer("127.0.0.1:9876", "audit-2", options=options)
consumer.subscribe("orders")
with consumer:
    count = 0
    while messages := consumer.poll(timeout_s=2):
        count += len(messages)
    print(f"{count} orders read, {consumer.lag().total} are left")
