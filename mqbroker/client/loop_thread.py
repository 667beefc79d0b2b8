"""The thread whose asyncio loop runs the blocking clients: one for each process, while any client there is open."""

from __future__ import annotations

import asyncio
import codecs
import concurrent.futures.thread  # noqa: F401 - see below
import contextlib
import contextvars
import functools
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, TypeVar

from mqbroker.client.errors import ClientClosed, WouldDeadlock

T = TypeVar("T")

# A child forked while a thread imports a module waits for that import forever. So what connections, routes and long
# bodies would import is imported here.
for _codec in ("idna", "utf-16-be"):
    codecs.lookup(_codec)

#: How long the end of a loop waits for coroutines that were cancelled, seconds.
_END_S = 1.0


class Failing(Protocol):
    """What waits for a call, as a future does."""

    def set_exception(self, error: BaseException, /) -> None: ...


class LoopThread:
    """An event loop on a daemon thread. `run` and `submit` may be called by any other thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._gate = threading.Lock()
        self._calls: deque[tuple[Callable[[], object], Failing]] = deque()
        self._is_woken = self._is_over = False
        self._ident: int | None = None
        self._thread = threading.Thread(target=self._main, name="mq-client", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, where nothing may block."""
        return threading.get_ident() == self._ident

    def call(self, call: Callable[[], object], future: Failing) -> None:
        """Call it on the thread; calls that come together cost one wake-up. `future` fails with ClientClosed if the
        loop ends before. Raises ClientClosed."""
        run = contextvars.copy_context().run  # so that observers see the context variables of the caller
        with self._gate:
            if self._is_over:
                raise ClientClosed("this client was closed")
            self._calls.append((functools.partial(run, call), future))
            if not self._is_woken:
                self._is_woken = True
                self.loop.call_soon_threadsafe(self._take_calls)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; cancelling the future cancels the coroutine. Raises ClientClosed."""
        future: Future[T] = Future()
        try:
            self.call(lambda: follow(self.loop.create_task(coroutine), future), future)
        except ClientClosed:
            coroutine.close()
            raise
        return future

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread and wait for its end. Raises what it raises, and ClientClosed."""
        try:
            self.check_may_block()
        except BaseException:
            coroutine.close()
            raise
        return wait_for(self.submit(coroutine))

    def check_may_block(self) -> None:
        """Raises WouldDeadlock on the thread itself."""
        if self.is_current:
            raise WouldDeadlock(
                "a blocking call from a callback of a future, which runs on the clients' own thread, would wait for"
                " itself"
            )

    def stop(self) -> None:
        """End the loop, and wait for the thread's end unless it is the caller's."""
        with self._gate:
            self._is_over = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join()

    def join_if_over(self) -> None:
        """Wait for the thread's end if it was told to end."""
        if self._is_over:
            self._thread.join()

    def forget(self) -> None:
        """In a forked child: give up the parent's connections. They share what the parent's loop polls, so that nothing
        may be closed or unregistered by the loop's own means."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            for key in list(self._selector.get_map().values()):
                os.dup2(nothing, key.fd, inheritable=False)
        finally:
            os.close(nothing)

    def _take_calls(self) -> None:
        self._is_woken = False
        calls = self._calls
        try:
            for _ in range(len(calls)):
                call, _future = calls.popleft()
                call()
        finally:
            if calls:  # one has failed, and the loop reports it; others wait for what follows
                self.loop.call_soon(self._take_calls)

    def _main(self) -> None:
        self._ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._gate:
                self._is_over = True
            while self._calls:
                self._calls.popleft()[1].set_exception(ClientClosed("this client was closed"))
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            self._ident = None  # the system gives it to another thread, which may block


def wait_for(future: Future[T]) -> T:
    """The future's result. An exception of the waiting thread, as by Ctrl-C, cancels what it waits for."""
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
        raise


def follow(task: asyncio.Task[T], future: Future[T]) -> None:
    """Give `future` the outcome of `task`, and cancel that with it."""

    def ended(task: asyncio.Task[T]) -> None:
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            if task.cancelled():
                future.set_exception(ClientClosed("this client was closed"))
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

    def cancelled(future: Future[T]) -> None:
        if future.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    task.add_done_callback(ended)
    future.add_done_callback(cancelled)


class _Shared:
    """The thread of this process, and how many clients hold it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.holders = 0


_shared = _Shared()
#: Threads of parents: what they refer to must not be collected, as that would close descriptors of this process.
_inherited: list[LoopThread] = []


def hold() -> LoopThread:
    """The thread of this process, which runs until it is released as often as it was held."""
    with _shared.lock:
        if _shared.thread is None:
            _shared.thread = LoopThread()
        _shared.holders += 1
        return _shared.thread


def release(thread: LoopThread) -> None:
    """Give a thread back that was held; the last one ends it."""
    with _shared.lock:
        if thread is not _shared.thread:
            return
        _shared.holders -= 1
        if _shared.holders:
            return
        _shared.thread = None
    thread.stop()


def _after_fork() -> None:
    global _shared
    former, _shared = _shared, _Shared()
    if former.thread is not None:
        former.thread.forget()
        _inherited.append(former.thread)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
