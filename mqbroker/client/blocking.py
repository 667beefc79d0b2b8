"""The blocking face: plain calls on plain sockets, for scripts, threads and worker processes. It never imports Twisted.

    with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = producer.send(Message("orders", b"paid", tags="paid"))

Producer and PullConsumer can be pickled and survive a fork: only addresses and options travel, and each process makes
its own connections when it first needs them. PushConsumer runs an asyncio loop on a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import logging
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from mqbroker.client import aio
from mqbroker.client.blocking_calls import ProducerCalls, PullConsumerCalls
from mqbroker.client.blocking_net import BlockingNet, Flight, run
from mqbroker.client.errors import ClientClosed, NotHandled
from mqbroker.client.identity import local_ip, make_client_id
from mqbroker.client.listeners import check_listener
from mqbroker.client.messages import ConsumeResult, Message, RawPull, ReceivedMessage, SendResult
from mqbroker.client.options import ProducerOptions, PullOptions, PushOptions, parse_name_servers
from mqbroker.client.producer import ProducerCore, Selector, make_producer
from mqbroker.client.pull_consumer import PullConsumerCore, make_pull_consumer
from mqbroker.client.subscription import ALL
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.ids import UniqIdSource

log = logging.getLogger(__name__)

T = TypeVar("T")


class _PerProcess(Generic[T]):
    """A client's core with its connections, made anew in each process that uses it."""

    def __init__(self, make: Callable[[BlockingNet], T], options: ProducerOptions | PullOptions) -> None:
        self._make = make
        self._options = options
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._made: tuple[BlockingNet, T] | None = None
        self._closed = False

    def get(self) -> T:
        """The core of this process. Raises ClientClosed."""
        return self.made()[1]

    def made(self) -> tuple[BlockingNet, T]:
        """As `get`, with the network that the core is on."""
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            if self._closed:
                raise ClientClosed("this client is closed")
            if self._made is None:
                net = BlockingNet(random.Random(), self._options.credentials, self._options.tls)
                self._made = net, self._make(net)
            return self._made

    def close(self) -> T | None:
        """Let nobody get it any more; return the core of this process, if there is one, to be closed."""
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
            return made[1] if made is not None else None

    def _forget_parent(self) -> None:
        # The parent's lock may have been held by another thread when it forked.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        made, self._made = self._made, None
        if made is not None:
            made[0].abandon()


