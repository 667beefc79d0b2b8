"""The blocking API: plain calls, for scripts, threads and worker processes. It never imports Twisted::

    with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = producer.send(Message("orders", b"paid", tags="paid"))

The clients of a process run on one asyncio loop, on a thread of its own. Producer and PullConsumer can be pickled and
survive a fork: only addresses and options are pickled, and each process makes its own connections on first use.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from operator import methodcaller
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import attrs

from mqbroker.client import aio, loop_thread
from mqbroker.client.allocation import RebalanceListener
from mqbroker.client.broker_requests import MemberRequests
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import Member, Named, core, net_of, offsets, on_signals, queries
from mqbroker.client.index_requests import Queries
from mqbroker.client.iteration import Delivery, IterationService, by_iteration
from mqbroker.client.listeners import ConsumeResult, FirstConsumed, OrderlyResult, check_listener
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.loop_thread import LoopThread, wait_for
from mqbroker.client.messages import (
    Message,
    RawPull,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from mqbroker.client.names import check_group
from mqbroker.client.options import (
    LitePullOptions,
    ProducerOptions,
    PullOptions,
    PushOptions,
    options_of,
    parse_name_servers,
)
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.queue_requests import Offsets
from mqbroker.client.send import Selector
from mqbroker.client.stack_traces import thread_stacks
from mqbroker.client.subscription import ALL, Sql
from mqbroker.client.thread_calls import CheckThreads, ThreadConsumeService
from mqbroker.client.transactions import (
    TransactionCore,
    TransactionResult,
    TransactionState,
    check_functions,
    check_topics,
    state_of,
)
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)

#: Messages that one look at the loop takes for an iteration.
_HANDED_OUT_MAX = 32

__all__ = ["LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
Client = TypeVar("Client", aio.Producer, aio.PullConsumer)
Options = TypeVar("Options", bound=ProducerOptions | PullOptions)


#: The thread and the client of asyncio of a client that is made anew in each process.
parts: Callable[[Any], tuple[LoopThread, Any]] = methodcaller("_parts")


def call(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], of: Callable[[Any], C]
) -> Callable[Concatenate[Any, P], T]:
    """Make a client's method that calls `method` of the core, which `of` returns for the client of asyncio, and waits
    for its end."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread, made = parts(client)
        return thread.run(method(of(made), *args, **kwargs))

    return calling


class _Client(Named):
    """What all clients have in common: `start` and `close`, also by `with`."""

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_loop(self) -> Any:
        """The client of asyncio."""
        return self

    def run(self) -> None:
        """Start, and close after SIGINT or SIGTERM, or when another thread closes this: listeners end, offsets are
        committed, the group is left. Signals are taken on the main thread alone. Raises as `start` does."""
        ended = threading.Event()
        with on_signals(ended.set), self:
            net_of(self._on_loop()).when_closed(ended.set)
            while not ended.wait(1.0):  # signals do not end a wait everywhere
                pass


class _PerProcess(_Client, Generic[Client, Options]):
    """A client whose connections are made anew in each process that uses it: one of asyncio, on the process's loop
    thread."""

    def __init__(self, name_servers: str | Iterable[str] | None, group: str, options: Options) -> None:
        self._name_servers = parse_name_servers(name_servers)
        self._group = check_group(group)
        self._options: Options = options
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._made: tuple[LoopThread, Client] | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._name_servers, self._group, self._options)

    def _on_loop(self) -> Client:
        return self._parts()[1]

    def _make(self) -> Client:
        raise NotImplementedError

    def _parts(self) -> tuple[LoopThread, Client]:
        """The thread and the started client of this process. Raises ClientClosed, and as `start` does."""
        made = self._made
        if made is not None and self._pid == os.getpid():
            return made
        self._forget_parent()
        with self._lock:
            if self._closed:
                raise ClientClosed("this client is closed")
            if self._made is None:
                thread = loop_thread.hold()
                try:
                    client = self._make()
                    try:
                        thread.run(client.start())
                    except BaseException:
                        thread.run(client.close())
                        raise
                except BaseException:
                    loop_thread.release(thread)
                    raise
                self._made = thread, client
            return self._made

    def start(self) -> None:
        """Connect to a name server; a client that is used without this does it then. Raises NameServerUnreachable."""
        self._parts()

    def close(self) -> None:
        """Unregister from the brokers that know this client, and close the connections."""
        self._forget_parent()
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
        if made is not None:
            thread, client = made
            try:
                thread.run(client.close())
            finally:
                loop_thread.release(thread)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            # The parent's lock may have been held by another thread when it forked.
            self._lock = threading.Lock()
            self._pid = os.getpid()
            self._made = None


