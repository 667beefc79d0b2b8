"""Sends of the blocking API: handed to the event loop, where a plain one needs no task. Asynchronous and oneway sends
are bounded."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, cast

from mqbroker.client.attempts import FirstAttempt
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import core
from mqbroker.client.loop_thread import LoopThread, follow, wait_for
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.options import ProducerOptions
from mqbroker.client.producer import ProducerCore
from mqbroker.client.thread_clients import parts

P = ParamSpec("P")

#: A method of the core that sends one message.
SendMethod = Callable[Concatenate[ProducerCore, P], Coroutine[Any, Any, SendResult]]

#: The UnderWay of a client.
_under_way: Callable[[Any], UnderWay] = attrgetter("_under_way")

#: States of the library's futures.
_PENDING, _FINISHED = "PENDING", "FINISHED"


def sending(method: SendMethod[P]) -> Callable[Concatenate[Any, P], SendResult]:
    """Make a producer's method that sends and waits for the result."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> SendResult:
        thread, made = parts(client)
        thread.check_may_block()
        under_way = _under_way(client)
        if not kwargs and len(args) == 1:
            outcome = under_way.send_directly(args[0])
            if isinstance(outcome, SendResult):
                return outcome
            if outcome is not None:
                producer: ProducerCore = core(made)
                return thread.run(producer.sends.send_after(cast(Message, args[0]), outcome))
        send = _Send(under_way, args, kwargs)
        under_way.begin(send, thread)
        result = wait_for(send)
        under_way.has_unordered = False
        return result

    return calling


def sending_oneway(
    method: Callable[Concatenate[ProducerCore, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, P], None]:
    """Make a producer's method that sends without a response."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        thread, made = parts(client)
        _under_way(client).has_unordered = True
        thread.run(method(core(made), *args, **kwargs))

    return calling


def sending_async(method: SendMethod[P], doc: str) -> Callable[Concatenate[Any, P], Future[SendResult]]:
    """Make a producer's method that sends and returns a Future; it waits for room among those under way."""

    @functools.wraps(method)
    def calling(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Future[SendResult]:
        thread, _ = parts(client)
        under_way = _under_way(client)
        send = _Send(under_way, args, kwargs)
        size = _size(args[0] if args else kwargs.get("message"))
        under_way.enter(size, may_wait=not thread.is_current)
        send.size = size
        under_way.begin(send, thread)
        return send

    calling.__name__, calling.__doc__ = f"{method.__name__}_async", doc
    return calling


class _Send(Future[SendResult]):
    """A send's future, and what the loop needs for it.

    The standard library's futures have a condition each, which costs more than the rest: here only if a thread waits.
    """

    def __init__(self, under_way: UnderWay, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # Instead of the base class's, which makes the condition.
        self._state, self._result, self._exception = _PENDING, None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[SendResult]], object]] = []
        self._gate = threading.RLock()
        self._under_way = under_way
        self.args, self.kwargs = args, kwargs
        self.context = contextvars.copy_context()  # so that observers see the context variables of the caller
        #: The room that `send_async` took for it, bytes; None for other sends.
        self.size: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a message to the next queue, in the usual time."""
        is_usual = not self.kwargs or all(value is None for value in self.kwargs.values())
        return is_usual and len(self.args) == 1 and isinstance(self.args[0], Message)

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(name)
        return self.__dict__.setdefault(name, threading.Condition(self._gate))  # the same for all threads

    def _invoke_callbacks(self) -> None:
        if self.size is not None:
            self._under_way.leave(self.size)
        self.tell()

    def tell(self) -> None:
        """Call the callbacks."""
        super()._invoke_callbacks()  # type: ignore[misc]

    def follow(self, task: Coroutine[Any, Any, SendResult]) -> None:
        """Run the coroutine; this future gets its outcome."""
        follow(asyncio.get_running_loop().create_task(task, context=self.context), self)

    def done(self) -> bool:
        return self._state != _PENDING

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        with self._gate:
            if self._state == _PENDING:
                self._done_callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def set_result(self, outcome: Any) -> None:
        """Called on the loop with the outcome of `PlainSends.take`."""
        self._under_way.ended(self, outcome)

    def finish(self, result: SendResult) -> bool:
        """Complete it; returns False if it was done before."""
        with self._gate:
            if self._state != _PENDING:
                return False
            self._result, self._state = result, _FINISHED
            del self.args, self.kwargs, self.context  # programs may keep many futures
            for waiter in self._waiters:
                waiter.add_result(self)
            condition = self.__dict__.setdefault("_condition", _OVER)
            if condition is not _OVER:
                condition.notify_all()
            return True


class _Over:
    """In place of the condition of a future that is done, which does not change any more."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    acquire = release = __enter__


