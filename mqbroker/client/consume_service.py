"""Consume services: call the listener for a bounded number of messages at a time, and act on its results.

`LoopConsumeService` calls it on the event loop; `thread_calls.ThreadConsumeService` on threads. Messages that an
administrator has consumed directly go to the same listener, beside the queues, and move no offset.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

import attrs

from mqbroker.client.errors import NotHandled, RetryLater
from mqbroker.client.listener_calls import Outcome, call_listener, resumed
from mqbroker.client.listeners import ListenerFailures, ListenerResults, Throttle
from mqbroker.client.loop_watch import LoopWatch
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import Net, Signal
from mqbroker.client.process_queue import PulledBatch
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


#: So long, seconds, messages go to a listener that does not suspend, before others on the event loop have a turn.
_TURN_S = 0.005

#: The run, or the message of an administrator, whose call of the listener the caller runs in, or was started from. Of a
#: run it is set once: setting it for each message took a twelfth of the time of consuming.
_called_for: ContextVar[object] = ContextVar("mqbroker listener", default=None)


class Owner(Protocol):
    """The owner of a message: one assigned queue."""

    queue: MessageQueue
    #: True once the queue belongs to another member: the listener's result no longer counts.
    dropped: bool


@attrs.define(eq=False)
class Portion:
    """Messages of a batch that wait: from the index `next` on, up to `end`."""

    owner: Owner
    batch: PulledBatch
    next: int
    end: int


class ListenerCancelled(Exception):
    """Something that a listener awaited was cancelled, but not by this client: the listener failed on its message."""


@attrs.define(eq=False)
class ListenerCall:
    """Has one message after the other with the listener: `message`, if any, of `portion`.

    `looks` counts how often a check found it there.
    """

    message: ReceivedMessage | None = None
    portion: Portion | None = None
    looks: int = 0
    is_sent_back: bool = False


class ConsumeService(ABC):
    """Has `listener` called for at most `concurrency` messages at once, in the order of arrival."""

    def __init__(
        self,
        net: Net,
        listener: Listener,
        send_back: SendBack,
        stats: ConsumerStats,
        *,
        concurrency: int,
        local_retry_s: float,
    ) -> None:
        self._net = net
        self._listener = listener
        self._verdicts = ListenerResults(listener, net.steady)
        self._failures = ListenerFailures(self._verdicts.name, net.steady)
        self._send_back = send_back
        self._stats = stats
        self._concurrency = concurrency
        self._local_retry_s = local_retry_s
        #: Held while what waits is changed, where threads take from it.
        self._gate: AbstractContextManager[Any] = nullcontext()
        self._waiting: deque[Portion] = deque()
        self._runs: dict[ListenerCall, None] = {}
        self._waiting_for: list[tuple[MessageQueue, Signal]] = []
        #: Messages of administrators that are with the listener.
        self._direct: list[ReceivedMessage] = []
        #: Says when what waits must not be handed out before the member has come back.
        self.watch: LoopWatch | None = None
        #: Nothing waits any more: it is closed, or the listener could not be called, or a call was torn down; other
        #: messages would fail the same way.
        self.is_over = False
        self._closed = False
        self._idle = net.signal()
        self._unreadable = Throttle(net.steady)
        #: What warnings say becomes of a message that is not consumed.
        self.fate = "sent back to the broker"

    def put(self, owner: Owner, batch: PulledBatch) -> None:
        """Queue the messages of a batch for the listener."""
        if not batch.messages or self.is_over:
            return
        if batch.unreadable:
            self._net.spawn(self._return_unreadable(owner, batch))
        start = 0
        with self._gate:
            for end in (*batch.unreadable, len(batch.messages)):
                if end > start:
                    self._waiting.append(Portion(owner, batch, start, end))
                start = end + 1
        self._start_some()

    def forget_dropped(self) -> None:
        """Drop queued messages whose queues were dropped; otherwise they are skipped at their turn."""
        with self._gate:
            kept = [portion for portion in self._waiting if not portion.owner.dropped]
            self._waiting.clear()
            self._waiting.extend(kept)

    async def ended(self, queue: MessageQueue, timeout_s: float) -> bool:
        """Return True when the listener has no message of `queue`, False if it still has after that time."""
        if not self._is_with_listener(queue):
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
        if len(self._direct) >= DIRECT_MAX:
            why = f"{DIRECT_MAX} messages for direct consumption are with the listener; try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, why)
        if message.body_error is not None:
            why = f"the body of message {message.msg_id} cannot be decompressed: {message.body_error}"
            raise Refused(ResponseCode.SYSTEM_ERROR, why)
        log.info("consuming message %s of %s directly", message.msg_id, message.queue)
        began, remark = self._net.steady(), None
        self._direct.append(message)
        try:
            result = "CR_SUCCESS" if await self._ask(message) is None else "CR_LATER"
        except Exception as error:
            log.warning("the listener failed on message %s, consumed directly: %r", message.msg_id, error)
            result, remark = "CR_THROW_EXCEPTION", describe_error(error)
        finally:
            self._direct = [each for each in self._direct if each is not message]
            self._tell_idle()
        spent_ms = max(0, int((self._net.steady() - began) * 1000))
        return ConsumeMessageDirectlyResult(consume_result=result, remark=remark, spent_time_mills=spent_ms)

    def stop(self) -> None:
        """Start nothing more."""
        self._closed = True
        self._halt()

    def _halt(self) -> None:
        self.is_over = True
        with self._gate:
            self._waiting.clear()

    async def close(self, timeout_s: float) -> bool:
        """Stop, and return True when all running calls have ended, False if they have not in time."""
        self.stop()
        return self._is_idle or await self._idle.wait(timeout_s)

    @property
    @abstractmethod
    def is_calling(self) -> bool:
        """Whether the caller runs inside a call of the listener: it must not wait for the call's end."""

    @abstractmethod
    def _start_some(self) -> None:
        """Have the listener called for what waits, as far as `concurrency` allows."""

    @abstractmethod
    async def _call_directly(self, message: ReceivedMessage) -> Any:
        """What the listener returns for an administrator's message. Raises what it raises."""

    @property
    def listener_name(self) -> str:
        """What errors and warnings call the listener."""
        return self._verdicts.name

    def still_running(self) -> str:
        """Names the listener, and where its calls stand if that is known."""
        return self._verdicts.name

    @property
    def _is_idle(self) -> bool:
        return not self._runs and not self._direct

    def _tell_idle(self) -> None:
        if self._closed and self._is_idle:
            self._idle.set()

    async def send_back_overdue(self) -> None:
        """Check the messages that are with the listener; send those back that were for LOOKS_MAX checks."""
        for run in list(self._runs):
            run.looks += 1
            if run.looks > LOOKS_MAX and not run.is_sent_back and run.portion is not None and run.message is not None:
                await self._send_back_overdue(run, run.portion, run.message)

    async def _send_back_overdue(self, run: ListenerCall, portion: Portion, message: ReceivedMessage) -> None:
        if portion.owner.dropped:
            return
        try:
            await self._send_back(message, _OVERDUE_DELAY_LEVEL)
        except MQError as error:
            log.warning("%s, which is overdue, was not accepted back; trying again: %s", message.msg_id, error)
            return
        log.warning(
            "message %s of %s is %s: the listener has held it for longer than consume_timeout_s",
            message.msg_id,
            message.queue,
            self.fate,
        )
        if run.message is message:
            run.is_sent_back = True
        if (index := portion.batch.index(message)) is not None:
            portion.batch.done(index, self._net.now())

    def _count(self, owner: Owner, took_s: float, ok: int, failed: int) -> None:
        """Count what the listener had of a queue."""
        if ok or failed:
            self._stats.of(owner.queue.topic).consumed(max(0.0, took_s) * 1000, ok, failed)

    def _let_go(self, run: ListenerCall) -> None:
        run.message, run.looks, run.is_sent_back = None, 0, False
        for queue, signal in self._waiting_for:
            if run.portion is not None and run.portion.owner.queue == queue and not self._is_with_listener(queue):
                signal.set()

    def _tell_ended(self) -> None:
        """Wake those that wait for queues whose messages the listener no longer has."""
        for queue, signal in self._waiting_for:
            if not self._is_with_listener(queue):
                signal.set()

    def _is_with_listener(self, queue: MessageQueue) -> bool:
        return any(run.message and run.portion and run.portion.owner.queue == queue for run in self._runs)

    async def _retry(self, portion: Portion, message: ReceivedMessage, index: int, delay_level: int) -> None:
        """Send a message back that was not consumed, or let the listener have it again later."""
        if portion.owner.dropped:
            return
        try:
            await self._send_back(message, delay_level)
        except MQError as error:
            log.warning(
                "%s was not accepted back; consuming it here again in %g s: %s",
                message.msg_id,
                self._local_retry_s,
                error,
            )
            self._net.spawn(self._again(portion, index, message))
        else:
            portion.batch.done(index, self._net.now())

    async def _return_unreadable(self, owner: Owner, batch: PulledBatch) -> None:
        """Send the messages of a batch back whose bodies could not be decompressed: no listener gets them."""
        for index in batch.unreadable:
            while (message := batch.messages[index]) is not None and not owner.dropped and not self.is_over:
                try:
                    await self._send_back(message, 0)
                except MQError as error:
                    log.info("%s was not accepted back; trying again: %s", message.msg_id, error)
                    await self._net.sleep(self._local_retry_s)
                else:
                    batch.done(index, self._net.now())
                    self._count(owner, 0.0, 0, 1)
                    self._warn_of_unreadable(message)

    def _warn_of_unreadable(self, message: ReceivedMessage) -> None:
        if (more := self._unreadable.more()) is None:
            return
        log.warning(
            "the body of message %s of %s cannot be decompressed: %s. It is %s%s",
            message.msg_id,
            message.queue,
            message.body_error,
            self.fate,
            more,
        )

    def _delay_level_after(self, error: BaseException, message: ReceivedMessage) -> int:
        """The delay level for a message that the listener raised `error` on. Raises what ends the run."""
        try:
            return self._raised(error)
        except NotHandled:
            raise
        except Exception as failure:
            self._failures.log(failure, message)
            return 0

    async def _ask(self, message: ReceivedMessage) -> int | None:
        """For a message of an administrator: None if the listener consumed it, else the delay level."""
        try:
            return self._verdicts.delay_level(await self._call_directly(message), message)
        except BaseException as error:
            return self._raised(error)

    def _raised(self, error: BaseException) -> int:
        """The delay level if a listener has raised RetryLater. Raises `error` if not, or ListenerCancelled."""
        if isinstance(error, RetryLater):
            return error.delay_level
        if self._net.is_cancelled_inside(error):
            raise ListenerCancelled("something that the listener awaited was cancelled") from error
        raise error

    async def _again(self, portion: Portion, index: int, message: ReceivedMessage) -> None:
        owner, batch = portion.owner, portion.batch
        await self._net.sleep(self._local_retry_s)
        if not owner.dropped and not self.is_over:
            batch.messages[index] = attrs.evolve(message, reconsume_times=message.reconsume_times + 1)
            with self._gate:
                self._waiting.append(Portion(owner, batch, index, index + 1))
            self._start_some()