class Producer(_PerProcess[aio.Producer, ProducerOptions]):
    """Sends messages for `group`; threads may share it. `name_servers` is "host:port;host:port", a list, the URL of an
    address server, or None
    for NAMESRV_ADDR of the environment."""

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: ProducerOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options_of(options, ProducerOptions))
        self._under_way = _UnderWay(self._options)

    def _make(self) -> aio.Producer:
        self._under_way = _UnderWay(self._options)
        return aio.Producer(self._name_servers, self._group, options=self._options)

    send_batch = call(ProducerCore.send_batch, core)
    send_oneway = call(ProducerCore.send_oneway, core)
    request = call(ProducerCore.request, core)
    queues = call(ProducerCore.queues, core)
    create_topic = call(Queries.create_topic, queries)
    message = call(Queries.message, queries)
    messages_by_key = call(Queries.messages_by_key, queries)
    first_store_time = call(Queries.first_store_time, queries)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | timedelta | None = None,
    ) -> SendResult:
        thread, client = self._parts()
        thread.check_may_block()
        future: Future[SendResult] = Future()
        thread.call(functools.partial(_send, core(client), future, message, queue, key, selector, timeout_s), future)
        return wait_for(future)

    send.__doc__ = ProducerCore.send.__doc__

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | timedelta | None = None,
    ) -> Future[SendResult]:
        """As `send`, with a Future for the result: its callbacks run on the clients' thread, and must not block.

        Waits while the maximum of sends (`sends_in_flight_max`, `sends_in_flight_bytes_max`) is in flight.
        """
        thread, client = self._parts()
        self._under_way.enter(message, may_wait=not thread.is_current)
        future: Future[SendResult] = Future()
        future.add_done_callback(functools.partial(self._under_way.leave, message))
        try:
            thread.call(
                functools.partial(_send, core(client), future, message, queue, key, selector, timeout_s), future
            )
        except ClientClosed:
            future.cancel()  # which gives its room back
            raise
        return future

    def close(self) -> None:
        """Wait for `send_async` sends, unregister from the brokers, close the connections."""
        made = self._made
        if made is not None and self._pid == os.getpid():
            made[0].check_may_block()
            self._under_way.wait_until_empty()
        super().close()


