"""Two members of a group that each get every message, as caches of prices do."""

from mqbroker.client import (
    ConsumeFrom,
    MemoryOffsets,
    Message,
    MessageModel,
    PushOptions,
    ReceivedMessage,
)
from mqbroker.client.deferred import Producer, PushConsumer
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react

CHANGES = 10


class Cache:
    """Has the latest price of each item."""

    def __init__(self, reactor: IReactorCore) -> None:
        self.prices: dict[str, bytes] = {}
        self.whole: Deferred[None] = Deferred()
        options = PushOptions(
            model=MessageModel.BROADCASTING,
            # Each start reads all: nothing is kept.
            offset_store=MemoryOffsets(),
            consume_from=ConsumeFrom.FIRST,
        )
        self.consumer = PushConsumer(
            reactor, "127.0.0.1:9876", "caches", self.change, options=options
        )
        self.consumer.subscribe("prices")

    def change(self, message: ReceivedMessage) -> None:
        self.prices[message.keys[0]] = message.body
        if len(self.prices) == CHANGES and not self.whole.called:
            self.whole.callback(None)


async def main(reactor: IReactorCore) -> None:
    async with Producer(reactor, "127.0.0.1:9876", "prices-app") as producer:
        for number in range(CHANGES):
            message = Message("prices", f"{number}.50", keys=[f"item-{number}"])
            await producer.send(message)
    one, other = Cache(reactor), Cache(reactor)
    async with one.consumer, other.consumer:
        await one.whole
        await other.whole
    print(f"both know {len(one.prices)} prices")


react(lambda reactor: ensureDeferred(main(reactor)))
