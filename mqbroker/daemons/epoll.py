"""Twisted's epoll reactor with shorter turns, busy polling and a clock never set back. Only where there is epoll.

Twisted enters a logging context for every readable socket, for old-style log calls; nothing uses it here. And most
turns of a broker have no timed call to run. Measured on two cores a broker answers 7 to 20 % more sends without that
context if few are in flight on a connection. If thousands of connections end at once, their protocols are notified over
several turns.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from os import sched_yield
from select import EPOLLIN
from typing import Any

from twisted.internet import tcp
from twisted.internet.epollreactor import EPollReactor
from twisted.logger import Logger

from mqbroker.kernel import OffsetClock, compiled

#: After the system's clock was set back, time runs slower by this factor until the clock has caught up.
SLOWED_BY = 0.02
#: How often the system's clock is read, seconds: the reactor reads the time several times in each iteration.
LOOK_SECONDS = 0.01


class MonotonicTime(OffsetClock):
    """The time of day for timers, which may slow down but is strictly monotonic; calling it returns seconds since 1970.

    Twisted's reactor uses the system's clock. If that is set back, every timer waits longer by as much, including the
    flush that bounds the loss of a power cut.

    :param wall: the system's clock, seconds since 1970, which may jump.
    :param monotonic: seconds of a monotonic clock.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self.monotonic = monotonic
        self._last = self.fresh_until = monotonic()
        self.ahead = wall() - self._last

    def look(self, now: float) -> None:
        """Read the system's clock."""
        ahead = self._wall() - now
        if ahead < self.ahead:
            ahead = max(ahead, self.ahead - SLOWED_BY * (now - self._last))
        self.ahead = ahead
        self._last = now
        self.fresh_until = now + LOOK_SECONDS


#: If the last wait was shorter than this, the next one polls for as long: the time that clients not written in C take
#: to read a response and to send again. They get 1.2 to 1.6 times the throughput of 50 us.
SOON_SECONDS = 120e-6
#: After a wait as long as this one, so many short waits are no reason to poll: what comes in bursts, as a master's log
#: does, ends each of them with a poll in vain, which takes a slave a fifth of its time.
PAUSE_SECONDS = 1e-3
BURST_WAITS = 8

#: (file descriptor, events) pairs.
Ready = list[tuple[int, int]]
#: Function of the seconds to wait (-1: for ever) and a maximum count.
Poll = Callable[[float, int], Ready]
#: Function of the monotonic time at which to give up, and a maximum count.
PollUntil = Callable[[float, int], Ready]


def poll_repeatedly(
    poll: Poll,
    now: Callable[[], float],
    until: float,
    most: int,
    *,
    let_others: Callable[[], None] = sched_yield,
) -> Ready:
    """Poll until something is ready, at most until `now` is `until`, and yield the processor meanwhile."""
    ready: Ready = []
    while not ready and now() < until:
        let_others()
        ready = poll(0, most)
    return ready


class BusyPoll:
    """Busy polls for a while if the last wait was short, or if something is expected, before it sleeps.

    A wake-up takes 10 to 30 us on a machine of two cores, as long as the answer to a pull: measured there, 1.3 times as
    many requests are answered on one connection, 1.2 times as many on four, and no fewer on sixteen; and 1.3 times as
    many that each wait for a fast disk.

    Between two polls the processor is yielded: the kernel's disk work runs on the processor that requested it.

    :param now: seconds of a clock that is never set.
    :param is_alone: there is only one processor, so that peers cannot run while this process polls.
    """

    def __init__(self, poll: Poll, poll_until: PollUntil, now: Callable[[], float], *, is_alone: bool) -> None:
        self._poll, self._poll_until, self._now = poll, poll_until, now
        self._is_alone = is_alone
        #: Waits in a row that were short, less those that count for nothing after a pause.
        self._short_waits = 0
        self._expected_until = 0.0

    def expect(self, seconds: float) -> None:
        """Poll for an event that is expected within `seconds`."""
        self._expected_until = self._now() + seconds

    def wait(self, timeout: float | None, most: int) -> Ready:
        """Wait for events for `timeout` seconds, for ever if None. Raises what the poll does."""
        ready = self._poll(0, most)
        if ready or timeout == 0:  # there was no wait, which says nothing about the rate of requests
            return ready
        began = self._now()
        until = began + SOON_SECONDS if self._short_waits > 0 else began
        until = max(until, self._expected_until)
        if until > began and not self._is_alone:
            ready = self._poll_until(until, most)
            if ready:
                return ready
        ready = self._poll(-1 if timeout is None else timeout, most)
        waited = self._now() - began
        if waited < SOON_SECONDS:
            self._short_waits += 1
        else:
            self._short_waits = 0 if waited < PAUSE_SECONDS else -BURST_WAITS
        return ready


log = Logger()

#: Connections whose end is handled in one turn. Each takes up to 0.1 ms: resources are released, groups lose a member.
ENDS_MAX = 32

