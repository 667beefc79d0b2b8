"""A service on Twisted: writes a receipt for each order.

    twistd --nodaemon --python service_twisted.py

Run it twice, with different --pidfile, and the two share the work.
"""

from mqbroker.client import Message, ReceivedMessage
from mqbroker.client.deferred import Producer, PushConsumer
from twisted.application.service import Application, Service
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

NAME_SERVERS = "127.0.0.1:9876"

log = Logger()


class Receipts(Service):
    name = "receipts"

    def startService(self) -> None:
        super().startService()
        self.producer = Producer(reactor, NAME_SERVERS, "receipts-service")
        self.consumer = PushConsumer(
            reactor, NAME_SERVERS, "receipts-service", self.write_receipt
        )
        self.consumer.subscribe("orders", "paid")
        ensureDeferred(self.start_clients()).addErrback(self.give_up)

    async def start_clients(self) -> None:
        await self.producer.start()
        await self.consumer.start()
        log.info("ready")

    async def write_receipt(self, order: ReceivedMessage) -> None:
        # Returning acknowledges the order. If the send fails, it comes again.
        await self.producer.send(
            Message("receipts", b"receipt for " + order.body, keys=order.keys)
        )

    def give_up(self, failure) -> None:
        log.failure("the clients cannot start", failure)
        reactor.stop()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return ensureDeferred(self.close_clients())  # twistd waits for it

    async def close_clients(self) -> None:
        await self.consumer.close()
        await self.producer.close()


application = Application("receipts")
Receipts().setServiceParent(application)
