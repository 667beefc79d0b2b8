"""The asyncio face: the clients' methods are coroutines. It needs a running loop, and neither Twisted nor a reactor.

    async with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = await producer.send(Message("orders", b"paid", tags="paid"))

Cancelling a coroutine gives up waiting: a request that has been sent may still be done.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import MemberRequests, decline, pull_peer
from mqbroker.client.consume_service import Listener
from mqbroker.client.errors import ClientClosed
from mqbroker.client.identity import local_ip, make_client_id
from mqbroker.client.listeners import check_listener
from mqbroker.client.messages import Message, PullResult, RawPull, ReceivedMessage, SendResult
from mqbroker.client.net import Task
from mqbroker.client.options import ProducerOptions, PullOptions, PushOptions, parse_name_servers
from mqbroker.client.producer import ProducerCore, Selector, make_producer
from mqbroker.client.pull_consumer import PullConsumerCore, make_pull_consumer
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.stack_traces import thread_stacks
from mqbroker.client.subscription import ALL
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.ids import UniqIdSource


class Producer:
    """Sends messages for `group`. `name_servers` is "host:port;host:port" or a list."""

    def __init__(
        self,
        name_servers: str | Iterable[str],
        group: str,
        *,
        options: ProducerOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        rng = rng or random.Random()
        options = options or ProducerOptions()
        self._net = AioNet(decline, rng, options.credentials, options.tls)
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

    async def start(self) -> None:
        """Begin to send heartbeats. No connection is made before it is needed."""
        self._loops = self._core.keep_alive(self._net)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Return the SendResult. Raises SendFailed, Refused, BadMessage or a route's error.

        Without `queue`, `key` or `selector` the queues take turns and a failed attempt is repeated on another broker.
        """
        return await self._ready().send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, all or none; returns and raises as `send`."""
        return await self._ready().send_batch(messages, queue=queue, key=key, timeout_ms=timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Return when the bytes are handed to the system; nobody learns whether they arrived."""
        await self._ready().send_oneway(message, queue=queue, key=key, selector=selector)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` go to, by broker and id."""
        return await self._ready().queues(topic)

    async def close(self) -> None:
        """Leave the brokers and close the connections; sends under way fail with ConnectionClosed."""
        if self._loops is None:
            return
        for loop in self._loops:
            loop.cancel()
        self._loops = None
        await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _ready(self) -> ProducerCore:
        if self._loops is None:
            raise ClientClosed("this producer is not started, or was closed")
        return self._core


class PushConsumer:
    """A member of `group`: `listener` is called with each ReceivedMessage, on the loop's thread.

    The listener is a coroutine function, or a function that does not block; up to `options.concurrency` run at once. It
    takes a message by returning None, True or ConsumeResult.SUCCESS. With False, ConsumeResult.RETRY or any exception
    the message comes again later; RetryLater says when. Whatever else it returns counts as RETRY, with a warning.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str],
        group: str,
        listener: Listener,
        *,
        options: PushOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        rng = rng or random.Random()
        options = options or PushOptions()
        net = AioNet(MemberRequests(lambda: self._core, thread_stacks).answer, rng, options.credentials, options.tls)
        self.client_id = make_client_id(local_ip(servers), os.getpid(), rng)
        self._net = net
        self._listener = listener
        self._core = PushConsumerCore(net, servers, group, _on_loop(listener), options, self.client_id)

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues this member consumes now."""
        return self._core.assigned

    def subscribe(self, topic: str, expression: str = ALL) -> Awaitable[None]:
        """Consume `topic`: messages with one of the tags in "a || b", or all with "*". Raises Refused on a bad name.

        It is done whether or not it is awaited; to await it is to know that brokers have been told.
        """
        if self._core.add_subscription(topic, expression):
            return self._net.spawn(self._core.apply_subscription(topic))
        return _Done()

    async def start(self) -> None:
        """Join the group; fires when the first balance is done.

        Fails with BadListener, NoSubscription or NameServerUnreachable.
        """
        self.check_startable()
        await self._core.start()

    def check_startable(self) -> None:
        """Raises what `start` would raise before it connects: BadListener, NoSubscription, ClientClosed."""
        check_listener(self._listener, may_await=True)
        self._core.check_startable()

    @property
    def is_calling(self) -> bool:
        """Whether this is asked from inside a call of the listener."""
        return self._core.is_calling

    async def close(self) -> None:
        """Let running listeners end, commit, leave the group, close the connections.

        Inside the listener it begins that and returns: it is done once the listener has returned.
        """
        await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class PullConsumer:
    """Reads queues at offsets that the caller keeps; `group` names the committed offsets."""

    def __init__(
        self,
        name_servers: str | Iterable[str],
        group: str,
        *,
        options: PullOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        servers = parse_name_servers(name_servers)
        options = options or PullOptions()
        net = AioNet(pull_peer(group), rng or random.Random(), options.credentials, options.tls)
        self._core = make_pull_consumer(net, servers, group, options)

    async def start(self) -> None:
        """Nothing needs to be started; it is here so that all clients are used alike."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic`, by broker and id."""
        return await self._ready().queues(topic)

    async def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> PullResult:
        """Read up to `max_count` messages from `offset` on; with `suspend_ms` wait that long for the first."""
        return await self._ready().pull(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms)

    async def fetch_raw(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> RawPull:
        """As `pull`, with the records as bytes."""
        return await self._ready().fetch_raw(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms)

    async def fetch_many(
        self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL
    ) -> list[RawPull | MQError]:
        """Several `fetch_raw` at once, of (queue, offset, max count); an error stands in its answer's place."""
        return await self._ready().fetch_many(wants, tags=tags)

    async def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """`min_offset` and `max_offset` of many queues at once; an error stands in its answer's place."""
        return await self._ready().offsets.bounds(queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        return await self._ready().offsets.min(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One beyond the last offset that is stored."""
        return await self._ready().offsets.max(queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """An offset near `timestamp_ms`; a 4.9 broker gives the nearest message, which may be older."""
        return await self._ready().offsets.at_time(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, or None where it has none."""
        return await self._ready().offsets.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Make `offset` the next one the group consumes."""
        await self._ready().offsets.commit(queue, offset)

    async def close(self) -> None:
        """Close the connections."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _ready(self) -> PullConsumerCore:
        return self._core


class _Done:
    """What may be awaited, and has nothing left to do."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class _ListenerCancelled(Exception):
    """What a listener waited for was cancelled, by none of ours: it failed on its message."""


def _on_loop(listener: Listener) -> Callable[[ReceivedMessage], Coroutine[Any, Any, Any]]:
    @functools.wraps(listener)
    async def call(message: ReceivedMessage) -> Any:
        try:
            verdict = listener(message)
            return await verdict if inspect.isawaitable(verdict) else verdict
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _ListenerCancelled("the listener was cancelled from inside") from error

    return call