class TransactionProducer(Producer):
    """A Producer whose messages may depend on local transactions, by `send_in_transaction`.

    `check(message)` returns the TransactionState of a half message, by its `msg_id`: brokers ask where they have not
    heard how a transaction has ended, also for other producers of the group. It is called on a thread of its own; where
    it raises, or takes longer than `options.check_timeout_s`, brokers ask again. Those of `topics` may ask from the
    start on, others when the producer has sent to them.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        check: Callable[[ReceivedMessage], TransactionState],
        *,
        topics: Iterable[str] = (),
        options: ProducerOptions | None = None,
    ) -> None:
        super().__init__(name_servers, group, options=options)
        check_functions("check", check, may_await=False)
        self._check = check
        self._topics = check_topics(topics)

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._name_servers, self._group, self._check
        return functools.partial(type(self), *given, topics=self._topics, options=self._options), ()

    def _make(self) -> aio.TransactionProducer:
        self._under_way = _UnderWay(self._options)
        return aio.TransactionProducer(
            self._name_servers,
            self._group,
            self._check,
            topics=self._topics,
            options=self._options,
            call=CheckThreads().call,
        )

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message], TransactionState],
        *,
        timeout_s: float | timedelta | None = None,
    ) -> TransactionResult:
        check_functions("execute", execute, may_await=False)
        thread, client = self._parts()
        transactions: TransactionCore = core(client)
        half, sent = thread.run(transactions.send_half(message, timeout_s=timeout_s))
        if sent.status is not SendStatus.SEND_OK:
            return thread.run(transactions.end(sent, TransactionState.ROLLBACK))
        try:
            # On the caller's thread, to which its database's connections may be bound.
            state = state_of(execute(half))
        except BaseException:
            thread.run(transactions.end(sent, TransactionState.UNKNOWN))
            raise
        return thread.run(transactions.end(sent, state))

    send_in_transaction.__doc__ = TransactionCore.send_in_transaction.__doc__


def _send(
    producer: ProducerCore,
    future: Future[SendResult],
    message: Message,
    queue: MessageQueue | None,
    key: str | None,
    selector: Selector | None,
    timeout_s: float | timedelta | None,
) -> None:
    """Begin a send on the loop's thread; a plain one needs no task."""
    if (queue, key, selector, timeout_s) == (None, None, None, None):
        taken = producer.take_plain(message)
        if taken is not None:
            taken.add_done_callback(functools.partial(_sent, producer, future, message))
            return
    loop_thread.follow(
        asyncio.ensure_future(producer.send(message, queue=queue, key=key, selector=selector, timeout_s=timeout_s)),
        future,
    )


def _sent(producer: ProducerCore, future: Future[SendResult], message: Message, taken: asyncio.Future[Any]) -> None:
    """Called when a plain send has ended."""
    outcome = taken.result()
    if isinstance(outcome, SendResult):
        with suppress(InvalidStateError):  # it was cancelled meanwhile
            future.set_result(outcome)
    else:
        loop_thread.follow(asyncio.ensure_future(producer.send_otherwise(message, outcome)), future)


class _UnderWay:
    """The `send_async` sends of a producer that have no result yet, by number and bytes: threads wait for room."""

    def __init__(self, options: ProducerOptions) -> None:
        self._count_max = options.sends_in_flight_max
        self._bytes_max = options.sends_in_flight_bytes_max
        self._changed = threading.Condition()
        self._count = self._bytes = 0

    def enter(self, message: Message, *, may_wait: bool) -> None:
        size = _size(message)
        with self._changed:
            while may_wait and self._count and not self._has_room(size):
                self._changed.wait()
            self._count += 1
            self._bytes += size

    def leave(self, message: Message, _: object) -> None:
        with self._changed:
            self._count -= 1
            self._bytes -= _size(message)
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        with self._changed:
            while self._count:
                self._changed.wait()

    def _has_room(self, size: int) -> bool:
        return self._count < self._count_max and self._bytes + size <= self._bytes_max


def _size(message: object) -> int:
    return len(message.body) if isinstance(message, Message) else 0


class PullsInFlight:
    """Pulls in flight: call `finish`, or `abandon` if the responses are not wanted any more."""

    def __init__(self, pulls: Future[list[RawPull | MQError]]) -> None:
        self._pulls = pulls

    def finish(self) -> list[RawPull | MQError]:
        """Wait for the responses, for `pull_timeout_s` after they were sent; errors are returned in their places."""
        return wait_for(self._pulls)

    def abandon(self) -> None:
        """Ignore the responses."""
        self._pulls.cancel()


class PullConsumer(_PerProcess[aio.PullConsumer, PullOptions]):
    """Reads queues at offsets that the caller keeps; `group` names the committed offsets. Threads may share it."""

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: PullOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options_of(options, PullOptions))

    def _make(self) -> aio.PullConsumer:
        return aio.PullConsumer(self._name_servers, self._group, options=self._options)

    queues = call(PullConsumerCore.queues, core)
    create_topic = call(Queries.create_topic, queries)
    message = call(Queries.message, queries)
    messages_by_key = call(Queries.messages_by_key, queries)
    first_store_time = call(Queries.first_store_time, queries)
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

    def fetch_ahead(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str | Sql = ALL) -> PullsInFlight:
        """As `fetch_many`, in two steps: the pulls are sent now, so that brokers work while the caller does.

        Raises a route's errors.
        """
        thread, client = self._parts()
        consumer: PullConsumerCore = core(client)
        requests = thread.run(consumer.requests(wants, tags=tags))
        return PullsInFlight(thread.submit(consumer.fetch(wants, requests)))


