"""Cooperative tasks: long work split into steps so that the reactor can run in between. A limited number of request
handlers run at a time; other work is a generator that yields between its steps.

This module does not know what the tasks do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from mqbroker.remoting.handlers import Handler, IConnection
from mqbroker.remoting.limits import address_of
from mqbroker.wire.body import Body
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.registration import Steps

#: Tasks running at a time, in total and per address; others wait, and addresses take turns.
TASKS_MAX = 6
TASKS_OF_ADDRESS_MAX = 4
#: Steps per reactor iteration: each takes some 30 us.
STEPS_PER_TURN = 100
#: Pieces of a body per step.
PIECES_PER_STEP = 10
#: Time for all generators together in one reactor iteration, and the delay before the next.
TURN_SECONDS = 0.01
NEXT_TURN_SECONDS = 1e-6

T = TypeVar("T")
Task = Callable[[], Deferred[RemotingCommand | None]]
#: Connection, request handler and the Deferred of the response.
_Waiting = tuple[IConnection, Task, Deferred[RemotingCommand | None]]


class CooperativeHandler(Protocol):
    """A handler that awaits `CooperativeTasks.step` at each step of its work."""

    def __call__(
        self, request: RemotingCommand, connection: IConnection
    ) -> Coroutine[Any, Any, RemotingCommand | None]: ...


class CooperativeTasks:
    """Runs handlers in steps, over iterations of the reactor `clock`."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: dict[bytes, deque[_Waiting]] = {}
        self._running: Counter[bytes] = Counter()
        self._is_beginning = False
        self._steps = 0

    async def step(self) -> None:
        """Count one step; every STEPS_PER_TURN steps wait for the next reactor iteration."""
        self._steps += 1
        if self._steps >= STEPS_PER_TURN:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the next reactor iteration."""
        self._steps = 0
        turn: Deferred[None] = Deferred()
        self._clock.callLater(0, turn.callback, None)
        await turn

    async def written(self, body: Body) -> bytes:
        """Encode `body` to bytes in steps. Its contents must not change meanwhile."""
        parts = []
        for number, piece in enumerate(body.json_pieces(), 1):
            parts.append(piece)
            if number % PIECES_PER_STEP == 0:
                await self.step()
        return b"".join(parts)

    def bounded(self, handle: CooperativeHandler) -> Handler:
        """Wrap `handle` to limit how many run at a time. A request whose connection closed before its turn is skipped;
        one whose peer does not read its responses waits until it does."""

        @wraps(handle)
        def handle_in_turn(request: RemotingCommand, connection: IConnection) -> Deferred[RemotingCommand | None]:
            def task() -> Deferred[RemotingCommand | None]:
                if connection.closed:
                    gone: Deferred[RemotingCommand | None] = Deferred()
                    gone.callback(None)
                    return gone
                return Deferred.fromCoroutine(handle(request, connection))

            done: Deferred[RemotingCommand | None] = Deferred()
            self._wait((connection, task, done))
            return done

        return handle_in_turn

    def _wait(self, waiting: _Waiting) -> None:
        self._waiting.setdefault(address_of(waiting[0].remote_host), deque()).append(waiting)
        self._begin()

    def _begin(self) -> None:
        """Start the tasks that may run. A loop, since tasks that end at once would recurse."""
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            while self._running.total() < TASKS_MAX:
                address = next((each for each in self._waiting if self._running[each] < TASKS_OF_ADDRESS_MAX), None)
                if address is None:
                    break
                waiting = self._waiting.pop(address)
                connection, task, done = waiting.popleft()
                if waiting:
                    self._waiting[address] = waiting  # behind the other addresses
                if not (connection.has_room or connection.closed):
                    connection.notify_room(partial(self._wait, (connection, task, done)))
                    continue
                self._running[address] += 1
                maybeDeferred(task).addBoth(self._ended, address, done)
        finally:  # or no task would begin any more
            self._is_beginning = False

    def _ended(self, result: Any, address: bytes, done: Deferred[RemotingCommand | None]) -> None:
        self._running[address] -= 1
        if not self._running[address]:
            del self._running[address]
        done.callback(result)  # a Failure too
        self._begin()


class StepRunner:
    """Runs generators concurrently, over iterations of the reactor `clock`."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._cooperator = Cooperator(self._turn, lambda call: clock.callLater(NEXT_TURN_SECONDS, call))

    async def run(self, steps: Steps[T]) -> T:
        """Run `steps` and return their result; raises what they raise."""
        results: list[T] = []
        await self._cooperator.coiterate(_kept(steps, results))
        return results[0]

    def _turn(self) -> Callable[[], bool]:
        end = self._clock.seconds() + TURN_SECONDS
        return lambda: self._clock.seconds() >= end


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps without pausing and return their result."""
    results: list[T] = []
    for _ in _kept(steps, results):
        pass
    return results[0]


def _kept(steps: Steps[T], results: list[T]) -> Steps[None]:
    """The same steps, appending their return value to `results`."""
    results.append((yield from steps))
