"""Calls of a listener on threads, for the blocking API.

Threads take messages from a queue, and the event loop handles their results in batches, so that neither waits for the
other at each message.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import attrs

from mqbroker.client.aio_net import AioNet
from mqbroker.client.consume_service import ConsumeService, Listener, ListenerCall, SendBack
from mqbroker.client.errors import NotHandled
from mqbroker.client.loop_thread import wait_for
from mqbroker.client.messages import RawPull, ReceivedMessage
from mqbroker.client.process_queue import Portion
from mqbroker.client.running_info import ConsumerStats, describe_frame
from mqbroker.client.transactions import CHECKS_MAX
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue

log = logging.getLogger(__name__)

#: A call that takes longer than this, seconds, leaves the other messages that wait to further threads.
_SLOW_S = 0.001
#: Delay before another attempt after the system had no thread left, seconds.
_NO_THREAD_S = 1.0


class FunctionEnded(Exception):
    """A user's function raised an exception that would end a thread or the program; here it ends neither."""


@attrs.define(eq=False)
class _Consumed:
    """Messages of a portion that the listener has consumed: a thread adds their indexes, and the loop removes them."""

    portion: Portion
    indexes: list[int] = attrs.Factory(list)
    is_told: bool = False
    #: How long the listener had all of them, and those that the loop has counted, seconds.
    took_s: float = 0.0
    counted_s: float = 0.0


@attrs.frozen(eq=False)
class _Result:
    """The value other than None, or the exception, of a listener's call with messages; `took_s`: its seconds."""

    portion: Portion
    indexes: Sequence[int]
    messages: Sequence[ReceivedMessage]
    value: Any
    error: Exception | None
    was_sent_back: bool
    took_s: float


class _Worker(ListenerCall):
    """The messages that one thread's call has, and since when."""

    since = 0.0


