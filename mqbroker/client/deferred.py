"""The Twisted API: methods return Deferreds. Pass the reactor; nothing here imports the global one::

    producer = Producer(reactor, "127.0.0.1:9876", "orders-app")
    yield producer.start()
    result = yield producer.send(Message("orders", b"paid", tags="paid"))
    yield producer.close()

or in a coroutine ``async with Producer(reactor, ...) as producer``.

Cancelling a Deferred gives up waiting: a request that was sent may still be executed.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorCore

from mqbroker.client.automatic_batches import sends_together
from mqbroker.client.consume_service import Listener
from mqbroker.client.deferred_net import DeferredNet
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import (
    AwaitedContext,
    Member,
    OnLoop,
    at_once,
    core,
    net_of,
    offsets,
    queries,
    started,
    transactions,
)
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import Queries
from mqbroker.client.iteration import Delivery, Iterated, by_iteration
from mqbroker.client.listeners import check_listener
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.messages import ReceivedMessage, SendResult
from mqbroker.client.net import decline
from mqbroker.client.options import (
    ClientOptions,
    LitePullOptions,
    ProducerOptions,
    PullOptions,
    PushOptions,
    options_of,
)
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.queue_requests import Offsets
from mqbroker.client.transactions import Check, TransactionCore
from mqbroker.remoting.client import Connector

__all__ = ["LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
P1 = TypeVar("P1", bound=ProducerCore)


def call(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], of: Callable[[Any], C]
) -> Callable[Concatenate[Any, P], Deferred[T]]:
    """Make a client's method that calls `method` of the core, which `of` returns for the client; it returns a
    Deferred."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        async def run() -> T:  # what `of` raises is the Deferred's failure as well
            return await method(of(client), *args, **kwargs)

        return Deferred.fromCoroutine(run())

    return calling


def sending(
    method: Callable[Concatenate[ProducerCore, P], Coroutine[Any, Any, SendResult]],
) -> Callable[Concatenate[Any, P], Deferred[SendResult]]:
    """As `call`, of a producer's sends: a plain one has no coroutine and no second Deferred, which saves a third."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[SendResult]:
        try:
            producer = started(client)
        except ClientClosed:
            return fail()
        taken = None if kwargs else producer.sends.take(*args)
        if taken is None:
            return Deferred.fromCoroutine(method(producer, *args, **kwargs))
        message: Any = args[0]
        taken.send = producer.sends, message
        ended: Deferred[SendResult] = taken.deferred
        return ended

    return calling


class _Client(AwaitedContext, OnLoop):
    """What all clients have in common: `start` and `close`, also by `async with` in a coroutine."""

    create_topic = call(Queries.create_topic, queries)
    message = call(Queries.message, queries)
    messages_by_key = call(Queries.messages_by_key, queries)
    first_store_time = call(Queries.first_store_time, queries)

    def _open(
        self,
        options: ClientOptions,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        rng: random.Random | None,
        connector: Connector | None,
    ) -> tuple[DeferredNet, tuple[str, ...], Identity]:
        """Make the network. Returns what cores are made of. Raises BadTls, and as `_share` does."""
        key = options.credentials, options.tls, connector
        why_lost = {}
        if connector is None and options.tls is not None:
            # TLS modules are imported only if they are used.
            from mqbroker.client.deferred_tls import TlsConnector

            connector = TlsConnector(reactor, options.tls)
            why_lost = {"why_lost": connector.why_lost}
        # Twisted's reactors have the time of day, which may be set.
        steady = time.monotonic if isinstance(reactor, ReactorBase) else None
        rng = rng or random.Random()
        net = DeferredNet(reactor, decline, rng, options.credentials, connector, steady=steady, **why_lost)
        return net, *self._share(net, name_servers, group, options, *key)

    def run(self) -> Deferred[None]:
        """Start the client, and close it when the reactor stops, as after SIGINT or SIGTERM; fires also when it is
        closed elsewhere. Running listeners finish, offsets are committed, and a consumer leaves its group; the reactor
        waits for that. Fails as `start` does."""
        return Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        reactor: Any = net_of(self).home
        has_ended, ended, closed = False, Deferred[None](), Deferred[None]()

        def end() -> Deferred[None]:
            nonlocal has_ended
            if not has_ended:
                has_ended = True
                ended.callback(None)
            return closed

        trigger = None
        if IReactorCore.providedBy(reactor):
            trigger = reactor.addSystemEventTrigger("before", "shutdown", end)
        try:
            async with self:
                net_of(self).when_closed(end)
                await ended
        finally:
            if trigger is not None and not has_ended:
                reactor.removeSystemEventTrigger(trigger)
            closed.callback(None)


class Producer(_Client):
    """Sends messages for `group`. `name_servers` is "host:port;host:port", a list, the URL of an address server, or
    None for NAMESRV_ADDR of the environment.

    `connector(host, port)` returns the endpoint of a connection; None means TCP, encrypted with `options.tls`.
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        self._core = self._make(ProducerCore, options, reactor, name_servers, group, rng, connector)

    def _make(self, kind: Callable[..., P1], options: ProducerOptions | None, *given: Any) -> P1:
        options = options_of(options, ProducerOptions)
        net, servers, identity = self._open(options, *given)
        return kind(net, servers, self._group, options, identity, sends_together(net, options))

    start = call(ProducerCore.start, core)
    send = sending(ProducerCore.send)
    send_batch = call(ProducerCore.send_batch, started)
    send_oneway = call(ProducerCore.send_oneway, started)
    request = call(ProducerCore.request, started)
    queues = call(ProducerCore.queues, started)
    close = call(ProducerCore.close, core)


