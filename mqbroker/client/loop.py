"""What the clients need of an event loop: its time, calls and futures, as asyncio's loops have them; and a signal made
of these."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from mqbroker.errors import MQError
from mqbroker.remoting.response_table import Timer


class Future(Protocol):
    """As asyncio's: who awaits it goes on in a later turn of the loop than the one in which it is done."""

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
        """Call it in the next turn."""

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer: ...

    def create_future(self) -> Future: ...


def wake(waiter: Future | None) -> None:
    """End a wait for nothing in particular, unless there is none, or it has ended."""
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
    """A `Signal` on a loop, which is asked for when somebody waits."""

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
