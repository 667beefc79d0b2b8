"""Reads a topic's queues from the group's offsets to their ends, on Twisted."""

from mqbroker.client.deferred import PullConsumer
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react


async def main(reactor: IReactorCore) -> None:
    read = 0
    consumer = PullConsumer(reactor, "127.0.0.1:9876", "reports")
    await consumer.start()
    for queue in await consumer.queues("orders"):
        offset = await consumer.committed(queue) or await consumer.min_offset(queue)
        while offset < await consumer.max_offset(queue):
            result = await consumer.pull(queue, offset)
            read += len(result.messages)
            offset = result.next_offset
        await consumer.commit(queue, offset)
    await consumer.close()
    print(read, "messages read")


react(lambda reactor: ensureDeferred(main(reactor)))
