"""Net and LiveNet: the interface by which the clients' cores reach network, clock and scheduler.

`Net` can be had without any event loop: its awaitables may finish without ever suspending. `LiveNet` adds what only a
running loop can give. The cores know nothing else: no socket, no reactor, no thread, no wall clock.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol

import attrs

from mqbroker.errors import MQError
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

#: Answers a request that a broker sends to this client; None answers nothing.
RequestHandler = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand | None]]


def signed(command: RemotingCommand, credentials: Credentials | None) -> RemotingCommand:
    """The command as one signed by `credentials`; itself where there are none."""
    if credentials is None:
        return command
    fields = dict(command.ext_fields)
    credentials.sign(fields, command.body)
    return attrs.evolve(command, ext_fields=fields)


class Lock(Protocol):
    """For `async with`: what the locks of Twisted, asyncio and ours have in common."""

    def __aenter__(self) -> Awaitable[Any]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Awaitable[Any]: ...


class Net(Protocol):
    """Requests to peers, named "host:port", and time in seconds since the epoch."""

    @property
    def rng(self) -> random.Random:
        """For choices that should differ between clients, never for secrets."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def invoke(self, addr: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Return the answer. Raises Unreachable, ConnectionClosed or RequestTimedOut.

        The time counts from when the request is handed over; to connect may take as long before that.
        """

    async def invoke_many(
        self, requests: Sequence[tuple[str, RemotingCommand]], timeout_ms: int
    ) -> list[RemotingCommand | MQError]:
        """Send all requests before waiting for any answer; return answers or errors in the same order."""

    async def send_oneway(self, addr: str, command: RemotingCommand) -> None:
        """Return when the bytes are handed over. Raises Unreachable."""

    async def sleep(self, seconds: float) -> None: ...

    def lock(self) -> Lock:
        """One at a time; those that wait come in the order of their asking."""

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails with ConnectionClosed."""


class Signal(Protocol):
    """A flag that at most one coroutine waits for; waiting takes it down."""

    def set(self) -> None: ...

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once the flag is up, False when `timeout_s` passed first."""


class Task(Protocol):
    """A coroutine that runs by itself."""

    def cancel(self) -> object:
        """Make it end at its next turn; nothing happens where it has ended."""


class LiveNet(Net, Protocol):
    """A Net on a running event loop."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Run it beside the caller; an error that leaves it is logged."""

    def signal(self) -> Signal: ...


async def every(net: LiveNet, seconds: float, what: Callable[[], Awaitable[None]]) -> None:
    """Run `what` after each pause of `seconds`, for ever; its errors are logged and do not end it."""
    while True:
        await net.sleep(seconds)
        try:
            await what()
        except MQError as error:
            log.warning("%s; trying again in %g s", error, seconds)
