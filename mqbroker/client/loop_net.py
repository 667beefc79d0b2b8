"""The clients' network on an event loop: one connection for each address. Whose loop it is, and how that connects, is
said in `aio_net` and `deferred_net`."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import attrs

from mqbroker.client.address_server import AddressServer
from mqbroker.client.connection import Connection, Line, SendsEnded, WhyLost
from mqbroker.client.heartbeats import SharedHeartbeats
from mqbroker.client.hooks import Hooks
from mqbroker.client.identity import Identity
from mqbroker.client.loop import FifoLock, Future, Loop, LoopSignal, complete
from mqbroker.client.net import Account, Lock, Net, Puller, RequestHandler, Signal, Task, signed
from mqbroker.client.pull_run import PullRun
from mqbroker.client.routes import SharedRoutes
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.remoting.response_table import Timeout
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
#: Servers of this process that are reached without a socket, by address (`client/testing.py`).
IN_MEMORY: dict[str, InMemoryServer] = {}
#: Requests of a peer that may wait for their answers on one connection; more are dropped.
UNANSWERED_MAX = 64


class InMemoryServer(Protocol):
    """What answers at an address without a socket."""

    def connect(self, connection: Connection, call_soon: Callable[[Callable[[], object]], object]) -> None:
        """Open the connection, whose loop is told of what comes by `call_soon`."""


@attrs.define(eq=False)
class _Waiting(Line):
    """Those that wait for a connection to one address, and the attempt to make it."""

    futures: deque[Future] = attrs.Factory(deque)
    attempt: Task | None = None

    def end(self, outcome: Connection | MQError) -> None:
        """The attempt has ended."""
        self.attempt = None
        futures, self.futures = self.futures, deque()
        for future in futures:
            complete(future, outcome)


#: Returns whose connections are used from then on, and what is called to leave it: that returns whether others stay.
Join = Callable[[], tuple["LoopNet", Callable[[], bool]]]


class LoopNet(ABC):
    """What Nets on an event loop have in common."""

    def __init__(
        self, on_request: RequestHandler, rng: random.Random, credentials: Account | None, why_lost: WhyLost
    ) -> None:
        self.rng = rng
        self._credentials = credentials
        self._on_request = on_request
        self.asked_by = ""
        self._why_lost = why_lost
        self.connections: dict[str, Connection] = {}
        #: Connections that were replaced, and have not ended yet.
        self.former: list[Connection] = []
        self._waiting: dict[str, _Waiting] = {}
        self._closed = False
        self._when_closed: Callable[[], object] = bool
        #: Whose connections this uses: its own, or those of an instance, which it joins when it uses them first.
        self._lines: LoopNet = self
        self._join: Join | None = None
        self._leave: Callable[[], bool] | None = None
        #: The identity of an instance, and the heartbeats and routes that its clients share.
        self.identity: Identity | None = None
        self.shared_heartbeats = SharedHeartbeats()
        self.shared_routes = SharedRoutes()
        self.unit_name = ""
        self.address_server: AddressServer | None = None
        #: Requests that wait to be sent.
        self._unsent: dict[Future, None] = {}
        #: Called with plain sends that have ended, and their outcomes.
        self.sends_ended: SendsEnded = len
        #: The same for all with the same connections.
        self.hooks = Hooks()
        self.is_encrypted = False

    #: Whether its coroutines are tasks of asyncio.
    has_tasks = False

    # what depends on the loop

    @property
    @abstractmethod
    def loop(self) -> Loop: ...

    @property
    @abstractmethod
    def home(self) -> Hashable:
        """The event loop, by which instances differ."""

    @abstractmethod
    def like(self, on_request: RequestHandler) -> LoopNet:
        """A new one with the same settings."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def steady(self) -> float: ...

    @abstractmethod
    def spawn(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[], None] | None = None) -> Task: ...

    @abstractmethod
    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T: ...

    @abstractmethod
    async def _connect(self, addr: str) -> Connection:
        """A new connection. Raises Unreachable or TlsFailed, BadTls if files cannot be used, and if `addr` is none."""

    @abstractmethod
    def call_from_thread(self, call: Callable[[], object]) -> object:
        """Have the loop call it soon; may be called on any thread."""

    @abstractmethod
    async def all_of(self, waiting: Sequence[Coroutine[Any, Any, Any]]) -> Sequence[Any]:
        """What coroutines that run at the same time return, or raise."""

    # what does not

    def lock(self) -> Lock:
        return FifoLock(self._this_loop)

    def signal(self) -> Signal:
        return LoopSignal(self._this_loop)

    def _this_loop(self) -> Loop:
        return self.loop

    def joins(self, join: Join) -> None:
        """Use the connections of what `join` returns, with what is called to leave it."""
        self._join = join

    @property
    def lines(self) -> LoopNet:
        """Whose connections this uses. Raises ConnectionClosed."""
        if self._closed:
            raise ConnectionClosed("the client is closed")
        if self._join is not None:
            self._lines, self._leave = self._join()
            self._join = None
        return self._lines

    @property
    def asking(self) -> str:
        return self._lines.asked_by

    @property
    def heartbeats(self) -> SharedHeartbeats:
        """The heartbeats of all clients with the same connections."""
        return self._lines.shared_heartbeats

    @property
    def routes(self) -> SharedRoutes:
        """The routes that all clients with the same connections share."""
        return self._lines.shared_routes

    def free_connection(self, addr: str) -> Connection | None:
        """The connection to `addr`, if it can take requests at once, and they need no signature, nor pass any hook."""
        connection = self._lines.connections.get(addr)
        if connection is None or self._credentials is not None or self.hooks.rpc or not connection.is_free:
            return None
        return connection

    async def name_servers(self, url: str) -> tuple[str, ...]:
        lines = self.lines
        if lines.address_server is None:
            lines.address_server = AddressServer(cast(Net, lines), url, lines.unit_name)
        return await lines.address_server.name_servers()

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        self.check_loop()  # before anything is sent
        lines = self.lines
        connection = lines.connections.get(addr)
        if connection is None or not connection.is_free:
            began = self.loop.time()
            if connection is None or not connection.is_ready:
                connection = await lines.connection_to(addr, command, timeout_ms, self._unsent)
            if not connection.is_writable:
                await self._writable(connection, command, began + timeout_ms / 1000 - self.loop.time())
            _ = self.lines  # it may be closed by now
            waited_ms = int((self.loop.time() - began) * 1000)
            if waited_ms >= timeout_ms:
                raise RequestTimedOut(f"{command.describe()}: could not be sent to {addr} in {timeout_ms} ms")
            timeout_ms -= waited_ms
        if not self.hooks.rpc:
            return await connection.request(signed(command, self._credentials), timeout_ms, self)
        send = partial(self._request, connection, timeout_ms)
        return cast(RemotingCommand, await self.hooks.around(addr, command, send))

    async def _request(self, connection: Connection, timeout_ms: int, command: RemotingCommand) -> RemotingCommand:
        return await connection.request(signed(command, self._credentials), timeout_ms, self)

    async def pull_on(self, addr: str, command: RemotingCommand, timeout_ms: int, puller: Puller) -> RemotingCommand:
        connection = self.free_connection(addr)
        if connection is None:
            return await self.invoke(addr, command, timeout_ms)
        return await PullRun(connection, command, timeout_ms, puller, self.loop, self).ended()

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        results: list[RemotingCommand | MQError] = []
        for result in await self.all_of([self.invoke(addr, command, timeout_ms) for addr, command in requests]):
            if isinstance(result, BaseException) and not isinstance(result, MQError):
                raise result
            results.append(result)
        return results

    def check_loop(self) -> None:  # noqa: B027 - not abstract: only asyncio has loops to mix up
        """Raises OtherLoop where the running loop is not the one on which this was first used, if that can be told."""

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        self.check_loop()  # nothing below awaits a future of the loop
        connection = self.lines.connections.get(addr)
        if connection is None or not connection.is_ready:
            connection = await self.lines.connection_to(addr, command, int(CONNECT_TIMEOUT_S * 1000), self._unsent)
        if not await connection.writable():
            raise ConnectionClosed(f"the connection to {addr} is closed")

        async def send(command: RemotingCommand) -> None:
            connection.send(signed(command, self._credentials))

        command = attrs.evolve(command, flag=command.flag | ONEWAY_FLAG)
        await (self.hooks.around(addr, command, send) if self.hooks.rpc else send(command))

    @property
    def is_closed(self) -> bool:
        """Whether its client was closed."""
        return self._closed

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have it called when this is closed; at once, if that has happened. May be called on any thread."""
        self._when_closed = call
        if self._closed:
            call()

    async def close(self, timeout_s: float = 1.0) -> None:
        self._closed = True
        self._when_closed()
        closed = ConnectionClosed("the client is closed")
        for future in list(self._unsent):
            complete(future, closed)
        if self._lines is not self:
            leave, self._leave = self._leave, None
            if leave is None or leave():
                for connection in [*self._lines.connections.values(), *self._lines.former]:
                    connection.give_up(self, closed)
            else:
                await self._lines.close(timeout_s)
            return
        if self.address_server is not None and self.address_server.task is not None:
            self.address_server.task.cancel()
        for waiting in self._waiting.values():
            if waiting.attempt is not None:
                waiting.attempt.cancel()
            waiting.end(closed)
        connections = [*self.connections.values(), *self.former]
        for connection in connections:
            connection.close()
        await self.all_of([connection.ended(timeout_s) for connection in connections])

    def _answer(self, request: RemotingCommand, connection: Connection) -> None:
        if connection.unanswered >= UNANSWERED_MAX:
            log.debug("%s: %d requests of the broker are not answered yet", request.describe(), connection.unanswered)
        elif not self._closed:
            connection.unanswered += 1
            self.spawn(self._answer_later(request, connection))

    async def _answer_later(self, request: RemotingCommand, connection: Connection) -> None:
        try:
            self.asked_by = connection.addr
            answer = await self._answered(request, connection.addr)
            if answer is not None and not request.is_oneway and await connection.writable():
                connection.send(answer)
        finally:
            connection.unanswered -= 1

    async def _answered(self, request: RemotingCommand, addr: str) -> RemotingCommand | None:
        if not self.hooks.rpc:
            return await self._on_request(request)
        try:
            return await self.hooks.around(addr, request, self._on_request)
        except MQError as error:
            code = error.code if isinstance(error, Refused) else ResponseCode.SYSTEM_ERROR
            remark = error.remark if isinstance(error, Refused) else str(error)
            return RemotingCommand.response(request, code, remark)

    async def connection_to(
        self, addr: str, command: RemotingCommand, timeout_ms: int, unsent: dict[Future, None]
    ) -> Connection:
        """The open connection to `addr`, or a new one; all that wait share one attempt, and go on in their order. Those
        of a client are in `unsent` meanwhile."""
        if self._closed:
            raise ConnectionClosed("the client is closed")
        waiting = self._waiting.get(addr)
        if waiting is None:
            waiting = self._waiting[addr] = _Waiting()
        future = self.loop.create_future()
        connection = self.connections.get(addr)
        if connection is not None and connection.is_open:  # others wait to go on with it
            self.loop.call_soon(partial(complete, future, connection))
        else:
            waiting.futures.append(future)
            if waiting.attempt is None:
                waiting.attempt = self.spawn(self._attempt(addr, waiting))
                if not waiting.futures:  # it has ended at once
                    waiting.attempt = None
        error = RequestTimedOut(f"{command.describe()}: no connection to {addr} in {timeout_ms} ms")
        timeout = Timeout(self.loop.time, self.loop.call_later, timeout_ms / 1000, partial(complete, future, error))
        waiting.count += 1
        unsent[future] = None
        try:
            found: Connection = await future
        finally:
            del unsent[future]
            waiting.count -= 1
            timeout.cancel()
        return found

    async def _writable(self, connection: Connection, command: RemotingCommand, left_s: float) -> None:
        try:
            await self.within(max(0.0, left_s), connection.writable())
        except TimeoutError:
            why = f"{command.describe()}: {connection.addr} did not read what was sent before, and the time is over"
            raise RequestTimedOut(why) from None

    async def _attempt(self, addr: str, waiting: _Waiting) -> None:
        outcome: Connection | MQError = ConnectionClosed("the client is closed")
        try:
            if (server := IN_MEMORY.get(addr)) is not None:
                connection = self._new_connection(addr)
                server.connect(connection, self.call_from_thread)
            else:
                connection = await self._connect(addr)
            if self._closed:
                connection.close()
            else:
                former = self.connections.get(addr)
                self.former = [each for each in [*self.former, former] if each is not None and not each.is_lost]
                self.connections[addr] = outcome = connection
        except MQError as error:
            if not self._closed:
                outcome = error
                self.hooks.tell("failed", addr, str(error))
        finally:
            waiting.end(outcome)

    def _new_connection(self, addr: str) -> Connection:
        return Connection(addr, self.loop, self._waiting[addr], self._answer, self._why_lost, self.hooks.tell)