#: Events of one turn: epoll has the others first in the next one.
READY_MAX = 1024

_NEVER = float("inf")


class BusyPollReactor(EPollReactor):
    """Twisted's epoll reactor with busy polling, MonotonicTime and bounded turns.

    Those that are ready to be read in one turn and have the same `shared_reads` are read by one call of its `read`; the
    compiled module finds them.
    """

    hands_over_reads = True

    _poller: Any
    _selectables: dict[int, Any]
    #: Time of the last poll with several events: those handled later in the turn have waited since.
    turn_began = _NEVER

    seconds = MonotonicTime(time.time, time.monotonic)

    def __init__(self) -> None:
        self._ends = 0
        #: Ended connections whose protocols were not notified yet: the reason, and whether a read found it.
        self._ending: dict[tcp.Connection, tuple[Any, ...]] = {}
        super().__init__()  # type: ignore[no-untyped-call]
        poll: Poll = self._poller.poll
        if compiled is None:
            poll_until: PollUntil = partial(poll_repeatedly, poll, time.monotonic)
        else:
            poll_until = partial(compiled.poll_until, self._poller.fileno())
        busy_poll = BusyPoll(poll, poll_until, time.monotonic, is_alone=len(os.sched_getaffinity(0)) == 1)
        self._wait = busy_poll.wait
        #: Called with the time within which something is expected to be ready.
        self.expect = busy_poll.expect

    def sigInt(self, number: int, frame: Any = None) -> None:  # noqa: N802
        """Stop. A second signal while stopping is ignored; in Twisted it is an error."""
        self._exitSignal = number
        # Not here: the signal may have come while a line is being written.
        self.callFromThread(self._stop_once, number)

    sigTerm = sigInt  # noqa: N815

    def _stop_once(self, number: int) -> None:
        log.info("received {name}, shutting down", name=signal.Signals(number).name)
        if not self._stopped:
            self.stop()

    def mainLoop(self) -> None:  # noqa: N802
        while self._started:
            try:
                self.runUntilCurrent()
                self.doPoll(self.timeout() if self.running else 0)
                while not (self.threadCallQueue or self._justStopped):
                    timeout = self.timeout()
                    if timeout == 0 or not self.running:
                        break
                    self.doPoll(timeout)
            except BaseException:
                log.failure("unexpected error in the main loop")

    def timeout(self) -> float | None:
        """Seconds until the next timed call, None if there is none: in most turns with fewer calls than the base's."""
        if self._pendingTimedCalls and not self._newTimedCalls:
            delay = self._pendingTimedCalls[0].time - self.seconds()
            if delay > 0:
                return delay
        return super().timeout()

    def doPoll(self, timeout: float | None) -> None:  # noqa: N802
        self._ends = 0
        if self._ending:
            timeout = 0
            self._end_some()
        try:
            ready = self._wait(timeout, min(READY_MAX, len(self._selectables)))
        except InterruptedError:
            return
        self.turn_began = self.seconds() if len(ready) > 1 else _NEVER
        selectables = self._selectables
        if compiled is not None:
            together, ready = compiled.share_reads(ready, selectables)
            for reads, sockets in together.items():
                reads.read(sockets)
        for fd, event in ready:
            selectable = selectables.get(fd)  # an earlier event may have closed it
            if selectable is None:
                continue
            if event != EPOLLIN:
                self._doReadOrWrite(selectable, fd, event)  # type: ignore[no-untyped-call]
                continue
            try:
                why = selectable.doRead()
            except BaseException as error:
                log.failure("unexpected error of a connection, which is closed")
                why = error
            if why:
                self._disconnectSelectable(selectable, why, True)

    doIteration = doPoll  # noqa: N815

    def _disconnectSelectable(self, selectable: Any, *why: Any) -> None:  # noqa: N802
        """Notify a connection of its end; in a later turn, if enough were notified in this one."""
        if not isinstance(selectable, tcp.Connection):
            super()._disconnectSelectable(selectable, *why)  # type: ignore[no-untyped-call]
        elif self._ends < ENDS_MAX and selectable not in self._ending:
            self._ends += 1
            super()._disconnectSelectable(selectable, *why)  # type: ignore[no-untyped-call]
        else:
            selectable.stopReading()  # type: ignore[no-untyped-call]
            selectable.stopWriting()  # type: ignore[no-untyped-call]
            self._ending.setdefault(selectable, why)

    def _end_some(self) -> None:
        for selectable in list(islice(self._ending, ENDS_MAX)):
            why = self._ending.pop(selectable)
            # One that was aborted meanwhile is notified by a call of its own.
            if not selectable.disconnected and not selectable._aborting:  # noqa: SLF001
                self._disconnectSelectable(selectable, *why)

    def removeAll(self) -> list[Any]:  # noqa: N802
        ending, self._ending = self._ending, {}
        return [*super().removeAll(), *ending]  # type: ignore[no-untyped-call]
