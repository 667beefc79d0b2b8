"""SYNC_MASTER: sends wait until slaves have acknowledged their messages: one, as in Java, or as many as
inSyncReplicas says, which counts the master.

Source of the conditions: CommitLog.submitReplicaRequest and HAService.isSlaveOK of 4.9.7.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mqbroker.errors import MQError
from mqbroker.ha.master import Slaves


class SlaveNotAvailable(MQError):
    """Too few slaves are connected and within haSlaveFallbehindMax."""


class SlaveTimedOut(MQError):
    """Too few slaves acknowledged the messages within syncFlushTimeout."""


class Acknowledgements:
    """Waits for acknowledgements of slaves.

    :param timeout_s: syncFlushTimeout.
    :param behind_max: haSlaveFallbehindMax, bytes.
    :param count: how many slaves must have a message.
    """

    def __init__(self, slaves: Slaves, clock: IReactorTime, timeout_s: float, behind_max: int, count: int = 1) -> None:
        self._slaves = slaves
        self._count = count
        self._clock = clock
        self._timeout_s = timeout_s
        self._behind_max = behind_max
        #: (begin, end, deadline, waiter), in order of time, and so of `end`.
        self._waiting: deque[tuple[int, int, float, Deferred[None]]] = deque()
        self._timeout_call: IDelayedCall | None = None
        slaves.on_acknowledged.append(self._acknowledged)

    def replicated(self, begin: int, end: int) -> Deferred[None]:
        """Fires when begin..end of the log was sent to enough slaves, which have acknowledged it.

        A slave that connects with these bytes does not confirm them: it may have others there. Fails with
        SlaveNotAvailable at once, or with SlaveTimedOut.
        """
        if self._slaves.confirm(begin, end, self._count):
            return succeed(None)
        acknowledged = self._slaves.acknowledged(self._count)
        if acknowledged is None or end - acknowledged >= self._behind_max:
            return fail(SlaveNotAvailable("too few slaves are connected and near the end of the log"))
        waiter: Deferred[None] = Deferred()
        self._waiting.append((begin, end, self._clock.seconds() + self._timeout_s, waiter))
        if self._timeout_call is None:
            self._timeout_call = self._clock.callLater(self._timeout_s, self._give_up)
        return waiter

    def stop(self) -> None:
        """Fail all waiters."""
        self._fail(len(self._waiting))
        if self._timeout_call is not None:
            self._timeout_call.cancel()
            self._timeout_call = None

    def _acknowledged(self) -> None:
        acknowledged = self._slaves.acknowledged(self._count)
        unconfirmed = []
        while self._waiting and acknowledged is not None and self._waiting[0][1] <= acknowledged:
            waiting = self._waiting.popleft()
            if self._slaves.confirm(waiting[0], waiting[1], self._count):
                waiting[3].callback(None)
            else:
                unconfirmed.append(waiting)
        self._waiting.extendleft(reversed(unconfirmed))

    def _give_up(self) -> None:
        self._timeout_call = None
        now = self._clock.seconds()
        self._fail(sum(deadline <= now for _, _, deadline, _ in self._waiting))
        if self._waiting:
            self._timeout_call = self._clock.callLater(self._waiting[0][2] - now, self._give_up)

    def _fail(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft()[3].errback(SlaveTimedOut("too few slaves acknowledged the message in time"))
