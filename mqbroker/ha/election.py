"""Elections in a group of brokers of one name: who is its master, in which epoch, and which replicas are in sync
stand in etcd.

    /mqbroker/CLUSTER/NAME/state         epoch, master, its lease, in-sync replicas; changed by compare-and-swap only
    /mqbroker/CLUSTER/NAME/members/ID    the addresses of a broker that runs; goes with its lease

A master is one as long as its member's key has the lease that the state names. When that has expired, a replica of the
in-sync set writes the next epoch, with itself as master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

import attrs
import orjson
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.errors import MQError
from mqbroker.ha.etcd import Compare, EtcdError, IEtcd, KeyValue, Put, Snapshot
from mqbroker.remoting.repeated_call import RepeatedCall

log = Logger()

LOOK_SECONDS = 1.0
#: The same after etcd has not answered.
RETRY_SECONDS = 0.25
#: The most that it looks at etcd, however often it is woken.
LOOKS_PER_SECOND = 10
#: Delay of a watch after one has ended.
WATCH_AGAIN_SECONDS = 1.0
#: A lease is renewed this many times in its time to live.
RENEWALS = 5
#: A lease counts for this part of its time to live: clocks that are set right by slewing run up to 8.3 % too fast or
#: too slow (chrony's maxslewrate), and etcd's may be another than ours.
LEASE_PART = 0.9
#: More of a lease than this counts for nothing.
TTL_MAX_SECONDS = 60
#: Leases are asked for at most once in so many seconds, as when each has expired at once.
GRANT_SECONDS = 0.5
#: How long a group is without a master before uncleanElectionEnable lets another replica than those in sync be one.
UNCLEAN_SECONDS = 10.0
NUMBER_MAX = 2**63 - 1
REPLICAS_MAX = 64


class GroupError(MQError):
    """This broker cannot take part in its group; the text says why and what to do."""


@attrs.frozen
class GroupState:
    """What the group has agreed on."""

    cluster: str
    broker: str
    epoch: int
    master: int
    lease: int
    in_sync: frozenset[int]

    def to_json(self) -> bytes:
        return orjson.dumps({**attrs.asdict(self), "in_sync": sorted(self.in_sync)})

    @classmethod
    def from_json(cls, data: bytes) -> GroupState:
        """Raises GroupError."""
        row = _object(data)
        epoch, master, lease = row.get("epoch"), row.get("master"), row.get("lease")
        in_sync = row.get("in_sync")
        is_good = isinstance(in_sync, list) and 0 < len(in_sync) <= REPLICAS_MAX
        if not is_good or not all(map(_is_number, [epoch, master, lease, *(in_sync or ())])):
            raise GroupError("an epoch, id or lease is missing, or is no whole number above 0")
        names = str(row.get("cluster")), str(row.get("broker"))
        return cls(*names, cast(int, epoch), cast(int, master), cast(int, lease), frozenset(in_sync or ()))


@attrs.frozen(order=True)
class Remainder:
    """What a power cut has left of a log. `of`: the newest epoch of the group when this was written, which had no
    master any more: nothing is added. `epoch` and `end`: in which epoch the log was written last, and where it ends."""

    of: int
    epoch: int
    end: int


@attrs.frozen
class Member:
    """A broker of the group that runs. `ha_address`: where it serves replicas when it is master. `remainder`: of a log
    that may lack what this broker has acknowledged; None if it is whole, or there is a master."""

    replica_id: int
    address: str
    ha_address: str
    remainder: Remainder | None = None

    def to_json(self) -> bytes:
        row = attrs.asdict(self)
        if self.remainder is None:
            del row["remainder"]
        return orjson.dumps(row)

    @classmethod
    def from_json(cls, data: bytes) -> Member:
        """Raises GroupError."""
        row = _object(data)
        replica_id, address, ha_address = row.get("replica_id"), row.get("address"), row.get("ha_address")
        if not (_is_number(replica_id) and isinstance(address, str) and isinstance(ha_address, str)):
            raise GroupError("an id or address is missing")
        remainder = row.get("remainder")
        if remainder is not None:
            names, values = ("of", "epoch", "end"), list[Any]()
            if isinstance(remainder, dict):
                values = [remainder.get(name) for name in names]
            if not values or not all(type(value) is int and 0 <= value <= NUMBER_MAX for value in values):
                raise GroupError("what is left of its log is not said in whole numbers")
            remainder = Remainder(*values)
        return cls(cast(int, replica_id), address, ha_address, remainder)


@attrs.frozen
class Role:
    """What this broker is to be. `epoch` 0: it is not known yet. `lease`: with which its master was elected. `master`:
    whom to follow; None if there is nobody, or it is this broker. `in_sync`: the replicas in sync as etcd has them."""

    epoch: int = 0
    lease: int = 0
    is_master: bool = False
    master: Member | None = None
    in_sync: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True)
class GroupSettings:
    """`replica_id`: the broker's id in its group. `ttl_s`: time to live of its lease, seconds. `min_in_sync`:
    minInSyncReplicas."""

    cluster: str
    broker: str
    replica_id: int
    ttl_s: int
    min_in_sync: int = 1
    is_unclean_allowed: bool = False

    @property
    def prefix(self) -> str:
        return f"/mqbroker/{quote(self.cluster, safe='')}/{quote(self.broker, safe='')}/"


class GroupMember(Service):
    """One broker's part in its group, all the time that it runs.

    :param steady: seconds of a clock that is never set, and goes on while the machine is suspended.
    :param on_role: called with the role whenever it changes.
    """

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        steady: Callable[[], float],
        settings: GroupSettings,
        on_role: Callable[[Role], None],
    ) -> None:
        self._etcd, self._clock, self._steady, self._settings, self._on_role = etcd, clock, steady, settings, on_role
        self.role = Role()
        #: Why it takes no part at the moment; empty if it does.
        self.why_not = "etcd was not asked yet"
        #: The newest epoch of this broker's log.
        self.known_epoch = 0
        #: Called with the in-sync replicas when etcd has a new state, while this broker is master.
        self.on_in_sync: Callable[[frozenset[int]], None] | None = None
        #: Returns the epoch and the end of this broker's log where that may lack what was acknowledged, else None.
        self.lossy_log: Callable[[], tuple[int, int] | None] = lambda: None
        self._member = Member(settings.replica_id, "", "")
        self._lease = self._member_revision = 0
        self._ttl_s = float(settings.ttl_s)
        self._deadline = self._heard_at = 0.0
        self._granted_at = -GRANT_SECONDS
        self._state: GroupState | None = None
        self._state_revision = 0
        self._without_master_since: float | None = None
        self._work: Deferred[None] = succeed(None)
        self._renewing: Deferred[None] | None = None
        #: Whether it was time to renew the lease while that was under way.
        self._is_renewal_due = False
        self._watch: Deferred[None] | None = None
        self._watch_at = 0.0
        self._sleeping: Deferred[None] | None = None
        self._is_woken = False
        self._told = ""
        self._renewal = RepeatedCall(self._renew, clock=clock)

    # --- what others ask

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master, and its lease is certain to stand: nobody else can be elected before."""
        state = self._state
        holds = self.role.is_master and state is not None and state.lease == self._lease
        return holds and self._steady() < self._deadline

    async def propose(self, in_sync: frozenset[int]) -> bool:
        """Write the in-sync set of the epoch of which this broker is master; returns whether that was done. Raises
        EtcdError where that is not known."""
        state, revision = self._state, self._state_revision
        if state is None or not self.role.is_master:
            return False
        new = attrs.evolve(state, in_sync=in_sync)
        written = await self._etcd.txn([Compare(self._key, revision)], [Put(self._key, new.to_json())])
        if written is None:
            self.wake()
            return False
        if written > self._state_revision:
            self._state, self._state_revision = new, written
            self.role = attrs.evolve(self.role, in_sync=in_sync)
        return True

    def wake(self) -> None:
        """Look at etcd soon."""
        self._is_woken = True
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    # --- life

    def join(self, address: str, ha_address: str) -> None:
        """Begin, with the addresses under which the others reach this broker."""
        self._member = Member(self._settings.replica_id, address, ha_address)
        super().startService()  # type: ignore[no-untyped-call]
        self._renewal.start(self._ttl_s / RENEWALS, now=False)
        self._work = Deferred.fromCoroutine(self._run())
        self._work.addErrback(self._ended)

    def stopService(self) -> Deferred[None]:
        """Give the lease back, so that another may be elected at once."""
        if not self.running:
            return succeed(None)
        super().stopService()  # type: ignore[no-untyped-call]
        self._renewal.stop()
        self._deadline = 0.0
        for waiting in (self._watch, self._renewing):
            if waiting is not None:
                waiting.cancel()
        self._work.cancel()
        return Deferred.fromCoroutine(self._leave())

    async def _leave(self) -> None:
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._etcd.revoke(lease)
            except EtcdError as error:
                log.info("the lease in etcd runs out by itself: {why}", why=str(error))
        await self._etcd.close()

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):  # type: ignore[no-untyped-call]
            log.failure("this broker takes no part in its group any more", failure)

    async def _run(self) -> None:
        looks: deque[float] = deque(maxlen=LOOKS_PER_SECOND)
        while self.running:
            # Whatever etcd says, as when each lease that it grants has expired at once.
            if len(looks) == LOOKS_PER_SECOND and (early_s := looks[0] + 1.0 - self._steady()) > 0:
                await deferLater(self._clock, early_s)
            looks.append(self._steady())
            self._is_woken, sleep_s = False, LOOK_SECONDS
            try:
                if not self._lease:
                    await self._get_lease()
                await self._look()
            except (EtcdError, GroupError) as error:
                self._say(str(error))
                sleep_s = RETRY_SECONDS if isinstance(error, EtcdError) else LOOK_SECONDS
            await self._sleep(sleep_s)

    async def _sleep(self, seconds: float) -> None:
        if self._is_woken:
            return
        sleeping = self._sleeping = Deferred()
        timer = self._clock.callLater(seconds, self.wake)
        try:
            await sleeping
        finally:
            if timer.active():
                timer.cancel()

    def _say(self, why_not: str) -> None:
        self.why_not = why_not
        if why_not != self._told:
            self._told = why_not
            if why_not:
                log.warn("group {broker}: {why}", broker=self._settings.broker, why=why_not)
            else:
                log.info("group {broker}: this broker takes part in it", broker=self._settings.broker)

    # --- the lease

    async def _get_lease(self) -> None:
        if (early_s := self._granted_at + GRANT_SECONDS - self._steady()) > 0:
            await deferLater(self._clock, early_s)
        asked_at = self._granted_at = self._steady()
        self._lease, ttl_s = await self._etcd.grant(self._settings.ttl_s)
        self._ttl_s, self._member_revision = float(min(ttl_s, TTL_MAX_SECONDS)), 0
        self._deadline = _ends_at(asked_at, ttl_s)
        self._heard_at = self._steady()

    def _heard(self) -> None:
        """Called with an answer of etcd."""
        was_silent, self._heard_at = self._is_silent, self._steady()
        if was_silent:
            self._renew()

    @property
    def _is_silent(self) -> bool:
        return self._steady() > self._heard_at + self._ttl_s / 2

    def _renew(self) -> None:
        # Where only etcd's answers are lost, renewals would keep the lease of a master that is sure of nothing, and
        # nobody else could be elected.
        self._is_renewal_due = self._renewing is not None
        if self._lease and self._renewing is None and not self._is_silent:
            self._renewing = Deferred.fromCoroutine(self._renew_now(self._lease))
            self._renewing.addBoth(self._renewed)

    async def _renew_now(self, lease: int) -> None:
        asked_at = self._steady()
        ttl_s = await self._etcd.keep_alive(lease)
        self._heard_at = self._steady()
        if lease != self._lease:
            return
        if ttl_s > 0:
            self._deadline = _ends_at(asked_at, ttl_s)
        else:
            self._lose_lease("the lease in etcd has expired")

    def _renewed(self, result: Failure | None) -> None:
        self._renewing = None
        if result is not None and not result.check(EtcdError, CancelledError):  # type: ignore[no-untyped-call]
            log.failure("the lease in etcd could not be renewed", result)
        if self._is_renewal_due and self.running:
            self._renew()

    def _lose_lease(self, why: str) -> None:
        self._lease, self._deadline = 0, 0.0
        log.warn("group {broker}: {why}", broker=self._settings.broker, why=why)
        self.wake()

    # --- the state

    @property
    def _key(self) -> str:
        return f"{self._settings.prefix}state"

    def _member_key(self, replica_id: int) -> str:
        return f"{self._settings.prefix}members/{replica_id}"

    async def _look(self) -> None:
        """Read the group's keys, and do what they ask for."""
        lease, known = self._lease, self._state_revision
        found = await self._etcd.read(self._settings.prefix)
        self._heard()
        if self._lease != lease:  # it has expired meanwhile: nothing may be written under it, nor without one
            return
        if found.revision < known:
            raise GroupError(
                f"etcd is at revision {found.revision}, after it was at {known}: it was restored from an old backup, "
                "or is another one; restore etcd, or see the documentation of replication"
            )
        self._watch_after(found.revision)
        own = found.items.get(self._member_key(self._settings.replica_id))
        if own is None or own.lease != self._lease:
            await self._enter(own)
            return
        self._member_revision = own.modified
        self._take_state(found)
        state = self._state
        if state is None:
            await self._found(own)
            return
        master = self._master_of(state, found)
        is_master = state.master == self._settings.replica_id and state.lease == self._lease
        if is_master or master is not None:
            self._without_master_since = None
            self._set_role(Role(state.epoch, state.lease, is_master, None if is_master else master, state.in_sync))
            self._say("")
            return
        self._set_role(Role(state.epoch, state.lease, False, None, state.in_sync))
        await self._stand(state, found)

    async def _enter(self, own: KeyValue | None) -> None:
        """Write the key of this member, under its lease."""
        if own is not None and own.lease:
            other = Member.from_json(own.value)
            self._set_role(Role())
            raise GroupError(
                f"a broker at {other.address} runs with brokerId={other.replica_id}, or did until a moment ago; each "
                "of the group needs an id of its own"
            )
        key, lease = self._member_key(self._settings.replica_id), self._lease
        put = Put(key, self._member.to_json(), lease)
        if await self._etcd.txn([Compare(key, 0 if own is None else own.modified)], [put]) is None:
            if self._lease == lease:
                await self._renew_now(lease)  # it may have expired meanwhile
        else:
            self.wake()

    def _take_state(self, found: Snapshot) -> None:
        item = found.items.get(self._key)
        if item is None:
            if self._state is not None:
                raise GroupError(f"the key {self._key} is gone from etcd: restore it from a backup")
            return
        if item.modified < self._state_revision:  # a later one was written meanwhile
            return
        try:
            state = GroupState.from_json(item.value)
        except GroupError as error:
            raise GroupError(
                f"the key {self._key} in etcd holds no state of a group: {error}; delete or restore it"
            ) from None
        if (state.cluster, state.broker) != (self._settings.cluster, self._settings.broker):
            raise GroupError(f"the key {self._key} in etcd is of {state.cluster}/{state.broker}")
        is_new = item.modified != self._state_revision
        self._state, self._state_revision = state, item.modified
        if is_new and self.on_in_sync is not None and self.role.is_master and state.epoch == self.role.epoch:
            self.on_in_sync(state.in_sync)

    def _master_of(self, state: GroupState, found: Snapshot) -> Member | None:
        """The master, if its lease stands."""
        item = found.items.get(self._member_key(state.master))
        if item is None or item.lease != state.lease:
            return None
        return Member.from_json(item.value)

    # --- elections

    async def _found(self, own: KeyValue) -> None:
        """Be the first master of a new group."""
        if self.known_epoch:
            raise GroupError(
                f"etcd has nothing at {self._key}, but this broker's log is of epoch {self.known_epoch}: restore etcd "
                "from a backup; if it is lost, stop all brokers of the group, delete config/epochs.json and its .bak "
                "of the one whose log is longest, and start that one first, and the others with empty stores"
            )
        settings = self._settings
        me = settings.replica_id
        state = GroupState(settings.cluster, settings.broker, 1, me, self._lease, frozenset([me]))
        await self._elect(state, 0, [Compare(self._member_key(me), own.modified)])

    async def _stand(self, state: GroupState, found: Snapshot) -> None:
        """Become master, if this replica may."""
        me, now = self._settings.replica_id, self._steady()
        if self._without_master_since is None:
            self._without_master_since = now
        lossy = self.lossy_log()
        remainder = None if lossy is None else Remainder(state.epoch, *lossy)
        self._member, own = attrs.evolve(self._member, remainder=remainder), found.items[self._member_key(me)]
        if own.value != self._member.to_json():
            await self._enter(attrs.evolve(own, lease=0))
            return
        if self.known_epoch > state.epoch:
            raise GroupError(
                f"etcd has epoch {state.epoch} of this group, and this broker's log is of epoch {self.known_epoch}: "
                "etcd was restored from an old backup; delete the key " + self._key + " and see the documentation"
            )
        in_sync = (state.in_sync - {state.master}) | {me}
        if state.master == me or len(in_sync) < self._settings.min_in_sync:
            # A smaller set acknowledges nothing, and those in it may all lose what a former member has.
            in_sync = state.in_sync
        why_not = self._why_not_elected(state, found)
        if why_not:
            waited = now - self._without_master_since
            if not self._settings.is_unclean_allowed or waited < UNCLEAN_SECONDS:
                raise GroupError(f"there is no master, and {why_not}")
            log.error("uncleanElectionEnable=true: this broker becomes master, and messages that it lacks are lost")
            in_sync = frozenset([me])
        old = found.items.get(self._member_key(state.master))
        conditions = [Compare(self._member_key(me), self._member_revision)]
        if state.master != me:
            conditions.append(Compare(self._member_key(state.master), 0 if old is None else old.modified))
        new = attrs.evolve(state, epoch=state.epoch + 1, master=me, lease=self._lease, in_sync=in_sync)
        await self._elect(new, self._state_revision, conditions)

    def _why_not_elected(self, state: GroupState, found: Snapshot) -> str:
        """Why this replica may lack what was acknowledged, or others have more of that; empty if it may be master."""
        me, in_sync = self._settings.replica_id, sorted(state.in_sync)
        if me not in state.in_sync:
            return f"this broker is not in sync: it waits for one of {in_sync}"
        own = self._member.remainder
        if own is None:
            return ""
        lossy = "this broker's machine lost power, or its log: it may lack what was acknowledged, and"
        for replica_id in in_sync:
            item = found.items.get(self._member_key(replica_id))
            other = None if item is None else Member.from_json(item.value).remainder
            if other is None or other.of != state.epoch:
                return f"{lossy} waits for all of {in_sync}, of which {replica_id} has not said what it has"
            if (other, -replica_id) > (own, -me):
                return f"{lossy} of those in sync {replica_id} has more"
        return ""

    async def _elect(self, new: GroupState, revision: int, conditions: list[Compare]) -> None:
        done = await self._etcd.txn([Compare(self._key, revision), *conditions], [Put(self._key, new.to_json())])
        if done is None:
            log.info("another replica was faster in the election of epoch {n}", n=new.epoch)
        else:
            self.wake()

    def _set_role(self, role: Role) -> None:
        if role == self.role:
            return
        before, self.role = self.role, role
        if (before.epoch, before.is_master, before.master) == (role.epoch, role.is_master, role.master):
            return
        if role.is_master:
            log.info("this broker is elected master of epoch {n}", n=role.epoch)
        elif role.master is not None:
            who = role.master
            log.info(
                "broker {id} at {address} is master of epoch {n}", id=who.replica_id, address=who.address, n=role.epoch
            )
        self._on_role(role)

    # --- the watch

    def _watch_after(self, revision: int) -> None:
        if self._watch is not None or self._clock.seconds() < self._watch_at:
            return
        self._watch_at = self._clock.seconds() + WATCH_AGAIN_SECONDS
        self._watch = self._etcd.watch(self._settings.prefix, revision, self.wake)
        self._watch.addBoth(self._watch_ended)

    def _watch_ended(self, result: Failure | None) -> None:
        self._watch = None
        if result is not None and not result.check(EtcdError, CancelledError):  # type: ignore[no-untyped-call]
            log.failure("the watch of etcd ended", result)


def _ends_at(asked_at: float, ttl_s: int) -> float:
    """Until when a lease certainly stands that was asked for then."""
    return asked_at + LEASE_PART * min(ttl_s, TTL_MAX_SECONDS)


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        row = orjson.loads(data)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise GroupError("it is no JSON object")
    return row


def _is_number(value: object) -> bool:
    return type(value) is int and 0 < value <= NUMBER_MAX
