"""Long polling: pulls that found nothing are held until a matching message arrives or they time out.

Each pull waits at an offset of one queue. A new message wakes the pulls of its queue; a pull that finds only messages
it does not want keeps waiting behind them. Many pulls that wake or time out together are checked in batches, one per
reactor turn, in order of arrival and round robin over the queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import LogLevel

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.remoting.handlers import IConnection
from mqbroker.remoting.limits import Shares
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.repeated_call import RepeatedCall

#: The interval at which timed out pulls are looked for.
SWEEP_SECONDS = 0.5
#: The total weight of the held pulls of one connection, at most.
HELD_ON_CONNECTION_MAX = 10_000
#: Bytes of a pull's subscription that add as much weight as a pull without one.
BYTES_PER_WEIGHT = 64
#: A turn ends after this many checks, some 30 us each, or this many seconds.
CHECKS_MAX = 64
TURN_S = 0.01

_Key = tuple[str, int]


@attrs.define(eq=False)
class HeldPull:
    """One waiting pull. `check(held, last)` answers it and returns True, or advances `offset` and returns False.

    `last` is True when the pull has timed out and must be answered. `weight` is 1 if it keeps no more than usual.
    """

    connection: IConnection
    topic: str
    queue_id: int
    offset: int
    deadline: float
    check: Callable[[HeldPull, bool], bool]
    weight: int = 1


@attrs.define
class _Woken:
    """Pulls of one queue to be checked, each with its `last` flag. The queue ends at `next_offset`."""

    next_offset: int = 0
    pulls: deque[tuple[HeldPull, bool]] = attrs.field(factory=deque)


class HeldPulls:
    """All waiting pulls, by queue.

    Their total weight is at most heldPullsMax; pulls already held keep waiting. Addresses and connections are limited
    to a share that leaves room for others.
    """

    def __init__(self, clock: IReactorTime, live: LiveSettings, on_hold: Callable[[], None] = lambda: None) -> None:
        """`on_hold`: called when a pull begins to wait."""
        self._clock = clock
        self._on_hold = on_hold
        self._live = live
        self._refusal_log = RateLimitedLog("pulls not held", clock.seconds, 1)
        self._held: dict[_Key, list[HeldPull]] = {}
        self._woken: dict[_Key, _Woken] = {}
        #: By topic and queue id, the pulls that wait.
        self.waiting = self._held, self._woken
        self._call: IDelayedCall | None = None
        self._shares = Shares()
        self._sweep = RepeatedCall(self.sweep, clock=clock)

    def start(self) -> None:
        self._sweep.start(SWEEP_SECONDS, now=False)

    def stop(self) -> None:
        """Answer all held pulls."""
        if self._sweep.running:
            self._sweep.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for woken in self._woken.values():
            for held, _ in woken.pulls:
                self._finish(held, True)
        self._woken.clear()
        for key in list(self._held):
            for held in self._held.pop(key):
                self._finish(held, True)

    def __len__(self) -> int:
        woken = sum(len(each.pulls) for each in self._woken.values())
        return woken + sum(map(len, self._held.values()))

    def hold(self, held: HeldPull) -> bool:
        """Hold a pull; False, with a log line, if too many are held already."""
        if self._shares.of(held.connection) + held.weight > HELD_ON_CONNECTION_MAX:
            line = "{n} pulls of {peer} wait: no more of its are held"
            self._refusal_log.say(LogLevel.warn, line, n=HELD_ON_CONNECTION_MAX, peer=held.connection.remote_addr)
            return False
        held_max = self._live.current.held_pulls_max
        if not self._shares.acquire(held.connection, held.weight, held_max):
            line = "{n} pulls wait, with heldPullsMax={max}: {peer} has reached its share and is answered at once"
            self._refusal_log.say(
                LogLevel.warn, line, n=self._shares.taken, max=held_max, peer=held.connection.remote_addr
            )
            return False
        self._held.setdefault((held.topic, held.queue_id), []).append(held)
        self._on_hold()
        return True

    def arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Wake the pulls of a queue whose messages now end at `next_offset`."""
        key = topic, queue_id
        waiting = self._held.pop(key, None)
        if waiting is None:
            return
        if len(waiting) <= CHECKS_MAX and key not in self._woken:
            staying = [held for held in waiting if held.offset >= next_offset or not self._finish(held, False)]
            if staying:
                self._held.setdefault(key, []).extend(staying)
            return
        self._enqueue(key, waiting, last=False).next_offset = next_offset
        self._go_on()

    def sweep(self) -> None:
        """Answer the pulls that timed out, and drop those whose connection closed."""
        now = self._clock.seconds()
        for key, waiting in list(self._held.items()):
            over = [held for held in waiting if held.deadline <= now or held.connection.closed]
            if over:
                staying = [held for held in waiting if not (held.deadline <= now or held.connection.closed)]
                if staying:
                    self._held[key] = staying
                else:
                    del self._held[key]
                self._enqueue(key, over, last=True)
        self._go_on()
        self._refusal_log.look()

    def _enqueue(self, key: _Key, waiting: list[HeldPull], *, last: bool) -> _Woken:
        woken = self._woken.setdefault(key, _Woken())
        woken.pulls.extend((held, last) for held in waiting)
        return woken

    def _go_on(self) -> None:
        if self._woken and self._call is None:
            self._turn()

    def _turn(self) -> None:
        self._call = None
        end = self._clock.seconds() + TURN_S
        for _ in range(CHECKS_MAX):
            key = next(iter(self._woken), None)
            if key is None:
                return
            woken = self._woken.pop(key)
            held, last = woken.pulls.popleft()
            if woken.pulls:
                self._woken[key] = woken  # behind the other queues
            if (held.offset >= woken.next_offset and not last) or not self._finish(held, last):
                self._held.setdefault(key, []).append(held)
            if self._clock.seconds() >= end:
                break
        if self._woken:
            self._call = self._clock.callLater(0, self._turn)

    def _finish(self, held: HeldPull, last: bool) -> bool:
        """Check a pull again unless its connection is closed; True if it no longer waits."""
        if not held.connection.closed and not held.check(held, last):
            return False
        self._shares.give_back(held.connection, held.weight)
        return True
