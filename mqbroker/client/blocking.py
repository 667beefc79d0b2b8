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
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

from mqbroker.client import aio, loop_thread
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import core, offsets
from mqbroker.client.iteration import Delivery, IterationService, by_iteration
from mqbroker.client.listeners import ConsumeResult, FirstConsumed, OrderlyResult, check_listener
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.loop_thread import LoopThread, wait_for
from mqbroker.client.messages import Message, ReceivedMessage, SendStatus
from mqbroker.client.options import LitePullOptions, ProducerOptions, PullOptions, PushOptions, options_of
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.client.queue_requests import Offsets
from mqbroker.client.subscription import ALL, Sql
from mqbroker.client.thread_calls import CheckThreads, PullsInFlight, ThreadConsumeService
from mqbroker.client.thread_clients import HANDED_OUT_MAX, OfOneProcess, PerProcess, call, later
from mqbroker.client.thread_sends import UnderWay, sending, sending_async, sending_oneway
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

__all__ = ["LitePullConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]


class Producer(PerProcess[aio.Producer, ProducerOptions]):
    """Sends messages for `group`; threads may share it. `name_servers` is "host:port;host:port", a list, the URL of an
    address server, or None for NAMESRV_ADDR of the environment."""

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: ProducerOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options_of(options, ProducerOptions))
        self._under_way = UnderWay(self._options)

    def _make(self) -> aio.Producer:
        made = self._producer()
        self._under_way = UnderWay(self._options, core(made))
        return made

    async def _begin(self, client: aio.Producer) -> None:
        await core(client).begin()

    def start(self) -> None:
        """Connect to a name server; a producer that is used without this does it then. Raises NameServerUnreachable,
        and ClientClosed if it was started before in this process."""
        was_used = self._made is not None and self._pid == os.getpid()
        super().start()
        if was_used:
            thread, client = self._parts()
            try:
                thread.run(core(client).check())
            except BaseException:
                self._was_started = False
                raise

    def _producer(self) -> aio.Producer:
        return aio.Producer(self._name_servers, self._group, options=self._options)

    send_batch = call(ProducerCore.send_batch, core)
    send_oneway = sending_oneway(ProducerCore.send_oneway)
    request = call(ProducerCore.request, core)
    queues = call(ProducerCore.queues, core)

    send = sending(ProducerCore.send)
    send_async = sending_async(
        ProducerCore.send,
        """As `send`, but returns a Future. Its callbacks run on the clients' thread, and must not block.

        Blocks while the maximum of sends (`sends_in_flight_max`, `sends_in_flight_bytes_max`) is in flight. """,
    )

    def close(self) -> None:
        """Wait for `send_async` sends, for half of `close_timeout_s`; then unregister from the brokers and close the
        connections, within the other half."""
        made = self._made
        if made is not None and self._pid == os.getpid():
            made[0].check_may_block()
            self._under_way.wait_until_empty(self._options.close_timeout_s / 2)
        self._under_way.close()
        super().close()

    async def _close(self, client: aio.Producer) -> None:
        await core(client).close_within(self._options.close_timeout_s / 2)


