"""A member of the group "billing", on Twisted, until Ctrl-C or SIGTERM."""

from mqbroker.client import ConsumeFrom, PushOptions, ReceivedMessage, RetryLater
from mqbroker.client.deferred import PushConsumer
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import react


async def bill(message: ReceivedMessage) -> None:
    if message.body == b"order 13" and message.reconsume_times == 0:
        raise RetryLater(delay_level=1)  # in a second; other exceptions: in ten
    print(f"billed {message.body.decode()}")


async def main(reactor: IReactorCore) -> None:
    options = PushOptions(concurrency=8, consume_from=ConsumeFrom.FIRST)
    consumer = PushConsumer(reactor, "127.0.0.1:9876", "billing", bill, options=options)
    consumer.subscribe("orders", "paid || refund")
    await consumer.start()
    reactor.addSystemEventTrigger("before", "shutdown", consumer.close)
    print("ready")
    await Deferred()  # until the reactor is stopped, which waits for `close`


react(lambda reactor: ensureDeferred(main(reactor)))
