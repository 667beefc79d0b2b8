"""Observers: objects of an application that see each send of a producer, and each message that a listener consumes."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

import attrs

from mqbroker.client.errors import BadArgument, Forbidden, RetryLater, short
from mqbroker.client.lag import Lag
from mqbroker.client.listeners import ConsumeResult, Throttle
from mqbroker.client.messages import RESERVED_PROPERTIES, Message, ReceivedMessage, SendResult, SystemMessage
from mqbroker.client.names import bare_message

log = logging.getLogger(__name__)

T = TypeVar("T")


class SendKind(Enum):
    """How messages are sent."""

    SEND = "send"
    BATCH = "batch"
    ONEWAY = "oneway"
    TRANSACTION = "transaction"
    REQUEST = "request"


@attrs.define(eq=False)
class Send:
    """Messages that a producer sends with one call. `before_send` may replace `messages`, for example to add
    properties, but must not change their number and topic. `context` is for the observers' data, each under a key of
    its own.

    For `after_send`, `addr` is the address of the broker that was asked last, or empty if none was, and `took_s` is the
    time of all attempts in seconds.
    """

    group: str
    client_id: str
    kind: SendKind
    messages: list[Message]
    began_ms: int
    context: dict[object, Any] = attrs.field(factory=dict)
    addr: str = ""
    took_s: float = 0.0


@attrs.define(eq=False)
class Consumption:
    """Messages that a listener gets in one call. `before_consume` may replace `messages`, but must not change their
    number. `context` is for the observers' data, each under a key of its own. For `after_consume`, `took_s` is the time
    of the call in seconds. With `is_handed_out` a program has taken the message by iteration, and settles it at any
    time, on any thread."""

    group: str
    client_id: str
    messages: list[ReceivedMessage]
    context: dict[object, Any] = attrs.field(factory=dict)
    took_s: float = 0.0
    is_handed_out: bool = False


class SendObserver:
    """Sees sends. Exceptions of its methods are logged and change no send, except Forbidden from `before_send`.

    Its methods are called on the event loop's thread (in the blocking API on the clients' thread), and must not block.
    """

    def before_send(self, send: Send) -> None:
        """Called before the messages are encoded. Forbidden, raised here, refuses the send."""

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        """Called with the result of each message, or what the send raised. A oneway send has no results."""


class ConsumeObserver:
    """Sees the messages that a listener gets. Exceptions of its methods are logged and change nothing.

    Its methods are called where the listener is: on the event loop's thread or, in the blocking API, on the listener's.
    """

    def before_consume(self, consumption: Consumption) -> None:
        """Called before the listener."""

    def after_consume(self, consumption: Consumption, outcome: ConsumeResult | BaseException) -> None:
        """Called with the result of the listener, or what it raised; RetryLater is ConsumeResult.RETRY."""

    def lagging(self, group: str, client_id: str, lag: Lag) -> None:
        """Called every `lag_s` with what this member has not consumed yet, and without queues when it is closed.
        Brokers are asked for it where an observer has this method."""


#: See `Observers.handing_out`.
HandingOut = Callable[[ReceivedMessage], tuple[ReceivedMessage, Callable[[ConsumeResult], None]]]


class InNamespace(ConsumeObserver):
    """Gives the listener the topics as the user knows them, without their namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def before_consume(self, consumption: Consumption) -> None:
        consumption.messages = [bare_message(self._namespace, each) for each in consumption.messages]


#: What `Guard.call` returns for a call that has failed.
FAILED = object()


class Guard:
    """Calls methods of an application's objects, each a `kind`; `end` says in the log what an exception of theirs
    means. At most one is logged in a minute."""

    def __init__(self, kind: str, end: str, steady: Callable[[], float]) -> None:
        self._kind, self._end = kind, end
        self._failures = Throttle(steady)

    def call(
        self,
        call: Callable[..., object],
        *args: object,
        may_raise: tuple[type[Exception], ...] = (),
        returns: type = object,
    ) -> object:
        """What it returns, or FAILED if that is nothing it `returns`. Raises those exceptions that it `may_raise`, and
        KeyboardInterrupt."""
        try:
            result = call(*args)
            if result is None and returns is object:
                return None
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError("it is a coroutine function, and must be a plain one: nobody awaits it")
            if not isinstance(result, returns):
                raise TypeError(f"it must return a {returns.__name__}, not {short(result)}")
            return result
        except (
            BaseException
        ) as error:  # SystemExit, and a CancelledError that is nobody's, would end what has called it
            if isinstance(error, (*may_raise, KeyboardInterrupt)):
                raise
            if (more := self._failures.more()) is not None:
                log.exception("the %s %s failed%s; the %s", self._kind, self.name_of(call), more, self._end)
            return FAILED

    @staticmethod
    def name_of(call: Callable[..., object]) -> str:
        """How errors name the call."""
        return str(getattr(call, "__qualname__", call))


