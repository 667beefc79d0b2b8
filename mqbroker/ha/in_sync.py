"""The in-sync set of a group, kept by its master: the replicas that have all acknowledged messages.

A message is acknowledged when every replica in the set has it and the set has at least minInSyncReplicas members. etcd
stores the set, and any member may be elected, so etcd is updated first: while an update is under way, or its outcome is
unknown, the members before and after it count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.ha.etcd import EtcdError
from mqbroker.ha.master import SlaveConnection, Slaves
from mqbroker.repeated_call import RepeatedCall

log = Logger()

LOOK_SECONDS = 0.25
#: How long a member may have no link before it is removed from the set, seconds.
GONE_SECONDS = 1.0


@attrs.frozen(kw_only=True)
class InSyncSettings:
    """minInSyncReplicas, replicationFactor and haMaxTimeSlaveNotCatchup (seconds)."""

    min_replicas: int
    replicas_max: int
    lag_s: float


class InSyncSet:
    """Keeps the set while this broker is master of an epoch, and confirms what its members have.

    :param steady: seconds of a clock that is never set: that of `slaves`.
    :param me: this broker's id.
    :param members: the members when the epoch began.
    :param confirmed: the commit point then: all members have the log below.
    :param is_master: whether the lease is held: else nothing is confirmed.
    :param propose: writes the set and the commit point to etcd; fires whether they stand there now, and fails where
        that is not known.
    """

    def __init__(
        self,
        slaves: Slaves,
        clock: IReactorTime,
        steady: Callable[[], float],
        settings: InSyncSettings,
        me: int,
        members: frozenset[int],
        confirmed: int,
        is_master: Callable[[], bool],
        propose: Callable[[frozenset[int], int], Awaitable[bool]],
    ) -> None:
        self._slaves, self._steady, self._settings, self._me = slaves, steady, settings, me
        self._is_master, self._propose = is_master, propose
        self.members = members
        #: Members of proposals that etcd may have, or may still get.
        self._possible: frozenset[int] = frozenset()
        #: Replicas that are about to be taken in.
        self._joining: frozenset[int] = frozenset()
        self._acknowledged = dict.fromkeys(members, confirmed)
        #: The replicas that have reported in this epoch: at its beginning they may lack the log's end.
        self._reported: set[int] = set()
        #: When each member was last connected, and the time up to which it has the log.
        self._seen_at = dict.fromkeys(members, steady())
        self._close_at = dict(self._seen_at)
        #: Up to which offset this broker promises that its log survives.
        self.durable: Callable[[], int] = lambda: slaves.log.end
        self._confirmed = self._told = confirmed
        #: Called when `confirmed` has grown, before sends that waited for that are answered.
        self.on_confirmed: list[Callable[[], None]] = []
        #: No member may truncate its log below this offset: messages up to it were acknowledged.
        self.committed = 0
        #: Called with `committed` when it has grown.
        self.on_committed: Callable[[int], None] = lambda committed: None
        self._proposing: Deferred[None] | None = None
        #: How many members follow closely, this broker among them.
        self._following = len(members)
        self._was_master = True
        self._loop = RepeatedCall(self._look, clock=clock)
        slaves.on_acknowledged.append(self._note)

    def start(self) -> None:
        self._loop.start(LOOK_SECONDS, now=False)

    def stop(self) -> None:
        self._loop.stop()
        if self._proposing is not None:
            self._proposing.cancel()

    # --- acknowledgements

    @property
    def confirmed(self) -> int:
        """The commit point: any broker that is elected has the log below it. In a set of one broker, the end of the
        log."""
        self._confirmed = max(self._confirmed, self.reached())
        return self._confirmed

    def is_near(self, end: int) -> bool:
        if self._following < self._settings.min_replicas:  # one may have come back since
            self._following = len(self._kept())
        return min(len(self.members), self._following) >= self._settings.min_replicas

    def reached(self) -> int:
        """Up to where all that count have the log; -1 while nothing may be confirmed."""
        if not self._is_master() or len(self.members) < self._settings.min_replicas:
            return -1
        return self._held

    def why_not_confirmed(self) -> str:
        """Why no message is acknowledged at the moment; empty if they are."""
        least, kept = self._settings.min_replicas, self._kept() & self.members
        if not self._is_master():
            return "its lease in etcd is not certain"
        if min(len(self.members), len(kept)) >= least:
            return ""
        return f"of at least {least} brokers (minInSyncReplicas) only {sorted(kept)} are in sync and follow"

    def confirm(self, begin: int, end: int) -> bool:
        return end <= self.reached()

    @property
    def log_end(self) -> int:
        return self._slaves.log.end

    def why_not_next(self, replica: int) -> str:
        """Why a replica cannot be the next master at this moment; empty if it can."""
        links, others = self._slaves.replicas(), sorted(self.members - {self._me})
        if replica not in self.members:
            return f"broker {replica} is not in sync: wait until `mq ha status` shows it so, or name one of {others}"
        if replica not in links:
            return f"broker {replica} is not connected: start it, or name another one of {others}"
        if not links[replica].is_whole:
            return f"the store of broker {replica} is incomplete: wait until it has all that this broker has"
        if absent := [other for other in others if not self._keeps_up(other, links)]:
            return f"broker {absent[0]} is in sync, and does not follow: wait until it does, or is not in sync any more"
        return ""

    @property
    def _held(self) -> int:
        return min((self._acknowledged.get(replica, 0) for replica in self._others), default=self._slaves.log.end)

    @property
    def _others(self) -> frozenset[int]:
        return (self.members | self._possible | self._joining) - {self._me}

    def _note(self) -> None:
        now = self._steady()
        for replica, link in self._slaves.replicas().items():
            # The replica's log is a part of this one: it was compared by epochs, and cut, before it reported.
            self._acknowledged[replica] = link.link.acknowledged
            self._reported.add(replica)
            self._seen_at[replica] = now
            self._close_at[replica] = max(link.caught_up_at, self._close_at.get(replica, 0.0))
        if self.confirmed > self._told:
            self._told = self._confirmed
            for listener in self.on_confirmed:
                listener()
        if self._confirmed > self.committed:
            self._commit()

    def _commit(self) -> None:
        committed = min(self._held, self.durable(), self._confirmed)
        if committed > self.committed and self._others <= self._reported and self._is_master():
            self.committed = committed
            self.on_committed(committed)

    # --- members of the set

    def stands(self, members: frozenset[int]) -> None:
        """Called with etcd's set whenever its revision has changed: no earlier proposal can take effect any more."""
        if members != self.members:
            log.info("in-sync replicas are {members} now", members=sorted(members))
        self.members, self._possible = members, frozenset()
        self._following = len(self._kept())
        self._slaves.notify()

    def _look(self) -> None:
        self._note()
        is_master = self._is_master()
        if is_master and not self._was_master:  # waiting messages can be confirmed now
            self._slaves.notify()
        self._was_master = is_master
        wanted = self._wanted()
        if is_master and wanted != self.members and self._proposing is None:
            self._possible |= wanted
            self._proposing = Deferred.fromCoroutine(self._change(wanted))
            self._proposing.addBoth(self._changed)  # which may have happened already

    async def _change(self, wanted: frozenset[int]) -> None:
        if await self._propose(wanted, self.committed):
            self.stands(wanted)

    def _changed(self, result: Failure | None) -> None:
        self._proposing = None
        if result is None:
            return
        # The outcome is unknown: those proposed count until etcd says otherwise.
        if result.check(EtcdError, CancelledError):  # type: ignore[no-untyped-call]
            log.debug("the in-sync set may not have changed: {why}", why=result.getErrorMessage())
        else:
            log.failure("the in-sync set may not have changed", result)

    def _wanted(self) -> frozenset[int]:
        """The members that follow closely, and those that caught up, with complete stores; at least as many as must be
        in sync, if the set had that many."""
        links = self._slaves.replicas()
        kept = self._kept()
        self._following = len(kept)
        joining = [replica for replica in sorted(links) if replica not in kept and self._keeps_up(replica, links)]
        # From now on they count, so that what they must have to be taken in grows no more without them.
        self._joining = frozenset(joining[: max(0, self._settings.replicas_max - len(kept))])
        wanted = kept | {new for new in self._joining if self._acknowledged[new] >= self._confirmed}
        # Fewer would acknowledge nothing, and those that are left may all lose what one that went away has: of those
        # the ones remain that have most, with a store that is whole.
        away = sorted(self.members - wanted, key=self._has, reverse=True)
        return frozenset(wanted.union(away[: max(0, self._settings.min_replicas - len(wanted))]))

    def _has(self, replica: int) -> tuple[bool, int, float]:
        link = self._slaves.replicas().get(replica)
        is_whole = link is None or link.is_whole
        return is_whole, self._acknowledged.get(replica, 0), self._seen_at.get(replica, 0.0)

    def _kept(self) -> set[int]:
        links = self._slaves.replicas()
        return {replica for replica in self.members if replica == self._me or self._keeps_up(replica, links)}

    def _keeps_up(self, replica: int, links: dict[int, SlaveConnection]) -> bool:
        now = self._steady()
        if replica in links and not links[replica].is_whole:
            return False
        if replica not in links and now - self._seen_at.get(replica, 0.0) > GONE_SECONDS:
            return False
        return now - self._close_at.get(replica, 0.0) <= self._settings.lag_s