class LitePullConsumer(Member, _Client):
    """Reads messages when the program polls, of queues that it names (`assign`) or that its group shares (`subscribe`).

    It may be iterated over as well, by `for message in consumer`; a message counts as consumed when the next one
    is asked for, at most 32 later. It belongs to the process that made it.
    """

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: LitePullOptions | None = None
    ) -> None:
        servers, self._group = parse_name_servers(name_servers), check_group(group)
        rng, options = random.Random(), options_of(options, LitePullOptions)
        asked = MemberRequests(lambda: self._core, thread_stacks)
        net, identity = aio.shared_net(lambda: asked, servers, group, options, rng, is_member=True)
        if options.rebalance_listener is not None:
            options = attrs.evolve(options, rebalance_listener=_OnThread(options.rebalance_listener))
        self._core = LitePullConsumerCore(net, servers, group, options, identity)
        self._thread: LoopThread | None = None
        self._gate = threading.Lock()
        self._was_closed = False
        #: Messages that the loop has handed out, for whom iterates.
        self._handed_out: deque[ReceivedMessage] = deque()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a LitePullConsumer cannot be pickled: make one in the process that reads")

    def _parts(self) -> tuple[LoopThread, Any]:
        if self._pid != os.getpid():
            raise ClientClosed("this lite pull consumer belongs to another process")
        with self._gate:
            if self._was_closed:
                raise ClientClosed("this lite pull consumer is closed")
            if self._thread is None:
                self._thread = loop_thread.hold()
            return self._thread, self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        while not self._was_closed:
            try:
                return self._handed_out.popleft()
            except IndexError:
                thread, _ = self._parts()
            found = thread.run(self._core.next_messages(_HANDED_OUT_MAX))
            if not found:
                break
            self._handed_out.extend(found)
        raise StopIteration

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

    def close(self) -> None:
        """Commit what polls before the last one have returned unless `auto_commit` is False, leave the group, and close
        the connections."""
        if self._pid != os.getpid():
            return
        with self._gate:
            thread, self._thread, self._was_closed = self._thread, None, True
        if thread is not None:
            try:
                thread.run(self._core.close())
            finally:
                loop_thread.release(thread)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return no messages of these queues, or of all that it reads, and pull them no more, until `resume`."""
        self._parts()[0].run(_later(functools.partial(self._core.pause, queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return messages of queues again after `pause`."""
        self._parts()[0].run(_later(functools.partial(self._core.resume, queues)))


