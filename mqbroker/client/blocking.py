"""The blocking API: calls on sockets, for scripts, threads and worker processes. It never imports Twisted::

    with Producer("127.0.0.1:9876", "orders-app") as producer:
        result = producer.send(Message("orders", b"paid", tags="paid"))

Producer and PullConsumer can be pickled and survive a fork: only addresses and options are pickled, and each process
makes its own connections on first use. PushConsumer runs an asyncio loop on a thread of its own.
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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from mqbroker.client import aio
from mqbroker.client.blocking_net import BlockingNet, RequestsInFlight, run
from mqbroker.client.errors import ClientClosed, NotHandled
from mqbroker.client.faces import core, offsets
from mqbroker.client.identity import producer_identity
from mqbroker.client.listeners import check_listener
from mqbroker.client.messages import ConsumeResult, Message, RawPull, ReceivedMessage, SendResult
from mqbroker.client.options import ProducerOptions, PullOptions, PushOptions, parse_name_servers
from mqbroker.client.producer import ProducerCore, Selector
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.queue_requests import Offsets
from mqbroker.client.subscription import ALL
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.command import RemotingCommand

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
Core = TypeVar("Core", bound=ProducerCore | PullConsumerCore)
Options = TypeVar("Options", bound=ProducerOptions | PullOptions)


def call(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]], of: Callable[[Any], C]
) -> Callable[Concatenate[Any, P], T]:
    """Make a client's method that calls `method` of the core, which `of` returns for the client, and waits for its
    end."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(of(client), *args, **kwargs))

    return calling


class _Client:
    """What all clients have in common: `start` and `close`, also by `with`."""

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _PerProcess(_Client, Generic[Core, Options]):
    """A client whose core and connections are made anew in each process that uses it."""

    def __init__(self, name_servers: str | Iterable[str], group: str, options: Options) -> None:
        self._name_servers = parse_name_servers(name_servers)
        self._group = group
        self._options: Options = options
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._made: tuple[BlockingNet, Core] | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._name_servers, self._group, self._options)

    def _make_core(self, net: BlockingNet) -> Core:
        raise NotImplementedError

    @property
    def _core(self) -> Core:
        return self._parts()[1]

    def _parts(self) -> tuple[BlockingNet, Core]:
        """The network and the core of this process. Raises ClientClosed."""
        self._forget_parent()
        with self._lock:
            if self._closed:
                raise ClientClosed("this client is closed")
            if self._made is None:
                net = BlockingNet(random.Random(), self._options.credentials, self._options.tls)
                self._made = net, self._make_core(net)
            return self._made

    def start(self) -> None:
        """Check the settings. Connections are made when they are first needed."""
        self._parts()

    def close(self) -> None:
        """Unregister from the brokers that know this client, and close the connections."""
        self._forget_parent()
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
        if made is not None:
            run(made[1].close())

    def _forget_parent(self) -> None:
        if self._pid == os.getpid():
            return
        # The parent's lock may have been held by another thread when it forked.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        made, self._made = self._made, None
        if made is not None:
            made[0].abandon()


class Producer(_PerProcess[ProducerCore, ProducerOptions]):
    """Sends messages for `group`. `name_servers` is "host:port;host:port" or a list. Threads may share it."""

    def __init__(
        self, name_servers: str | Iterable[str], group: str, *, options: ProducerOptions | None = None
    ) -> None:
        super().__init__(name_servers, group, options or ProducerOptions())
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def _make_core(self, net: BlockingNet) -> ProducerCore:
        lock = threading.Lock()
        client_id, source = producer_identity(self._name_servers, net.rng, net.now)

        def next_id() -> str:
            with lock:
                return source()

        core = ProducerCore(
            net, self._name_servers, self._group, self._options, client_id=client_id, next_id=next_id, live=None
        )
        net.heartbeats = core.heartbeats
        return core

    send = call(ProducerCore.send, core)
    send_batch = call(ProducerCore.send_batch, core)
    send_oneway = call(ProducerCore.send_oneway, core)
    queues = call(ProducerCore.queues, core)

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
        core = self._core
        return self._executor().submit(
            lambda: run(core.send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms))
        )

    def close(self) -> None:
        """Wait for `send_async` sends, unregister from the brokers, close the connections."""
        threads, self._threads = self._threads, None
        if threads is not None and threads[0] == os.getpid():
            threads[1].shutdown()
        super().close()

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(self._options.send_threads, "mq-send")
        return self._threads[1]


