"""The clients' network on asyncio: one connection for each address, no Twisted and no reactor."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs

from mqbroker.client.aio_connection import Connection, SendsEnded
from mqbroker.client.fifo_lock import FifoLock
from mqbroker.client.net import Lock, RequestHandler, Signal, signed
from mqbroker.client.pull_run import Puller, PullRun
from mqbroker.client.tls import ClientTls, Contexts, ssl_context, ssl_failed
from mqbroker.errors import ConnectionClosed, MQError, RequestTimedOut, Unreachable
from mqbroker.remoting.response_table import Timeout
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0
#: Requests of a peer that may wait for their answers on one connection; more are dropped.
UNANSWERED_MAX = 64


@asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    """As asyncio.timeout, without the time in which the loop was blocked."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timeout = Timeout(loop.time, loop.call_later, seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            timeout.cancel()


class AioNet:
    """LiveNet on the running asyncio loop."""

    def __init__(
        self,
        on_request: RequestHandler,
        rng: random.Random,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Raises BadTls if files of `tls` cannot be used."""
        self.rng = rng
        self._tls = None if tls is None else Contexts(tls, ssl_context)
        self._credentials = credentials
        self._on_request = on_request
        self._connections: dict[str, Connection] = {}
        self._connect_locks: dict[str, FifoLock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        #: Called with plain sends that have ended, and how.
        self.sends_ended: SendsEnded = len

    now = staticmethod(time.time)

    def free_connection(self, addr: str) -> Connection | None:
        """The connection to `addr`, if it can take requests at once, and they need no signature."""
        connection = self._connections.get(addr)
        return connection if connection is not None and connection.is_free and self._credentials is None else None

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        connection = self._connections.get(addr)
        if connection is None or not connection.is_free:
            if connection is None or not connection.is_ready:
                try:
                    async with _timeout(timeout_ms / 1000):
                        connection = await self._connection(addr)
                except TimeoutError:
                    why = f"{command.describe()}: no connection to {addr} in {timeout_ms} ms"
                    raise RequestTimedOut(why) from None
            await connection.writable()
        if self._credentials is not None:
            command = signed(command, self._credentials)
        return await connection.request(command, timeout_ms)

    async def pull_on(self, addr: str, command: RemotingCommand, timeout_ms: int, puller: Puller) -> RemotingCommand:
        """As `invoke`, of a pull and of those that follow it as long as they find messages and `puller` goes on;
        returns the last response."""
        connection = self.free_connection(addr)
        if connection is None:
            return await self.invoke(addr, command, timeout_ms)
        return await PullRun(connection, command, timeout_ms, puller, self._running_loop().time).ended()

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        waiting = [self.invoke(addr, command, timeout_ms) for addr, command in requests]
        results: list[RemotingCommand | MQError] = []
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, MQError):
                raise result
            results.append(result)
        return results

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        connection = self._connections.get(addr)
        if connection is None or not connection.is_ready:
            connection = await self._connection(addr)
        if not await connection.writable():
            raise ConnectionClosed(f"the connection to {addr} is closed")
        connection.send(attrs.evolve(signed(command, self._credentials), flag=command.flag | ONEWAY_FLAG))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> Lock:
        return FifoLock()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def is_cancelled_inside(self, error: BaseException) -> bool:
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and not (task is not None and task.cancelling())

    def after_spawned(self, call: Callable[[], None]) -> None:
        self._running_loop().call_soon(call)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def signal(self) -> Signal:
        return _Signal()

    async def close(self) -> None:
        self._closed = True
        me = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        # Plain transports report their end in the loop's next turn.
        await asyncio.gather(*(connection.ended() for connection in self._connections.values()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the client failed", exc_info=task.exception())

    def _answer(self, request: RemotingCommand, connection: Connection) -> None:
        if connection.unanswered >= UNANSWERED_MAX:
            log.debug("%s: %d requests of the broker are not answered yet", request.describe(), connection.unanswered)
        elif not self._closed:
            connection.unanswered += 1
            self.spawn(self._answer_later(request, connection))

    async def _answer_later(self, request: RemotingCommand, connection: Connection) -> None:
        try:
            answer = await self._on_request(request)
            if answer is not None and not request.is_oneway and await connection.writable():
                connection.send(answer)
        finally:
            connection.unanswered -= 1

    def _is_closed(self) -> bool:
        return self._closed

    def _connect_lock(self, addr: str) -> FifoLock:
        lock = self._connect_locks.get(addr)
        if lock is None:
            lock = self._connect_locks[addr] = FifoLock()
        return lock

    async def _connection(self, addr: str) -> Connection:
        """The open connection to `addr`, or a new one; all waiters share one attempt."""
        async with self._connect_lock(addr):
            connection = self._connections.get(addr)
            if connection is None or not connection.is_open:
                connection = await self._connect(addr)
            return connection

    async def _connect(self, addr: str) -> Connection:
        if self._is_closed():
            raise ConnectionClosed("the client is closed")
        loop = asyncio.get_running_loop()
        host, port = split_address(addr)
        tls = None if self._tls is None else self._tls.tls
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls.current(), "server_hostname": self._tls.tls.name_of(host)}
        try:
            async with _timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(addr, self._answer, tls, self._connect_lock(addr), self.sends_ended),
                    host,
                    port,
                    **encrypted,
                )
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            if tls is None:
                raise Unreachable(f"connect to {addr} failed: {error}") from error
            raise ssl_failed(addr, tls, error) from error
        except OSError as error:  # TimeoutError is one, with no text
            raise Unreachable(f"connect to {addr} failed: {str(error) or 'timed out'}") from error
        if self._is_closed():
            connection.close()
            raise ConnectionClosed("the client is closed")
        self._connections[addr] = connection
        return connection


class _Signal:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
