"""Listeners: which are accepted, and what their return values and exceptions mean; the same for all three APIs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import Any

import attrs

from mqbroker.client.errors import BadArgument, BadListener, NotHandled, RetryLater, SuspendQueue, short
from mqbroker.client.messages import ReceivedMessage

log = logging.getLogger(__name__)

#: Minimum interval between two log lines about invalid results, seconds.
TELL_EVERY_S = 60.0
#: Maximum number of kinds of failures that are counted separately.
_KINDS_MAX = 64

_RIGHT = (
    "A listener takes a message by returning None, True or ConsumeResult.SUCCESS, and has it again by returning False "
    "or ConsumeResult.RETRY, or by raising RetryLater or any other exception"
)


def check_listener(listener: object, *, may_await: bool) -> None:
    """Check that a listener can handle messages. Raises BadListener.

    :param may_await: whether its result is awaited, so that it may be a coroutine function.
    """
    if listener is None:
        raise BadListener("there is no listener", "Pass a function that takes a ReceivedMessage")
    name = _name(listener)
    if not callable(listener) or inspect.isclass(listener):
        raise BadListener(f"the listener {name} is not a function", "Pass a function that takes a ReceivedMessage")
    if _is_any(listener, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        raise BadListener(
            f"the listener {name} is a generator function: calling it does not run it", "Remove `yield` from it"
        )
    if not may_await and _is_any(listener, inspect.iscoroutinefunction):
        raise BadListener(
            f"the listener {name} is a coroutine function, and the blocking API calls it on a thread that awaits"
            " nothing",
            "Pass a plain function, or use mqbroker.client.aio or mqbroker.client.deferred",
        )


class ConsumeResult(Enum):
    """The results of a listener; None and True mean SUCCESS, False and any exception mean RETRY."""

    SUCCESS = "success"
    RETRY = "retry"


class OrderlyResult(Enum):
    """The results of an orderly listener, besides those of other listeners.

    After SUSPEND the queue waits, and the message is delivered again. COMMIT and ROLLBACK are for `auto_commit=False`:
    the messages consumed since the last COMMIT are committed, or delivered again.
    """

    SUCCESS = "success"
    SUSPEND = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@attrs.frozen
class FirstConsumed:
    """The result of a listener that gets several messages: the first `count` are consumed, the others are delivered
    again."""

    count: int

    def __attrs_post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise BadArgument("FirstConsumed.count", "a whole number of at least 0", self.count)


@attrs.frozen
class Verdict:
    """What the listener made of messages: the first `taken` are consumed, others come again."""

    taken: int
    delay_level: int = 0
    #: How long the queue pauses, where order is kept.
    pause_s: float | None = None
    result: object = None


class ListenerCancelled(Exception):
    """Something that a listener awaited was cancelled, but not by this client: the listener failed on its message."""


class Throttle:
    """Lets a kind of warning through once in TELL_EVERY_S. `now` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tell_at = float("-inf")
        self._untold = 0

    def more(self) -> str | None:
        """None to log nothing, otherwise the text about earlier ones that were not logged."""
        now = self._now()
        if now < self._tell_at:
            self._untold += 1
            return None
        more = f" (and {self._untold} times more before that)" if self._untold else ""
        self._tell_at, self._untold = now + TELL_EVERY_S, 0
        return more


