"""Sends orders in every way there is, with blocking calls."""

from mqbroker.client import Message
from mqbroker.client.blocking import Producer

with Producer("127.0.0.1:9876", "orders-app") as producer:
    result = producer.send(Message("orders", "order 1", tags="paid", keys=["o-1"]))
    print(result.status, "in", result.queue.broker_name)

    # One key, one queue: its consumer gets the messages in this order.
    producer.send(Message("orders", "shipped", tags="shipped"), key="o-1")
    producer.send_batch([Message("orders", "order 2"), Message("orders", "order 3")])
    producer.send_oneway(Message("orders", "no response is waited for"))

    # A hundred at once: they travel together.
    orders = [
        Message("orders", f"order {number}", tags="paid") for number in range(100)
    ]
    futures = [producer.send_async(order) for order in orders]
    print(len([future.result() for future in futures]), "sent at once")