_OVER = _Over()


class UnderWay:
    """Sends of a producer's threads: those that the loop must begin; and the number and bytes of `send_async` ones
    without a result, which are limited: threads wait for room."""

    def __init__(self, options: ProducerOptions, producer: ProducerCore | None = None) -> None:
        self._producer = producer
        self._direct = None if producer is None else producer.sends.direct()
        #: Whether an asynchronous send may be in flight on the loop's connection: the next send must follow it there.
        self.has_unordered = False
        self._count_max = options.sends_in_flight_max
        self._bytes_max = options.sends_in_flight_bytes_max
        #: Waiting threads are woken when a quarter is free: woken one by one, each would cost two thread switches.
        self._count_low, self._bytes_low = self._count_max * 3 // 4, self._bytes_max * 3 // 4
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._count = self._bytes = 0
        #: Sends that the loop has not begun; if there are any, it was woken.
        self._new: list[_Send] = []
        self._ended: list[tuple[_Send, Any]] = []

    def send_directly(self, message: object) -> SendResult | FirstAttempt | None:
        """As `DirectSends.send`; None also if it would overtake others."""
        if self._direct is None or self._count or self.has_unordered or not isinstance(message, Message):
            return None
        return self._direct.send(message)

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()

    # on any thread

    def enter(self, size: int, *, may_wait: bool) -> None:
        with self._lock:
            if may_wait and self._count and not self._has_room(size):
                self._wait(lambda: not self._count or self._has_room(size))
            self._count += 1
            self._bytes += size

    def leave(self, size: int, count: int = 1) -> None:
        """Give back the room of `count` sends, `size` bytes together."""
        with self._lock:
            self._count -= count
            self._bytes -= size
            if self._waiting and self._count <= self._count_low and self._bytes <= self._bytes_low:
                self._changed.notify_all()

    def wait_until_empty(self, seconds: float) -> None:
        with self._lock:
            self._wait(lambda: not self._count, seconds)

    def _wait(self, until: Callable[[], bool], seconds: float | None = None) -> None:
        self._waiting += 1
        try:
            self._changed.wait_for(until, seconds)
        finally:
            self._waiting -= 1

    def _has_room(self, size: int) -> bool:
        return self._count < self._count_max and self._bytes + size <= self._bytes_max

    def begin(self, send: _Send, thread: LoopThread) -> None:
        """Have the loop begin it, after earlier ones. Raises ClientClosed."""
        with self._lock:
            self._new.append(send)
            if len(self._new) > 1:  # the loop was woken
                return
        try:
            thread.call(self._begin_all, self)
        except ClientClosed as error:
            self.set_exception(error)
            raise

    def set_exception(self, error: BaseException) -> None:
        """Called instead of `_begin_all` if the loop has ended."""
        for send in self._taken():
            with suppress(InvalidStateError):  # it was cancelled
                send.set_exception(error)

    def _taken(self) -> list[_Send]:
        with self._lock:
            new, self._new = self._new, []
        return new

    # on the loop

    def _begin_all(self) -> None:
        """Begin the waiting sends. Plain ones need no task, and are taken together."""
        producer = cast(ProducerCore, self._producer)
        for is_plain, group in groupby(self._taken(), _is_plain):
            sends = list(group)
            if is_plain and producer.sends.take_all([send.args[0] for send in sends], sends):
                continue
            for send in sends:
                try:
                    if not is_plain or not producer.sends.take_all([send.args[0]], [send]):
                        send.follow(producer.send(*send.args, **send.kwargs))
                except TypeError as error:  # wrong arguments
                    send.set_exception(error)

    def ended(self, send: _Send, outcome: Any) -> None:
        """A send has ended. Its future is completed in the loop's next iteration, so that no callback runs before the
        other sends of this iteration have ended, too."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.append((send, outcome))

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        producer = cast(ProducerCore, self._producer)
        done = []
        for send, outcome in ended:
            if not isinstance(outcome, SendResult):
                send.follow(producer.sends.go_on(send.args[0], outcome))
            elif send.finish(outcome):
                done.append(send)
        sizes = [send.size for send in done if send.size is not None]
        if sizes:
            self.leave(sum(sizes), len(sizes))
        for send in done:
            send.tell()


_is_plain = attrgetter("is_plain")


def _size(message: object) -> int:
    return len(message.body) if isinstance(message, Message) else 0
