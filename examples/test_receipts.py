"""The tests of a service: its code, and a broker in memory. Run them with pytest."""

import time

from mqbroker.client import ConsumeFrom, Message, PushOptions, ReceivedMessage
from mqbroker.client.blocking import Producer, PushConsumer
from mqbroker.client.testing import InMemoryBroker, RequestKind

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST)


class Receipts:
    """The service: writes a receipt for each order."""

    def __init__(self, name_servers: str) -> None:
        self.producer = Producer(name_servers, "receipts")
        self.consumer = PushConsumer(
            name_servers, "receipts", self.write, options=FROM_FIRST
        )
        self.consumer.subscribe("orders")

    def write(self, order: ReceivedMessage) -> None:
        self.producer.send(Message("receipts", b"receipt for " + order.body))

    def __enter__(self) -> None:
        self.consumer.start()

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self.producer.close()


def send(broker: InMemoryBroker, *orders: bytes) -> None:
    with Producer(broker.name_servers, "test") as producer:
        for order in orders:
            producer.send(Message("orders", order))


def receipts(broker: InMemoryBroker, count: int) -> list[bytes]:
    until = time.monotonic() + 30
    while (
        len(found := broker.messages("receipts")) < count and time.monotonic() < until
    ):
        time.sleep(0.01)
    return sorted(message.body for message in found)


def test_each_order_gets_a_receipt() -> None:
    with InMemoryBroker() as broker:
        send(broker, b"1", b"2")
        with Receipts(broker.name_servers):
            assert receipts(broker, 2) == [b"receipt for 1", b"receipt for 2"]


def test_an_order_whose_receipt_cannot_be_written_comes_again() -> None:
    with InMemoryBroker() as broker:
        send(broker, b"1")
        broker.refuse(RequestKind.SEND, times=3, remark="the disk is full")
        with Receipts(broker.name_servers):
            while not broker.messages("SCHEDULE_TOPIC_XXXX"):  # where it waits
                time.sleep(0.01)
            broker.advance(10)
            assert receipts(broker, 1) == [b"receipt for 1"]
