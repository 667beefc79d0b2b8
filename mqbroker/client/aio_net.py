"""The clients' network on asyncio: one connection for each address, no Twisted and no reactor."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import attrs

from mqbroker.client.fifo_lock import FifoLock
from mqbroker.client.messages import Message, SendResult, SendStatus
from mqbroker.client.net import Lock, RequestHandler, Signal, signed
from mqbroker.client.pull_run import Puller, PullRun, complete
from mqbroker.client.tls import ClientTls, Contexts, ssl_context, ssl_failed, why_lost
from mqbroker.errors import BadFrame, ConnectionClosed, MQError, RequestTimedOut, Unreachable
from mqbroker.kernel import compiled
from mqbroker.remoting.response_table import Complete, PendingRequest, ResponseTable, Timeout
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import (
    AFTER_OPAQUE,
    BEFORE_OPAQUE,
    ONEWAY_FLAG,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    take_responses,
)
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0
_CLOSE_TIMEOUT_S = 1.0
#: Frames sent within one turn of the loop are joined, up to so many bytes; the peer works on these meanwhile.
_UNWRITTEN_BYTES_MAX = 8 * 1024
_READ_BYTES = 64 * 1024
#: A peer that reads nothing for so long, seconds, while more waits for it, counts as gone.
_UNREAD_S_MAX = 10.0
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


#: Where a message is sent: its queue, and what its header has before its own fields.
Place = tuple[MessageQueue, bytes]
#: A plain send that was not answered yet.
Sent = tuple[asyncio.Future[Any], Message, MessageQueue, str, "_Run"]


@attrs.define(eq=False)
class _Run:
    """Plain sends that were written together, and have one time-out."""

    addr: str
    began: float
    opaque: int
    left: int
    forget_opaque: Callable[[int], None]

    def forget(self) -> None:
        """All are answered."""
        self.forget_opaque(self.opaque)


SendsEnded = Callable[[list[tuple[Sent, SendResult | RemotingCommand | MQError]]], object]


class _Connection(asyncio.BufferedProtocol):
    """Frames on one transport; each request waits for the response with its opaque."""

    def __init__(
        self,
        addr: str,
        answer: Callable[[RemotingCommand, _Connection], None],
        tls: ClientTls | None,
        gate: FifoLock,
        sends_ended: SendsEnded,
    ) -> None:
        """`gate` is held by those that wait for a connection to this address."""
        self._sends_ended = sends_ended
        self.addr = addr
        self._gate = gate
        self._sent: dict[int, Sent] = {}
        # A Protocol would have 256 KiB allocated, and shrunk, for each read.
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._tls = tls
        self._answer = answer
        #: Number of the peer's requests whose responses are not ready, or do not fit into the socket's buffer.
        self.unanswered = 0
        self._decoder = FrameDecoder()
        self._loop = loop = asyncio.get_running_loop()  # which asks the system for the process each time
        self._responses = ResponseTable(addr, loop.time, loop.call_later, self.close)
        self._transport: asyncio.Transport | None = None
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unwritten_requests: list[PendingRequest] = []
        self._after_write: list[Callable[[], None]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._write_lock = FifoLock()
        self._unread_timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self.is_open = False

    def pause_writing(self) -> None:
        self._writable.clear()
        self._unread_timer = self._loop.call_later(_UNREAD_S_MAX, self._close_unread)

    def resume_writing(self) -> None:
        self._writable.set()
        self._stop_unread_timer()

    def _close_unread(self) -> None:
        log.warning("closing the connection to %s: it has read nothing for %g s", self.addr, _UNREAD_S_MAX)
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data_received(bytes(self._buffer[:nbytes]))

    def _data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if compiled is not None:
            data = self._take_plain(data, now)
            if not data:
                return
        try:
            commands = [decode_command(*frame) for frame in self._decoder.feed(data)]
        except BadFrame as error:
            log.warning("closing the connection to %s: %s", self.addr, error)
            self.close()
            return
        self._handle(commands, now)

    def _take_plain(self, data: bytes, now: float) -> bytes:
        """Take the plain responses from the beginning of `data`; returns the rest."""
        whole, at = self._decoder.join(data), 0
        if whole is None or compiled is None:
            return data
        if self._sent:
            stored, at = compiled.take_stored(whole, self._sent, SendResult, SendStatus.SEND_OK)
            if stored:
                self._responses.heard_at = now
                self._sends_ended(stored)
        responses, at = take_responses(whole, at)
        if responses:
            self._handle(responses, now)
        return whole[at:]

    def _handle(self, commands: list[RemotingCommand], now: float) -> None:
        self._responses.heard_at = now
        for command in commands:
            if not command.is_response:
                self._answer(command, self)
            elif not self._responses.answer(command, now) and command.opaque in self._sent:
                self._sends_ended([(self._sent.pop(command.opaque), command)])

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._lost.set()
        self._writable.set()
        self._stop_unread_timer()
        has_answered = self._responses.has_heard
        self._responses.lost(
            lambda largest: why_lost(self.addr, self._tls, error, has_answered=has_answered, request_bytes=largest)
        )

    def send(self, command: RemotingCommand) -> None:
        """Write at the end of this turn of the loop, joined with other frames, or earlier if they are many."""
        self._write_soon(encode_command(command))

    def _write_soon(self, frame: bytes) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        if self._unwritten_bytes >= _UNWRITTEN_BYTES_MAX:
            self._write()

    @property
    def is_free(self) -> bool:
        """Whether all sent bytes are in the buffer of the socket, too, and nobody waits to send more."""
        return self.is_ready and self.is_writable

    @property
    def is_ready(self) -> bool:
        """Whether it is open, and nobody waits for a connection."""
        return self.is_open and self._gate.is_empty

    @property
    def is_writable(self) -> bool:
        """Whether all sent bytes are in the socket's buffer, and nobody waits to send more."""
        return self._writable.is_set() and self._write_lock.is_empty

    async def writable(self) -> bool:
        """Wait, in the order of calls, until all sent bytes are in the socket's buffer; False if the connection was
        closed."""
        if not self.is_writable:
            async with self._write_lock:
                await self._writable.wait()
        return self.is_open

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send at once, writable or not, and wait for the response; the time-out counts from the write."""
        if not self.is_open:
            raise ConnectionClosed(f"the connection to {self.addr} is closed")
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        opaque = self.post(command, timeout_ms, partial(complete, waiter), partial(encode_command, command))
        try:
            return await waiter
        except BaseException:  # it was cancelled, or has ended anyhow
            self.forget(opaque)
            raise

    def post(
        self, command: RemotingCommand, timeout_ms: int, complete: Complete, encode: Callable[[int], bytes]
    ) -> int:
        """Send the frame that `encode` returns for an opaque, and have `complete` called with the response, or the
        error; returns the opaque."""
        opaque = self._responses.next_opaque()
        frame = encode(opaque)
        self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, complete))
        self._write_soon(frame)
        return opaque

    def after_write(self, call: Callable[[], None]) -> None:
        """Call it when all that was sent in this turn of the loop is written."""
        self._after_write.append(call)

    def forget(self, opaque: int) -> None:
        """Ignore the response, and any error."""
        self._responses.forget(opaque)

    def send_run(
        self,
        messages: list[Message],
        places: list[Place],
        waiters: list[Any],
        now_s: float,
        timeout_ms: int,
        id_prefix: str,
        id_number: int,
    ) -> int:
        """Send the first messages, as long as they are plain, each as in its place; returns how many. `now_s` is the
        time of day; the ids of messages without one begin with `id_prefix`, and are numbered."""
        if compiled is None:
            return 0
        opaque = self._responses.reserve_opaques(1 + len(messages))
        run = _Run(self.addr, now_s, opaque, 0, self._responses.forget)
        born_ms = int(now_s * 1000)
        try:
            frames = compiled.encode_sends(
                messages, places, waiters, run, opaque + 1, born_ms, id_prefix, id_number,
                BEFORE_OPAQUE, AFTER_OPAQUE, self._sent,
            )  # fmt: skip
        except Exception:  # a message that was changed behind its checks: the general path says so to its sender
            for number in range(len(messages)):
                self._sent.pop(opaque + 1 + number, None)
            return 0
        if frames:
            run.left = len(frames)
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {}, messages[0].body)
            # The run has an opaque of its own, which nobody answers.
            failed = partial(self._failed, range(opaque + 1, opaque + 1 + len(frames)))
            self._unwritten_requests.append(self._responses.add(opaque, command, timeout_ms, failed))
            self._write_soon(b"".join(frames))
        return len(frames)

    def _failed(self, opaques: range, error: Any) -> None:
        if not isinstance(error, MQError):
            error = ConnectionClosed(f"{self.addr} has answered what it was not asked")
        self._sends_ended([(self._sent.pop(opaque), error) for opaque in opaques if opaque in self._sent])

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        self._unwritten_bytes = 0
        if self._transport is not None and unwritten and not self._transport.is_closing():
            self._transport.write(b"".join(unwritten))
        requests, self._unwritten_requests = self._unwritten_requests, []
        self._responses.written(requests)
        calls, self._after_write = self._after_write, []
        for call in calls:
            call()

    def close(self) -> None:
        self._write()
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def ended(self) -> None:
        """Wait for the end of a closed connection; TLS exchanges close_notify first."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._lost.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._lost.wait()


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
        self._connections: dict[str, _Connection] = {}
        self._connect_locks: dict[str, FifoLock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        #: Called with plain sends that have ended, and how.
        self.sends_ended: SendsEnded = len

    now = staticmethod(time.time)

    def free_connection(self, addr: str) -> _Connection | None:
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

    def _connect_lock(self, addr: str) -> FifoLock:
        lock = self._connect_locks.get(addr)
        if lock is None:
            lock = self._connect_locks[addr] = FifoLock()
        return lock

    async def _connection(self, addr: str) -> _Connection:
        """The open connection to `addr`, or a new one; all waiters share one attempt."""
        async with self._connect_lock(addr):
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
            async with _timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(addr, self._answer, tls, self._connect_lock(addr), self.sends_ended),
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
