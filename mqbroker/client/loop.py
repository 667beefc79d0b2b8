"""The part of an event loop that clients need: its time, calls and futures, as asyncio's loops have them; with a
signal, and a lock that is acquired in the order of the calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from itertools import islice
from types import TracebackType
from typing import Any, Protocol

import attrs

from mqbroker.errors import MQError
from mqbroker.remoting.response_table import Timer


class Future(Protocol):
    """As asyncio's: waiters continue in a later iteration of the loop than the one in which it is done."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def cancel(self) -> object: ...

    def result(self) -> Any: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...

    def __await__(self) -> Generator[Any, None, Any]: ...


class Loop(Protocol):
    """An event loop. Calls with the same time are made in the order in which they were asked for."""

    def time(self) -> float:
        """Seconds, for timers."""

    def call_soon(self, call: Callable[[], object], /) -> object:
        """Call it in the next iteration."""

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer: ...

    def create_future(self) -> Future: ...


def wake(waiter: Future | None) -> None:
    """Wake a waiter with no result, unless it is None or was woken."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def complete(waiter: Future, result: object) -> None:
    """End the wait for a result, or for an MQError, unless it has ended."""
    if waiter.done():
        return
    if isinstance(result, MQError):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)


class LoopSignal:
    """A `Signal` on a loop, which is looked up at the first wait."""

    def __init__(self, loop: Callable[[], Loop]) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: Future | None = None

    def set(self) -> None:
        self._is_set = True
        wake(self._waiter)

    async def wait(self, timeout_s: float | None = None) -> bool:
        if not self._is_set:
            loop = self._loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, lambda: wake(waiter))
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


#: The maximum of waiters that wake up when the lock is released.
AWAKE_MAX = 1024


@attrs.define(eq=False)
class _Place:
    """A place in the queue of waiters."""

    sleep: Future | None = None

    def wake(self) -> None:
        wake(self.sleep)


class FifoLock:
    """A lock that is acquired in the order of the calls. Unlike asyncio.Lock, many holders can follow each other in one
    iteration of the loop, if each releases it before it suspends.

    A caller that finds the lock free must not overtake waiters, or sends would be reordered: while any caller waits,
    later ones wait too. With one holder per iteration the queue would never empty under load, as new callers arrive at
    the same rate: one request would be sent per iteration.

    If a holder suspends, the waiters that woke up with it did so in vain: the next release wakes one, and each holder
    after it twice as many.

    :param loop: returns the loop; called at the first wait.
    """

    def __init__(self, loop: Callable[[], Loop]) -> None:
        self._loop = loop
        self._is_held = False
        self._places: deque[_Place] = deque()
        self._to_wake = AWAKE_MAX

    @property
    def is_empty(self) -> bool:
        """Whether it is not held and has no waiters."""
        return not (self._is_held or self._places)

    async def __aenter__(self) -> None:
        place = _Place()
        self._places.append(place)
        try:
            while self._is_held or self._places[0] is not place:
                loop = self._loop()
                place.sleep = loop.create_future()
                if self._is_held:
                    await place.sleep
                    self._woke_up()
                else:  # the first one is awake
                    loop.call_soon(place.wake)
                    await place.sleep
            self._is_held = True
        except BaseException:
            self._places.remove(place)
            self._wake()
            raise
        self._places.popleft()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._is_held = False
        self._wake()

    def _woke_up(self) -> None:
        self._to_wake = 1 if self._is_held else min(2 * self._to_wake, AWAKE_MAX)

    def _wake(self) -> None:
        """Wake the first ones, unless it is held: its release does."""
        if not self._is_held:
            for place in islice(self._places, self._to_wake):
                place.wake()
