"""The Twisted face: the clients' methods return Deferreds. Pass the reactor; nothing here imports the global one.

    producer = Producer(reactor, "127.0.0.1:9876", "orders-app")
    yield producer.start()
    result = yield producer.send(Message("orders", b"paid", tags="paid"))
    yield producer.close()

Cancelling a Deferred gives up waiting: a request that has been sent may still be done.
"""

from __future__ import annotations

import os
import random
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from mqbroker.client.broker_requests import MemberRequests, pull_peer
from mqbroker.client.consume_service import Listener
from mqbroker.client.deferred_calls import ProducerCalls, PullConsumerCalls
from mqbroker.client.deferred_net import DeferredNet, peer_table
from mqbroker.client.errors import ClientClosed
from mqbroker.client.identity import local_ip, make_client_id
from mqbroker.client.listeners import check_listener
from mqbroker.client.net import Task
from mqbroker.client.options import ProducerOptions, PullOptions, PushOptions, parse_name_servers
from mqbroker.client.producer import ProducerCore, make_producer
from mqbroker.client.pull_consumer import PullConsumerCore, make_pull_consumer
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.stack_traces import thread_stacks
from mqbroker.client.subscription import ALL
from mqbroker.client.tls import ClientTls
from mqbroker.remoting.client import Connector, RemotingClient
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.ids import UniqIdSource

T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> Deferred[T]:
    return Deferred.fromCoroutine(work)


class Producer(ProducerCalls):
    """Sends messages for `group`. `name_servers` is "host:port;host:port" or a list.

    `connector(host, port)` makes the endpoint of a connection; where it is None, that is TCP, encrypted by
    `options.tls`.
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str],
        group: str,
        *,
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        rng = rng or random.Random()
        options = options or ProducerOptions()
        connector = _connector(reactor, connector, options.tls)
        client = RemotingClient(reactor, connector=connector)
        self._net = DeferredNet(reactor, client, rng, options.credentials, connector)
        ip, pid = local_ip(servers), os.getpid()
        self._core = make_producer(
            self._net,
            servers,
            group,
            options,
            client_id=make_client_id(ip, pid, rng),
            next_id=UniqIdSource(ip, pid, rng.getrandbits(32), self._net.now),
            live=self._net,
        )
        self._loops: list[Task] | None = None

    def start(self) -> Deferred[None]:
        """Begin to send heartbeats. No connection is made before it is needed."""
        self._loops = self._core.keep_alive(self._net)
        return _run(_nothing())

    def close(self) -> Deferred[None]:
        """Leave the brokers and close the connections; sends under way fail with ConnectionClosed."""
        if self._loops is None:
            return _run(_nothing())
        for loop in self._loops:
            loop.cancel()
        self._loops = None
        return _run(self._core.close())

    def _ready(self) -> ProducerCore:
        if self._loops is None:
            raise ClientClosed("this producer is not started, or was closed")
        return self._core


class PushConsumer:
    """A member of `group`: `listener` is called with each ReceivedMessage, on the reactor's thread.

    The listener is a function, a coroutine function, or returns a Deferred; up to `options.concurrency` run at once. It
    takes a message by returning None, True or ConsumeResult.SUCCESS. With False, ConsumeResult.RETRY or any exception
    the message comes again later; RetryLater says when. Whatever else it returns counts as RETRY, with a warning.
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str],
        group: str,
        listener: Listener,
        *,
        options: PushOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        rng = rng or random.Random()
        handlers = peer_table(MemberRequests(lambda: self._core, thread_stacks).answer)
        options = options or PushOptions()
        connector = _connector(reactor, connector, options.tls)
        client = RemotingClient(reactor, handlers=handlers, connector=connector)
        net = DeferredNet(reactor, client, rng, options.credentials, connector)
        self.client_id = make_client_id(local_ip(servers), os.getpid(), rng)
        self._listener = listener
        self._core = PushConsumerCore(net, servers, group, listener, options, self.client_id)

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues this member consumes now."""
        return self._core.assigned

    def subscribe(self, topic: str, expression: str = ALL) -> Deferred[None]:
        """Consume `topic`: messages with one of the tags in "a || b", or all with "*"."""
        return _run(self._core.subscribe(topic, expression))

    def start(self) -> Deferred[None]:
        """Join the group; fires when the first balance is done.

        Fails with BadListener, NoSubscription or NameServerUnreachable.
        """
        return _run(self._start())

    async def _start(self) -> None:
        check_listener(self._listener, may_await=True)
        await self._core.start()

    def close(self) -> Deferred[None]:
        """Let running listeners end, commit, leave the group, close the connections.

        Inside the listener it begins that and fires at once: it is done once the listener has returned.
        """
        return _run(self._core.close())


class PullConsumer(PullConsumerCalls):
    """Reads queues at offsets that the caller keeps; `group` names the committed offsets."""

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str],
        group: str,
        *,
        options: PullOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        options = options or PullOptions()
        connector = _connector(reactor, connector, options.tls)
        client = RemotingClient(reactor, handlers=peer_table(pull_peer(group)), connector=connector)
        net = DeferredNet(reactor, client, rng or random.Random(), options.credentials, connector)
        self._core = make_pull_consumer(net, servers, group, options)

    def start(self) -> Deferred[None]:
        """Nothing needs to be started; it is here so that all clients are used alike."""
        return _run(_nothing())

    def close(self) -> Deferred[None]:
        """Close the connections."""
        return _run(self._core.close())

    def _ready(self) -> PullConsumerCore:
        return self._core


def _connector(reactor: Any, given: Connector | None, tls: ClientTls | None) -> Connector | None:
    """Raises BadTls."""
    if given is not None or tls is None:
        return given
    # What encrypts is read where it is wanted.
    from mqbroker.client.deferred_tls import TlsConnector

    return TlsConnector(reactor, tls)


async def _nothing() -> None: ...