class TransactionProducer(Producer):
    """A Producer whose messages may depend on local transactions, by `send_in_transaction`.

    `check(message)` returns the TransactionState of a half message, which it finds by `msg_id`. Brokers ask for it if
    they do not know how a transaction has ended, also on behalf of other producers of the group. It is a function, a
    coroutine function, or returns a Deferred. If it fails, or takes longer than `options.check_timeout_s`, brokers ask
    again. Brokers of `topics` can ask from the start on, others once the producer has sent to them::

        def check(half):
            return TransactionState.COMMIT

        producer = TransactionProducer(reactor, "127.0.0.1:9876", "orders-app", check)
        async with producer:
            done = await producer.send_in_transaction(Message("orders", b"paid"), check)
            print(done.state)
    """

    _core: TransactionCore

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        check: Check,
        *,
        topics: Iterable[str] = (),
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        kind = partial(TransactionCore, check=check, topics=topics)
        self._core = self._make(kind, options, reactor, name_servers, group, rng, connector)

    start = call(TransactionCore.start, core)
    send_in_transaction = call(TransactionCore.send_in_transaction, transactions)


class PushConsumer(Iterated[Delivery], Member, _Client):
    """A member of `group`: `listener` is called with each ReceivedMessage, on the reactor's thread.

    The listener is a function, a coroutine function, or returns a Deferred; up to `options.concurrency` calls run at
    once. The message is consumed if it returns None, True or ConsumeResult.SUCCESS. If it returns False or
    ConsumeResult.RETRY, or fails, the message is delivered again later; RetryLater says when. Any other result counts
    as RETRY, with a warning.

    Without a listener the program takes messages by `async for message in consumer`, and settles each by its `ack()`,
    `nack()` or `dead_letter()`. With a listener::

        def listen(message):
            print(message.body)

        consumer = PushConsumer(reactor, "127.0.0.1:9876", "billing", listen)
        consumer.subscribe("orders", "paid || sent")
        await consumer.run()  # until SIGINT or SIGTERM
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        listener: Listener = by_iteration,
        *,
        options: PushOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        options = options_of(options, PushOptions)
        net, servers, identity = self._open(options, reactor, name_servers, group, rng, connector)
        self._listener = listener
        self._core = PushConsumerCore(net, servers, group, listener, options, identity)

    subscribe = call(PushConsumerCore.subscribe, core)
    unsubscribe = call(PushConsumerCore.unsubscribe, core)

    suspend = at_once(PushConsumerCore.suspend)
    resume = at_once(PushConsumerCore.resume)

    def start(self) -> Deferred[None]:
        """Join the group; fires when the first balance is done.

        Fails with BadListener, NoSubscription or NameServerUnreachable.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        check_listener(self._listener, may_await=True)
        await self._core.start()

    lag = call(PushConsumerCore.lag, core)
    close = call(PushConsumerCore.close, core)


class PullConsumer(_Client):
    """Reads queues at offsets that the caller keeps.

    `group` names the committed offsets::

        async with PullConsumer(reactor, "127.0.0.1:9876", "audit") as consumer:
            for queue in await consumer.queues("orders"):
                result = await consumer.pull(queue, 0)
                print([message.body for message in result.messages])
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: PullOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        options = options_of(options, PullOptions)
        net, servers, _ = self._open(options, reactor, name_servers, group, rng, connector)
        self._core = PullConsumerCore(net, servers, group, options)

    start = call(PullConsumerCore.start, core)
    queues = call(PullConsumerCore.queues, core)
    pull = call(PullConsumerCore.pull, core)
    fetch_raw = call(PullConsumerCore.fetch_raw, core)
    message_by_time = call(PullConsumerCore.message_by_time, core)
    fetch_many = call(PullConsumerCore.fetch_many, core)
    bounds = call(Offsets.bounds, offsets)
    min_offset = call(Offsets.min, offsets)
    max_offset = call(Offsets.max, offsets)
    offset_by_time = call(Offsets.at_time, offsets)
    committed = call(Offsets.committed, offsets)
    commit = call(Offsets.commit, offsets)
    close = call(PullConsumerCore.close, core)


class LitePullConsumer(Iterated[ReceivedMessage], Member, _Client):
    """Reads messages when the program polls, of queues that it names (`assign`) or that its group shares (`subscribe`).

    It may be iterated over as well, by `async for message in consumer`; a message counts as consumed when the next one
    is asked for::

        async with LitePullConsumer(reactor, "127.0.0.1:9876", "audit") as consumer:
            await consumer.subscribe("orders")
            for message in await consumer.poll(timeout_s=5):
                print(message.body)
    """

    def __init__(
        self,
        reactor: Any,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: LitePullOptions | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
    ) -> None:
        options = options_of(options, LitePullOptions)
        net, servers, identity = self._open(options, reactor, name_servers, group, rng, connector)
        self._core = LitePullConsumerCore(net, servers, group, options, identity)

    start = call(LitePullConsumerCore.start, core)
    subscribe = call(LitePullConsumerCore.subscribe, core)
    unsubscribe = call(LitePullConsumerCore.unsubscribe, core)
    assign = call(LitePullConsumerCore.assign, core)
    poll = call(LitePullConsumerCore.poll, core)
    seek = call(LitePullConsumerCore.seek, core)
    commit = call(LitePullConsumerCore.commit, core)
    committed = call(LitePullConsumerCore.committed, core)
    lag = call(LitePullConsumerCore.lag, core)
    queues = call(LitePullConsumerCore.queues, core)
    watch_queues = call(LitePullConsumerCore.watch_queues, core)
    message_by_time = call(LitePullConsumerCore.message_by_time, core)
    offset_by_time = call(Offsets.at_time, offsets)
    close = call(LitePullConsumerCore.close, core)

    pause = at_once(LitePullConsumerCore.pause)
    resume = at_once(LitePullConsumerCore.resume)