class LoopConsumeService(ConsumeService):
    """Calls the listener on the event loop: one message after the other, or many at once where it suspends."""

    _starting = False
    #: Runs that let others on the event loop have their turn.
    _yielding = 0

    @property
    def is_calling(self) -> bool:
        """Whether the caller runs inside a call of the listener: it must not wait for the call's end."""
        called_for = _called_for.get()
        if isinstance(called_for, ListenerCall):
            return called_for in self._runs and called_for.message is not None
        return any(each is called_for for each in self._direct)

    async def _call_directly(self, message: ReceivedMessage) -> Any:
        _called_for.set(message)
        verdict = self._listener(message)
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
        """As `_work`, until others on the event loop should have their turn: then True."""
        waiting, now_s = self._waiting, self._net.steady
        until = now_s() + _TURN_S
        while waiting and now_s() < until:
            if self.watch is not None and self.watch.was_away:
                await self.watch.ensure_member()  # which drops what waits
                continue
            portion = run.portion = waiting[0]
            await self._consume(run, portion, until)
            if waiting and waiting[0] is portion and portion.next >= portion.end:
                waiting.popleft()
        return bool(waiting)

    async def _consume(self, run: ListenerCall, portion: Portion, until: float) -> None:
        """Give the listener what nobody else takes of `portion`, as long as it is not `until`, and it is not over."""
        owner, batch, now_s = portion.owner, portion.batch, self._net.steady
        since = now_s()
        ok = 0
        while not owner.dropped:
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
            self._let_go(run)
        self._let_go(run)
        self._count(owner, now_s() - since, ok, 0)
        if owner.dropped:
            portion.next = portion.end

    async def _settle(self, run: ListenerCall, portion: Portion, outcome: int, value: Any) -> bool:
        """Settle a message of which the listener has not simply returned None: returns whether it is consumed."""
        index, message = portion.next - 1, run.message
        assert message is not None
        try:
            if outcome == Outcome.RAISED:
                raise value
            if outcome == Outcome.SUSPENDED:
                value = await resumed(*value)
            elif outcome == Outcome.RETURNED and inspect.isawaitable(value):
                value = await value
            delay_level = self._verdicts.delay_level(value, message)
        except BaseException as error:
            delay_level = self._delay_level_after(error, message)
        if delay_level is None:
            portion.batch.done(index, self._net.now())
            return True
        if not run.is_sent_back:
            await self._retry(portion, message, index, delay_level)
        return False
