"""The clients' network on asyncio: one connection for each address, no Twisted and no reactor."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import attrs

from mqbroker.client.net import Lock, PeerHandler, Signal, signed
from mqbroker.client.options import split_address
from mqbroker.client.tls import ClientTls, Contexts, is_alert, lost_before_any_answer, ssl_context, ssl_failed
from mqbroker.errors import BadFrame, ConnectionClosed, MQError, RequestTimedOut, Unreachable
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, decode_command, encode_command
from mqbroker.wire.frame import FrameDecoder
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0
_GOODBYE_S = 1.0
#: As many requests of a peer may wait for their answers on one connection; more are not heard.
UNANSWERED_MAX = 64


class _Connection(asyncio.Protocol):
    """Frames on one transport; each request waits for the answer with its opaque."""

    def __init__(
        self, addr: str, answer: Callable[[RemotingCommand, _Connection], None], tls: ClientTls | None
    ) -> None:
        self._addr = addr
        self._tls = tls
        self._answer = answer
        #: Requests of the peer whose answers are not made yet, or do not fit into the socket's buffer.
        self.unanswered = 0
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._transport: asyncio.Transport | None = None
        self._unwritten: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self.is_open = False
        self.heard_at = 0.0

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            commands = [decode_command(*frame) for frame in self._decoder.feed(data)]
        except BadFrame as error:
            log.warning("closing the connection to %s: %s", self._addr, error)
            self.close()
            return
        self.heard_at = asyncio.get_running_loop().time()
        for command in commands:
            if command.is_response:
                waiter = self._pending.pop(command.opaque, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(command)
            else:
                self._answer(command, self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._lost.set()
        self._writable.set()
        pending, self._pending = self._pending, {}
        for waiter in pending.values():
            if not waiter.done():
                waiter.set_exception(self._why_lost(error))

    def _why_lost(self, error: Exception | None) -> MQError:
        if self._tls is not None and isinstance(error, OSError) and is_alert(error):
            return ssl_failed(self._addr, self._tls, error)
        text = f"the connection to {self._addr} was lost: {error or 'closed'}"
        return ConnectionClosed(text) if self.heard_at else lost_before_any_answer(text, self._tls)

    def send(self, command: RemotingCommand) -> None:
        """Write at the end of this turn of the loop, with whatever else is sent in it."""
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten.append(encode_command(command))

    async def writable(self) -> bool:
        """Wait until what was sent is with the socket; False where the connection has ended."""
        await self._writable.wait()
        return self.is_open

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        if not await self.writable():
            raise ConnectionClosed(f"the connection to {self._addr} is closed")
        opaque = next(self._opaques) & 0x7FFFFFFF
        waiter: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = waiter
        try:
            self.send(attrs.evolve(command, opaque=opaque))
            return await waiter
        finally:
            self._pending.pop(opaque, None)

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if self._transport is not None and unwritten and not self._transport.is_closing():
            self._transport.write(b"".join(unwritten))

    def close(self) -> None:
        self._write()
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def ended(self) -> None:
        """Wait for the end of a connection that was closed; TLS says goodbye first, and waits for the peer's."""
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._lost.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._lost.wait()


class AioNet:
    """LiveNet on the running asyncio loop."""

    def __init__(
        self,
        on_request: PeerHandler,
        rng: random.Random,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Raises BadTls where files of `tls` cannot be used."""
        self.rng = rng
        self._tls = None if tls is None else Contexts(tls, ssl_context)
        self._credentials = credentials
        self._on_request = on_request
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def now(self) -> float:
        return time.time()

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        connection: _Connection | None = None
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connection(addr)
                return await connection.request(signed(command, self._credentials))
        except TimeoutError:
            if connection is not None and connection.heard_at < started:
                # Nothing at all came back: the peer may be gone without a word, and a new connection finds out.
                connection.close()
            raise RequestTimedOut(f"{command.describe()}: no answer from {addr} in {timeout_ms} ms") from None

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
        connection = await self._connection(addr)
        connection.send(attrs.evolve(signed(command, self._credentials), flag=command.flag | ONEWAY_FLAG))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> Lock:
        return asyncio.Lock()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
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
        # Plain ones tell of their end on the loop's next turn.
        await asyncio.gather(*(connection.ended() for connection in self._connections.values()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the client failed", exc_info=task.exception())

    def _answer(self, request: RemotingCommand, connection: _Connection) -> None:
        if connection.unanswered >= UNANSWERED_MAX:
            log.debug("%s: %d requests of the broker are not answered yet", request.describe(), connection.unanswered)
        elif not self._closed:
            connection.unanswered += 1
            self.spawn(self._answer_later(request, connection))

    async def _answer_later(self, request: RemotingCommand, connection: _Connection) -> None:
        try:
            answer = await self._on_request(request)
            if answer is not None and not request.is_oneway and await connection.writable():
                connection.send(answer)
        finally:
            connection.unanswered -= 1

    def _is_closed(self) -> bool:
        return self._closed

    async def _connection(self, addr: str) -> _Connection:
        """The open connection to `addr`, or a new one; all who wait share one attempt."""
        connection = self._connections.get(addr)
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting.setdefault(addr, asyncio.Lock()):
            connection = self._connections.get(addr)
            if connection is None or not connection.is_open:
                connection = await self._connect(addr)
            return connection

    async def _connect(self, addr: str) -> _Connection:
        if self._is_closed():
            raise ConnectionClosed("the client is closed")
        loop = asyncio.get_running_loop()
        host, port = split_address(addr)
        tls = None if self._tls is None else self._tls.tls
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls.current(), "server_hostname": self._tls.tls.name_of(host)}
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(addr, self._answer, tls), host, port, **encrypted
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
