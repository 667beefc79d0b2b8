"""The clients of this process: one for each set of name servers and account, shared by tasks and triggers.

Spark reuses its Python workers, so that a client's connections and routes serve the next task too. A client itself
drops a connection that failed or has pending responses; idle ones are always clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache

from mqbroker.client.blocking import Producer, PullConsumer, parts
from mqbroker.client.faces import core
from mqbroker.client.messages import SendResult
from mqbroker.client.options import ProducerOptions, PullOptions
from mqbroker.client.producer import ProducerCore
from mqbroker.client.send import Outgoing
from mqbroker.client.tls import ClientTls
from mqbroker.spark.options import SourceOptions
from mqbroker.spark.sink_options import Guarantee, SinkOptions
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.signature import Credentials

_PULL_TIMEOUT_S = 15.0
_SEND_TIMEOUT_S = 5.0
#: How soon a stream notices new queues, and brokers that came back.
_ROUTE_AGE_S = 10.0


def client_for(options: SourceOptions) -> PullConsumer:
    """The client of this process for `options`; it connects when it is used."""
    return _client(options.name_servers, options.group, options.credentials, options.tls)


@cache
def _client(
    name_servers: tuple[str, ...], group: str, credentials: Credentials | None, tls: ClientTls | None
) -> PullConsumer:
    options = PullOptions(credentials=credentials, tls=tls, pull_timeout_s=_PULL_TIMEOUT_S, route_age_s=_ROUTE_AGE_S)
    return PullConsumer(name_servers, group, options=options)


class ClientSender:
    """Sends by the producer of this process: see `writing.Sender`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def queues(self, topic: str) -> list[MessageQueue]:
        """Raises as `Producer.queues` does."""
        return self._producer.queues(topic)

    def send(self, outgoing: Outgoing, queue: MessageQueue | None) -> Future[SendResult]:
        """Returns when it is under way. Raises NameServerUnreachable."""
        thread, client = parts(self._producer)
        sender: ProducerCore = core(client)
        return thread.submit(sender.send_packed(outgoing, queue=queue))

    def find(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """As `IndexRequests.find`."""
        thread, client = parts(self._producer)
        sender: ProducerCore = core(client)
        return thread.run(sender.index.find(topic, keys))

    def positions(self, topic: str) -> dict[str, tuple[int, int]]:
        """As `IndexRequests.positions`."""
        thread, client = parts(self._producer)
        sender: ProducerCore = core(client)
        return thread.run(sender.index.positions(topic))


def sender_for(options: SinkOptions) -> ClientSender:
    """The sender of this process for `options`; it connects when it is used."""
    # A send without an answer is looked up before it is sent again.
    retries = 0 if options.guarantee is Guarantee.EFFECTIVELY_ONCE else None
    return _sender(options.name_servers, options.group, options.credentials, options.tls, retries)


@cache
def _sender(
    name_servers: tuple[str, ...],
    group: str,
    credentials: Credentials | None,
    tls: ClientTls | None,
    retries: int | None,
) -> ClientSender:
    options = ProducerOptions(credentials=credentials, tls=tls, retries=retries, send_timeout_s=_SEND_TIMEOUT_S)
    return ClientSender(Producer(name_servers, group, options=options))
