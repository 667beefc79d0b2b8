"""Reads the topic "orders" as the group "audit-3", until nothing comes for 2 s."""

from mqbroker.client import ConsumeFrom, LitePullOptions
from mqbroker.client.deferred import LitePullConsumer
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react


async def main(reactor: IReactorCore) -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST)
    consumer = LitePullConsumer(reactor, "127.0.0.1:9876", "audit-3", options=options)
    await consumer.subscribe("orders")
    async with consumer:
        count = 0
        while messages := await consumer.poll(timeout_s=2):
            count += len(messages)
        print(f"{count} orders read, {(await consumer.lag()).total} are left")


react(lambda reactor: ensureDeferred(main(reactor)))
