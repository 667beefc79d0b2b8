"""Master election among the brokers of one name. etcd holds the master, its epoch and the in-sync replicas.

    /mqbroker/CLUSTER/NAME/state         epoch, master, its lease, in-sync replicas; changed by compare-and-swap only
    /mqbroker/CLUSTER/NAME/members/ID    the addresses of a running broker; deleted with its lease
    /mqbroker/CLUSTER/NAME/identities/ID which store a broker has; see `mqbroker.ha.candidacy`

A broker is master while its member key has the lease that the state names. When that has expired, a replica of the
in-sync set whose store is complete writes the next epoch, with itself as master. Epochs only increase: a state that is
older than this broker's log is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import quote

import attrs
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.ha.candidacy import (
    Holdings,
    IOwnStore,
    why_another,
    why_not_elected,
    why_not_named,
    why_not_removed,
    why_not_unclean,
    why_set_back,
    why_wrong,
)
from mqbroker.ha.etcd import Compare, EtcdError, IEtcd, KeyValue, Put, Snapshot
from mqbroker.ha.group_keys import GroupError, GroupState, Identity, Member, Remainder
from mqbroker.ha.member_note import SeenInSync
from mqbroker.repeated_call import RepeatedCall

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
#: How often etcd is told of a commit point that moves, at most.
COMMITTED_SECONDS = 1.0
SET_BACK = (
    "etcd was restored from an older state, or is a different etcd, or this store belongs to another group. This "
    "broker takes no part, and nothing is truncated; `mq ha rebuild` shows what each broker has, and rewrites the "
    "group's state"
)


class SetBack(GroupError):
    """etcd has an older state than this broker knows of."""


@attrs.frozen
class Role:
    """What this broker is to be. `epoch` 0: it is not known yet. `lease`: with which its master was elected. `master`:
    whom to follow; None if there is nobody, or it is this broker. `in_sync`: the replicas in sync as etcd has them.
    `unclean`, `switched`: see `GroupState`."""

    epoch: int = 0
    lease: int = 0
    is_master: bool = False
    master: Member | None = None
    in_sync: frozenset[int] = frozenset()
    unclean: int = 0
    switched: int = 0

    @property
    def is_switched(self) -> bool:
        """Whether the former master named the one of this epoch."""
        return self.epoch == self.switched > 0

    @property
    def who(self) -> tuple[object, ...]:
        """By what roles differ: of the members' keys other parts change."""
        master = self.master
        addresses = None if master is None else (master.replica_id, master.address, master.ha_address, master.nonce)
        return self.epoch, self.is_master, addresses


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
    #: The beginning of the group's keys.
    prefix: str = attrs.field(init=False)

    @prefix.default
    def _make_prefix(self) -> str:
        return f"/mqbroker/{quote(self.cluster, safe='')}/{quote(self.broker, safe='')}/"