class TransactionProducer(Producer):
    """A Producer whose messages may depend on local transactions, by `send_in_transaction`.

    `check(message)` returns the TransactionState of a half message, which it finds by `msg_id`. Brokers ask for it if
    they do not know how a transaction has ended, also on behalf of other producers of the group. It is called on a
    thread of its own. If it raises an exception, or takes longer than `options.check_timeout_s`, brokers ask again.
    Brokers of `topics` can ask from the start on, others once the producer has sent to them::

        def check(half):
            return TransactionState.COMMIT

        with TransactionProducer("127.0.0.1:9876", "orders-app", check) as producer:
            print(producer.send_in_transaction(Message("orders", b"paid"), check).state)
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

    def _producer(self) -> aio.TransactionProducer:
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


class PullConsumer(PerProcess[aio.PullConsumer, PullOptions]):
    """Reads queues at offsets that the caller keeps. Threads may share it.

    `group` names the committed offsets::

        with PullConsumer("127.0.0.1:9876", "audit") as consumer:
            for queue in consumer.queues("orders"):
                result = consumer.pull(queue, 0)
                print([message.body for message in result.messages])
    """

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: PullOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options_of(options, PullOptions))

    def _make(self) -> aio.PullConsumer:
        return aio.PullConsumer(self._name_servers, self._group, options=self._options)

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

    def fetch_ahead(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str | Sql = ALL) -> PullsInFlight:
        """As `fetch_many`, in two steps: the pulls are sent now, so that the caller can work until the responses are
        there.

        Raises a route's errors.
        """
        thread, client = self._parts()
        consumer: PullConsumerCore = core(client)
        requests = thread.run(consumer.requests(wants, tags=tags))
        return PullsInFlight(thread.submit(consumer.fetch(wants, requests)))


class LitePullConsumer(OfOneProcess[LitePullConsumerCore, ReceivedMessage]):
    """Reads messages when the program polls: of queues that it names (`assign`), or of its share of topics
    (`subscribe`).

    A program may also iterate over it, by `for message in consumer`; a message counts as consumed when one of the next
    32 is requested. It belongs to the process that created it::

        with LitePullConsumer("127.0.0.1:9876", "audit") as consumer:
            consumer.subscribe("orders")
            for message in consumer.poll(timeout_s=5):
                print(message.body)
    """

    _what = "lite pull consumer"

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, *, options: LitePullOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options_of(options, LitePullOptions), LitePullConsumerCore)
        self._was_interrupted = False

    def _parts(self) -> tuple[LoopThread, Any]:
        with self._gate:
            self._check_usable()
            if self._thread is None:
                self._thread = loop_thread.hold()
            return self._thread, self

    def _taken(self, thread: LoopThread, take: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        """The messages that the core's `take` returns. An exception of a signal's handler may end the wait when they
        are already taken: they come with the next call."""
        if self._was_interrupted:
            thread.run(later(self._core.take_back))
        self._was_interrupted = False
        try:
            return thread.run(take())
        except MQError:
            raise
        except BaseException:
            self._was_interrupted = True
            raise

    def _fetch(self, thread: LoopThread) -> bool:
        # Through `_taken`: after an interrupted wait the next call may be a poll.
        found = self._taken(thread, lambda: self._core.next_messages(HANDED_OUT_MAX))
        self._handed_out.extend(found)
        return bool(found)

    start = call(LitePullConsumerCore.start, core)
    subscribe = call(LitePullConsumerCore.subscribe, core)
    unsubscribe = call(LitePullConsumerCore.unsubscribe, core)
    assign = call(LitePullConsumerCore.assign, core)

    def poll(self, timeout_s: float | timedelta = 5.0, max_count: int = 100) -> list[ReceivedMessage]:
        thread, _ = self._parts()
        return self._taken(thread, lambda: self._core.poll(timeout_s, max_count))

    poll.__doc__ = LitePullConsumerCore.poll.__doc__

    def watch_queues(self, topic: str, changed: Callable[[frozenset[MessageQueue]], object]) -> None:
        """Call `changed`, on a thread, with the queues of `topic` whenever they change; they are checked every
        `route_age_s`. Raises TopicNotFound and NameServerUnreachable."""
        thread, _ = self._parts()
        given: Any = changed
        told = functools.partial(asyncio.to_thread, given) if callable(given) else given
        thread.run(self._core.watch_queues(topic, told))

    seek = call(LitePullConsumerCore.seek, core)
    commit = call(LitePullConsumerCore.commit, core)
    committed = call(LitePullConsumerCore.committed, core)
    lag = call(LitePullConsumerCore.lag, core)
    queues = call(LitePullConsumerCore.queues, core)
    message_by_time = call(LitePullConsumerCore.message_by_time, core)
    offset_by_time = call(Offsets.at_time, offsets)

    def close(self) -> None:
        """Commit what the polls before the last one returned, unless `auto_commit` is False; leave the group, and close
        the connections, within `close_timeout_s`."""
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
        """Stop reading these queues, by default all, until `resume`."""
        self._parts()[0].run(later(functools.partial(self._core.pause, queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Read queues again after `pause`, by default all."""
        self._parts()[0].run(later(functools.partial(self._core.resume, queues)))


