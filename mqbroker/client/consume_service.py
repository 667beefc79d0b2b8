"""Consume service: calls the listener for a bounded number of messages at a time, and acts on its results.

Messages that an administrator has consumed directly go to the same listener, beside the queues, and move no offset.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import attrs

from mqbroker.client.errors import NotHandled, RetryLater
from mqbroker.client.listeners import ListenerResults
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import LiveNet, Signal
from mqbroker.client.running_info import ConsumerStats
from mqbroker.client.stack_traces import describe_error
from mqbroker.errors import MQError, Refused
from mqbroker.wire.admin_bodies import ConsumeMessageDirectlyResult
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode

log = logging.getLogger(__name__)

#: Messages of administrators that may be with the listener at once; more are refused.
DIRECT_MAX = 16

#: A message that is found with the listener so often is sent back; counted, since clocks jump.
LOOKS_MAX = 15

#: The delay level of such a message, as in ProcessQueue.cleanExpiredMsg of 4.9.7.
_OVERDUE_DELAY_LEVEL = 3

#: A function or coroutine function; it may also return a Deferred where the face runs on Twisted.
Listener = Callable[[ReceivedMessage], Any]

#: Sends a message back to the broker, to be delivered again after a delay level.
SendBack = Callable[[ReceivedMessage, int], Awaitable[None]]


@attrs.define(eq=False)
class _Call:
    """A running call of the listener, which its callees can find (context variable)."""

    consuming: ConsumeService
    has_ended: bool = False


_call_here: ContextVar[_Call | None] = ContextVar("mqbroker listener", default=None)


class Owner(Protocol):
    """The owner of a message: one assigned queue."""

    queue: MessageQueue
    #: True once the queue belongs to another member: the listener's result no longer counts.
    dropped: bool

    def done(self, message: ReceivedMessage) -> None: ...


@attrs.define(eq=False)
class _Run:
    """A message that is with the listener. `looks` counts how often a check found it there."""

    owner: Owner
    message: ReceivedMessage
    looks: int = 0
    is_sent_back: bool = False


class ConsumeService:
    """Runs `listener` for at most `concurrency` messages at once, in the order of arrival."""

    def __init__(
        self,
        net: LiveNet,
        listener: Listener,
        send_back: SendBack,
        stats: ConsumerStats,
        *,
        concurrency: int,
        local_retry_s: float,
    ) -> None:
        self._net = net
        self._listener = listener
        self._verdicts = ListenerResults(listener, net.now)
        self._send_back = send_back
        self._stats = stats
        self._concurrency = concurrency
        self._local_retry_s = local_retry_s
        self._waiting: deque[tuple[Owner, ReceivedMessage]] = deque()
        self._runs: dict[_Run, None] = {}
        #: Their number by queue.
        self._busy: Counter[MessageQueue] = Counter()
        self._waiting_for: list[tuple[MessageQueue, Signal]] = []
        #: Calls of the listener for messages of administrators.
        self._direct_calls = 0
        self._starting = False
        #: The listener could not be called, or a call was torn down: other messages would fail the same way.
        self._halted = False
        self._closed = False
        self._idle = net.signal()

    def put(self, owner: Owner, messages: Iterable[ReceivedMessage]) -> None:
        """Queue messages for the listener."""
        self._waiting.extend((owner, message) for message in messages)
        self._start_some()

    def forget_dropped(self) -> None:
        """Drop queued messages whose queues were dropped; otherwise they are skipped at their turn."""
        self._waiting = deque(item for item in self._waiting if not item[0].dropped)

    async def ended(self, queue: MessageQueue, timeout_s: float) -> bool:
        """Return True when the listener has no message of `queue`, False if it still has after that time."""
        if not self._busy[queue]:
            return True
        waiter = queue, self._net.signal()
        self._waiting_for.append(waiter)
        try:
            return await waiter[1].wait(timeout_s)
        finally:
            self._waiting_for.remove(waiter)

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Call the listener for `message` at once, and return the result. Raises Refused."""
        if self._closed:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this consumer is closing and takes no more messages")
        if self._direct_calls >= DIRECT_MAX:
            why = f"{DIRECT_MAX} messages for direct consumption are with the listener; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, why)
        log.info("consuming message %s of %s directly", message.msg_id, message.queue)
        began, remark = self._net.now(), None
        self._direct_calls += 1
        try:
            result = "CR_SUCCESS" if await self._ask(message) is None else "CR_LATER"
        except Exception as error:
            log.warning("the listener failed on message %s, consumed directly: %r", message.msg_id, error)
            result, remark = "CR_THROW_EXCEPTION", describe_error(error)
        finally:
            self._direct_calls -= 1
            self._tell_idle()
        spent_ms = max(0, int((self._net.now() - began) * 1000))
        return ConsumeMessageDirectlyResult(consume_result=result, remark=remark, spent_time_mills=spent_ms)

    def stop(self) -> None:
        """Start nothing more."""
        self._closed = True
        self._waiting.clear()

    async def close(self, timeout_s: float) -> bool:
        """Stop, and return True when all running calls have ended, False if they have not in time."""
        self.stop()
        return self._is_idle or await self._idle.wait(timeout_s)

    @property
    def is_calling(self) -> bool:
        """Whether the caller runs inside a call of the listener: it must not wait for the call's end."""
        call = _call_here.get()
        return call is not None and call.consuming is self and not call.has_ended

    @property
    def _is_idle(self) -> bool:
        return not self._runs and self._direct_calls == 0

    def _tell_idle(self) -> None:
        if self._closed and self._is_idle:
            self._idle.set()

    def _start_some(self) -> None:
        # A listener that never suspends ends inside spawn(), which calls this again: let the first call continue.
        if self._starting or self._halted:
            return
        self._starting = True
        try:
            while self._waiting and len(self._runs) < self._concurrency and not self._closed:
                owner, message = self._waiting.popleft()
                if not owner.dropped:
                    run = _Run(owner, message)
                    self._runs[run] = None
                    self._busy[owner.queue] += 1
                    self._net.spawn(self._run(run))
        finally:
            self._starting = False

    async def send_back_overdue(self) -> None:
        """Check the messages that are with the listener; send those back that were for LOOKS_MAX checks."""
        for run in list(self._runs):
            run.looks += 1
            if run.looks > LOOKS_MAX and not run.is_sent_back and not run.owner.dropped:
                await self._send_back_overdue(run)

    async def _send_back_overdue(self, run: _Run) -> None:
        message = run.message
        try:
            await self._send_back(message, _OVERDUE_DELAY_LEVEL)
        except MQError as error:
            log.warning("%s, which is overdue, was not accepted back; trying again: %s", message.msg_id, error)
            return
        log.warning(
            "message %s of %s is sent back to the broker: the listener has held it for longer than consume_timeout_s",
            message.msg_id,
            message.queue,
        )
        run.is_sent_back = True
        if not run.owner.dropped:
            run.owner.done(message)

    async def _run(self, run: _Run) -> None:
        try:
            await self._consume(run)
        except NotHandled as why:
            log.debug("message %s of %s is left to others: %s", run.message.msg_id, run.message.queue, why)
            self._halted = True
        except BaseException:
            # The loop is ending, and cancels all tasks.
            self._halted = True
            raise
        finally:
            del self._runs[run]
            self._no_longer_with(run.owner.queue)
            self._start_some()
            self._tell_idle()

    def _no_longer_with(self, queue: MessageQueue) -> None:
        self._busy[queue] -= 1
        if not self._busy[queue]:
            del self._busy[queue]
            for waited_for, signal in self._waiting_for:
                if waited_for == queue:
                    signal.set()

    async def _consume(self, run: _Run) -> None:
        owner, message = run.owner, run.message
        delay_level = await self._call(message)
        if owner.dropped or run.is_sent_back:
            return
        if delay_level is not None:
            try:
                await self._send_back(message, delay_level)
            except MQError as error:
                log.warning(
                    "%s was not accepted back; consuming it here again in %g s: %s",
                    message.msg_id,
                    self._local_retry_s,
                    error,
                )
                self._net.spawn(self._again(owner, message))
                return
        owner.done(message)

    async def _call(self, message: ReceivedMessage) -> int | None:
        """As `_ask`, with 0 if the listener fails. Raises NotHandled."""
        began = self._net.now()
        delay_level: int | None = 0
        try:
            delay_level = await self._ask(message)
        except NotHandled:
            raise
        except Exception:
            log.exception("the listener failed on message %s of %s", message.msg_id, message.queue)
        took_ms = max(0.0, self._net.now() - began) * 1000
        self._stats.of(message.queue.topic).consumed(took_ms, delay_level is None)
        return delay_level

    async def _ask(self, message: ReceivedMessage) -> int | None:
        """Return None if the listener consumed the message, else the delay level to send it back with."""
        call = _Call(self)
        _call_here.set(call)
        try:
            verdict = self._listener(message)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except RetryLater as later:
            return later.delay_level
        finally:
            call.has_ended = True
        return self._verdicts.delay_level(verdict, message)

    async def _again(self, owner: Owner, message: ReceivedMessage) -> None:
        await self._net.sleep(self._local_retry_s)
        if not owner.dropped and not self._closed:
            self.put(owner, [attrs.evolve(message, reconsume_times=message.reconsume_times + 1)])
