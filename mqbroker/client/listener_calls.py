"""Calls of a listener: with one message after the other, for as long as it does not suspend."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from enum import IntEnum
from types import CoroutineType, coroutine
from typing import Any, Protocol

from mqbroker.client.messages import ReceivedMessage
from mqbroker.kernel import compiled


class Outcome(IntEnum):
    """Why `call_listener` has stopped; the module in C has the same numbers."""

    #: There are no more messages, or others should have their turn.
    STOPPED = 0
    #: The listener returned something for the last message, which may be awaitable.
    RETURNED = 1
    #: The listener is a coroutine function, and returned something.
    ENDED = 2
    #: It is a coroutine function, and suspended: the coroutine, and what it waits for.
    SUSPENDED = 3
    #: It raised this.
    RAISED = 4


class Caller(Protocol):
    """Who has the listener called."""

    #: No further message is handed out.
    is_over: bool


class Call(Protocol):
    """Who calls it, with one message after the other."""

    #: The message that the listener has now.
    message: ReceivedMessage | None


def _call_listener(
    messages: list[ReceivedMessage | None],
    at: int,
    end: int,
    listener: Callable[[ReceivedMessage], Any],
    caller: Caller,
    call: Call,
    now_s: Callable[[], float],
    until: float,
) -> tuple[int, int, int, Any]:
    """Call `listener` with messages from `at` to `end`, in whose places stands None where there is none, until
    something else than None comes of a call, it is `until`, or it is over. Each that it has consumed is replaced by
    None; `call.message` is the one that it was called with last.

    Returns where to go on, how many were consumed, the outcome, and what belongs to that.
    """
    consumed = 0
    while at < end and not caller.is_over and now_s() < until:
        message = messages[at]
        at += 1
        if message is None:
            continue
        call.message = message
        outcome = Outcome.RETURNED
        try:
            result = listener(message)
            if type(result) is CoroutineType:
                outcome = Outcome.SUSPENDED
                result = result, result.send(None)
        except StopIteration as ended:
            if outcome is Outcome.RETURNED:
                return at, consumed, Outcome.RAISED, ended
            outcome, result = Outcome.ENDED, ended.value
        except BaseException as error:
            return at, consumed, Outcome.RAISED, error
        if result is not None:
            return at, consumed, outcome, result
        messages[at - 1] = None
        consumed += 1
    return at, consumed, Outcome.STOPPED, None


call_listener = _call_listener if compiled is None else compiled.call_listener


@coroutine
def resumed(suspended: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine that has suspended, for what it `awaited`."""
    while True:
        sent, error = None, None
        try:
            sent = yield awaited
        except BaseException as raised:
            error = raised
        try:
            awaited = suspended.send(sent) if error is None else suspended.throw(error)
        except StopIteration as ended:
            return ended.value