class PullsInFlight:
    """Pulls in flight: call `finish`, or `abandon` if the responses are not wanted any more."""

    def __init__(
        self, requests: RequestsInFlight, read: Callable[[list[RemotingCommand | MQError]], list[RawPull | MQError]]
    ) -> None:
        self._requests = requests
        self._read = read

    def finish(self) -> list[RawPull | MQError]:
        """Wait for the responses, for `pull_timeout_ms` from now on; errors are returned in their places."""
        return self._read(self._requests.finish())

    def abandon(self) -> None:
        """Close the connections of the pulls."""
        self._requests.abandon()


class PullConsumer(_PerProcess[PullConsumerCore, PullOptions]):
    """Reads queues at offsets that the caller keeps; `group` names the committed offsets. Threads may share it."""

    def __init__(self, name_servers: str | Iterable[str], group: str, *, options: PullOptions | None = None) -> None:
        super().__init__(name_servers, group, options or PullOptions())

    def _make_core(self, net: BlockingNet) -> PullConsumerCore:
        return PullConsumerCore(net, self._name_servers, self._group, self._options)

    queues = call(PullConsumerCore.queues, core)
    pull = call(PullConsumerCore.pull, core)
    fetch_raw = call(PullConsumerCore.fetch_raw, core)
    fetch_many = call(PullConsumerCore.fetch_many, core)
    bounds = call(Offsets.bounds, offsets)
    min_offset = call(Offsets.min, offsets)
    max_offset = call(Offsets.max, offsets)
    offset_by_time = call(Offsets.at_time, offsets)
    committed = call(Offsets.committed, offsets)
    commit = call(Offsets.commit, offsets)

    def fetch_ahead(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL) -> PullsInFlight:
        """As `fetch_many`, in two steps: the pulls are sent now, so that brokers work while the caller does.

        Raises a route's errors.
        """
        net, core = self._parts()
        requests = net.launch(run(core.requests(wants, tags=tags)), self._options.pull_timeout_ms)
        return PullsInFlight(requests, lambda answers: core.read_answers(wants, answers))


class PushConsumer(_Client):
    """A member of `group`: `listener` is called with each ReceivedMessage, on one of `options.concurrency` threads.

    It takes a message by returning None, True or ConsumeResult.SUCCESS. With False, ConsumeResult.RETRY or any
    exception the message comes again later; RetryLater says when. Whatever else it returns counts as RETRY, with a
    warning. It belongs to the process that started it, and is closed at the interpreter's exit at the latest.
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
        on_threads = _on_threads(listener, self._threads, self._called)
        self._consumer = aio.PushConsumer(name_servers, group, on_threads, options=options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # What is handed to the loop once it ends is neither run nor refused: `_shut` is the last, and given once.
        # Reentrant, as a signal's handler may close this.
        self._gate = threading.RLock()
        self._was_closed = self._shuts = False
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a PushConsumer cannot be pickled: make one in the process that consumes")

    @property
    def client_id(self) -> str:
        """The id of this member, as brokers know it."""
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
        with self._gate:
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

        Inside the listener it starts this and returns: it completes after the listener has returned.
        """
        if self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        with self._gate:
            self._was_closed = True
            if self._thread is None or self._loop is None:
                self._threads.shutdown(wait=False)
                return
            if not self._shuts:
                self._shuts = True
                # Run outside of the listener's context, whoever calls this: it is waited for.
                contextvars.Context().run(asyncio.run_coroutine_threadsafe, self._shut(), self._loop)
        if not self._consumer.is_calling:
            self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        """The thread's main function: run the loop until `_shut`."""
        try:
            asyncio.run(self._serve(ready))
        except RuntimeError:
            # At the interpreter's exit Python 3.12 starts no threads, and asyncio needs one to end those of name
            # lookups.
            if not self._closed.is_set():
                raise

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        ready.set()
        await self._closed.wait()

    async def _called(self) -> None:
        """Called when the listener has returned: if it has closed this, it gets no other message, although what `close`
        left to the loop has not begun."""
        if self._was_closed:
            await self._consumer.close()

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
        with self._gate:
            if self._was_closed:
                work.close()
                raise ClientClosed("this push consumer was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:  # the loop ended meanwhile
            raise ClientClosed("this push consumer was closed") from None


class _ListenerEnded(Exception):
    """The listener raised an exception that would end a thread or the program; in this client's thread it ends
    neither."""


def _on_threads(
    listener: Callable[[ReceivedMessage], Any], threads: ThreadPoolExecutor, called: Callable[[], Awaitable[None]]
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
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():  # else it is this coroutine that is cancelled
                await called()

    return call_on_thread


def _remake(kind: Callable[..., T], name_servers: tuple[str, ...], group: str, options: Any) -> T:
    return kind(name_servers, group, options=options)
