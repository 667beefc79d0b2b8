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
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from mqbroker.client.consuming import Listener
from mqbroker.client.deferred_net import DeferredNet, PatientConnector, peer_table
from mqbroker.client.errors import ClientClosed
from mqbroker.client.identity import local_ip, make_client_id
from mqbroker.client.messages import Message, PullResult, RawPull, SendResult
from mqbroker.client.net import Task
from mqbroker.client.options import ProducerOptions, PullOptions, PushOptions, parse_name_servers
from mqbroker.client.peer import MemberPeer, pull_peer
from mqbroker.client.producer import Selector, make_producer
from mqbroker.client.pull_consumer import make_pull_consumer
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.stacks import thread_stacks
from mqbroker.client.subscription import ALL
from mqbroker.client.tls import ClientTls
from mqbroker.client.verdicts import check_listener
from mqbroker.errors import MQError
from mqbroker.remoting.client import Connector, RemotingClient
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.ids import UniqIdSource

T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> Deferred[T]:
    return Deferred.fromCoroutine(work)


class Producer:
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

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Deferred[SendResult]:
        """Fire with the SendResult. Fails with SendFailed, Refused, BadMessage or a route's error.

        Without `queue`, `key` or `selector` the queues take turns and a failed attempt is repeated on another broker.
        """
        self._check_started()
        return _run(self._core.send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Deferred[SendResult]:
        """Send messages of one topic to one queue, all or none; fires and fails as `send`."""
        self._check_started()
        return _run(self._core.send_batch(messages, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> Deferred[None]:
        """Fire when the bytes are handed to the transport; nobody learns whether they arrived."""
        self._check_started()
        return _run(self._core.send_oneway(message, queue=queue, key=key, selector=selector))

    def queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """The queues that messages of `topic` go to, by broker and id."""
        self._check_started()
        return _run(self._core.queues(topic))

    def close(self) -> Deferred[None]:
        """Leave the brokers and close the connections; sends under way fail with ConnectionClosed."""
        if self._loops is None:
            return _run(_nothing())
        for loop in self._loops:
            loop.cancel()
        self._loops = None
        return _run(self._core.close())

    def _check_started(self) -> None:
        if self._loops is None:
            raise ClientClosed("this producer is not started, or was closed")


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
        handlers = peer_table(MemberPeer(lambda: self._core, thread_stacks).answer)
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


class PullConsumer:
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

    def queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """The queues of `topic`, by broker and id."""
        return _run(self._core.queues(topic))

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> Deferred[PullResult]:
        """Read up to `max_count` messages from `offset` on; with `suspend_ms` wait that long for the first."""
        return _run(self._core.pull(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms))

    def fetch_raw(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> Deferred[RawPull]:
        """As `pull`, with the records as bytes."""
        return _run(self._core.fetch_raw(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms))

    def fetch_many(
        self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL
    ) -> Deferred[list[RawPull | MQError]]:
        """Several `fetch_raw` at once, of (queue, offset, max count); an error stands in its answer's place."""
        return _run(self._core.fetch_many(wants, tags=tags))

    def bounds(self, queues: Sequence[MessageQueue]) -> Deferred[list[tuple[int, int] | MQError]]:
        """`min_offset` and `max_offset` of many queues at once; an error stands in its answer's place."""
        return _run(self._core.offsets.bounds(queues))

    def min_offset(self, queue: MessageQueue) -> Deferred[int]:
        """The first offset that is still stored."""
        return _run(self._core.offsets.min(queue))

    def max_offset(self, queue: MessageQueue) -> Deferred[int]:
        """One beyond the last offset that is stored."""
        return _run(self._core.offsets.max(queue))

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> Deferred[int]:
        """An offset near `timestamp_ms`; a 4.9 broker gives the nearest message, which may be older."""
        return _run(self._core.offsets.at_time(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> Deferred[int | None]:
        """The group's offset, or None where it has none."""
        return _run(self._core.offsets.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> Deferred[None]:
        """Make `offset` the next one the group consumes."""
        return _run(self._core.offsets.commit(queue, offset))

    def close(self) -> Deferred[None]:
        """Close the connections."""
        return _run(self._core.close())


def _connector(reactor: Any, given: Connector | None, tls: ClientTls | None) -> Connector:
    """Raises BadTls."""
    if given is not None:
        return given
    if tls is None:
        return PatientConnector(reactor)
    # What encrypts is read where it is wanted.
    from mqbroker.client.deferred_tls import TlsConnector

    return TlsConnector(reactor, tls)


async def _nothing() -> None: ...
