"""The asyncio API: methods are coroutines. It needs a running loop, and never imports Twisted::

    async with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = await producer.send(Message("orders", b"paid", tags="paid"))

Cancelling a coroutine gives up waiting: a request that was sent may still be executed.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqbroker.client.aio_net import AioNet
from mqbroker.client.automatic_batches import sends_together
from mqbroker.client.consume_service import Listener
from mqbroker.client.faces import (
    AwaitedContext,
    Member,
    OnLoop,
    at_once,
    core,
    net_of,
    offsets,
    on_signals,
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
from mqbroker.client.subscription import ALL, Sql
from mqbroker.client.transactions import Check, TransactionCore

__all__ = ["LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
P1 = TypeVar("P1", bound=ProducerCore)


def call(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], of: Callable[[Any], C]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a client's method that calls `method` of the core, which `of` returns for the client."""

    @functools.wraps(method)
    async def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(of(client), *args, **kwargs)
        except RuntimeError:  # of asyncio, which awaits no other loop's futures
            client._net.check_loop()  # noqa: SLF001 - this module's own clients
            raise

    return calling


def sending(
    method: Callable[Concatenate[ProducerCore, P], Coroutine[Any, Any, SendResult]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, SendResult]]:
    """As `call`, of a producer's sends: a plain one, to the next queue, has one coroutine and not two."""

    @functools.wraps(method)
    async def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> SendResult:
        producer = started(client)
        message: Any = args[0] if args else None
        taken = None if kwargs else producer.sends.take(*args)
        try:
            if taken is None:
                return await method(producer, *args, **kwargs)
            await taken  # which returns nothing where it is the compiled module's
        except BaseException as error:
            if taken is not None:
                producer.sends.give_up(message, taken)
            if isinstance(error, RuntimeError):
                client._net.check_loop()  # noqa: SLF001 - as in `call`
            raise
        result = taken.result()
        return result if isinstance(result, SendResult) else await producer.sends.go_on(message, result)

    return calling


def net_for(options: ClientOptions, rng: random.Random | None = None) -> AioNet:
    """Raises BadTls."""
    return AioNet(decline, rng or random.Random(), options.credentials, options.tls)


class _Client(AwaitedContext, OnLoop):
    """What all clients have in common: `start` and `close`, also by `async with`."""

    create_topic = call(Queries.create_topic, queries)
    message = call(Queries.message, queries)
    messages_by_key = call(Queries.messages_by_key, queries)
    first_store_time = call(Queries.first_store_time, queries)

    def _open(
        self, options: ClientOptions, name_servers: str | Iterable[str] | None, group: str, rng: random.Random | None
    ) -> tuple[AioNet, tuple[str, ...], Identity]:
        """Make the network. Returns what cores are made of."""
        self._net = net_for(options, rng)
        return self._net, *self._share(self._net, name_servers, group, options, options.credentials, options.tls)

    async def run(self) -> None:
        """Start the client, and close it after SIGINT or SIGTERM; returns also when it is closed elsewhere. Running
        listeners finish, offsets are committed, and a consumer leaves its group. Only the main thread handles signals.
        Raises as `start` does."""
        ended = asyncio.Event()
        with on_signals(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)):
            async with self:
                net_of(self).when_closed(ended.set)
                await ended.wait()