class PushConsumer(OfOneProcess[PushConsumerCore, Delivery]):
    """A member of `group`: `listener` is called with each ReceivedMessage, on one of `options.concurrency` threads.

    The message is consumed if the listener returns None, True or ConsumeResult.SUCCESS. If it returns False or
    ConsumeResult.RETRY, or raises an exception, the message is delivered again later; RetryLater says when. Any other
    result counts as RETRY, with a warning. The consumer belongs to the process that started it, and is closed at the
    latest when the interpreter exits.

    Without a listener the program gets messages by `for message in consumer`, and settles each by its `ack()`, `nack()`
    or `dead_letter()`. With a listener::

        def listen(message):
            print(message.body)

        consumer = PushConsumer("127.0.0.1:9876", "billing", listen)
        consumer.subscribe("orders", "paid || sent")
        consumer.run()  # until SIGINT or SIGTERM
    """

    _what = "push consumer"

    def __init__(
        self,
        name_servers: str | Iterable[str] | None,
        group: str,
        listener: Callable[[Any], ConsumeResult | OrderlyResult | FirstConsumed | bool | None] = by_iteration,
        *,
        options: PushOptions | None = None,
    ) -> None:
        make = functools.partial(PushConsumerCore, listener=listener, consume=ThreadConsumeService)
        super().__init__(name_servers, group, options_of(options, PushOptions), make)
        self._listener = listener
        #: Ends when all is closed; then the thread is released.
        self._closing: Future[None] | None = None
        self._released = threading.Event()

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Consume messages of `topic`: those with one of the tags in "a || b", all with "*", or those that match
        `Sql("...")`. Raises BadArgument on an invalid name or expression."""
        self._change(
            lambda: self._core.add_subscription(topic, expression), lambda: self._core.subscribe(topic, expression)
        )

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`: commit the offsets of its queues, and give them up. Does nothing without a
        subscription to it."""
        self._change(lambda: self._core.remove_subscription(topic), lambda: self._core.unsubscribe(topic))

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were already pulled still go to the listener."""
        self._change(self._core.suspend, lambda: later(self._core.suspend))

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._change(self._core.resume, lambda: later(self._core.resume))

    def _parts(self) -> tuple[LoopThread, Any]:
        self._check_usable()
        if self._thread is None:
            raise ClientClosed("a push consumer is asked after its start")
        return self._thread, self

    lag = call(PushConsumerCore.lag, core)

    def _change(self, before: Callable[[], object], running: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Change the member, before it is started or while it runs. Raises ClientClosed."""
        with self._gate:
            self._check_usable()
            thread = self._thread
            if thread is None:
                before()
        if thread is not None:
            thread.run(running())

    def start(self) -> None:
        """Join the group; returns when this member has its queues.

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
        """Let running listeners finish, commit the offsets, leave the group and close the connections, within
        `close_timeout_s`.

        If the listener calls it, it begins this and returns; the rest is done after the listener has returned.
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
                self._core.consuming.stop()
                self._closing = thread.submit(self._core.close())
                self._closing.add_done_callback(self._release)
        if not self._core.consuming.is_calling:
            thread.check_may_block()
            wait_for(self._closing)
            self._released.wait()  # a future wakes its waiters before it calls its callbacks
            thread.join_if_over()

    def _release(self, _closed: object) -> None:
        assert self._thread is not None
        try:
            loop_thread.release(self._thread)
        finally:
            self._released.set()


def _call_soon(thread: LoopThread, call: Callable[[], None]) -> None:
    with suppress(ClientClosed):  # what is settled after the end comes again
        thread.call(call, Future())