class ThreadConsumeService(ConsumeService):
    """Calls the listener on at most `concurrency` threads, which are made when they are needed."""

    def __init__(
        self, net: AioNet, listener: Listener, send_back: SendBack, stats: ConsumerStats, **options: Any
    ) -> None:
        super().__init__(net, listener, send_back, stats, **options)
        self._aio = net
        self._gate = self._lock = threading.Lock()
        #: Idle threads wait here for work; None ends one.
        self._begin: SimpleQueue[_Worker | None] = SimpleQueue()
        self._idle_threads = self._threads = 0
        #: What threads tell the loop: results; workers that found no more messages; and, if order is kept, portions
        #: that they have finished.
        self._told: deque[_Consumed | _Result | _Worker | Portion] = deque()
        self._is_woken = self._is_looking = False
        #: Whether the last attempt to start a thread failed.
        self._is_short = False
        #: Results that are being handled.
        self._settling: dict[_Result, None] = {}
        #: The numbers of the threads that call the listener.
        self._inside: set[int] = set()

    @property
    def is_calling(self) -> bool:
        return threading.get_ident() in self._inside

    def stop(self) -> None:
        super().stop()
        for _ in range(self._threads):
            self._begin.put(None)

    def still_running(self) -> str:
        frames = sys._current_frames()  # noqa: SLF001 - documented
        places = Counter(
            describe_frame(frames[ident], frames[ident].f_lineno) for ident in list(self._inside) if ident in frames
        )
        found = (place if count == 1 else f"{place} ({count} times)" for place, count in places.items())
        return f"{super().still_running()} at {', '.join(found)}"

    def _start_some(self) -> None:
        if not self._waiting or len(self._runs) >= self._concurrency or self.is_over:
            return
        if self.watch is not None and self.watch.was_away:
            self._net.spawn(self._ensure_member(self.watch), self._start_some)
            return
        if not self._runs:
            self._start_worker()
        if not self._is_looking:
            self._is_looking = True
            self._aio.loop.call_later(_SLOW_S, self._start_more)

    def _start_more(self) -> None:
        """Others take what waits where all threads are with slow calls: with calls that return at once, one thread is
        faster than many."""
        self._is_looking = False
        late = self._net.steady() - _SLOW_S
        if self._waiting and all(isinstance(run, _Worker) and run.since < late for run in self._runs):
            for _ in range(min(max(1, len(self._runs)), self._concurrency - len(self._runs), len(self._waiting) * 32)):
                self._start_worker()
        self._start_some()

    def _start_worker(self) -> None:
        if self._is_short and not self._idle_threads:
            return
        worker = _Worker()
        worker.since = self._net.steady()
        self._runs[worker] = None
        if self._idle_threads:
            self._idle_threads -= 1
        else:
            name = f"mq-listen_{self._threads}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError as error:
                del self._runs[worker]
                if "interpreter shutdown" in str(error):
                    log.debug("no thread for the listener: %s", error)
                    self._halt()
                else:
                    log.warning("no thread for the listener (trying again in %g s): %s", _NO_THREAD_S, error)
                    self._is_short = True
                    self._aio.loop.call_later(_NO_THREAD_S, self._try_again)
                return
            self._threads += 1
        self._begin.put(worker)

    def _try_again(self) -> None:
        self._is_short = False
        self._start_some()

    # on threads

    def _work(self) -> None:
        me = threading.get_ident()
        while (worker := self._begin.get()) is not None:
            self._inside.add(me)
            try:
                self._consume(worker)
            except Exception:  # the thread continues with the others
                log.exception("unexpected error in a thread of the listener")
            finally:
                self._inside.discard(me)
            self._tell(worker)

    def _consume(self, worker: _Worker) -> None:
        """Call the listener as long as any message waits."""
        waiting, watch = self._waiting, self.watch
        worker.since = self._net.steady()
        while watch is None or not watch.was_away:
            with self._lock:
                if not waiting:
                    return
                portion = self._take()
            is_done = self._consume_portion(worker, portion)
            worker.message = None
            if self._order is not None and is_done:
                self._tell(portion)
            elif self._waiting_for:
                self._wake()

    def _consume_portion(self, worker: _Worker, portion: Portion) -> bool:
        """Call the listener for the messages of a portion that no other thread takes. If order is kept, returns False
        if the loop gives the portion back after it has handled the result."""
        order, count, steady, watch = self._order, self._batch_max, self._net.steady, self.watch
        consumed = _Consumed(portion)
        worker.portion = portion
        while not self.is_over and (order is None or order.may_hand_out(portion)):
            if watch is not None and worker.since > watch.away_at:
                break
            with self._lock:
                indexes, messages = portion.take(count or 1)
                if portion.next >= portion.end and order is None:
                    self._put_back(portion)
                if not messages:
                    break
                # If the queue is given up meanwhile, this call is waited for.
                worker.message, worker.others, worker.looks = messages[0], messages[1:], 0
            if portion.owner.dropped:
                continue
            value, error = _called(self._listener, messages[0] if count is None else messages)
            ended = steady()
            took_s, worker.since = ended - worker.since, ended
            if value is None and error is None:
                consumed.indexes += indexes
                consumed.took_s += took_s
                if not consumed.is_told:
                    consumed.is_told = True
                    self._tell(consumed)
                continue
            self._tell(_Result(portion, indexes, messages, value, error, worker.is_sent_back, took_s))
            if order is not None:
                return False
        return True

    def _tell(self, result: _Consumed | _Result | _Worker | Portion) -> None:
        self._told.append(result)
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended
                self._aio.loop.call_soon_threadsafe(self._take_results)

    # on the loop

    def _take_results(self) -> None:
        self._is_woken = False
        results = self._told
        for _ in range(len(results)):
            result = results.popleft()
            if isinstance(result, _Consumed):
                self._count_consumed(result)
            elif isinstance(result, _Worker):
                del self._runs[result]
                self._idle_threads += 1
            elif isinstance(result, Portion):
                self._put_back(result)
            else:
                self._settling[result] = None
                self._net.spawn(self._settle(result), partial(self._settled, result))
        self._tell_ended()
        self._start_some()
        self._tell_idle()

    def _count_consumed(self, result: _Consumed) -> None:
        result.is_told = False  # before the indexes are read: for later ones the loop is told again
        count, took_s = len(result.indexes), result.took_s
        indexes, portion = result.indexes[:count], result.portion
        del result.indexes[:count]
        if self._order is None:
            portion.batch.remove(indexes, self._net.now())
        else:
            self._order.consumed(portion, indexes, None)
        self._count(portion.owner, took_s - result.counted_s, count, 0)
        result.counted_s = took_s

    def _is_with_listener(self, queue: MessageQueue) -> bool:
        told = tuple(self._told)  # which threads append to
        return super()._is_with_listener(queue) or any(
            isinstance(each, (_Consumed, _Result)) and each.portion.owner.queue == queue
            for each in (*told, *self._settling)
        )

    @property
    def _is_idle(self) -> bool:
        return super()._is_idle and not self._settling

    def _settled(self, result: _Result) -> None:
        del self._settling[result]
        self._tell_ended()
        self._tell_idle()

    async def _settle(self, result: _Result) -> None:
        """Act on something else than None."""
        portion, messages = result.portion, result.messages
        try:
            verdict = self._results.judge(result.value, result.error, messages)
        except NotHandled as why:
            log.debug("a message is left to others: %s", why)
            self._halt()
            return
        self._count(portion.owner, result.took_s, verdict.taken, len(messages) - verdict.taken)
        await self._act(portion, result.indexes, messages, verdict, result.was_sent_back)
        if self._order is not None:
            self._put_back(portion)

    async def _call_directly(self, message: ReceivedMessage) -> Any:
        def call(given: Any) -> Any:
            self._inside.add(threading.get_ident())
            try:
                return self._listener(given)
            finally:
                self._inside.discard(threading.get_ident())

        given = message if self._batch_max is None else [message]
        _, outcome = _on_thread("mq-listen-direct", call, given)
        return await asyncio.wrap_future(outcome)


