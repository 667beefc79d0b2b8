"""The clients' network on Twisted: RemotingClient and the reactor's clock."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from mqbroker.client.broker_requests import MemberRequests
from mqbroker.client.net import Lock, RequestHandler, Signal, Task, signed
from mqbroker.client.tls import connection_lost
from mqbroker.errors import ConnectionClosed, MQError
from mqbroker.remoting.client import Connector, RemotingClient
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

_ONEWAY_TIMEOUT_MS = 3000


def handler_table(answer: RequestHandler) -> HandlerTable:
    """Handlers of brokers' requests to a consumer; the table itself declines the rest."""

    def handle(request: RemotingCommand, connection: IConnection) -> Awaitable[RemotingCommand | None]:
        return answer(request)

    table = HandlerTable()
    for code in MemberRequests.HANDLERS:
        table.register(code, handle)
    return table


class DeferredNet:
    """LiveNet on a reactor, whose coroutines await Deferreds."""

    def __init__(
        self,
        reactor: Any,
        client: RemotingClient,
        rng: random.Random,
        credentials: Credentials | None = None,
        connector: Connector | None = None,
    ) -> None:
        """`connector` is the client's; it may know more about why a connection was lost."""
        self._connector = connector
        self.rng = rng
        self._credentials = credentials
        self._clock: IReactorTime = reactor
        self._client = client
        self._have_answered: set[str] = set()

    def now(self) -> float:
        return float(self._clock.seconds())

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        try:
            answer = await self._client.invoke_sync(addr, signed(command, self._credentials), timeout_ms)
        except ConnectionClosed as error:
            raise self._why_lost(addr, error, len(command.body)) from error
        self._have_answered.add(addr)
        return answer

    def _why_lost(self, addr: str, error: ConnectionClosed, request_bytes: int) -> MQError:
        refusals: dict[str, MQError] = getattr(self._connector, "refusals", {})
        if addr in refusals:
            return refusals.pop(addr)
        if self._client.is_closed:
            return error
        tls = getattr(self._connector, "tls", None)
        return connection_lost(str(error), tls, has_answered=addr in self._have_answered, request_bytes=request_bytes)

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        waiting = [Deferred.fromCoroutine(self.invoke(addr, command, timeout_ms)) for addr, command in requests]
        results: Any = await DeferredList(waiting, consumeErrors=True)
        return [result if success else _mq_error(result) for success, result in results]

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        await self._client.invoke_oneway(addr, signed(command, self._credentials), _ONEWAY_TIMEOUT_MS)

    async def sleep(self, seconds: float) -> None:
        await deferLater(self._clock, seconds)

    def lock(self) -> Lock:
        return _Lock(self._clock)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        return _Task(coroutine, self._clock)

    def is_cancelled_inside(self, error: BaseException) -> bool:
        return False  # Twisted's CancelledError is like any other

    def after_spawned(self, call: Callable[[], None]) -> None:
        call()

    def signal(self) -> Signal:
        return _Signal(self._clock)

    async def close(self) -> None:
        await self._client.close()


def _mq_error(failure: Failure) -> MQError:
    if isinstance(failure.value, MQError):
        return failure.value
    failure.raiseException()
    raise AssertionError("raiseException returned")


class _Task:
    def __init__(self, coroutine: Coroutine[Any, Any, None], clock: IReactorTime) -> None:
        self._coroutine = cast(Any, coroutine)
        self._clock = clock
        self._done = Deferred.fromCoroutine(self._coroutine)
        self._done.addErrback(self._failed)

    def cancel(self) -> None:
        if self._coroutine.cr_running:
            # A coroutine cannot be cancelled from inside itself; at the next turn it is suspended.
            self._clock.callLater(0, self._done.cancel)
        else:
            self._done.cancel()

    def _failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            log.error("a task of the client failed", exc_info=failure.value)


class _Lock:
    """Unlike DeferredLock, it resumes thousands of waiters from a loop, not recursively."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._is_held = False
        self._is_granting = False
        self._waiting: deque[Deferred[None]] = deque()

    async def __aenter__(self) -> None:
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        self._grant()
        await waiter

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._is_held = False
        if self._waiting and not self._is_granting:
            # The releasing coroutine continues first: waiters would resume inside this call, before it.
            self._clock.callLater(0, self._grant)

    def _grant(self) -> None:
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._waiting and not self._is_held:
                self._is_held = True
                self._waiting.popleft().callback(None)
        finally:
            self._is_granting = False


class _Signal:
    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._is_set = False
        self._waiter: Deferred[bool] | None = None

    def set(self) -> None:
        if self._waiter is None:
            self._is_set = True
        else:
            self._fire(True)

    async def wait(self, timeout_s: float | None = None) -> bool:
        if self._is_set:
            self._is_set = False
            return True
        waiter: Deferred[bool] = Deferred(self._forget)
        self._waiter = waiter
        timer = None if timeout_s is None else self._clock.callLater(timeout_s, self._fire, False)
        try:
            return await waiter
        finally:
            if timer is not None and timer.active():
                timer.cancel()

    def _forget(self, waiter: Deferred[bool]) -> None:
        self._waiter = None

    def _fire(self, value: bool) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(value)
