"""Remoting client: sends requests over one connection per address, opened on first use.

Requests fail with Unreachable (no connection), its subclasses ConnectionClosed (connection lost) and RequestTimedOut
(no response in time), or TooManyRequests at the limit of `invoke_async`. A response with an error code is no failure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut, TooManyRequests, Unreachable
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits, Load
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.response_table import Opaques, Timeout, left_s
from mqbroker.remoting.server import CLOSINGS_LOGGED_PER_MINUTE, IdleWatch
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.remoting.tls import ENDPOINT_TIMEOUT_S
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.names import split_address

T = TypeVar("T")

#: As in Java's clientAsyncSemaphoreValue.
REQUESTS_MAX = 65_535
CONNECT_TIMEOUT_MS = 3_000

Connector = Callable[[str, int], IStreamClientEndpoint]


class RemotingClient:
    """Sends requests to any address; what peers ask on the same connections is declined."""

    def __init__(
        self,
        reactor: Any,
        *,
        limits: Limits | None = None,
        connector: Connector | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        requests_max: int = REQUESTS_MAX,
        on_closed: Callable[[str], None] | None = None,
        opaques: Opaques | None = None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """Requests are numbered through on all connections, and by `opaques` through those of several clients: as the
        Java client does, so that a peer can tell a new connection from a new process. `steady` returns seconds of a
        clock that is never set, by default the reactor's."""
        self._clock = SteadyClock(reactor, steady)
        self._connector = connector or tcp_connector(reactor)
        self._connect_timeout_ms = connect_timeout_ms
        self._on_closed = on_closed
        self._factory = _ClientFactory(self._clock, limits or Limits(), opaques or Opaques())
        self._watch = IdleWatch(self._factory.connections, self._clock, [self._factory.close_log])
        self._permits = DeferredSemaphore(requests_max)
        self._connections: dict[str, RemotingProtocol] = {}
        self._connecting: dict[str, tuple[Deferred[RemotingProtocol], list[Deferred[RemotingProtocol]]]] = {}
        self._closed = False

    def invoke_sync(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        """Fire with the response, after waiting for a permit if too many requests are in flight.

        `timeout_ms` covers connecting, waiting and the response. Cancelling frees the permit; the peer may still
        execute the request.
        """
        return Deferred.fromCoroutine(self._invoke(address, command, timeout_ms))

    def invoke_async(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        """Like `invoke_sync`, but fails at once with TooManyRequests at the limit of requests in flight."""
        if not self._permits.tokens:
            return _failed(TooManyRequests(f"{self._permits.limit} requests are in flight already"))
        return self.invoke_sync(address, command, timeout_ms)

    def invoke_oneway(self, address: str, command: RemotingCommand, timeout_ms: int) -> Deferred[None]:
        """Fire once the request is written to the transport, after waiting for the peer to read earlier data.

        Delivery is not confirmed.
        """
        return Deferred.fromCoroutine(self._send_oneway(address, command, timeout_ms))

    def close(self) -> Deferred[None]:
        """Close all connections; pending requests fail with ConnectionClosed. Fires when all are closed."""
        self._closed = True
        self._watch.stop()
        for attempt, _ in list(self._connecting.values()):
            attempt.cancel()
        gone: list[Deferred[None]] = []
        for connection in list(self._connections.values()):
            done: Deferred[None] = Deferred()
            connection.notify_closed(partial(done.callback, None))
            connection.close("the client is closing")
            gone.append(done)
        return gatherResults(gone).addCallback(lambda _: None)

    # --- steps

    async def _invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        due = self._clock.seconds() + timeout_ms / 1000
        await self._in_time(self._permits.acquire(), due, address, command, timeout_ms)
        try:
            connection = await self._in_time(self._connection(address), due, address, command, timeout_ms)
            return await connection.invoke(command, timeout_ms, left_s(due, self._clock.seconds()))
        finally:
            self._permits.release()

    async def _send_oneway(self, address: str, command: RemotingCommand, timeout_ms: int) -> None:
        due = self._clock.seconds() + timeout_ms / 1000
        connection = await self._in_time(self._connection(address), due, address, command, timeout_ms)
        room: Deferred[None] = Deferred(_give_up)
        connection.notify_room(partial(_fire, room))
        await self._in_time(room, due, address, command, timeout_ms)
        if connection.closed:
            raise ConnectionClosed(f"connection to {address} is closed")
        connection.invoke_oneway(command)

    def _in_time(
        self, waiting: Deferred[T], due: float, address: str, command: RemotingCommand, timeout_ms: int
    ) -> Deferred[T]:
        """Return `waiting`, failing with RequestTimedOut if it has not fired by `due`."""
        if waiting.called:
            return waiting
        timeout = self._timeout(left_s(due, self._clock.seconds()), waiting)

        def ended(result: T | Failure) -> T | Failure:
            timeout.cancel()
            if timeout.is_over:
                raise RequestTimedOut(f"{command.describe()}: no answer from {address} in {timeout_ms} ms")
            return result

        return cast("Deferred[T]", waiting.addBoth(ended))

    def _timeout(self, seconds: float, waiting: Deferred[Any]) -> Timeout:
        return Timeout(self._clock.seconds, self._clock.callLater, seconds, waiting.cancel)

    def _connection(self, address: str) -> Deferred[RemotingProtocol]:
        """Fire with the connection to `address`, opening it if needed; concurrent callers share one attempt."""
        waiter: Deferred[RemotingProtocol]
        if self._closed:
            return _failed(ConnectionClosed("the client is closed"))
        connection = self._connections.get(address)
        if connection is not None:
            waiter = Deferred()
            waiter.callback(connection)
            return waiter
        waiter = Deferred(_give_up)
        if address in self._connecting:
            self._connecting[address][1].append(waiter)
            return waiter
        try:
            endpoint = self._connector(*split_address(address))
        except MQError as error:
            return _failed(error)
        attempt = cast("Deferred[RemotingProtocol]", endpoint.connect(self._factory))
        self._connecting[address] = attempt, [waiter]
        timeout = self._timeout(self._connect_timeout_ms / 1000, attempt)
        attempt.addBoth(partial(_cancel, timeout))
        attempt.addCallbacks(self._made, self._unmade, callbackArgs=(address,), errbackArgs=(address, timeout))
        return waiter

    def _made(self, connection: RemotingProtocol, address: str) -> None:
        _, waiters = self._connecting.pop(address)
        self._connections[address] = connection
        self._watch.start()
        connection.notify_closed(partial(self._lost, address, connection))
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(connection)

    def _unmade(self, failure: Failure, address: str, timeout: Timeout) -> None:
        _, waiters = self._connecting.pop(address)
        why = "timed out" if timeout.is_over else failure.getErrorMessage()
        error: MQError = Unreachable(f"connect to {address} failed: {why}")
        if self._closed:
            error = ConnectionClosed("the client is closing")
        elif isinstance(failure.value, MQError):  # the connector's own error is more specific
            error = failure.value
        for waiter in waiters:
            if not waiter.called:
                waiter.errback(error)

    def _lost(self, address: str, connection: RemotingProtocol) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
            if not self._connections:
                self._watch.stop()
            if self._on_closed is not None:
                self._on_closed(address)


class _ClientFactory(Factory):
    noisy = False

    def __init__(self, clock: SteadyClock, limits: Limits, opaques: Opaques) -> None:
        self.connections: set[RemotingProtocol] = set()
        self._opaques = opaques
        self._table = HandlerTable()
        self._clock = clock
        self._limits = limits
        self.load = Load()
        self.scheduler = FairScheduler(clock)
        self.close_log = RateLimitedLog("connections closed", clock.seconds, CLOSINGS_LOGGED_PER_MINUTE)

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol:
        opaques = self._opaques
        return RemotingProtocol(self._table, self._clock, self._limits, self, closes_silent=True, opaques=opaques)

    def connected(self, connection: RemotingProtocol) -> bool:
        self.connections.add(connection)
        return True

    def disconnected(self, connection: RemotingProtocol) -> None:
        self.connections.discard(connection)


def succeeded(answer: RemotingCommand) -> RemotingCommand:
    """The response itself. Raises Refused if it has an error code."""
    if answer.code:
        raise Refused(answer.code, answer.remark or "")
    return answer


def tcp_connector(reactor: Any) -> Connector:
    """Return a connector for unencrypted connections."""

    def connect(host: str, port: int) -> IStreamClientEndpoint:
        kind = TCP6ClientEndpoint if ":" in host else TCP4ClientEndpoint
        return kind(reactor, host, port, timeout=ENDPOINT_TIMEOUT_S)

    return connect


def _cancel(timeout: Timeout, result: T) -> T:
    timeout.cancel()
    return result


def _fire(waiter: Deferred[None]) -> None:
    if not waiter.called:
        waiter.callback(None)


def _give_up(waiter: Deferred[Any]) -> None:
    """Cancel one waiter; the connection attempt continues for the others."""
    waiter.errback(CancelledError())


def _failed(error: MQError) -> Deferred[Any]:
    deferred: Deferred[Any] = Deferred()
    deferred.errback(error)
    return deferred