class CheckThreads:
    """Calls a function with messages on daemon threads, of which some may never end."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    async def call(self, function: Callable[[ReceivedMessage], Any], message: ReceivedMessage) -> Any:
        """Call the function on a thread; returns its result. Raises its exceptions, and MQError if too many calls have
        not ended."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= CHECKS_MAX:
            raise MQError(f"{CHECKS_MAX} calls of the function have not returned")
        thread, outcome = _on_thread("mq-check", function, message)
        self._threads.append(thread)
        return await asyncio.wrap_future(outcome)


def _called(function: Callable[[Any], Any], given: Any) -> tuple[Any, Exception | None]:
    """What a user's function returns, or the exception that it raises."""
    try:
        return function(given), None
    except Exception as error:
        return None, error
    except BaseException as error:
        ended = FunctionEnded(f"the user's function raised {type(error).__name__}")
        ended.__cause__ = error
        return None, ended


def _on_thread(name: str, function: Callable[[Any], Any], given: Any) -> tuple[threading.Thread, Future[Any]]:
    """Call a user's function on a daemon thread of its own."""
    outcome: Future[Any] = Future()

    def run() -> None:
        value, error = _called(function, given)
        with suppress(InvalidStateError):  # the waiter is gone
            if error is None:
                outcome.set_result(value)
            else:
                outcome.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, outcome


class PullsInFlight:
    """Pulls in flight: call `finish`, or `abandon` if you do not need the responses."""

    def __init__(self, pulls: Future[list[RawPull | MQError]]) -> None:
        self._pulls = pulls

    def finish(self) -> list[RawPull | MQError]:
        """Return the responses, or the error in place of one; waits up to `pull_timeout_s` after the pulls were
        sent."""
        return wait_for(self._pulls)

    def abandon(self) -> None:
        """Ignore the responses."""
        self._pulls.cancel()
