"""A reactor as a client's loop: the order of calls and the ends of futures, which are those of asyncio's."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.client.deferred_net import ReactorLoop
from mqbroker.client.loop import Loop, LoopSignal, complete, wake
from mqbroker.errors import Unreachable


@pytest.fixture
def clock() -> Any:
    return Clock()


@pytest.fixture
def loop(clock: Any) -> ReactorLoop:
    return ReactorLoop(clock, clock.seconds)


def test_calls_are_made_in_the_next_turn_in_order_and_an_error_ends_none_of_the_others(
    clock: Any, loop: ReactorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    def again() -> None:
        made.append("again")
        loop.call_soon(lambda: made.append("turn after"))

    loop.call_soon(again)
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(lambda: made.append("last"))
    assert made == []
    assert len(clock.getDelayedCalls()) == 1
    clock.advance(0)
    assert made == ["again", "last", "turn after"]
    assert "ZeroDivisionError" in caplog.text
    assert not clock.getDelayedCalls()


def test_what_a_call_held_goes_before_the_next_call(clock: Any, loop: ReactorLoop) -> None:
    class Held:
        def call(self) -> None:
            left.append(None)

    left: list[Any] = []
    held = Held()
    loop.call_soon(held.call)
    loop.call_soon(partial(left.append, weakref.ref(held)))
    loop.call_soon(lambda: left.append(left[1]() is None))
    del held
    clock.advance(0)
    assert left[2]


def test_a_timer_may_be_cancelled_before_and_after_its_call(clock: Any, loop: ReactorLoop) -> None:
    made: list[int] = []
    first, second = (loop.call_later(n, lambda n=n: made.append(n)) for n in (1, 2))  # type: ignore[misc]
    second.cancel()
    clock.pump([1, 1])
    first.cancel()
    second.cancel()
    assert made == [1]


def awaiting(loop: ReactorLoop) -> tuple[Any, Deferred[Any], list[Any]]:
    """A future, a coroutine that waits for it, and what that has come to."""
    future = loop.create_future()
    found: list[Any] = []

    async def wait() -> Any:
        return await future

    return future, Deferred.fromCoroutine(wait()).addBoth(found.append), found


def test_who_waits_goes_on_in_the_turn_after(clock: Any, loop: ReactorLoop) -> None:
    future, _, found = awaiting(loop)
    assert not future.done()
    future.set_result(3)
    assert (future.done(), future.cancelled(), future.result(), found) == (True, False, 3, [])
    clock.advance(0)
    assert found == [3]


def test_an_error_is_raised_where_it_is_waited_for(clock: Any, loop: ReactorLoop) -> None:
    future, _, found = awaiting(loop)
    future.set_exception(Unreachable("away"))
    clock.advance(0)
    assert [str(failure.value) for failure in found] == ["away"]
    with pytest.raises(Unreachable):
        future.result()


def test_a_wait_that_is_cancelled_ends_its_future(clock: Any, loop: ReactorLoop) -> None:
    future, waiting, found = awaiting(loop)
    waiting.cancel()
    assert (future.done(), future.cancelled()) == (True, True)
    wake(future)
    complete(future, 3)
    assert [type(failure.value) for failure in found] == [CancelledError]
    assert not clock.getDelayedCalls()


def test_a_wait_that_is_cancelled_after_the_result_has_come_is_cancelled_and_the_result_kept(
    clock: Any, loop: ReactorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    future, waiting, found = awaiting(loop)
    future.set_result(3)
    waiting.cancel()
    assert (future.cancelled(), future.result()) == (False, 3)
    assert isinstance(found[0], Failure)
    clock.advance(0)
    assert (len(found), caplog.text) == (1, "")


def on_reactor(main: Callable[[Loop], Coroutine[Any, Any, Any]]) -> Any:
    clock: Any = Clock()
    found: list[Any] = []
    Deferred.fromCoroutine(main(ReactorLoop(clock, clock.seconds))).addBoth(found.append)
    while not found:
        clock.advance(0.001)
    if isinstance(found[0], Failure):
        found[0].raiseException()
    return found[0]


def on_asyncio(main: Callable[[Loop], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        return await main(asyncio.get_running_loop())

    return asyncio.run(run())


@pytest.mark.parametrize("run", [on_reactor, on_asyncio])
def test_a_signal_is_kept_taken_once_and_not_lost_with_a_wait_that_was_too_long(run: Any) -> None:
    async def main(loop: Loop) -> list[bool]:
        signal = LoopSignal(lambda: loop)
        signal.set()
        signal.set()
        kept = [await signal.wait(), await signal.wait(0.001)]
        loop.call_soon(signal.set)
        kept.append(await signal.wait(10))
        loop.call_soon(lambda: (signal.set(), signal.set()))
        return [*kept, await signal.wait(), await signal.wait(0.001)]

    assert run(main) == [True, False, True, True, False]
