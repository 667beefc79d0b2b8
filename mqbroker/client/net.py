"""Net: the interface by which the clients' cores reach network, clock and scheduler of an event loop.

The cores use nothing else: no socket, no reactor, no thread, no wall clock.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from mqbroker.client.messages import RawPull
from mqbroker.errors import MQError, Refused
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand

if TYPE_CHECKING:
    from mqbroker.client.heartbeats import SharedHeartbeats
    from mqbroker.client.routes import SharedRoutes

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Handles a request that a broker sends to this client; None sends no response.
RequestHandler = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand | None]]


async def decline(request: RemotingCommand) -> RemotingCommand | None:
    """The response of a client that does not serve the request."""
    if request.is_oneway:
        return None
    remark = f" request type {request.code} not supported"
    return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class Account(Protocol):
    """What signs requests."""

    def sign(self, fields: dict[str, str], body: bytes) -> None:
        """Add the fields of the signature."""


def signed(command: RemotingCommand, credentials: Account | None) -> RemotingCommand:
    """The command signed by `credentials`; unchanged without any."""
    if credentials is None:
        return command
    fields = dict(command.ext_fields)
    credentials.sign(fields, command.body)
    return attrs.evolve(command, ext_fields=fields)


def checked(answer: RemotingCommand | MQError) -> RemotingCommand:
    """The response. Raises Refused on one that is not SUCCESS, and an error in its place."""
    if isinstance(answer, MQError):
        raise answer
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer.code, answer.remark or "")
    return answer


class Lock(Protocol):
    """For `async with`: the common part of Twisted's, asyncio's and our own locks."""

    def __aenter__(self) -> Awaitable[Any]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Awaitable[Any]: ...


class Signal(Protocol):
    """An event with at most one waiter; `wait` clears it."""

    def set(self) -> None: ...

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once it is set, False after `timeout_s`."""


class Task(Protocol):
    """A running coroutine."""

    def cancel(self) -> object:
        """Cancel it at its next turn; no effect if it has ended."""


class Puller(Protocol):
    """Whose pulls of a queue follow each other."""

    def goes_on(self, pulled: RawPull) -> bool:
        """Whether the next pull may follow one that has found messages, before they are taken."""

    def take(self, pulled: RawPull) -> bool:
        """Take the messages of a pull; False, and none is taken, if the next pull must start elsewhere than it says."""


class Net(Protocol):
    """Requests to peers, named "host:port", and time in seconds."""

    @property
    def rng(self) -> random.Random:
        """For choices that should differ between clients; never for secrets."""

    @property
    def home(self) -> Hashable:
        """Its event loop."""

    @property
    def asking(self) -> str:
        """The address of the peer whose request is handed over, until its handler suspends."""

    @property
    def heartbeats(self) -> SharedHeartbeats:
        """The heartbeats of all clients that share connections and client id with this one."""

    @property
    def routes(self) -> SharedRoutes:
        """The routes that all clients that share connections with this one have in common."""

    @property
    def is_closed(self) -> bool:
        """Whether its client was closed."""

    async def name_servers(self, url: str) -> tuple[str, ...]:
        """The name servers that an address server lists. Raises NameServerUnreachable."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def steady(self) -> float:
        """Seconds of a clock that is never set, for durations."""

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Return the response. Raises Unreachable, ConnectionClosed or RequestTimedOut.

        The time includes what connecting takes.
        """

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        """Send all requests before waiting for any response; return responses or errors in the same order."""

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        """Return when the bytes were written. Raises Unreachable."""

    async def sleep(self, seconds: float) -> None: ...

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. Raises TimeoutError, and cancels it, if that takes longer."""

    async def all_of(self, waiting: Sequence[Coroutine[Any, Any, Any]]) -> Sequence[Any]:
        """What coroutines that run at the same time return, or raise."""

    async def on_thread(self, call: Callable[[], T]) -> T:
        """What `call`, which uses the processor for long, returns: it runs on a thread where there are threads."""

    def lock(self) -> Lock:
        """A fair lock: waiters acquire it in the order of their calls."""

    async def close(self, timeout_s: float = 1.0) -> None:
        """Close all connections; pending requests fail with ConnectionClosed. Whose peer does not read what was sent
        is aborted, and what was cancelled and does not end is left, after `timeout_s`."""

    async def pull_on(self, addr: str, command: RemotingCommand, timeout_ms: int, puller: Puller) -> RemotingCommand:
        """As `invoke`, of a pull and of those that follow it as long as they find messages and `puller` goes on;
        returns the last response."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[], None] | None = None) -> Task:
        """Run a coroutine concurrently; its errors are logged. `ended` is called when it has ended, also if it was
        cancelled before it began."""

    def call_from_thread(self, call: Callable[[], object]) -> None:
        """Call it soon on the loop; may be called on any thread."""

    def after_spawned(self, call: Callable[[], None]) -> None:
        """Call it when the coroutines that were spawned before have run to where they suspend first."""

    def is_cancelled_inside(self, error: BaseException) -> bool:
        """Whether what the running coroutine awaited was cancelled, and not the coroutine itself."""

    def is_cancelled(self, error: Exception) -> bool:
        """Whether `error` is the cancellation of the running task, an Exception on Twisted, which must end it."""

    def signal(self) -> Signal: ...


async def every(net: Net, seconds: float, what: Callable[[], Awaitable[None]]) -> None:
    """Run `what` periodically, with pauses of `seconds`; its errors are logged and do not end it."""
    while True:
        await net.sleep(seconds)
        try:
            await what()
        except MQError as error:
            log.warning("%s; trying again in %g s", error, seconds)
        except Exception as error:  # of a user's object
            if net.is_cancelled(error):
                raise
            log.exception("unexpected error; trying again in %g s", seconds)


async def without_end(net: Net, pause_s: float, step: Callable[[], Awaitable[None]]) -> None:
    """Run `step` over and over, until this is cancelled. An unexpected error is logged, does not end it, and is
    followed by a pause."""
    while True:
        try:
            await step()
        except Exception as error:
            if net.is_cancelled(error):
                raise
            log.exception("unexpected error; trying again in %g s", pause_s)
            await net.sleep(pause_s)


class Ending:
    """The time in which a client is closed, whatever brokers and name servers do."""

    def __init__(self, net: Net, seconds: float, group: str) -> None:
        self._net, self._group = net, group
        #: For the connections.
        self._last_s = min(1.0, seconds / 4)
        self._until = net.steady() + seconds - self._last_s

    async def step(self, what: str | Callable[[], str], coroutine: Coroutine[Any, Any, None], *, left: int = 0) -> None:
        """Run the coroutine, and leave time for as many more steps as are `left`. `what` is given up otherwise."""
        seconds = max(0.0, self._until - self._net.steady()) / (left + 1)
        try:
            await self._net.within(seconds, coroutine)
        except TimeoutError:
            text = what if isinstance(what, str) else what()
            log.warning("closing a client of %s: gave up %s after %.2g s", self._group, text, seconds)

    async def close_net(self) -> None:
        await self._net.close(self._last_s)
