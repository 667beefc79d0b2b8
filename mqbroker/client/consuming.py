"""Handing messages to the listener, a bounded number at a time, and dealing with what it says."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import attrs

from mqbroker.client.errors import RetryLater
from mqbroker.client.messages import ConsumeResult, ReceivedMessage
from mqbroker.client.net import LiveNet
from mqbroker.errors import MQError

log = logging.getLogger(__name__)

#: A function or coroutine function; it may also return a Deferred where the face runs on Twisted.
Listener = Callable[[ReceivedMessage], Any]

#: Gives a message back to the broker, to come again after a delay level.
SendBack = Callable[[ReceivedMessage, int], Awaitable[None]]


class Owner(Protocol):
    """Whose message it is: one assigned queue."""

    #: True once the queue belongs to another member: what the listener says no longer counts.
    dropped: bool

    def done(self, message: ReceivedMessage) -> None: ...


class Consuming:
    """Runs `listener` for at most `concurrency` messages at once, in the order they came."""

    def __init__(
        self, net: LiveNet, listener: Listener, send_back: SendBack, *, concurrency: int, local_retry_s: float
    ) -> None:
        self._net = net
        self._listener = listener
        self._send_back = send_back
        self._concurrency = concurrency
        self._local_retry_s = local_retry_s
        self._waiting: deque[tuple[Owner, ReceivedMessage]] = deque()
        self._running = 0
        self._starting = False
        self._closed = False
        self._idle = net.signal()

    def put(self, owner: Owner, messages: Iterable[ReceivedMessage]) -> None:
        """Queue messages for the listener."""
        self._waiting.extend((owner, message) for message in messages)
        self._start_some()

    async def close(self, timeout_s: float) -> bool:
        """Start nothing more; return True when all that runs has ended, False where it has not in time."""
        self._closed = True
        self._waiting.clear()
        return self._running == 0 or await self._idle.wait(timeout_s)

    def _start_some(self) -> None:
        # A listener that never suspends ends inside spawn(), and its end comes back here: let the first call go on.
        if self._starting:
            return
        self._starting = True
        try:
            while self._waiting and self._running < self._concurrency and not self._closed:
                owner, message = self._waiting.popleft()
                if not owner.dropped:
                    self._running += 1
                    self._net.spawn(self._run(owner, message))
        finally:
            self._starting = False

    async def _run(self, owner: Owner, message: ReceivedMessage) -> None:
        try:
            await self._consume(owner, message)
        finally:
            self._running -= 1
            self._start_some()
            if self._closed and self._running == 0:
                self._idle.set()

    async def _consume(self, owner: Owner, message: ReceivedMessage) -> None:
        delay_level = await self._call(message)
        if owner.dropped:
            return
        if delay_level is not None:
            try:
                await self._send_back(message, delay_level)
            except MQError as error:
                log.warning("%s not taken back, trying here in %g s: %s", message.msg_id, self._local_retry_s, error)
                self._net.spawn(self._again(owner, message))
                return
        owner.done(message)

    async def _call(self, message: ReceivedMessage) -> int | None:
        """Return None where the listener is content, else the delay level to send the message back with."""
        try:
            verdict = self._listener(message)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except RetryLater as later:
            return later.delay_level
        except Exception:
            log.exception("the listener failed on message %s of %s", message.msg_id, message.queue)
            return 0
        return 0 if verdict is False or verdict is ConsumeResult.RETRY else None

    async def _again(self, owner: Owner, message: ReceivedMessage) -> None:
        await self._net.sleep(self._local_retry_s)
        if not owner.dropped and not self._closed:
            self.put(owner, [attrs.evolve(message, reconsume_times=message.reconsume_times + 1)])
