"""Consume services: call the listener for a bounded number of messages at a time, and act on its results.

`listener_calls.LoopConsumeService` calls it on the event loop, `thread_calls.ThreadConsumeService` on threads. Messages
that an administrator has consumed directly go to the same listener, beside the queues, and move no offset.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from mqbroker.client.listeners import ListenerResults, Throttle, Verdict
from mqbroker.client.membership import LoopWatch
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import Net, Signal
from mqbroker.client.orderly import Order
from mqbroker.client.process_queue import Owner, Portion, PulledBatch
from mqbroker.client.running_info import ConsumerStats, describe_error
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

#: A function or coroutine function of a message, or of several where `batch_max` is given; it may also return a
#: Deferred where the face runs on Twisted.
Listener = Callable[[Any], Any]

#: Sends a message back to the broker, to be delivered again after a delay level.
SendBack = Callable[[ReceivedMessage, int], Awaitable[None]]


@attrs.define(eq=False)
class ListenerCall:
    """Has one message after the other with the listener: `message`, if any, of `portion`.

    `looks` counts how often a check found it there.
    """

    message: ReceivedMessage | None = None
    #: The others of a batch.
    others: Sequence[ReceivedMessage] = ()
    portion: Portion | None = None
    looks: int = 0
    #: The message that was last sent back while the listener had it; a thread may have gone on to the next one.
    sent_back: ReceivedMessage | None = None

    @property
    def is_sent_back(self) -> bool:
        """Whether the message that the listener has was sent back."""
        return self.sent_back is not None and self.sent_back is self.message


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
        batch_max: int | None = None,
        order: Order | None = None,
    ) -> None:
        """The listener gets lists of up to `batch_max` messages where that is given, and those of each queue one after
        the other with an `order`."""
        self._net = net
        self._batch_max = batch_max
        self._order = order
        if order is not None:
            order.hand_out = self._hand_out
        self._listener = listener
        self._results = ListenerResults(listener, net.steady, net.is_cancelled_inside)
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
        #: What happens to a message that is not consumed, for warnings.
        self.fate = "sent back to the broker"

    def put(self, owner: Owner, batch: PulledBatch) -> None:
        """Queue the messages of a batch for the listener."""
        if not batch.messages or self.is_over:
            return
        if batch.unreadable:
            self._net.spawn(self._return_unreadable(owner, batch))
        start = 0
        for end in (*batch.unreadable, len(batch.messages)):
            if end > start:
                portion = Portion(owner, batch, start, end)
                if self._order is None:
                    self._hand_out(portion)
                else:
                    self._order.add(portion)
            start = end + 1

    def _hand_out(self, portion: Portion) -> None:
        if not self.is_over:
            with self._gate:
                self._waiting.append(portion)
            self._start_some()

    async def _ensure_member(self, watch: LoopWatch) -> None:
        """Have a member come back that was away. An unexpected error is logged, and followed by a pause: it would end
        the service."""
        try:
            await watch.ensure_member()
        except Exception as error:
            if self._net.is_cancelled(error):
                raise
            log.exception("a member that was away is not back; trying again in %g s", self._local_retry_s)
            await self._net.sleep(self._local_retry_s)

    def _take(self) -> Portion:
        """The next portion; where order is kept, no other worker gets it until `_put_back`."""
        return self._waiting[0] if self._order is None else self._waiting.popleft()

    def _put_back(self, portion: Portion) -> None:
        waiting = self._waiting
        if self._order is not None:
            self._order.give_back(portion)
            self._tell_ended()
        elif waiting and waiting[0] is portion and portion.next >= portion.end:
            waiting.popleft()

    def finish(self, owner: Owner) -> None:
        """Hand out nothing more of a queue; what the listener has still counts."""
        with self._gate:
            waited = [portion for portion in self._waiting if portion.owner is owner]
            for portion in waited:
                self._waiting.remove(portion)
                if self._order is None:  # a call of the listener may be in the middle of it
                    portion.end = portion.next
        if self._order is None:
            return
        self._order.finish(owner)
        for portion in waited:
            self._order.give_back(portion)

    def forget_dropped(self) -> None:
        """Drop queued messages whose queues were dropped; otherwise they are skipped at their turn."""
        with self._gate:
            kept = [portion for portion in self._waiting if not portion.owner.dropped]
            self._waiting.clear()
            self._waiting.extend(kept)
        if self._order is not None:
            self._order.forget_dropped()

    async def ended(self, queue: MessageQueue, timeout_s: float | None) -> bool:
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
            result = await self._results.direct(self._call_directly(message), message)
        except Exception as error:
            log.warning("the listener failed on message %s, consumed directly: %r", message.msg_id, error)
            result, remark = "CR_THROW_EXCEPTION", describe_error(error)
        finally:
            self._direct = [each for each in self._direct if each is not message]
            self._tell_idle()
        spent_ms = max(0, int((self._net.steady() - began) * 1000))
        return ConsumeMessageDirectlyResult(
            order=self._order is not None,
            auto_commit=self._order is None or self._order.auto_commit,
            consume_result=result,
            remark=remark,
            spent_time_mills=spent_ms,
        )

    def stop(self) -> None:
        """Start nothing more."""
        self._closed = True
        self._halt()

    def _halt(self) -> None:
        self.is_over = True
        with self._gate:
            self._waiting.clear()
        if self._order is not None:
            self._order.stop()

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
        """The listener's name in errors and warnings."""
        return self._results.name

    def still_running(self) -> str:
        """The name of the listener, and the line that its calls are at, if known."""
        return self._results.name

    @property
    def _is_idle(self) -> bool:
        return not self._runs and not self._direct

    def _tell_idle(self) -> None:
        if self._closed and self._is_idle:
            self._idle.set()

    async def send_back_overdue(self) -> None:
        """Check the messages that are with the listener; send those back that were for LOOKS_MAX checks. Where order is
        kept none is, as others would overtake it."""
        for run in list(self._runs):
            run.looks += 1
            is_late = run.looks > LOOKS_MAX and not run.is_sent_back and self._order is None
            if is_late and run.portion is not None and run.message is not None:
                await self._send_back_overdue(run, run.portion, [run.message, *run.others])

    async def _send_back_overdue(
        self, run: ListenerCall, portion: Portion, messages: Sequence[ReceivedMessage]
    ) -> None:
        for message in messages:
            if portion.owner.dropped:
                return
            if portion.batch.index(message) is None:
                continue
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
            if message is messages[-1]:
                run.sent_back = messages[0]
            if (index := portion.batch.index(message)) is not None:
                portion.batch.done(index, self._net.now())

    def _count(self, owner: Owner, took_s: float, ok: int, failed: int) -> None:
        """Count what the listener had of a queue."""
        if ok or failed:
            self._stats.of(owner.queue.topic).consumed(max(0.0, took_s) * 1000, ok, failed)

    def _let_go(self, run: ListenerCall) -> None:
        run.message, run.others, run.looks = None, (), 0
        for queue, signal in self._waiting_for:
            if run.portion is not None and run.portion.owner.queue == queue and not self._is_with_listener(queue):
                signal.set()

    def _tell_ended(self) -> None:
        """Wake those that wait for queues whose messages the listener no longer has."""
        for queue, signal in self._waiting_for:
            if not self._is_with_listener(queue):
                signal.set()

    def _is_with_listener(self, queue: MessageQueue) -> bool:
        if self._order is not None and self._order.is_busy(queue):
            return True
        return any(run.message and run.portion and run.portion.owner.queue == queue for run in self._runs)

    async def _act(
        self,
        portion: Portion,
        indexes: Sequence[int],
        messages: Sequence[ReceivedMessage],
        verdict: Verdict,
        was_sent_back: bool,
    ) -> None:
        """Take the messages as consumed, or see to it that they come again."""
        taken, order = verdict.taken, self._order
        if order is not None:
            order.consumed(portion, indexes[:taken], verdict.result)
        else:
            for index in indexes[:taken]:
                portion.batch.done(index, self._net.now())
        left = list(zip(indexes, messages, strict=True))[taken:]
        if not left or was_sent_back or portion.owner.dropped:
            return
        if order is None:
            for index, message in left:
                await self._retry(portion, message, index, verdict.delay_level)
            return
        is_dead = verdict.delay_level < 0
        for index, message in left if is_dead else order.failed(portion, left, verdict.result, verdict.pause_s):
            if (error := await self._why_not_sent_back(message, -1)) is not None:
                log.warning("%s was not accepted as a dead letter; its queue waits: %s", message.msg_id, error)
                order.pause(portion, index)
                return
            portion.batch.done(index, self._net.now())

    async def _retry(self, portion: Portion, message: ReceivedMessage, index: int, delay_level: int) -> None:
        """Send a message back that was not consumed, or let the listener have it again later."""
        if portion.owner.dropped:
            return
        if (error := await self._why_not_sent_back(message, delay_level)) is not None:
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
                if (error := await self._why_not_sent_back(message, 0)) is not None:
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

    async def _why_not_sent_back(self, message: ReceivedMessage, delay_level: int) -> Exception | None:
        """Send a message back; returns why it was not accepted, and None if it was. An unexpected error, which would
        end the service, is logged and returned, too."""
        try:
            await self._send_back(message, delay_level)
        except Exception as error:
            if self._net.is_cancelled(error):
                raise
            if not isinstance(error, MQError):
                log.exception("unexpected error in sending %s back", message.msg_id)
            return error
        return None

    async def _again(self, portion: Portion, index: int, message: ReceivedMessage) -> None:
        owner, batch = portion.owner, portion.batch
        await self._net.sleep(self._local_retry_s)
        if not owner.dropped and not self.is_over:
            batch.messages[index] = attrs.evolve(message, reconsume_times=message.reconsume_times + 1)
            with self._gate:
                self._waiting.append(Portion(owner, batch, index, index + 1))
            self._start_some()
