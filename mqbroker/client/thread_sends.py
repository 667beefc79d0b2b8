"""Sends of the blocking API: handed to the event loop, where a plain one needs no task. Asynchronous and oneway sends
are bounded."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, cast

from mqbroker.client.attempts import FirstAttempt
from mqbroker.client.direct_sends import DirectSends
from mqbroker.client.errors import ClientClosed
from mqbroker.client.faces import core
from mqbroker.client.loop_thread import follow, wait_for
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.options import ProducerOptions
from mqbroker.client.producer import ProducerCore
from mqbroker.client.thread_clients import parts

P = ParamSpec("P")

#: A method of the core that sends one message.
SendMethod = Callable[Concatenate[ProducerCore, P], Coroutine[Any, Any, SendResult]]


#: Asynchronous and oneway sends of a client.
_under_way: Callable[[Any], UnderWay] = attrgetter("_under_way")


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
                return thread.run(producer.send_after(cast(Message, args[0]), outcome))
        future: Future[SendResult] = Future()
        thread.call(functools.partial(_send, under_way, core(made), future, args, kwargs), future)
        result = wait_for(future)
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
        thread, made = parts(client)
        size = _size(args[0] if args else kwargs.get("message"))
        under_way = _under_way(client)
        under_way.enter(size, may_wait=not thread.is_current)
        future: Future[SendResult] = Future()
        future.add_done_callback(functools.partial(under_way.leave, size))
        try:
            thread.call(functools.partial(_send, under_way, core(made), future, args, kwargs), future)
        except ClientClosed:
            future.cancel()  # which gives its room back
            raise
        return future

    calling.__name__, calling.__doc__ = f"{method.__name__}_async", doc
    return calling


def _send(
    under_way: UnderWay,
    producer: ProducerCore,
    future: Future[SendResult],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Begin a send on the loop's thread; a plain one needs no task."""
    try:
        is_plain = len(args) == 1 and not (kwargs and any(value is not None for value in kwargs.values()))
        if not is_plain or producer.take_plain(args[0], _Waiter(under_way, producer, future, args[0])) is None:
            follow(asyncio.ensure_future(producer.send(*args, **kwargs)), future)
    except TypeError as error:  # of the arguments
        future.set_exception(error)


class _Waiter:
    """Completes the future of a thread with the outcome of a plain send, at little cost."""

    __slots__ = ("_future", "_message", "_producer", "_under_way")

    def __init__(self, under_way: UnderWay, producer: ProducerCore, future: Future[SendResult], message: Any) -> None:
        self._under_way, self._producer, self._future, self._message = under_way, producer, future, message

    def done(self) -> bool:
        """Whether it was cancelled."""
        return self._future.cancelled()

    def set_result(self, outcome: Any) -> None:
        self._under_way.ended(self, outcome)

    def tell(self, outcome: Any) -> None:
        if isinstance(outcome, SendResult):
            with suppress(InvalidStateError):  # it was cancelled meanwhile
                self._future.set_result(outcome)
        else:
            follow(asyncio.ensure_future(self._producer.send_otherwise(self._message, outcome)), self._future)


class UnderWay:
    """The `send_async` sends of a producer that have no result yet, by number and bytes: threads wait for room."""

    def __init__(self, options: ProducerOptions, direct: DirectSends | None = None) -> None:
        self._direct = direct
        #: Whether an asynchronous send may be in flight on the loop's connection: the next send must follow it there.
        self.has_unordered = False
        self._count_max = options.sends_in_flight_max
        self._bytes_max = options.sends_in_flight_bytes_max
        #: Those that wait are woken when a quarter is free: for one at a time, each would cost two switches of threads.
        self._count_low, self._bytes_low = self._count_max * 3 // 4, self._bytes_max * 3 // 4
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._count = self._bytes = 0
        self._ended: list[tuple[_Waiter, Any]] = []

    def send_directly(self, message: object) -> SendResult | FirstAttempt | None:
        """As `DirectSends.send`; None also where it would overtake others."""
        if self._direct is None or self._count or self.has_unordered or not isinstance(message, Message):
            return None
        return self._direct.send(message)

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()

    def enter(self, size: int, *, may_wait: bool) -> None:
        with self._lock:
            if may_wait and self._count and not self._has_room(size):
                self._wait(lambda: not self._count or self._has_room(size))
            self._count += 1
            self._bytes += size

    def leave(self, size: int, _: object) -> None:
        with self._lock:
            self._count -= 1
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

    def ended(self, waiter: _Waiter, outcome: Any) -> None:
        """A plain send has ended. The callback runs in the loop's next iteration, so that it cannot run between the
        ends of other sends."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.append((waiter, outcome))

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        for waiter, outcome in ended:
            waiter.tell(outcome)

    def _has_room(self, size: int) -> bool:
        return self._count < self._count_max and self._bytes + size <= self._bytes_max


def _size(message: object) -> int:
    return len(message.body) if isinstance(message, Message) else 0