class GroupMember(Service):
    """One broker's part in its group, all the time that it runs.

    :param store: this broker's.
    :param steady: seconds of a clock that is never set, and goes on while the machine is suspended.
    :param on_role: called with the role whenever it changes.
    """

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        steady: Callable[[], float],
        settings: GroupSettings,
        store: IOwnStore,
        on_role: Callable[[Role], None],
    ) -> None:
        self._etcd, self._clock, self._steady, self._settings, self._on_role = etcd, clock, steady, settings, on_role
        self._store = store
        self.role = Role()
        #: Why it takes no part at the moment; empty if it does.
        self.why_not = "etcd was not asked yet"
        #: The members that ran when etcd was read last, this one among them.
        self.members: Mapping[int, Member] = {}
        #: Called with the in-sync replicas when etcd has a new state, while this broker is master.
        self.on_in_sync: Callable[[frozenset[int]], None] | None = None
        self._member = Member(settings.replica_id, "", "")
        self._lease = self._member_revision = 0
        self._ttl_s = float(settings.ttl_s)
        self._deadline = self._heard_at = 0.0
        self._granted_at = -GRANT_SECONDS
        self._state: GroupState | None = None
        self._state_revision = 0
        #: Whether etcd may get, or has got, another master that this broker has named; whether it is naming one now.
        self._has_named = self._is_naming = False
        #: The name of a store whose identity must replace the one in etcd.
        self._new_name = ""
        self._identities: Mapping[int, Identity] = {}
        self._committed_at = -COMMITTED_SECONDS
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
        #: Whether the broker has not taken over its role, because `_on_role` failed.
        self._is_role_untold = False
        #: Called when etcd was read, whatever became of it.
        self._refreshed: list[Deferred[None]] = []
        self._renewal = RepeatedCall(self._renew, clock=clock)

    # --- what others ask

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master and its lease certainly valid, so that no other can be elected."""
        state = self._state
        holds = self.role.is_master and state is not None and state.lease == self._lease and not self._has_named
        return holds and self._steady() < self._deadline

    async def propose(self, in_sync: frozenset[int], committed: int = 0) -> bool:
        """Write the in-sync set of the epoch of which this broker is master, and the commit point; returns whether that
        was done. Raises EtcdError where that is not known."""
        state, revision = self._state, self._state_revision
        if state is None or not self.role.is_master:
            return False
        new = attrs.evolve(state, in_sync=in_sync, committed=max(state.committed, committed))
        written = await self._etcd.txn([Compare(self._key, revision)], [Put(self._key, new.to_json())])
        if written is None:
            self.wake()
            return False
        if written > self._state_revision:
            self._state, self._state_revision = new, written
            self.role = attrs.evolve(self.role, in_sync=in_sync)
        return True

    async def hand_over(self, to: int, committed: int) -> bool:
        """Make broker `to`, which has the log up to `committed` as all in sync, the master of the next epoch; returns
        whether that was written, False where another change came first. Raises GroupError where it may not be, and
        EtcdError where it is not known whether it was written: then it may be until the state is changed otherwise."""
        found = await self._etcd.read(self._settings.prefix)
        self._take_state(found, self._state_revision)
        state, item = self._state, found.items.get(self._member_key(to))
        if state is None or state.master != self._settings.replica_id or state.lease != self._lease:
            raise GroupError("this broker is no longer the master")
        if item is None or not item.lease:
            raise GroupError(f"broker {to} is not running, or not registered in etcd: start it")
        why_not = why_not_named(state, to, Member.from_json(item.value))
        if why_not:
            raise GroupError(why_not)
        epoch, committed = state.epoch + 1, max(state.committed, committed)
        new = attrs.evolve(state, epoch=epoch, master=to, lease=item.lease, committed=committed, switched=epoch)
        conditions = [Compare(self._key, self._state_revision), Compare(self._member_key(to), item.modified)]
        self._has_named = self._is_naming = True
        try:
            self._has_named = await self._etcd.txn(conditions, [Put(self._key, new.to_json())]) is not None
        finally:
            self._is_naming = False
            self.wake()
        return self._has_named

    async def remove(self, replica_id: int) -> None:
        """Delete the identity of a broker that does not run. Raises GroupError where that may not be, and EtcdError."""
        identity_key = f"{self._settings.prefix}identities/{replica_id}"
        lease, _ = await self._etcd.grant(self._settings.ttl_s)
        found = await self._etcd.read(self._settings.prefix)
        self._take_state(found, self._state_revision)
        state, item, member = self._state, found.items.get(identity_key), found.items.get(self._member_key(replica_id))
        if state is None or state.master != self._settings.replica_id:
            raise GroupError("this broker is no longer the master")
        if member is not None:
            address = Member.from_json(member.value).address
            raise GroupError(f"broker {replica_id} at {address} is running, or was a moment ago: stop it first")
        if item is None:
            known = sorted(self._read_identities(found))
            raise GroupError(f"etcd has no broker {replica_id} of this group; it has {known}")
        why_not = why_not_removed(state, replica_id, Identity.from_json(item.value), self._store.holdings)
        if why_not:
            raise GroupError(why_not)
        # With a lease that ends at once, for nothing else deletes keys under conditions here.
        conditions = [
            Compare(self._key, self._state_revision),
            Compare(identity_key, item.modified),
            Compare(self._member_key(replica_id), 0),
        ]
        if await self._etcd.txn(conditions, [Put(identity_key, item.value, lease)]) is None:
            raise GroupError("the group has changed meanwhile: nothing was removed; try again")
        await self._etcd.revoke(lease)

    def wake(self) -> None:
        """Look at etcd soon."""
        self._is_woken = True
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    @property
    def known(self) -> list[int]:
        """The ids of all brokers that etcd knows of, whether they run or not."""
        return sorted({*self._identities, *self.members})

    @property
    def nonce(self) -> str:
        """By which this broker proves itself to the others."""
        return self._member.nonce

    def refreshed(self) -> Deferred[None]:
        """Fires when etcd was asked once more for the members, whether it has answered or not."""
        done: Deferred[None] = Deferred()
        self._refreshed.append(done)
        self.wake()
        return done

    # --- life

    def join(self, address: str, ha_address: str) -> None:
        """Begin, with the addresses under which the others reach this broker."""
        self._member = attrs.evolve(self._member, address=address, ha_address=ha_address)
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
                log.info("the lease in etcd was not revoked and will expire: {why}", why=str(error))
        await self._etcd.close()

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):  # type: ignore[no-untyped-call]
            log.failure("this broker no longer takes part in its group", failure)

    async def _run(self) -> None:
        looks: deque[float] = deque(maxlen=LOOKS_PER_SECOND)
        while self.running:
            # Whatever etcd says, as when each lease that it grants has expired at once.
            if len(looks) == LOOKS_PER_SECOND and (early_s := looks[0] + 1.0 - self._steady()) > 0:
                await deferLater(self._clock, early_s)
            looks.append(self._steady())
            self._is_woken, sleep_s = False, LOOK_SECONDS
            refreshed, self._refreshed = self._refreshed, []
            try:
                if not self._lease:
                    await self._get_lease()
                await self._look()
            except (EtcdError, GroupError, OSError) as error:
                self._say(str(error))
                sleep_s = RETRY_SECONDS if isinstance(error, EtcdError) else LOOK_SECONDS
            except Exception as error:
                if isinstance(error, CancelledError):
                    raise
                why = f"unexpected error (trying again): {str(error) or type(error).__name__}"
                if why != self._told:
                    log.failure("group {broker}: the state in etcd is not followed now", broker=self._settings.broker)
                self._say(why)
            for done in refreshed:
                done.callback(None)
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
                log.info("group {broker}: this broker has joined the group", broker=self._settings.broker)

    # --- the lease

    async def _get_lease(self) -> None:
        if (early_s := self._granted_at + GRANT_SECONDS - self._steady()) > 0:
            await deferLater(self._clock, early_s)
        asked_at = self._granted_at = self._steady()
        self._lease, ttl_s = await self._etcd.grant(self._settings.ttl_s)
        self._ttl_s, self._member_revision = float(min(ttl_s, TTL_MAX_SECONDS)), 0
        self._deadline = _ends_at(asked_at, ttl_s)
        self._heard_at = self._steady()
        self._member = attrs.evolve(self._member, nonce=self._store.new_nonce())

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
        """Read the group's keys, and act on them."""
        lease, known = self._lease, self._state_revision
        found = await self._etcd.read(self._settings.prefix)
        self._heard()
        if self._lease != lease:  # it has expired meanwhile: nothing may be written under it, nor without one
            return
        self._watch_after(found.revision)
        own = found.items.get(self._member_key(self._settings.replica_id))
        self._identities = self._read_identities(found)
        if own is None or own.lease != self._lease:
            await self._enter(own)
            return
        self._member_revision = own.modified
        try:
            self._take_state(found, known)
        except SetBack:
            self._set_role(Role())
            await self._say_what_changed(own)  # so that nobody else trusts it either
            raise
        self.members = self._read_members(found)
        state = self._state
        if self._store.is_open and not await self._is_settled(found, own):
            return
        if state is None:
            await self._found(own)
            return
        master = self._master_of(state, found)
        is_master = state.master == self._settings.replica_id and state.lease == self._lease
        if is_master or master is not None:
            self._without_master_since = None
            if is_master:
                await self._step_down_if_wrong(state)
                if self._has_named and not self._is_naming:
                    await self._write_again(state)
            role = Role(state.epoch, state.lease, is_master, None if is_master else master, state.in_sync)
            self._set_role(attrs.evolve(role, unclean=state.unclean, switched=state.switched))
            self._say("")
            await self._say_what_changed(own)
            return
        self._set_role(Role(state.epoch, state.lease, False, None, state.in_sync, state.unclean))
        await self._stand(state, found)

    async def _enter(self, own: KeyValue | None) -> None:
        """Write the key of this member, under its lease."""
        if own is not None and own.lease:
            other = _member_of(self._member_key(self._settings.replica_id), own)
            self._set_role(Role())
            raise GroupError(
                f"a broker at {other.address} is running with brokerId={other.replica_id}, or was a moment ago; each "
                "broker of a group needs its own id, and its own store, which must not be a copy"
            )
        if self._store.is_open:
            self._member = self._fresh_member(self._store.holdings, None)
        await self._put_member(None if own is None else own.modified)

    async def _put_member(self, revision: int | None) -> None:
        key, lease = self._member_key(self._settings.replica_id), self._lease
        put = Put(key, self._member.to_json(), lease)
        if await self._etcd.txn([Compare(key, revision or 0)], [put]) is None:
            if self._lease == lease:
                await self._renew_now(lease)  # it may have expired meanwhile
        else:
            self.wake()

    def _fresh_member(self, holdings: Holdings, remainder: Remainder | None) -> Member:
        return attrs.evolve(
            self._member,
            remainder=remainder,
            epoch=holdings.epoch,
            lease=holdings.lease,
            committed=holdings.committed,
            is_whole=not holdings.why_not_whole,
            is_known=self._is_known and (holdings.has_lost_power or not holdings.why_not_whole),
            conflict=holdings.conflict,
        )

    async def _say_what_changed(self, own: KeyValue) -> None:
        """Publish a new epoch, whether the store is complete, and that the master lacks messages that this broker
        has."""
        if self._store.is_open:
            said, fresh = Member.from_json(own.value), self._fresh_member(self._store.holdings, None)
            if attrs.evolve(said, committed=fresh.committed) != fresh:
                self._member = fresh
                await self._put_member(own.modified)

    def _read_members(self, found: Snapshot) -> dict[int, Member]:
        prefix, read = self._member_key(0)[:-1], dict[int, Member]()
        for key, item in found.items.items():
            if key.startswith(prefix) and item.lease:
                member = _member_of(key, item)
                read[member.replica_id] = member
        return read

    def _read_identities(self, found: Snapshot) -> dict[int, Identity]:
        prefix, read = f"{self._settings.prefix}identities/", dict[int, Identity]()
        for key, item in found.items.items():
            number = key.removeprefix(prefix)
            if number != key and number.isdecimal():
                try:
                    read[int(number)] = Identity.from_json(item.value)
                except GroupError as error:
                    raise GroupError(f"the key {key} in etcd does not hold the identity of a store: {error}") from None
        return read

    @property
    def _is_known(self) -> bool:
        """Whether etcd has this store's identity."""
        known = self._identities.get(self._settings.replica_id)
        return known is not None and known.name == self._store.identity.name

    @property
    def _others(self) -> dict[int, Member]:
        return {number: member for number, member in self.members.items() if number != self._settings.replica_id}

    def _take_state(self, found: Snapshot, known: int) -> None:
        """:param known: the revision of the state that was known before etcd was read."""
        item, state = found.items.get(self._key), self._state
        if item is None:
            if state is not None:
                raise SetBack(f"the key {self._key} is gone from etcd: {SET_BACK}")
            return
        try:
            new = GroupState.from_json(item.value)
        except GroupError as error:
            raise GroupError(
                f"the key {self._key} in etcd does not hold the state of a group: {error}; `mq ha rebuild` rewrites it"
            ) from None
        if (new.cluster, new.broker) != (self._settings.cluster, self._settings.broker):
            raise GroupError(f"the key {self._key} in etcd is of {new.cluster}/{new.broker}")
        if state is not None and new.epoch <= state.epoch:
            revision = min(found.revision, item.modified)
            if revision < known:
                raise SetBack(f"etcd is at revision {revision}, after it was at {known}: {SET_BACK}")
            if item.modified < self._state_revision:  # a later one was written meanwhile
                return
        why_not = "" if state is None else why_set_back(new, state.epoch, state.lease)
        why_not = why_not or self._why_older(new, item.modified)
        if why_not:
            raise SetBack(f"{why_not}: {SET_BACK}")
        is_new = item.modified != self._state_revision
        self._state, self._state_revision = new, item.modified
        if is_new and self.on_in_sync is not None and self.role.is_master and new.epoch == self.role.epoch:
            self.on_in_sync(new.in_sync)

    def _why_older(self, new: GroupState, revision: int) -> str:
        """Why the state is older than what the store says of it; empty if it is not. What it says of the log's newest
        epoch is noted."""
        if not self._store.is_open:
            return ""
        holdings = self._store.holdings
        why_not = why_set_back(new, holdings.epoch, holdings.lease)
        if why_not or new.epoch != holdings.epoch:
            return why_not
        seen = self._store.seen
        if seen.epoch == new.epoch and revision < seen.revision:
            return f"etcd has this group's state of revision {revision}, and this broker has seen {seen.revision}"
        self._store.note_seen(SeenInSync(new.epoch, revision, new.in_sync))
        return ""

    async def _is_settled(self, found: Snapshot, own: KeyValue) -> bool:
        """Compare the store with the one that etcd knows, and publish the result; returns whether it was published."""
        key, store = f"{self._settings.prefix}identities/{self._settings.replica_id}", self._store
        item, known = found.items.get(key), self._identities.get(self._settings.replica_id)
        if store.identity.name != self._new_name:
            has = store.holdings
            why = why_another(store.identity, known, has, self._state, is_new=store.is_new)
            if why:
                # What it has found itself says more.
                store.lose(why if has.has_lost_power else has.why_not_whole or why)
                self._new_name = store.identity.name
        store.begin()
        identity, now = store.identity, self._steady()
        is_known = known is not None and (known.name, known.generation) == (identity.name, identity.generation)
        if is_known:
            self._new_name = ""
            assert known is not None
            moved = (identity.epoch, identity.committed) > (known.epoch, known.committed)
            if not moved or now < self._committed_at + COMMITTED_SECONDS:
                return True
        self._committed_at = now
        conditions = [
            Compare(key, 0 if item is None else item.modified),
            Compare(self._member_key(self._settings.replica_id), own.modified),
        ]
        await self._etcd.txn(conditions, [Put(key, identity.to_json())])
        if not is_known:
            self.wake()
        return is_known

    def _master_of(self, state: GroupState, found: Snapshot) -> Member | None:
        """The master, if its lease is valid."""
        item = found.items.get(self._member_key(state.master))
        if item is None or item.lease != state.lease:
            return None
        return _member_of(self._member_key(state.master), item)

    # --- elections

    async def _found(self, own: KeyValue) -> None:
        """Be the first master of a new group."""
        if not self._store.is_open:
            return
        known = max(self._store.holdings.epoch, *(other.epoch for other in self.members.values()))
        if known:
            raise GroupError(
                f"etcd has nothing at {self._key}, but there is a log of epoch {known} of this group: {SET_BACK}"
            )
        settings = self._settings
        me = settings.replica_id
        state = GroupState(settings.cluster, settings.broker, 1, me, self._lease, frozenset([me]))
        await self._elect(state, 0, [Compare(self._member_key(me), own.modified)])

    async def _write_again(self, state: GroupState) -> None:
        """Make sure that a write which names another master, and whose outcome is unknown, cannot take effect later."""
        written = await self._etcd.txn([Compare(self._key, self._state_revision)], [Put(self._key, state.to_json())])
        if written is None:
            raise GroupError("another master may have been named")
        self._state_revision, self._has_named = max(written, self._state_revision), False

    async def _step_down_if_wrong(self, state: GroupState) -> None:
        """Give the lease back where another broker has messages that were acknowledged, and that this one lacks."""
        holdings = self._store.holdings if self._store.is_open else Holdings()
        wrong = why_wrong(state, holdings, self._others)
        if not wrong:
            return
        lease, self._lease, self._deadline = self._lease, 0, 0.0
        log.error("group {broker}: this broker is no longer the master: {why}", broker=self._settings.broker, why=wrong)
        self._set_role(Role(state.epoch, state.lease, False, None, state.in_sync, state.unclean))
        self.wake()
        await self._etcd.revoke(lease)
        raise GroupError(f"there is no master, and {wrong}")

    async def _stand(self, state: GroupState, found: Snapshot) -> None:
        """Become master, if this replica may."""
        me, now = self._settings.replica_id, self._steady()
        if self._without_master_since is None:
            self._without_master_since = now
        if not self._store.is_open:
            return
        holdings = self._store.holdings
        is_lossy = bool(holdings.why_not_whole) and holdings.has_lost_power
        remainder = Remainder(state.epoch, holdings.written_in, holdings.end) if is_lossy else None
        self._member, own = self._fresh_member(holdings, remainder), found.items[self._member_key(me)]
        why_not = why_not_elected(state, me, holdings, self._others, self._identities.values())
        if (is_lossy or why_not) and own.value != self._member.to_json():
            await self._put_member(own.modified)
            return
        in_sync = (state.in_sync - {state.master}) | {me}
        if state.master == me or len(in_sync) < self._settings.min_in_sync:
            # A smaller set acknowledges nothing, and those in it may all lose what a former member has.
            in_sync = state.in_sync
        committed, unclean, lowered = max(state.committed, holdings.committed), state.unclean, state.lowered
        if why_not:
            waited = now - self._without_master_since
            if not self._settings.is_unclean_allowed or waited < UNCLEAN_SECONDS:
                raise GroupError(f"there is no master, and {why_not}")
            better = why_not_unclean(holdings, self._others)
            if better:
                raise GroupError(f"there is no master, and {why_not}; {better}")
            log.error(
                "uncleanElectionEnable=true: this broker becomes master, and messages that it does not have are lost"
            )
            in_sync, unclean = frozenset([me]), state.epoch + 1
        if why_not or is_lossy:
            committed, lowered = holdings.committed, state.epoch + 1
        old = found.items.get(self._member_key(state.master))
        conditions = [Compare(self._member_key(me), self._member_revision)]
        if state.master != me:
            conditions.append(Compare(self._member_key(state.master), 0 if old is None else old.modified))
        new = attrs.evolve(
            state,
            epoch=state.epoch + 1,
            master=me,
            lease=self._lease,
            in_sync=in_sync,
            committed=committed,
            unclean=unclean,
            lowered=lowered,
        )
        await self._elect(new, self._state_revision, conditions)

    async def _elect(self, new: GroupState, revision: int, conditions: list[Compare]) -> None:
        done = await self._etcd.txn([Compare(self._key, revision), *conditions], [Put(self._key, new.to_json())])
        if done is None:
            log.info("another replica was faster in the election of epoch {n}", n=new.epoch)
        else:
            self.wake()

    def _set_role(self, role: Role) -> None:
        if role == self.role and not self._is_role_untold:
            return
        before, self.role = self.role, role
        self._has_named = self._has_named and role.is_master
        if before.who == role.who and not self._is_role_untold:
            return
        if role.is_master:
            log.info("this broker is elected master of epoch {n}", n=role.epoch)
        elif role.master is not None:
            who = role.master
            log.info(
                "broker {id} at {address} is master of epoch {n}", id=who.replica_id, address=who.address, n=role.epoch
            )
        self._is_role_untold = True  # if that fails, it is told again
        self._on_role(role)
        self._is_role_untold = False

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


def _member_of(key: str, item: KeyValue) -> Member:
    """The member that the key is of. Raises GroupError."""
    try:
        member = Member.from_json(item.value)
        if not key.endswith(f"/{member.replica_id}"):
            raise GroupError(f"it is of broker {member.replica_id}")
    except GroupError as error:
        raise GroupError(
            f"the key {key} in etcd does not hold a member of the group: {error}; it expires with the lease of its "
            "writer"
        ) from None
    return member


def _ends_at(asked_at: float, ttl_s: int) -> float:
    """Until when a lease that was requested then is certainly valid."""
    return asked_at + LEASE_PART * min(ttl_s, TTL_MAX_SECONDS)
