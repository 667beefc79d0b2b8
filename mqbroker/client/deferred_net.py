"""The clients' network on Twisted: coroutines await Deferreds, on a reactor that is given."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IConsumer, IPushProducer, IReactorThreads, IReactorTime, ITCPTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.client.connection import Connection, WhyLost
from mqbroker.client.loop_net import CONNECT_TIMEOUT_S, LoopNet
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.net import Account, RequestHandler, Task
from mqbroker.client.single_sends import SingleSends
from mqbroker.client.tls import why_lost
from mqbroker.errors import MQError, Unreachable
from mqbroker.remoting.client import Connector, tcp_connector
from mqbroker.remoting.response_table import Timeout, Timer
from mqbroker.remoting.tcp import write_at_once
from mqbroker.wire.names import split_address

log = logging.getLogger(__name__)

T = TypeVar("T")


_LOST_WITHOUT_TLS = partial(why_lost, tls=None)


class DeferredNet(LoopNet):
    """Net on a reactor."""

    def __init__(
        self,
        reactor: Any,
        on_request: RequestHandler,
        rng: random.Random,
        credentials: Account | None = None,
        connector: Connector | None = None,
        why_lost: WhyLost = _LOST_WITHOUT_TLS,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """`connector` makes the endpoints of connections; `why_lost` may know more about them. `steady` returns seconds
        of a clock that is never set, by default the reactor's."""
        super().__init__(on_request, rng, credentials, why_lost)
        self._clock: IReactorTime = reactor
        self._steady: Callable[[], float] = steady or reactor.seconds
        self._loop = ReactorLoop(reactor, self._steady)
        self._connector = connector or tcp_connector(reactor)

    @property
    def loop(self) -> ReactorLoop:
        return self._loop

    @property
    def home(self) -> Hashable:
        return self._clock

    def like(self, on_request: RequestHandler) -> DeferredNet:
        return DeferredNet(
            self._clock, on_request, self.rng, self._credentials, self._connector, self._why_lost, self._steady
        )

    def now(self) -> float:
        return float(self._clock.seconds())

    def steady(self) -> float:
        return self._steady()

    async def sleep(self, seconds: float) -> None:
        await deferLater(self._clock, seconds)

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
        work = Deferred.fromCoroutine(coroutine)
        timeout = Timeout(self._loop.time, self._loop.call_later, seconds, work.cancel)
        try:
            return await work
        except CancelledError:
            if timeout.is_over:
                raise TimeoutError from None
            raise
        finally:
            timeout.cancel()

    async def on_thread(self, call: Callable[[], T]) -> T:
        if not IReactorThreads.providedBy(self._clock):  # as in tests
            return call()
        return cast(T, await deferToThreadPool(self._clock, self._clock.getThreadPool(), call))

    def is_cancelled_inside(self, error: BaseException) -> bool:
        return False  # Twisted's CancelledError is like any other

    def is_cancelled(self, error: Exception) -> bool:
        task = _running.get()
        return isinstance(error, CancelledError) and task is not None and task.is_cancelled

    def after_spawned(self, call: Callable[[], None]) -> None:
        call()

    def spawn(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[], None] | None = None) -> Task:
        return _Task(coroutine, self._clock, ended)

    def call_from_thread(self, call: Callable[[], object]) -> None:
        cast(Any, self._clock).callFromThread(call)

    async def all_of(self, waiting: Sequence[Coroutine[Any, Any, Any]]) -> Sequence[Any]:
        results: Any = await DeferredList([Deferred.fromCoroutine(each) for each in waiting], consumeErrors=True)
        return [result if success else result.value for success, result in results]

    async def _connect(self, addr: str) -> Connection:
        def connect() -> Deferred[Any]:
            return self._connector(*split_address(addr)).connect(_Factory(self._new_connection(addr)))

        attempt = maybeDeferred(connect)
        timeout = Timeout(self._loop.time, self._loop.call_later, CONNECT_TIMEOUT_S, attempt.cancel)
        try:
            return cast(_Protocol, await attempt).connection
        except MQError:  # the connector's own error is more specific
            raise
        except Exception as error:
            why = "timed out" if timeout.is_over else str(error).rstrip(".")
            raise Unreachable(f"connect to {addr} failed: {why}") from error
        finally:
            timeout.cancel()


class ReactorLoop:
    """A reactor as a `Loop`. All calls for the next iteration share one delayed call."""

    def __init__(self, reactor: IReactorTime, steady: Callable[[], float]) -> None:
        self.time: Callable[[], float] = steady
        self._call_later = reactor.callLater
        self._soon: deque[Callable[[], object]] = deque()

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return _Timer(self._call_later, seconds, call)

    def call_soon(self, call: Callable[[], object]) -> None:
        if not self._soon:
            self._call_later(0, self._turn)
        self._soon.append(call)

    def create_future(self) -> DeferredFuture:
        return DeferredFuture(self)

    def _turn(self) -> None:
        calls, self._soon = self._soon, deque()
        while calls:
            call = calls.popleft()  # ended sends that were kept would cost time of the garbage collector
            try:
                call()
            except Exception:
                log.exception("a call of the client failed")


