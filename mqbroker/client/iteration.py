"""Iteration: messages of a push consumer without a listener are handed out one by one, and held until they are settled.

A message counts as consumed when it is acknowledged, on any thread and in any order.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

import attrs

from mqbroker.client.consume_service import ConsumeService, ListenerCall
from mqbroker.client.errors import BadArgument, RetryLater
from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import Signal
from mqbroker.client.observers import HandingOut
from mqbroker.client.process_queue import Portion
from mqbroker.client.send_back import with_reason
from mqbroker.errors import Refused
from mqbroker.wire.codes import ResponseCode

log = logging.getLogger(__name__)

T = TypeVar("T")

if TYPE_CHECKING:
    _Message = ReceivedMessage
else:
    _Message = object


def by_iteration(message: object) -> NoReturn:
    """In place of a listener: the program iterates over the consumer."""
    raise Refused(ResponseCode.SYSTEM_ERROR, "this consumer has no listener: its program iterates over the messages")


class Delivery(_Message):
    """A message with all of its fields, which the program settles by one of the methods. They may be called on any
    thread, and return at once. They do nothing if the message is already settled, or its queue belongs to another
    member."""

    __slots__ = ("_settle", "message")

    if not TYPE_CHECKING:

        def __init__(self, message: ReceivedMessage, settle: Callable[..., None]) -> None:
            self.message = message
            self._settle = settle

        def __getattr__(self, name: str) -> Any:
            return getattr(self.message, name)

        def __repr__(self) -> str:
            return f"Delivery({self.message!r})"

    else:
        message: ReceivedMessage
        _settle: Callable[..., None]

    def ack(self) -> None:
        """The message is consumed."""
        self._settle(None)

    def nack(self, delay_level: int | timedelta = 0) -> None:
        """Have the message delivered again, after a delay that the broker chooses (0), or that of a level from 1 to 18.
        A timedelta selects the level that has exactly this delay by default. Raises ValueError on other values."""
        level = RetryLater(delay_level).delay_level
        if level < 0:
            raise ValueError("nack: delay_level must be 0 to 18; dead_letter() gives a message up")
        self._settle(level)

    def dead_letter(self, reason: str | BaseException = "") -> None:
        """Send the message to the dead letters of the group, with `reason`, or the type and text of an exception, in
        its property DEAD_LETTER_REASON. Raises BadArgument on other values."""
        if isinstance(reason, BaseException):
            reason = f"{type(reason).__name__}: {reason}"
        if not isinstance(reason, str):
            raise BadArgument("reason", "text, or an exception", reason)
        log.warning("message %s of %s goes to the dead letters: %s", self.msg_id, self.queue, reprlib.repr(reason))
        self._settle(-1, reason)


@attrs.define(eq=False)
class _Held(ListenerCall):
    index: int = 0
    #: Told of the result, if anybody observes.
    tell: Callable[[ConsumeResult], None] | None = None


class IterationService(ConsumeService):
    """Hands out messages to a program that iterates; at most `concurrency` are unsettled. Closing waits for messages
    that are being sent back, not for those that the program holds: they are delivered again."""

    #: Has what settles a message called on the event loop.
    call_soon: Callable[[Callable[[], None]], object] = staticmethod(lambda call: call())
    #: Sees the messages handed out, and their outcome.
    observe: HandingOut | None = None
    _asking: list[Signal]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._asking = []
        #: Messages that are being sent back.
        self._settling = 0

    @property
    def _is_idle(self) -> bool:
        return not self._settling

    @property
    def is_calling(self) -> bool:
        return False

    def _start_some(self) -> None:
        for signal in self._asking:
            signal.set()

    async def _call_directly(self, message: ReceivedMessage) -> Any:
        by_iteration(message)

    async def next(self, count: int) -> list[Delivery]:
        """Up to `count` messages, at least one; none when it is over."""
        while True:
            if self.watch is not None and self.watch.was_away:
                await self.watch.ensure_member()
            found = self.ready(count)
            if found or self.is_over:
                return found
            signal = self._net.signal()
            self._asking.append(signal)
            try:
                await signal.wait()
            finally:
                self._asking.remove(signal)

    def ready(self, count: int) -> list[Delivery]:
        """Up to `count` messages that wait, as far as not too many are held; none where the member was away."""
        found: list[Delivery] = []
        if self.watch is not None and self.watch.was_away:
            return found
        waiting = self._waiting
        while waiting and len(found) < count and len(self._runs) < self._concurrency:
            portion = waiting[0]
            index = portion.next
            if portion.owner.dropped or index >= portion.end:
                waiting.popleft()
                continue
            portion.next += 1
            message = portion.batch.messages[index]
            if message is not None:
                held = _Held(message, portion=portion, index=index)
                if self.observe is not None:
                    message, held.tell = self.observe(message)
                self._runs[held] = None
                made: Any = Delivery
                found.append(made(message, partial(self._settle_soon, held, portion, self._net.steady())))
        return found

    def _settle_soon(
        self, held: _Held, portion: Portion, since: float, delay_level: int | None, reason: str = ""
    ) -> None:
        self.call_soon(lambda: self._settle(held, portion, since, delay_level, reason))

    def _settle(self, held: _Held, portion: Portion, since: float, delay_level: int | None, reason: str) -> None:
        message = held.message
        if held not in self._runs or message is None:
            return
        del self._runs[held]
        took_s = self._net.steady() - since
        if held.tell is not None:
            held.tell(ConsumeResult.SUCCESS if delay_level is None else ConsumeResult.RETRY)
        if not portion.owner.dropped and not held.is_sent_back:
            self._count(portion.owner, took_s, int(delay_level is None), int(delay_level is not None))
            if delay_level is None:
                portion.batch.done(held.index, self._net.now())
            else:
                self._settling += 1
                if reason:
                    message = with_reason(message, reason)
                self._net.spawn(self._retry(portion, message, held.index, delay_level), self._settled)
        self._tell_ended()
        self._start_some()

    def _settled(self) -> None:
        self._settling -= 1
        self._tell_idle()

    async def send_back_overdue(self) -> None:
        await super().send_back_overdue()
        self._let_go_of(lambda run: run.is_sent_back)

    def forget_dropped(self) -> None:
        super().forget_dropped()
        self._let_go_of(lambda run: run.portion is not None and run.portion.owner.dropped)

    def _let_go_of(self, is_over: Callable[[ListenerCall], bool]) -> None:
        for run in [run for run in self._runs if is_over(run)]:
            del self._runs[run]
        self._tell_ended()
        self._start_some()

    def stop(self) -> None:
        super().stop()
        self._start_some()


class Iterated(Generic[T]):
    """A consumer of asyncio or Twisted that is iterated over: `async for message in consumer`."""

    _core: Any

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        message: T | None = self._core.next_at_once()
        if message is not None:
            return message
        found: list[T] = await self._core.next_messages(1)
        if not found:
            raise StopAsyncIteration
        return found[0]
