"""The tests of a service: its code, and a broker in memory. Run them with pytest."""

from mqbroker.client import ConsumeFrom, Message, PushOptions, ReceivedMessage
from mqbroker.client.blocking import Producer, PushConsumer
from mqbroker.client.testing import InMemoryBroker, RequestKind

FROM_FIRST = PushOptions(consume_from=ConsumeFrom.FIRST, commit_s=0.1)


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
    broker.wait_for_messages("receipts", count)
    return sorted(message.body for message in broker.messages("receipts"))


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
            broker.wait_for_messages("SCHEDULE_TOPIC_XXXX", 1)  # it is delayed there
            broker.advance(10)
            assert receipts(broker, 1) == [b"receipt for 1"]
            broker.wait_until_consumed("receipts", "orders")