def _replaced(asked: list[Message], messages: list[Message]) -> list[Message]:
    """The messages that observers put in place of the `asked` ones, with the system properties of these. Raises
    BadArgument on others."""
    if [each.topic for each in messages if isinstance(cast(Any, each), Message)] != [each.topic for each in asked]:
        raise BadArgument("what observers put into Send.messages", "as many messages to the same topics", messages)
    return [_marked_as(former, each) for former, each in zip(asked, messages, strict=True)]


def _marked_as(former: Message, message: Message) -> Message:
    if message is former or not isinstance(former, SystemMessage):
        return message
    marks = {name: value for name, value in former.properties.items() if name in RESERVED_PROPERTIES}
    return SystemMessage.of(message, marks, preferred=former.preferred)


class Observers:
    """The observers of one client, called in their order before, and in the reverse order after. `steady` returns
    seconds of a clock that is never set."""

    def __init__(self, members: Sequence[Any], steady: Callable[[], float]) -> None:
        self._members = tuple(members)
        sends = [each for each in members if isinstance(each, SendObserver)]
        #: Called for a send, in this order: before it, each with the number of observers called earlier; and after it.
        self._before = [
            (seen, each.before_send)
            for seen, each in enumerate(sends)
            if getattr(each.before_send, "__func__", None) is not SendObserver.before_send
        ]
        self._after = [each.after_send for each in reversed(sends)]
        self._steady = steady
        self._call = Guard("observer", "operation continues", steady).call

    def begin(self, send: Send) -> float:
        """Tell the observers of a send that begins; returns what `end` needs. Raises Forbidden, and BadArgument."""
        began, seen = self._steady(), 0
        asked = [*send.messages] if self._before else []
        try:
            for seen, before in self._before:  # noqa: B007 - used where it raises
                self._call(before, send, may_raise=(Forbidden,))
            if asked:
                seen = len(self._after)
                send.messages = _replaced(asked, send.messages)
        except BaseException as error:
            self.end(send, began, error, seen=seen)
            raise
        return began

    def end(self, send: Send, began: float, outcome: Any, addr: str = "", *, seen: int | None = None) -> None:
        """Tell the outcome of a send to `addr` to the first `seen` observers, by default to all."""
        send.took_s, send.addr = self._steady() - began, addr
        for after in self._after if seen is None else self._after[len(self._after) - seen :]:
            self._call(after, send, outcome)

    def consumers(self) -> list[ConsumeObserver]:
        """The observers of consumption."""
        return [each for each in self._members if isinstance(each, ConsumeObserver)]

    def _begin(self, consumption: Consumption) -> Callable[[Any], None]:
        """Tell the observers that messages are handed out; returns what to call with the outcome."""
        members = self.consumers()
        for each in members:
            self._call(each.before_consume, consumption)
        began = self._steady()

        def end(outcome: Any) -> None:
            consumption.took_s = self._steady() - began
            if isinstance(outcome, RetryLater):
                outcome = ConsumeResult.RETRY
            elif not isinstance(outcome, BaseException):
                is_taken = outcome is None or outcome is True or outcome is ConsumeResult.SUCCESS
                outcome = ConsumeResult.SUCCESS if is_taken else ConsumeResult.RETRY
            for each in reversed(members):
                self._call(each.after_consume, consumption, outcome)

        return end

    def consuming(self, listener: Any, group: str, client_id: Callable[[], str]) -> Any:
        """The listener, called between `before_consume` and `after_consume`: itself if nobody observes."""
        if not self.consumers() or not callable(listener):
            return listener

        async def awaited(result: Awaitable[Any], end: Callable[[Any], None]) -> Any:
            try:
                outcome = await result
            except BaseException as error:
                end(error)
                raise
            end(outcome)
            return outcome

        @functools.wraps(listener, updated=())
        def calling(given: Any) -> Any:
            is_one = isinstance(given, ReceivedMessage)
            consumption = Consumption(group, client_id(), [given] if is_one else list(given))
            end = self._begin(consumption)
            try:
                result = listener(consumption.messages[0] if is_one else consumption.messages)
            except BaseException as error:
                end(error)
                raise
            if result is not None and inspect.isawaitable(result):
                return awaited(result, end)
            end(result)
            return result

        return calling

    def handing_out(self, group: str, client_id: Callable[[], str]) -> HandingOut | None:
        """What sees a message that a program takes by iteration: it returns the message, as observers want it, and what
        to call with the result. None if nobody observes."""

        def begin(message: ReceivedMessage) -> tuple[ReceivedMessage, Callable[[ConsumeResult], None]]:
            consumption = Consumption(group, client_id(), [message], is_handed_out=True)
            end = self._begin(consumption)
            return consumption.messages[0], end

        return begin if self.consumers() else None
