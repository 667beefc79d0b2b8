"""Clients of the blocking API: those that are recreated after a fork, and members, which belong to one process.

Both have a core of asyncio on the loop thread of their process.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from operator import methodcaller
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import attrs

from mqbroker.client import aio, loop_thread
from mqbroker.client.allocation import RebalanceListener
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import Member, Named, OnLoop, net_of, on_signals, queries
from mqbroker.client.index_requests import Queries
from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.loop_thread import LoopThread
from mqbroker.client.names import check_group
from mqbroker.client.options import MemberOptions, ProducerOptions, PullOptions, parse_name_servers
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.wire.bodies import MessageQueue

#: Messages that an iteration fetches from the loop at once.
HANDED_OUT_MAX = 32

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
Made = TypeVar("Made", aio.Producer, aio.PullConsumer)
Options = TypeVar("Options", bound=ProducerOptions | PullOptions)
Core = TypeVar("Core", bound=PushConsumerCore | LitePullConsumerCore)


#: The loop thread and asyncio client of a client that is recreated after a fork.
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


class Client(Named):
    """What all clients have in common: `start` and `close`, also by `with`."""

    create_topic = call(Queries.create_topic, queries)
    message = call(Queries.message, queries)
    messages_by_key = call(Queries.messages_by_key, queries)
    first_store_time = call(Queries.first_store_time, queries)

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


class PerProcess(Client, Generic[Made, Options]):
    """A client that is recreated after a fork: in each process it is an asyncio client on that process's loop
    thread."""

    def __init__(self, name_servers: str | Iterable[str] | None, group: str, options: Options) -> None:
        self._name_servers = parse_name_servers(name_servers)
        self._group = check_group(group)
        self._options: Options = options
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._made: tuple[LoopThread, Made] | None = None
        #: Whether `start` was called in this process; and whether it was closed.
        self._was_started = self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._name_servers, self._group, self._options)

    async def _begin(self, client: Made) -> None:
        """Start it for a request, which has its own time-out."""
        await client.start()

    async def _close(self, client: Made) -> None:
        await client.close()

    def _on_loop(self) -> Made:
        return self._parts()[1]

    def _make(self) -> Made:
        raise NotImplementedError

    def _parts(self, begin: Callable[[Made], Coroutine[Any, Any, None]] | None = None) -> tuple[LoopThread, Made]:
        """The thread and the client of this process, which `begin` starts. Raises ClientClosed, and as `begin` does."""
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
                        thread.run((begin or self._begin)(client))
                    except BaseException:
                        thread.run(client.close())
                        raise
                except BaseException:
                    loop_thread.release(thread)
                    raise
                self._made = thread, client
            return self._made

    def start(self) -> None:
        """Connect to a name server; a client that is used without this does it then. Raises NameServerUnreachable, and
        ClientClosed if it was started before in this process."""
        self._forget_parent()
        if self._was_started:
            raise ClientClosed("a client can be started only once")
        self._parts(methodcaller("start"))
        self._was_started = True

    def close(self) -> None:
        """Unregister from the brokers that know this client, and close the connections."""
        self._forget_parent()
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
        if made is not None:
            thread, client = made
            try:
                thread.run(self._close(client))
            finally:
                loop_thread.release(thread)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            # The parent's lock may have been held by another thread when it forked.
            self._lock = threading.Lock()
            self._pid = os.getpid()
            self._made, self._was_started = None, False


class OfOneProcess(Member, OnLoop, Client, Generic[Core, T]):
    """A member of a group, which belongs to the process that made it, and is iterated over."""

    _core: Core
    #: Its name in errors.
    _what: str

    def __init__(
        self, name_servers: str | Iterable[str] | None, group: str, options: MemberOptions, make: Callable[..., Core]
    ) -> None:
        """`make` makes the core, by net, name servers, group, options and identity."""
        net = aio.net_for(options)
        servers, identity = self._share(net, name_servers, group, options, options.credentials, options.tls)
        if options.rebalance_listener is not None:
            options = attrs.evolve(options, rebalance_listener=_OnThread(options.rebalance_listener))
        self._core = make(net, servers, group, options=options, identity=identity)
        self._thread: LoopThread | None = None
        # Reentrant, as a signal's handler may close this.
        self._gate = threading.RLock()
        self._was_closed = False
        self._pid = os.getpid()
        #: Messages that the loop has handed out, for whom iterates.
        self._handed_out: deque[T] = deque()
        self._fetching: Future[bool] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make one in the process that consumes")

    def _check_usable(self) -> None:
        """Raises ClientClosed."""
        if self._pid != os.getpid():
            raise ClientClosed(f"this {self._what} belongs to another process")
        if self._was_closed:
            raise ClientClosed(f"this {self._what} was closed")

    def _is_over(self) -> bool:
        return self._was_closed or self._pid != os.getpid()

    def _fetch(self, thread: LoopThread) -> bool:
        """Have messages handed out by the loop; False if there are no more. An exception of a signal's handler ends the
        wait, not the fetch: its messages come with the next call."""
        thread.check_may_block()
        with self._gate:
            if self._fetching is None or self._fetching.done():
                self._fetching = thread.submit(self._hand_out())
            fetching = self._fetching
        return fetching.result()

    async def _hand_out(self) -> bool:
        if not self._handed_out:
            found: list[Any] = await self._core.next_messages(HANDED_OUT_MAX)
            self._handed_out.extend(found)
        return bool(self._handed_out)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._is_over():
            with suppress(IndexError):  # another thread got the last one
                return self._handed_out.popleft()
            thread = self._thread
            if thread is None:
                raise ClientClosed(f"a {self._what} is iterated over after its start")
            try:
                if not self._fetch(thread):
                    break
            except ClientClosed:
                if self._is_over():
                    break
                raise
        raise StopIteration


async def later(call: Callable[[], None]) -> None:
    """Call it in a coroutine, on the loop's thread."""
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