class Producer(_Client):
    """Sends messages for `group`. `name_servers` is "host:port;host:port", a list, the URL of an address server, or
    None for NAMESRV_ADDR of the environment."""

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._core = self._make(ProducerCore, options, name_servers, group, rng)

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
    they do not know how a transaction has ended, also on behalf of other producers of the group. It is a coroutine
    function, or a function that does not block. If it raises an exception, or takes longer than
    `options.check_timeout_s`, brokers ask again. Brokers of `topics` can ask from the start on, others once the
    producer has sent to them::

        def check(half):
            return TransactionState.COMMIT

        async with TransactionProducer("127.0.0.1:9876", "orders-app", check) as producer:
            done = await producer.send_in_transaction(Message("orders", b"paid"), check)
            print(done.state)
    """

    _core: TransactionCore

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        check: Check,
        *,
        topics: Iterable[str] = (),
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
        call: Callable[[Check, ReceivedMessage], Awaitable[Any]] | None = None,
    ) -> None:
        """`call` calls `check`."""
        kind = functools.partial(TransactionCore, check=check, topics=topics, call=call)
        self._core = self._make(kind, options, name_servers, group, rng)

    start = call(TransactionCore.start, core)
    send_in_transaction = call(TransactionCore.send_in_transaction, transactions)


class PushConsumer(Iterated[Delivery], Member, _Client):
    """A member of `group`: `listener` is called with each ReceivedMessage, on the loop's thread.

    The listener is a coroutine function, or a function that does not block; up to `options.concurrency` calls run at
    once. The message is consumed if it returns None, True or ConsumeResult.SUCCESS. If it returns False or
    ConsumeResult.RETRY, or raises an exception, the message is delivered again later; RetryLater says when. Any other
    result counts as RETRY, with a warning.

    Without a listener the program gets messages by `async for message in consumer`, and settles each by its `ack()`,
    `nack()` or `dead_letter()`. With a listener::

        def listen(message):
            print(message.body)

        consumer = PushConsumer("127.0.0.1:9876", "billing", listen)
        consumer.subscribe("orders", "paid || sent")
        await consumer.run()  # until SIGINT or SIGTERM
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        listener: Listener = by_iteration,
        *,
        options: PushOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        options = options_of(options, PushOptions)
        net, servers, identity = self._open(options, name_servers, group, rng)
        self._listener = listener
        self._core = PushConsumerCore(net, servers, group, listener, options, identity)

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Consume messages of `topic`: those with one of the tags in "a || b", all with "*", or those that match
        `Sql("...")`. Raises BadArgument on an invalid name or expression.

        Takes effect whether or not it is awaited; awaiting it waits until the brokers know.
        """
        if self._core.add_subscription(topic, expression):
            return self._net.spawn(self._core.apply_subscription(topic))
        return _Done()

    def unsubscribe(self, topic: str) -> Awaitable[None]:
        """Stop consuming `topic`: commit the offsets of its queues, and give them up. Does nothing without a
        subscription to it. Takes effect whether or not it is awaited."""
        if self._core.remove_subscription(topic):
            return self._net.spawn(self._core.apply_subscription(topic))
        return _Done()

    suspend = at_once(PushConsumerCore.suspend)
    resume = at_once(PushConsumerCore.resume)

    async def start(self) -> None:
        """Join the group; returns when this member has its queues.

        Raises BadListener, NoSubscription or NameServerUnreachable.
        """
        check_listener(self._listener, may_await=True)
        self._net.check_loop()
        await self._core.start()

    lag = call(PushConsumerCore.lag, core)
    close = call(PushConsumerCore.close, core)


class PullConsumer(_Client):
    """Reads queues at offsets that the caller keeps.

    `group` names the committed offsets::

        async with PullConsumer("127.0.0.1:9876", "audit") as consumer:
            for queue in await consumer.queues("orders"):
                result = await consumer.pull(queue, 0)
                print([message.body for message in result.messages])
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: PullOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        options = options_of(options, PullOptions)
        net, servers, _ = self._open(options, name_servers, group, rng)
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
    """Reads messages when the program polls: of queues that it names (`assign`), or of its share of topics
    (`subscribe`).

    A program may also iterate over it, by `async for message in consumer`; a message counts as consumed when the next
    one is requested::

        async with LitePullConsumer("127.0.0.1:9876", "audit") as consumer:
            await consumer.subscribe("orders")
            for message in await consumer.poll(timeout_s=5):
                print(message.body)
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        *,
        options: LitePullOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        options = options_of(options, LitePullOptions)
        net, servers, identity = self._open(options, name_servers, group, rng)
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


class _Done:
    """An awaitable that is done already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