class PushConsumer(Member, _Client):
    """A member of `group`: `listener` is called with each ReceivedMessage, on one of `options.concurrency` threads.

    It takes a message by returning None, True or ConsumeResult.SUCCESS. With False, ConsumeResult.RETRY or any
    exception the message comes again later; RetryLater says when. Whatever else it returns counts as RETRY, with a
    warning. It belongs to the process that started it, and is closed at the interpreter's exit at the latest.

    Without a listener the program takes messages by `for message in consumer`, and settles each by its `ack()`,
    `nack()` or `dead_letter()`.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        listener: Callable[[Any], ConsumeResult | OrderlyResult | FirstConsumed | bool | None] = by_iteration,
        *,
        options: PushOptions | None = None,
    ) -> None:
        servers, rng, options = parse_name_servers(name_servers), random.Random(), options_of(options, PushOptions)
        self._group = check_group(group)
        self._listener = listener
        asked = MemberRequests(lambda: self._core, thread_stacks)
        net, identity = aio.shared_net(lambda: asked, servers, self._group, options, rng, is_member=True)
        if options.rebalance_listener is not None:
            options = attrs.evolve(options, rebalance_listener=_OnThread(options.rebalance_listener))
        self._core = PushConsumerCore(net, servers, group, listener, options, identity, ThreadConsumeService)
        self._thread: LoopThread | None = None
        #: Messages that the loop has handed out, for whom iterates.
        self._handed_out: deque[Delivery] = deque()
        # Reentrant, as a signal's handler may close this.
        self._gate = threading.RLock()
        self._was_closed = False
        #: Ends when all is closed.
        self._closing: Future[None] | None = None
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a PushConsumer cannot be pickled: make one in the process that consumes")

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Consume `topic`: messages with one of the tags in "a || b", or all with "*", or those that `Sql("...")`
        picks. Raises BadArgument on a bad name, MQError on a bad expression."""
        self._change(
            lambda: self._core.add_subscription(topic, expression), lambda: self._core.subscribe(topic, expression)
        )

    def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more: its queues are given up, with their offsets committed. Nothing happens if it was
        not subscribed to."""
        self._change(lambda: self._core.remove_subscription(topic), lambda: self._core.unsubscribe(topic))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        while not self._was_closed and self._pid == os.getpid():
            try:
                return self._handed_out.popleft()
            except IndexError:
                pass
            thread = self._thread
            if thread is None:
                raise ClientClosed("a push consumer is iterated over after its start")
            try:
                found = thread.run(self._core.next_messages(_HANDED_OUT_MAX))
            except ClientClosed:
                break
            if not found:
                break
            self._handed_out.extend(found)
        raise StopIteration

    def suspend(self) -> None:
        """Pull no more until `resume`; what was pulled still goes to the listener."""
        self._change(self._core.suspend, lambda: _later(self._core.suspend))

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._change(self._core.resume, lambda: _later(self._core.resume))

    def _change(self, before: Callable[[], object], running: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Change the member, before it is started or while it runs. Raises ClientClosed."""
        with self._gate:
            if self._pid != os.getpid():
                raise ClientClosed("this push consumer belongs to another process")
            if self._was_closed:
                raise ClientClosed("this push consumer was closed")
            thread = self._thread
            if thread is None:
                before()
        if thread is not None:
            thread.run(running())

    def start(self) -> None:
        """Join the group; returns when the first balance is done.

        Raises BadListener, NoSubscription or NameServerUnreachable.
        """
        check_listener(self._listener, may_await=False)
        with self._gate:
            if self._thread is not None or self._was_closed or self._pid != os.getpid():
                raise ClientClosed("a push consumer can be started only once, and in the process that created it")
            self._core.check_startable()
            thread = self._thread = loop_thread.hold()
            if isinstance(self._core.consuming, IterationService):
                self._core.consuming.call_soon = functools.partial(_call_soon, thread)
        atexit.register(self.close)
        try:
            thread.run(self._core.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let running listeners end, commit, leave the group and close the connections.

        Inside the listener it starts this and returns: it completes after the listener has returned.
        """
        if self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        with self._gate:
            self._was_closed = True
            if self._thread is None:
                return
            thread = self._thread
            if self._closing is None:
                self._core.stop_calling()
                self._closing = thread.submit(self._core.close())
                self._closing.add_done_callback(lambda _: loop_thread.release(thread))
        if not self._core.is_calling:
            thread.check_may_block()
            wait_for(self._closing)
            thread.join_if_over()


def _call_soon(thread: LoopThread, call: Callable[[], None]) -> None:
    with suppress(ClientClosed):  # what is settled after the end comes again
        thread.call(call, Future())


async def _later(call: Callable[[], None]) -> None:
    call()


class _OnThread(RebalanceListener):
    """Has a listener called on a thread, where it may block."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def assigned(self, queues: frozenset[MessageQueue]) -> object:
        return asyncio.to_thread(self._listener.assigned, queues)

    def revoked(self, queues: frozenset[MessageQueue]) -> object:
        return asyncio.to_thread(self._listener.revoked, queues)

    def lost(self, queues: frozenset[MessageQueue]) -> object:
        return asyncio.to_thread(self._listener.lost, queues)


def _remake(kind: Callable[..., T], name_servers: tuple[str, ...], group: str, options: Any) -> T:
    return kind(name_servers, group, options=options)
