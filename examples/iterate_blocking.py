"""A member of the group "packing", with blocking calls, until 101 orders are packed."""

from mqbroker.client import ConsumeFrom, PushOptions
from mqbroker.client.blocking import PushConsumer

options = PushOptions(consume_from=ConsumeFrom.FIRST, unacked_max=100)
consumer = PushConsumer("127.0.0.1:9876", "packing-2", options=options)
consumer.subscribe("orders", "paid || refund")
packed = 0
with consumer:
    for message in consumer:
        if message.body == b"order 13" and message.reconsume_times == 0:
            message.nack(delay_level=1)  # it comes again in a second
            continue
        message.ack()
        packed += 1
        if packed == 101:
            break
print(f"{packed} orders packed")
