"""Four workers that share a member of the group "packing", for five seconds."""

from mqbroker.client import ConsumeFrom, PushOptions
from mqbroker.client.deferred import PushConsumer
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import deferLater, react


async def pack(consumer: PushConsumer) -> int:
    packed = 0
    async for message in consumer:
        if message.body == b"order 13" and message.reconsume_times == 0:
            message.nack(delay_level=1)  # it comes again in a second
            continue
        message.ack()
        packed += 1
    return packed


async def main(reactor: IReactorCore) -> None:
    options = PushOptions(consume_from=ConsumeFrom.FIRST, unacked_max=100)
    consumer = PushConsumer(reactor, "127.0.0.1:9876", "packing", options=options)
    await consumer.subscribe("orders", "paid || refund")
    async with consumer:
        workers = [Deferred.fromCoroutine(pack(consumer)) for _ in range(4)]
        await deferLater(reactor, 5)
    print(f"{sum(await gatherResults(workers))} orders packed")


react(lambda reactor: ensureDeferred(main(reactor)))
