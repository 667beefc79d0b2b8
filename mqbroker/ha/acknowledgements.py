"""SYNC_MASTER: sends wait until slaves have acknowledged their messages: one, as in Java, or as many as
inSyncReplicas says, which counts the master.

Source of the conditions: CommitLog.submitReplicaRequest and HAService.isSlaveOK of 4.9.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mqbroker.errors import MQError
from mqbroker.ha.master import Slaves

#: Clocks round: a timer may fire this much early.
_EARLY_S = 1e-6


class SlaveNotAvailable(MQError):
    """Too few slaves are connected and within haSlaveFallbehindMax."""


class SlaveTimedOut(MQError):
    """Too few slaves acknowledged the messages within syncFlushTimeout."""


class IQuorum(Protocol):
    """Says which slaves must have a message."""

    def is_near(self, end: int) -> bool:
        """Whether enough slaves are there to wait for, to have the log below `end` soon."""

    def reached(self) -> int:
        """Nothing above this offset is confirmed; -1 if nothing is."""

    def confirm(self, begin: int, end: int) -> bool:
        """Whether enough slaves have begin..end of the log."""


@attrs.frozen
class CountQuorum:
    """Any `count` slaves, at most `behind_max` bytes (haSlaveFallbehindMax) behind."""

    _slaves: Slaves
    _behind_max: int
    _count: int = 1

    def is_near(self, end: int) -> bool:
        reached = self.reached()
        return reached >= 0 and end - reached < self._behind_max

    def reached(self) -> int:
        acknowledged = self._slaves.acknowledged(self._count)
        return -1 if acknowledged is None else acknowledged

    def confirm(self, begin: int, end: int) -> bool:
        return self._slaves.confirm(begin, end, self._count)


class ConfirmedEnd:
    """The offset up to which enough slaves have the log. It never decreases, and starts at the log's end, as consumers
    may have read that far before.

    :param on_move: called when `end` has grown.
    """

    def __init__(self, slaves: Slaves, quorum: IQuorum, on_move: Callable[[], None]) -> None:
        self.end = slaves.log.end
        self._quorum, self._on_move = quorum, on_move
        slaves.on_acknowledged.append(self._look)

    def _look(self) -> None:
        reached = self._quorum.reached()
        if reached > self.end:
            self.end = reached
            self._on_move()


class Acknowledgements:
    """Waits for acknowledgements of slaves, for at most `timeout_s` (syncFlushTimeout).

    :param refuses: whether messages are refused for which too few slaves are there.
    """

    def __init__(
        self, slaves: Slaves, quorum: IQuorum, clock: IReactorTime, timeout_s: float, *, refuses: bool = False
    ) -> None:
        self._slaves, self._quorum, self._refuses = slaves, quorum, refuses
        self._clock = clock
        self._timeout_s = timeout_s
        #: (begin, end, deadline, waiter), in order of time, and so of `end`.
        self._waiting: deque[tuple[int, int, float, Deferred[None]]] = deque()
        self._timeout_call: IDelayedCall | None = None
        slaves.on_acknowledged.append(self._acknowledged)

    def replicated(self, begin: int, end: int) -> Deferred[None]:
        """Fires when begin..end of the log was sent to enough slaves, which have acknowledged it.

        A slave that connects with these bytes does not confirm them: it may have others there. Fails with
        SlaveNotAvailable at once, or with SlaveTimedOut.
        """
        if end <= self._quorum.reached() and self._quorum.confirm(begin, end):
            return succeed(None)
        if not self._quorum.is_near(end):
            return fail(SlaveNotAvailable("too few slaves are connected and near the end of the log"))
        waiter: Deferred[None] = Deferred()
        self._waiting.append((begin, end, self._clock.seconds() + self._timeout_s, waiter))
        if self._timeout_call is None:
            self._timeout_call = self._clock.callLater(self._timeout_s, self._give_up)
        return waiter

    @property
    def why_refused(self) -> str:
        """Why a message must not even be appended; empty if it may be. Hot."""
        if not self._refuses or self._quorum.is_near(self._slaves.log.end):
            return ""
        return "too few replicas are in sync to keep the message: it was not stored"

    def stop(self) -> None:
        """Fail all waiters."""
        self._fail(len(self._waiting))
        if self._timeout_call is not None:
            self._timeout_call.cancel()
            self._timeout_call = None

    def _acknowledged(self) -> None:
        reached = self._quorum.reached()
        unconfirmed = []
        while self._waiting and self._waiting[0][1] <= reached:
            waiting = self._waiting.popleft()
            if self._quorum.confirm(waiting[0], waiting[1]):
                waiting[3].callback(None)
            else:
                unconfirmed.append(waiting)
        self._waiting.extendleft(reversed(unconfirmed))

    def _give_up(self) -> None:
        self._timeout_call = None
        now = self._clock.seconds()
        self._fail(sum(deadline <= now + _EARLY_S for _, _, deadline, _ in self._waiting))
        if self._waiting:
            self._timeout_call = self._clock.callLater(self._waiting[0][2] - now, self._give_up)

    def _fail(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft()[3].errback(SlaveTimedOut("too few slaves acknowledged the message in time"))
