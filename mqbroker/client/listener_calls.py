"""Calls of a listener: with one message after the other, for as long as it does not suspend."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from enum import IntEnum
from types import CoroutineType, coroutine
from typing import Any

from mqbroker.client.consume_service import ConsumeService, ListenerCall
from mqbroker.client.errors import NotHandled
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.process_queue import Portion
from mqbroker.kernel import compiled

log = logging.getLogger(__name__)


class Outcome(IntEnum):
    """Why `call_listener` has stopped; the module in C has the same numbers."""

    #: There are no more messages, or the time is over.
    STOPPED = 0
    #: The listener returned something for the last message, which may be awaitable.
    RETURNED = 1
    #: The listener is a coroutine function, and returned something.
    ENDED = 2
    #: The listener is a coroutine function, and suspended; the value is the coroutine, and what it waits for.
    SUSPENDED = 3
    #: The listener raised the value.
    RAISED = 4


def _call_listener(
    messages: list[ReceivedMessage | None],
    at: int,
    end: int,
    listener: Callable[[ReceivedMessage], Any],
    caller: ConsumeService,
    call: ListenerCall,
    now_s: Callable[[], float],
    until: float,
) -> tuple[int, int, int, Any]:
    """Call `listener` with the messages from index `at` to `end` that are not None, until a call does not return None,
    it is `until`, or the caller is over. Consumed messages are replaced by None; `call.message` is the last one that
    the listener was called with.

    Returns the index to continue at, how many were consumed, the outcome, and its value.
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
    """Await the rest of a coroutine that has suspended on `awaited`."""
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


#: How long a listener that does not suspend is called before others on the event loop have a turn, seconds.
_TURN_S = 0.005

#: The run, or an administrator's message, whose call of the listener the present code runs in or was started from. Set
#: once a run: setting it for each message took a twelfth of the time of consuming.
_called_for: ContextVar[object] = ContextVar("mqbroker listener", default=None)


class LoopConsumeService(ConsumeService):
    """Calls the listener on the event loop: one message after the other, or many at once where it suspends."""

    _starting = False
    #: Runs that let others on the event loop have their turn.
    _yielding = 0

    @property
    def is_calling(self) -> bool:
        called_for = _called_for.get()
        if isinstance(called_for, ListenerCall):
            return called_for in self._runs and called_for.message is not None
        return any(each is called_for for each in self._direct)

    async def _call_directly(self, message: ReceivedMessage) -> Any:
        _called_for.set(message)
        verdict = self._listener(message if self._batch_max is None else [message])
        return await verdict if verdict is not None and inspect.isawaitable(verdict) else verdict

    def _can_start(self) -> bool:
        return bool(self._waiting) and len(self._runs) < self._concurrency and not self._yielding

    def _start_some(self) -> None:
        # Not at once: the next pull leaves before the listener has these messages.
        if not self._starting and self._can_start():
            self._starting = True
            self._net.after_spawned(self._start_one)

    def _start_one(self) -> None:
        # One run is enough as long as the listener does not suspend: others start when that one has had its turn.
        self._starting = False
        if self._can_start():
            self._start_run()
            self._start_others_soon()

    def _start_others_soon(self) -> None:
        if not self._starting and self._can_start():
            self._starting = True
            self._net.after_spawned(self._start_others)

    def _start_others(self) -> None:
        self._starting = False
        while self._can_start():
            self._start_run()

    def _start_run(self) -> None:
        run = ListenerCall()
        self._runs[run] = None
        self._net.spawn(self._work(run))

    async def _work(self, run: ListenerCall) -> None:
        """Give the listener one message after the other, as long as any waits."""
        _called_for.set(run)
        try:
            while await self._take_turn(run):
                self._yielding += 1
                try:
                    await self._net.sleep(0)
                finally:
                    self._yielding -= 1
                self._start_others_soon()
        except NotHandled as why:
            log.debug("a message is left to others: %s", why)
            self._halt()
        except BaseException:
            # The loop is ending, and cancels all tasks.
            self._halt()
            raise
        finally:
            self._let_go(run)
            del self._runs[run]
            self._start_some()
            self._tell_idle()

    async def _take_turn(self, run: ListenerCall) -> bool:
        """As `_work`, until others on the event loop should run; returns True then."""
        waiting, now_s = self._waiting, self._net.steady
        until = now_s() + _TURN_S
        while waiting and now_s() < until:
            if self.watch is not None and self.watch.was_away:
                await self._ensure_member(self.watch)  # which drops what waits
                continue
            portion = run.portion = self._take()
            if self._batch_max is None and (self._order is None or self._order.auto_commit):
                await self._consume(run, portion, until)
            else:
                await self._consume_parts(run, portion, until)
            self._put_back(portion)
        return bool(waiting)

    async def _consume(self, run: ListenerCall, portion: Portion, until: float) -> None:
        """Give the listener the messages of `portion` that no other run takes, until `until` or the end."""
        owner, batch, now_s = portion.owner, portion.batch, self._net.steady
        since = now_s()
        ok = 0
        while not owner.dropped:
            if self._order is not None and not self._order.may_hand_out(portion):
                break
            portion.next, consumed, outcome, value = call_listener(
                batch.messages, portion.next, portion.end, self._listener, self, run, now_s, until
            )
            ok += consumed
            batch.count_out(consumed, self._net.now())
            if outcome == Outcome.STOPPED:
                break
            if await self._settle(run, portion, outcome, value):
                ok += 1
            else:
                self._count(owner, now_s() - since, ok, 1)
                ok, since = 0, now_s()
                if self._order is not None and self._order.is_paused(portion):
                    break
            self._let_go(run)
        self._let_go(run)
        self._count(owner, now_s() - since, ok, 0)
        if owner.dropped:
            portion.next = portion.end

    async def _settle(self, run: ListenerCall, portion: Portion, outcome: int, value: Any) -> bool:
        """Settle a message of which the listener has not simply returned None: returns whether it is consumed."""
        index, message = portion.next - 1, run.message
        assert message is not None
        error: BaseException | None = None
        try:
            if outcome == Outcome.RAISED:
                raise value
            if outcome == Outcome.SUSPENDED:
                value = await resumed(*value)
            elif outcome == Outcome.RETURNED and inspect.isawaitable(value):
                value = await value
        except BaseException as raised:
            value, error = None, raised
        verdict = self._results.judge(value, error, (message,))
        await self._act(portion, (index,), (message,), verdict, run.is_sent_back)
        return bool(verdict.taken)

    async def _consume_parts(self, run: ListenerCall, portion: Portion, until: float) -> None:
        """As `_consume`, of a listener that gets several messages, or whose results are committed by itself."""
        owner, now_s = portion.owner, self._net.steady
        while portion.next < portion.end and not owner.dropped and not self.is_over and now_s() < until:
            if self._order is not None and not self._order.may_hand_out(portion):
                break
            indexes, messages = portion.take(self._batch_max or 1)
            if not messages:
                break
            since = now_s()
            run.message, run.others = messages[0], messages[1:]
            value: Any = None
            error: BaseException | None = None
            try:
                value = self._listener(messages[0] if self._batch_max is None else messages)
                if value is not None and inspect.isawaitable(value):
                    value = await value
            except BaseException as raised:
                value, error = None, raised
            verdict = self._results.judge(value, error, messages)
            self._count(owner, now_s() - since, verdict.taken, len(messages) - verdict.taken)
            await self._act(portion, indexes, messages, verdict, run.is_sent_back)
            self._let_go(run)
            if self._order is not None and self._order.is_paused(portion):
                break
        self._let_go(run)
        if owner.dropped:
            portion.next = portion.end
