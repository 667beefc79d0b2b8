"""The clients' network on asyncio: no Twisted and no reactor."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

from mqbroker.client.connection import Connection
from mqbroker.client.errors import OtherLoop
from mqbroker.client.loop_net import CONNECT_TIMEOUT_S, LoopNet
from mqbroker.client.net import Account, RequestHandler
from mqbroker.client.tls import ClientTls, Contexts, ssl_context, ssl_failed, why_lost
from mqbroker.errors import Unreachable
from mqbroker.remoting.response_table import Timeout
from mqbroker.wire.names import split_address

log = logging.getLogger(__name__)

T = TypeVar("T")

_READ_BYTES = 64 * 1024


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


class AioNet(LoopNet):
    """Net on the running asyncio loop."""

    has_tasks = True

    def __init__(
        self,
        on_request: RequestHandler,
        rng: random.Random,
        credentials: Account | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Raises BadTls if files of `tls` cannot be used."""
        super().__init__(on_request, rng, credentials, partial(why_lost, tls=tls))
        self._tls = None if tls is None else Contexts(tls, ssl_context)
        self.is_encrypted = tls is not None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        return time.time()

    def steady(self) -> float:
        loop = self._loop
        return self.loop.time() if loop is None else loop.time()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # which asks the system for the process each time
        return self._loop

    @property
    def home(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def like(self, on_request: RequestHandler) -> AioNet:
        return AioNet(on_request, self.rng, self._credentials, None if self._tls is None else self._tls.tls)

    def check_loop(self) -> None:
        """Raises OtherLoop where the running loop is not the one on which this was first used."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise OtherLoop(is_closed=self._loop.is_closed())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
        async with _timeout(seconds):
            return await coroutine

    async def on_thread(self, call: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(None, call)

    def is_cancelled_inside(self, error: BaseException) -> bool:
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and not (task is not None and task.cancelling())

    def is_cancelled(self, error: Exception) -> bool:
        return False  # asyncio.CancelledError is not an Exception

    def after_spawned(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], ended: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if ended is not None:
            task.add_done_callback(lambda _: ended())
        return task

    async def close(self, timeout_s: float = 1.0) -> None:
        self._closed = True
        me = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me]
        for task in tasks:
            task.cancel()
        if tasks:  # of which a listener may not end when it is cancelled
            await asyncio.wait(tasks, timeout=timeout_s / 2)
        await super().close(timeout_s / 2)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the client failed", exc_info=task.exception())

    def call_from_thread(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call)

    async def all_of(self, waiting: Sequence[Coroutine[Any, Any, Any]]) -> Sequence[Any]:
        results: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        return results

    async def _connect(self, addr: str) -> Connection:
        host, port = split_address(addr)
        tls = None if self._tls is None else self._tls.tls
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = {"ssl": self._tls.current(), "server_hostname": self._tls.tls.name_of(host)}
        try:
            async with _timeout(CONNECT_TIMEOUT_S):
                _, protocol = await self.loop.create_connection(
                    lambda: _Protocol(self._new_connection(addr)), host, port, **encrypted
                )
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            if tls is None:
                raise Unreachable(f"connect to {addr} failed: {error}") from error
            raise ssl_failed(addr, tls, error) from error
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError with no text, UnicodeError is of names
            raise Unreachable(f"connect to {addr} failed: {str(error) or 'timed out'}") from error
        return protocol.connection


class _Protocol(asyncio.BufferedProtocol):
    """Hands a connection what its transport has. A Protocol would have 256 KiB allocated, and shrunk, for each read."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.opened(cast(asyncio.Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.lost(error)

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.data_received(bytes(self._buffer[:nbytes]))