class _Timer:
    """A delayed call that may be cancelled after it was made."""

    def __init__(self, call_later: Callable[..., Any], seconds: float, call: Callable[[], object]) -> None:
        self._call = call_later(seconds, call)

    def cancel(self) -> None:
        if self._call.active():
            self._call.cancel()


_WAITING, _CANCELLED = object(), object()


class DeferredFuture:
    """A `Future` around a Deferred, which fires in a later iteration."""

    __slots__ = ("_going_on", "_loop", "_outcome", "deferred", "send")

    def __init__(self, loop: ReactorLoop) -> None:
        self._loop = loop
        self._outcome: Any = _WAITING
        #: Its SingleSends and message if it is a send that may be plain: it continues if the outcome is no SendResult.
        #: Cheaper than a callback.
        self.send: tuple[SingleSends, Message] | None = None
        self._going_on: Deferred[Any] | None = None
        self.deferred: Deferred[Any] = Deferred(self._cancel)

    def done(self) -> bool:
        return self._outcome is not _WAITING

    def cancelled(self) -> bool:
        return self._outcome is _CANCELLED

    def cancel(self) -> None:
        self.deferred.cancel()

    def result(self) -> Any:
        if isinstance(self._outcome, Failure):
            self._outcome.raiseException()
        return self._outcome

    def set_result(self, result: Any) -> None:
        assert self._outcome is _WAITING
        self._outcome = result
        self._loop.call_soon(self._fire)

    def set_exception(self, error: BaseException) -> None:
        self.set_result(Failure(error))  # type: ignore[no-untyped-call]

    def __await__(self) -> Generator[Any, None, Any]:
        return self.deferred.__await__()

    def _fire(self) -> None:
        if self.deferred.called:
            return
        if self.send is None or isinstance(self._outcome, SendResult):
            self.deferred.callback(self._outcome)
            return
        sends, message = self.send
        self._going_on = Deferred.fromCoroutine(sends.go_on(message, self._outcome))
        self._going_on.addBoth(self.deferred.callback)

    def _cancel(self, deferred: Deferred[Any]) -> None:
        if self._outcome is _WAITING:
            self._outcome = _CANCELLED
        elif self._going_on is not None:
            self._going_on.cancel()
        elif self.send is not None:
            sends, message = self.send
            sends.give_up(message, self)


#: The task that runs.
_running: ContextVar[_Task | None] = ContextVar("_running", default=None)


class _Task:
    def __init__(
        self, coroutine: Coroutine[Any, Any, None], clock: IReactorTime, ended: Callable[[], None] | None
    ) -> None:
        self._coroutine = cast(Any, coroutine)
        self._clock = clock
        self.is_cancelled = False
        self._done: Deferred[None] = copy_context().run(self._begin)
        self._done.addErrback(self._failed)
        if ended is not None:
            self._done.addCallback(lambda _: ended())

    def _begin(self) -> Deferred[None]:
        _running.set(self)
        return Deferred.fromCoroutine(self._coroutine)

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._coroutine.cr_running:
            # A coroutine cannot be cancelled from inside itself; at the next turn it is suspended.
            self._clock.callLater(0, self._done.cancel)
        else:
            self._done.cancel()

    def _failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            log.error("a task of the client failed", exc_info=failure.value)


@implementer(IPushProducer)
class _Protocol(TwistedProtocol):
    """Hands a connection what its transport has, and is that transport to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._is_closing = False

    def connectionMade(self) -> None:
        transport = cast(ITCPTransport, self.transport)
        if hasattr(transport, "setTcpNoDelay"):  # a connector may make connections of another kind
            transport.setTcpNoDelay(True)
        cast(IConsumer, transport).registerProducer(self, True)
        self.connection.opened(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_closing = True
        self.connection.lost(None if isinstance(reason.value, ConnectionDone) else reason.value)

    def dataReceived(self, data: bytes) -> None:
        self.connection.data_received(data)

    def pauseProducing(self) -> None:
        self.connection.pause_writing()

    def resumeProducing(self) -> None:
        self.connection.resume_writing()

    def stopProducing(self) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        write_at_once(self.transport, data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            cast(IConsumer, self.transport).unregisterProducer()  # which would keep it open
            cast(ITCPTransport, self.transport).loseConnection()

    def abort(self) -> None:
        self._is_closing = True
        cast(ITCPTransport, self.transport).abortConnection()


class _Factory(Factory):
    noisy = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def buildProtocol(self, addr: IAddress | None) -> _Protocol:
        return _Protocol(self._connection)
