"""Calls of a listener, by the compiled module and without it: the same outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace, coroutine
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.client import listener_calls
from mqbroker.client.listener_calls import Outcome, resumed
from mqbroker.kernel import compiled

ERROR = ValueError("the listener's")
CALLS = [listener_calls._call_listener, *([] if compiled is None else [compiled.call_listener])]


@coroutine
def suspends(awaited: Any) -> Generator[Any, Any, Any]:
    return (yield awaited)


@coroutine
def old_style() -> Generator[Any, Any, Any]:
    yield


class Awaitable:
    def __await__(self) -> Any:
        yield


def verdict(number: int) -> Any:
    """What both kinds of listeners do, by number."""
    if number == 3:
        return False
    if number == 4:
        raise ERROR
    if number == 5:
        raise StopIteration(7)
    return None


def plain(number: int) -> Any:
    if number == 6:
        return old_style()
    if number == 7:
        return Awaitable()
    if number == 8:
        raise KeyboardInterrupt
    return verdict(number)


async def coroutine_function(number: int) -> Any:
    if number == 6:
        return await suspends("sent back")
    if number == 7:
        await suspends("awaited")
    if number == 8:
        raise asyncio.CancelledError
    return verdict(number)


class Given:
    """Messages, which are numbers here, and what `call` makes of them."""

    def __init__(self, call: Any, numbers: list[int | None], listener: Callable[[int], Any]) -> None:
        self.messages: list[Any] = list(numbers)
        self.caller = SimpleNamespace(is_over=False)
        self.run = SimpleNamespace(message=None)
        self.now_s = 0.0
        self.heard: list[int] = []
        self._call, self._listener = call, listener

    def _listen(self, number: int) -> Any:
        assert self.run.message == number
        self.heard.append(number)
        return self._listener(number)

    def _now(self) -> float:
        self.now_s += 1
        return self.now_s

    def call(self, at: int = 0, end: int | None = None, until: float = 1e9) -> Any:
        end = len(self.messages) if end is None else end
        return self._call(self.messages, at, end, self._listen, self.caller, self.run, self._now, until)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("listener", "number", "outcome"),
    [
        (plain, 3, Outcome.RETURNED),
        (plain, 4, Outcome.RAISED),
        (plain, 5, Outcome.RAISED),
        (plain, 6, Outcome.RETURNED),
        (plain, 7, Outcome.RETURNED),
        (plain, 8, Outcome.RAISED),
        (coroutine_function, 3, Outcome.ENDED),
        (coroutine_function, 4, Outcome.RAISED),
        (coroutine_function, 5, Outcome.RAISED),
        (coroutine_function, 6, Outcome.SUSPENDED),
        (coroutine_function, 7, Outcome.SUSPENDED),
        (coroutine_function, 8, Outcome.RAISED),
    ],
)
def test_what_comes_of_a_call_that_does_not_end_with_none(
    call: Any, listener: Callable[[int], Any], number: int, outcome: Outcome
) -> None:
    given = Given(call, [0, 1, None, number, 1], listener)
    at, consumed, found, value = given.call()
    assert (at, consumed, found) == (4, 2, outcome)
    assert given.messages == [None, None, None, number, 1]
    assert (given.heard, given.run.message) == ([0, 1, number], number)
    if outcome == Outcome.RAISED:
        wanted = {4: ValueError, 5: StopIteration, 8: KeyboardInterrupt}[number]
        if listener is coroutine_function:
            wanted = {4: ValueError, 5: RuntimeError, 8: asyncio.CancelledError}[number]
        assert type(value) is wanted
        assert value.__traceback__ is not None
    elif outcome == Outcome.SUSPENDED:
        suspended, awaited = value
        assert awaited == {6: "sent back", 7: "awaited"}[number]
        with pytest.raises(StopIteration) as ended:
            suspended.send("the answer")
        assert ended.value.value == {6: "the answer", 7: None}[number]
    elif number == 6:
        assert next(value) is None
    else:
        assert value is False or isinstance(value, Awaitable)
    # It goes on behind that message.
    assert given.call(at) == (5, 1, Outcome.STOPPED, None)
    assert given.messages == [None, None, None, number, None]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("listener", [plain, coroutine_function])
def test_it_stops_at_the_end_in_time_and_when_it_is_over(call: Any, listener: Callable[[int], Any]) -> None:
    given = Given(call, [0] * 9, listener)
    assert given.call(2, 4) == (4, 2, Outcome.STOPPED, None)
    assert given.call(9) == (9, 0, Outcome.STOPPED, None)
    assert given.call(5, until=given.now_s + 3) == (7, 2, Outcome.STOPPED, None)
    given.caller.is_over = True
    assert given.call(0) == (0, 0, Outcome.STOPPED, None)
    assert given.messages == [0, 0, None, None, 0, None, None, 0, 0]


@pytest.mark.parametrize("call", CALLS)
def test_a_listener_that_ends_it_or_drops_its_queue_gets_no_more(call: Any) -> None:
    given = Given(call, [0, 1, 2, 3, 4], lambda number: end(number))

    def end(number: int) -> None:
        given.caller.is_over = number == 2

    assert given.call() == (3, 3, Outcome.STOPPED, None)

    def drop(number: int) -> None:
        given.messages[:] = [None] * 5

    given = Given(call, [0, 1, 2, 3, 4], drop)
    assert given.call() == (5, 1, Outcome.STOPPED, None)
    assert given.heard == [0]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
@pytest.mark.parametrize("at", [-1, -(1 << 62), 5, 1 << 62])
def test_places_that_a_list_does_not_have(at: int) -> None:
    assert compiled is not None
    given = Given(compiled.call_listener, [0, 1, 2, 3, 4], plain)
    assert given.call(at, 1 << 62) == (at, 0, Outcome.STOPPED, None)

    def shorten(number: int) -> None:
        given.messages.clear()

    given = Given(compiled.call_listener, [0, 1, 2, 3, 4], shorten)
    assert given.call() == (1, 1, Outcome.STOPPED, None)


@pytest.mark.parametrize("call", CALLS)
def test_a_clock_that_fails(call: Any) -> None:
    def fail() -> float:
        raise ERROR

    given = Given(call, [0], plain)
    with pytest.raises(ValueError, match="the listener's"):
        call(given.messages, 0, 1, given._listen, given.caller, given.run, fail, 1.0)
    assert given.messages == [0]


async def talk(heard: list[Any]) -> str:
    """Suspends three times, and hears what comes back."""
    for number in range(3):
        try:
            heard.append(await suspends(number))
        except ZeroDivisionError as error:
            heard.append(error)
    return "done"


def test_a_suspended_coroutine_goes_on_with_what_it_is_sent_and_what_it_is_thrown() -> None:
    heard: list[Any] = []
    suspended = talk(heard)
    rest = resumed(suspended, suspended.send(None))
    error = ZeroDivisionError()
    assert [rest.send(None), rest.throw(error), rest.send("b")] == [0, 1, 2]
    with pytest.raises(StopIteration) as ended:
        rest.send("c")
    assert ended.value.value == "done"
    assert heard == [error, "b", "c"]


def test_a_suspended_coroutine_that_is_closed_or_fails() -> None:
    ends: list[str] = []

    async def listener() -> None:
        try:
            await suspends(1)
        finally:
            ends.append("closed")

    suspended = listener()
    rest = resumed(suspended, suspended.send(None))
    next(rest)
    rest.close()
    assert ends == ["closed"]
    suspended = listener()
    rest = resumed(suspended, suspended.send(None))
    next(rest)
    with pytest.raises(asyncio.CancelledError):
        rest.throw(asyncio.CancelledError())
    assert ends == ["closed", "closed"]


def test_what_is_awaited_comes_from_the_loop_or_a_deferred() -> None:
    async def main() -> tuple[float, str]:
        async def listener() -> str:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            return "consumed"

        began = asyncio.get_running_loop().time()
        suspended = listener()
        found = await resumed(suspended, suspended.send(None))
        return asyncio.get_running_loop().time() - began, found

    took_s, found = asyncio.run(main())
    assert found == "consumed"
    assert took_s > 0

    waited: Deferred[str] = Deferred()

    async def listener() -> str:
        return await waited

    suspended = listener()

    async def outer() -> str:
        found: str = await resumed(suspended, suspended.send(None))
        return found

    done = Deferred.fromCoroutine(outer())
    heard: list[str] = []
    done.addCallback(heard.append)
    waited.callback("fired")
    assert heard == ["fired"]
