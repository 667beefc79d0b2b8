"""Sends orders in every way there is, on Twisted."""

from mqbroker.client import Message
from mqbroker.client.deferred import Producer
from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react


async def main(reactor: IReactorCore) -> None:
    producer = Producer(reactor, "127.0.0.1:9876", "orders-app")
    await producer.start()
    result = await producer.send(
        Message("orders", "order 1", tags="paid", keys=["o-1"])
    )
    print(result.status, "in", result.queue.broker_name)

    # One key, one queue: its consumer gets the messages in this order.
    await producer.send(Message("orders", "shipped", tags="shipped"), key="o-1")
    await producer.send_batch(
        [Message("orders", "order 2"), Message("orders", "order 3")]
    )
    await producer.send_oneway(Message("orders", "no response is waited for"))

    # A hundred at once: they travel together.
    orders = [
        Message("orders", f"order {number}", tags="paid") for number in range(100)
    ]
    results = await gatherResults([producer.send(order) for order in orders])
    print(len(results), "sent at once")
    await producer.close()


react(lambda reactor: ensureDeferred(main(reactor)))