class Producer(ProducerCalls):
    """Sends messages for `group`. `name_servers` is "host:port;host:port" or a list. Threads may share it."""

    def __init__(
        self, name_servers: str | Iterable[str], group: str, *, options: ProducerOptions | None = None
    ) -> None:
        self._name_servers = parse_name_servers(name_servers)
        self._group = group
        self._options = options or ProducerOptions()
        self._core = _PerProcess(self._make, self._options)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._name_servers, self._group, self._options)

    def _make(self, net: BlockingNet) -> ProducerCore:
        ip, pid = local_ip(self._name_servers), os.getpid()
        source = UniqIdSource(ip, pid, net.rng.getrandbits(32), net.now)
        lock = threading.Lock()

        def next_id() -> str:
            with lock:
                return source()

        client_id = make_client_id(ip, pid, net.rng)
        return make_producer(
            net, self._name_servers, self._group, self._options, client_id=client_id, next_id=next_id, live=None
        )

    def _ready(self) -> ProducerCore:
        return self._core.get()

    def start(self) -> None:
        """Check the settings. Connections are made when they are first needed."""
        self._core.get()

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """As `send`, on one of `options.send_threads` threads. Order between such sends is not kept."""
        core = self._core.get()
        return self._executor().submit(
            lambda: run(core.send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms))
        )

    def close(self) -> None:
        """Wait for `send_async` sends, leave the brokers, close the connections."""
        threads, self._threads = self._threads, None
        if threads is not None and threads[0] == os.getpid():
            threads[1].shutdown()
        core = self._core.close()
        if core is not None:
            run(core.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(self._options.send_threads, "mq-send")
        return self._threads[1]


class PullsAhead:
    """Pulls on their way: call `finish`, or `abandon` where the answers are not wanted any more."""

    def __init__(
        self, flight: Flight, read: Callable[[list[RemotingCommand | MQError]], list[RawPull | MQError]]
    ) -> None:
        self._flight = flight
        self._read = read

    def finish(self) -> list[RawPull | MQError]:
        """Wait for the answers, from now on for as long as `pull_timeout_ms` says; an error stands in its place."""
        return self._read(self._flight.finish())

    def abandon(self) -> None:
        """Close the connections that the answers come on."""
        self._flight.abandon()


class PullConsumer(PullConsumerCalls):
    """Reads queues at offsets that the caller keeps; `group` names the committed offsets. Threads may share it."""

    def __init__(self, name_servers: str | Iterable[str], group: str, *, options: PullOptions | None = None) -> None:
        self._name_servers = parse_name_servers(name_servers)
        self._group = group
        self._options = options or PullOptions()
        self._core = _PerProcess(self._make, self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._name_servers, self._group, self._options)

    def _make(self, net: BlockingNet) -> PullConsumerCore:
        return make_pull_consumer(net, self._name_servers, self._group, self._options)

    def _ready(self) -> PullConsumerCore:
        return self._core.get()

    def start(self) -> None:
        """Check the settings. Connections are made when they are first needed."""
        self._core.get()

    def fetch_ahead(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL) -> PullsAhead:
        """As `fetch_many`, in two steps: the pulls are sent now, so that brokers work while the caller does.

        Raises a route's errors.
        """
        net, core = self._core.made()
        flight = net.launch(run(core.requests(wants, tags=tags)), self._options.pull_timeout_ms)
        return PullsAhead(flight, lambda answers: core.read_answers(wants, answers))

    def close(self) -> None:
        """Close the connections."""
        core = self._core.close()
        if core is not None:
            run(core.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PushConsumer:
    """A member of `group`: `listener` is called with each ReceivedMessage, on one of `options.concurrency` threads.

    It takes a message by returning None, True or ConsumeResult.SUCCESS. With False, ConsumeResult.RETRY or any
    exception the message comes again later; RetryLater says when. Whatever else it returns counts as RETRY, with a
    warning. It lives in the process that started it, and is closed at the interpreter's exit unless it was before.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str],
        group: str,
        listener: Callable[[ReceivedMessage], ConsumeResult | bool | None],
        *,
        options: PushOptions | None = None,
    ) -> None:
        options = options or PushOptions()
        self._listener = listener
        self._threads = ThreadPoolExecutor(options.concurrency, "mq-listen")
        self._consumer = aio.PushConsumer(name_servers, group, _on_threads(listener, self._threads), options=options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._was_closed = False
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a PushConsumer cannot be pickled: make one in the process that consumes")

    @property
    def client_id(self) -> str:
        return self._consumer.client_id

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues this member consumes now."""
        return self._consumer.assigned

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume `topic`: messages with one of the tags in "a || b", or all with "*". Raises Refused on a bad name."""
        if self._thread is None:
            self._consumer.subscribe(topic, expression)
        else:
            self._call(self._subscribe(topic, expression))

    def start(self) -> None:
        """Join the group; returns when the first balance is done.

        Raises BadListener, NoSubscription or NameServerUnreachable.
        """
        check_listener(self._listener, may_await=False)
        if self._thread is not None or self._was_closed:
            raise ClientClosed("a push consumer is started once")
        self._consumer.check_startable()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="mq-push-consumer", daemon=True)
        self._thread.start()
        ready.wait()
        atexit.register(self.close)
        try:
            self._call(self._consumer.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let running listeners end, commit, leave the group, close the connections, end the thread.

        Inside the listener it begins that and returns: it is done once the listener has returned.
        """
        if self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        self._was_closed = True
        if self._thread is None or self._loop is None:
            self._threads.shutdown(wait=False)
            return
        closing = self._shut()
        try:
            # Not from inside a call of the listener, whatever calls this: it is to be waited for.
            contextvars.Context().run(asyncio.run_coroutine_threadsafe, closing, self._loop)
        except RuntimeError:  # it was closed before
            closing.close()
        if not self._consumer.is_calling:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, ready: threading.Event) -> None:
        """The thread's work: to run the loop until `_shut`."""
        try:
            asyncio.run(self._serve(ready))
        except RuntimeError:
            # At the interpreter's exit 3.12 starts no thread, and asyncio wants one to end those that looked names up.
            if not self._closed.is_set():
                raise

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        ready.set()
        await self._closed.wait()

    async def _shut(self) -> None:
        try:
            await self._consumer.close()
        except Exception:
            log.exception("the push consumer was not closed in order")
        finally:
            self._threads.shutdown(wait=False)
            self._closed.set()

    async def _subscribe(self, topic: str, expression: str) -> None:
        await self._consumer.subscribe(topic, expression)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid() or self._loop is None:
            work.close()
            raise ClientClosed("this push consumer belongs to another process")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            work.close()
            raise ClientClosed("this push consumer was closed") from None


class _ListenerEnded(Exception):
    """The listener raised what would end a thread or a program, and from a thread of ours it ends neither."""


def _on_threads(
    listener: Callable[[ReceivedMessage], Any], threads: ThreadPoolExecutor
) -> Callable[[ReceivedMessage], Coroutine[Any, Any, Any]]:
    def call(message: ReceivedMessage) -> Any:
        try:
            return listener(message)
        except Exception:
            raise
        except BaseException as error:
            raise _ListenerEnded(f"the listener raised {type(error).__name__}") from error

    @functools.wraps(listener)
    async def call_on_thread(message: ReceivedMessage) -> Any:
        try:
            future = threads.submit(contextvars.copy_context().run, call, message)
        except RuntimeError as error:  # the interpreter ends
            raise NotHandled(str(error)) from error
        return await asyncio.wrap_future(future)

    return call_on_thread


def _remake(kind: Callable[..., T], name_servers: tuple[str, ...], group: str, options: Any) -> T:
    return kind(name_servers, group, options=options)