class ListenerResults:
    """Interprets what one listener returns and raises. `now` returns seconds; `is_cancelled_inside` is the net's."""

    def __init__(
        self,
        listener: object,
        now: Callable[[], float],
        is_cancelled_inside: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self.name = _name(listener)
        self._throttle = Throttle(now)
        self._failures = ListenerFailures(self.name, now)
        self._is_cancelled_inside = is_cancelled_inside

    def judge(self, value: Any, error: BaseException | None, messages: Sequence[ReceivedMessage]) -> Verdict:
        """The outcome of a call, from its return value or exception. Raises exceptions that end the run."""
        if isinstance(error, SuspendQueue):
            return Verdict(0, pause_s=error.seconds)
        if isinstance(value, FirstConsumed):
            return Verdict(min(value.count, len(messages)))
        if error is not None:
            level: int | None = self._level_after(error, messages[0])
        else:
            level = self.delay_level(value, messages[0])
        return Verdict(len(messages), result=value) if level is None else Verdict(0, level, result=value)

    async def direct(self, called: Awaitable[Any], message: ReceivedMessage) -> str:
        """The outcome of a call with an administrator's message: a name of Java's CMResult."""
        try:
            value = await called
        except SuspendQueue:
            return "CR_LATER"
        except BaseException as error:
            self._raised(error)
            return "CR_LATER"
        if value is OrderlyResult.COMMIT or value is OrderlyResult.ROLLBACK:
            return f"CR_{value.name}"
        is_taken = isinstance(value, FirstConsumed) and value.count > 0
        return "CR_SUCCESS" if is_taken or self.delay_level(value, message) is None else "CR_LATER"

    def _level_after(self, error: BaseException, message: ReceivedMessage) -> int:
        """The delay level for a message that the listener raised `error` on. Raises what ends the run."""
        try:
            return self._raised(error)
        except NotHandled:
            raise
        except Exception as failure:
            self._failures.log(failure, message)
            return 0

    def _raised(self, error: BaseException) -> int:
        """The delay level if a listener has raised RetryLater. Raises `error` if not, or ListenerCancelled."""
        if isinstance(error, RetryLater):
            return error.delay_level
        if self._is_cancelled_inside(error):
            raise ListenerCancelled("something that the listener awaited was cancelled") from error
        raise error

    def delay_level(self, verdict: object, message: ReceivedMessage) -> int | None:
        """None if the message is consumed, else the delay level to send it back with."""
        if verdict is None or verdict is True or verdict is ConsumeResult.SUCCESS:
            return None
        if verdict is False or verdict is ConsumeResult.RETRY:
            return 0
        if isinstance(verdict, OrderlyResult):
            return None if verdict in (OrderlyResult.SUCCESS, OrderlyResult.COMMIT) else 0
        if isinstance(verdict, RetryLater):
            self._tell(message, "RetryLater, which is to be raised; the message is sent back as if it had been")
            return verdict.delay_level
        if inspect.iscoroutine(verdict):
            verdict.close()
            self._tell(message, f"the coroutine {verdict.__qualname__}, which nothing awaits: the message is sent back")
        else:
            self._tell(message, f"{short(verdict)}, which is not a valid result: the message is sent back")
        return 0

    def _tell(self, message: ReceivedMessage, what: str) -> None:
        if (more := self._throttle.more()) is None:
            return
        log.warning(
            "the listener %s returned for message %s of %s %s%s. %s",
            self.name,
            message.msg_id,
            message.queue,
            what,
            more,
            _RIGHT,
        )


class ListenerFailures:
    """Logs the exceptions of one listener: one traceback for each kind a minute, then counts. `now` returns seconds."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self._name = name
        self._now = now
        #: By the exception's type and place: when it is logged again, and how often it was not.
        self._kinds: dict[tuple[type, str | None], tuple[float, int]] = {}

    def log(self, error: BaseException, message: ReceivedMessage) -> None:
        frames = own_frames(error)
        innermost = frames
        while innermost is not None and innermost.tb_next is not None:
            innermost = innermost.tb_next
        place = None if innermost is None else f"{innermost.tb_frame.f_code.co_filename}:{innermost.tb_lineno}"
        kind, now = (type(error), place), self._now()
        again_at, untold = self._kinds.get(kind, (now, 0))
        if now < again_at:
            self._kinds[kind] = again_at, untold + 1
            return
        if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = now + TELL_EVERY_S, 0
        more = f" (and on {untold} others in the same way since the last such line)" if untold else ""
        log.error(
            "the listener %s failed on message %s of %s%s",
            self._name,
            message.msg_id,
            message.queue,
            more,
            exc_info=(type(error), error, frames),
        )


def own_frames(error: BaseException) -> TracebackType | None:
    """The traceback of an exception of a listener, without the frames of this package that called it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("mqbroker.client."):
        frames = frames.tb_next
    return frames if frames is not None else error.__traceback__


def _is_any(listener: object, *kinds: Callable[[Any], bool]) -> bool:
    """Whether a callable is such a function, a partial of one, or has one as its __call__."""
    return any(kind(listener) or kind(getattr(listener, "__call__", None)) for kind in kinds)  # noqa: B004


def _name(listener: object) -> str:
    # A face wraps the listener, but errors should name the user's own function.
    listener = inspect.unwrap(listener)  # type: ignore[arg-type]
    return getattr(listener, "__qualname__", None) or short(listener)
