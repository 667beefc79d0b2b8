"""A broker's part in a group that elects its master: what outlives the stops and starts by which it changes its role.

Each epoch's beginning is noted in `config/epochs.json` before the master of it serves anybody; a replica takes its
master's history over before it takes anything of its log. Nothing below the commit point is ever cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from hashlib import sha256

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqbroker.broker.broker_slave import NOT_CERTAIN
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.own_store import OwnStore, why_damaged
from mqbroker.config import BrokerRole, BrokerSettings, FlushDiskType
from mqbroker.errors import MQError, StoreUnwritable
from mqbroker.ha.candidacy import why_set_back
from mqbroker.ha.divergence import START_ANEW, Diverged, FallenBehind
from mqbroker.ha.election import SET_BACK, GroupMember, GroupSettings, Role
from mqbroker.ha.epochs import BadHistory, Epoch, EpochHistory
from mqbroker.ha.etcd import TIMEOUT_SECONDS, EtcdAccess, EtcdError, IEtcd
from mqbroker.ha.group_keys import Conflict, GroupError
from mqbroker.ha.in_sync import InSyncSet, InSyncSettings
from mqbroker.ha.link import CHALLENGE_BYTES, Answer, BadPeer, Greeting
from mqbroker.ha.master import Slaves
from mqbroker.ha.slave import ISlaveLog, MasterConnection
from mqbroker.store.disk import IDisk, Outage
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.layout import StorePaths
from mqbroker.store.logscan import Damage
from mqbroker.store.message_store import MessageStore

log = Logger()

EPOCHS_FILE = "epochs.json"
#: How often the note of the store is synced, if it has changed.
NOTE_SYNC_SECONDS = 1.0
#: How long requests are held for a planned change of the master before it is given up: clients time out after 3 s.
SWITCH_SECONDS = 1.5
SWITCH_LOOK_SECONDS = 0.01
#: A former master that named the next one registers as a replica after this time: name servers have one entry for an
#: address, and clients need the former one until the next master has registered.
REGISTER_AFTER_SECONDS = 4.0
#: How often a master with a damaged log tries to let another one be it.
GIVE_UP_SECONDS = 60.0
#: How long it holds sends until the next master serves, seconds.
PATIENT_SECONDS = 10.0


class StoreLost(Diverged):
    """A store that is not whole has messages that are not in the group's log: it is moved aside, and copied again."""


class BrokerGroup:
    """Knows which role the broker has, and the epochs of its log.

    :param settings: as they were read: brokerId is the broker's id in its group.
    :param on_role: called when the broker must start again in another role.
    :param on_master: called with the master's addresses, for replication and for requests, when a replica is to follow.
    :param cut: cuts the log back to an offset, and starts the broker again; called with that and the log's end.
    :param hold: called with True to leave requests unread, and with False to go on.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        etcd: IEtcd,
        clock: IReactorTime,
        steady: Callable[[], float],
        on_role: Callable[[], None],
        on_master: Callable[[str, str], None],
        cut: Callable[[int, int], None],
        disk: IDisk,
        randbytes: Callable[[int], bytes],
        hold: Callable[[bool], None],
    ) -> None:
        self._settings, self._clock, self._steady = settings, clock, steady
        self._on_role, self._on_master, self._cut, self._randbytes = on_role, on_master, cut, randbytes
        self._hold = hold
        self.replica_id = settings.broker_id
        own = GroupSettings(
            cluster=settings.broker_cluster_name,
            broker=settings.broker_name,
            replica_id=settings.broker_id,
            ttl_s=settings.etcd_lease_ttl_seconds,
            min_in_sync=settings.min_in_sync_replicas,
            is_unclean_allowed=settings.unclean_election_enable,
        )
        self._digest = sha256(own.prefix.encode()).digest()[:8]
        paths = StorePaths(settings.store.store_path_root_dir, settings.store.store_path_commit_log)
        self.store = OwnStore(disk, paths, self._digest, self.replica_id, randbytes)
        self.member = GroupMember(etcd, clock, steady, own, self.store, self._role_changed)
        #: Up to where this broker has what it acknowledges, as durably as it promises.
        self._durable: Callable[[], int] = lambda: 0
        self._flushed: Callable[[], int] = lambda: 0
        self._log_min: Callable[[], int] = lambda: 0
        self._limit_moved: Callable[[], None] = lambda: None
        self._file: JsonFile | None = None
        self._in_sync: InSyncSet | None = None
        #: The epoch as whose master the broker runs; 0 for a replica.
        self._serves_epoch = 0
        #: Whether another broker is being made the master: nothing is appended any more.
        self._is_switching = False
        self._switched_at = -PATIENT_SECONDS
        #: When a master with a damaged log next tries to let another one be it.
        self._gives_up_at = 0.0
        self._giving_up = Outage(
            "this master's log is damaged, and it continues to serve the rest", "this master's log is intact again"
        )
        #: The epoch of the last role that had one.
        self._last_epoch = 0

    # --- the role

    def settings(self, current: BrokerSettings) -> BrokerSettings:
        """`current` with what the role says."""
        is_master = self.member.role.is_master
        role = BrokerRole.SYNC_MASTER if is_master else BrokerRole.SLAVE
        return attrs.evolve(
            current,
            broker_id=0 if is_master else self.replica_id,
            store=attrs.evolve(current.store, broker_role=role),
        )

    def may_register(self) -> bool:
        """Whether this broker may register with name servers: a former master must not."""
        if not self._serves_epoch and self._steady() < self._switched_at + REGISTER_AFTER_SECONDS:
            return self.member.is_master
        return not self._serves_epoch or self.member.is_master

    def _role_changed(self, role: Role) -> None:
        before, self._last_epoch = self._last_epoch, role.epoch or self._last_epoch
        if role.is_switched and 0 < before < role.epoch:
            self._switched_at = self._steady()
        if (role.epoch if role.is_master else 0) != self._serves_epoch:
            self._on_role()
        elif role.master is not None:
            self._on_master(role.master.ha_address, role.master.address)

    def serves(self) -> None:
        """Called when the broker has started: apply the changes since."""
        self._role_changed(self.member.role)

    # --- the epochs

    def look_for_loss(self) -> None:
        """Called before the store is opened. With SYNC_FLUSH only what is on the disk was acknowledged. Raises
        OSError."""
        if not self._is_flush_sync:
            self.store.look_for_power_cut()

    @property
    def _is_flush_sync(self) -> bool:
        return self._settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def _history(self) -> EpochHistory:
        return self.store.history

    def load(self, file: JsonFile, store: MessageStore) -> None:
        """Read the epochs of the log of `store`, and its note. Raises StoreDamaged and OSError."""
        self._file = file
        self._flushed = lambda: min(store.flushed, store.log_end)
        self._durable = self._flushed if self._is_flush_sync else (lambda: store.log_end)
        history = file.load(EpochHistory.from_json) or EpochHistory()
        store.watch(self._settings.scrub_bytes_per_second, self._damaged)
        self.store.open(history, lambda: store.log_end, store.gaps())
        self._serves_epoch, self._is_switching = 0, False

    def _damaged(self, damage: Damage) -> None:
        self.store.gaps = [*self.store.gaps, damage]
        if not self._serves_epoch:
            log.warn("this broker restarts to copy the log again from a broker that has all of it")
            self._on_role()

    def look_at_gaps(self) -> None:
        """Let another broker be the master, where this one's log is damaged. Called each second."""
        in_sync, now = self._in_sync, self._steady()
        if self.store.gaps and in_sync is not None:  # what is deleted by its age is missed no more
            self.store.gaps = [gap for gap in self.store.gaps if gap.end > self._log_min()]
        if not self.store.gaps:
            self._giving_up.worked()
        if not self.store.gaps or in_sync is None or not self.is_certain() or now < self._gives_up_at:
            return
        self._gives_up_at = now + GIVE_UP_SECONDS
        able = [each for each in sorted(self.member.role.in_sync) if not in_sync.why_not_next(each)]
        if able:
            Deferred.fromCoroutine(self._give_up(able[self._randbytes(1)[0] % len(able)]))
        else:
            self._giving_up.failed(
                f"{why_damaged(self.store.gaps)}; no other broker can be the master now: `mq ha status` shows which "
                "are behind, or do not run; start those"
            )

    async def _give_up(self, to: int) -> None:
        with contextlib.suppress(MQError):  # which was logged
            await self.switch(to)

    def sync_note(self) -> None:
        """Bring the store's note to the disk, if it has changed. On the worker. Raises OSError."""
        if self.store.is_open:
            note = self.store.note
            note.note_durable(self._flushed())
            if note.is_dirty:
                note.sync()

    async def begin_epoch(self, log_min: int, log_end: int) -> None:
        """Note where the log ends, as the beginning of the epoch. Raises StoreUnwritable."""
        role = self.member.role
        if role.epoch > self._history.last:
            await self._save(self._history.begin(Epoch(role.epoch, log_end, role.lease), log_min))
        self._serves_epoch = role.epoch
        self.store.be_whole()  # for it is what the others follow

    async def _save(self, history: EpochHistory) -> None:
        assert self._file is not None
        # Twice: the copy that is read where the file is damaged must not be an older history.
        if not (await self._file.save(history.to_json) and await self._file.save(history.to_json)):
            raise StoreUnwritable(f"{self._file.path} cannot be written, and without it no epoch can begin")
        self.store.saved(history)

    # --- the master's side

    def make_in_sync(self, slaves: Slaves) -> InSyncSet:
        """Keep the in-sync set of the epoch that begins."""
        settings, role = self._settings, self.member.role
        limits = InSyncSettings(
            min_replicas=settings.min_in_sync_replicas,
            replicas_max=settings.replication_factor,
            lag_s=settings.ha_max_time_slave_not_catchup_ms / 1000,
        )
        epoch = self._serves_epoch
        # Of what lies above the commit point this broker does not know yet whether the others have it; they may be
        # elected, unless it is the only one.
        is_only = role.in_sync <= {self.replica_id}
        confirmed = slaves.log.end if is_only else min(slaves.log.end, self.store.committed)
        made = self._in_sync = InSyncSet(
            slaves,
            self._clock,
            self._steady,
            limits,
            self.replica_id,
            role.in_sync,
            confirmed,
            lambda: self.member.is_master and self.member.role.epoch == epoch,
            self.member.propose,
        )
        made.durable = self._durable
        self._log_min = lambda: slaves.log.start
        made.committed = slaves.committed = self.store.committed

        def note(committed: int) -> None:
            self.store.moved(committed, committed)
            slaves.committed = committed

        made.on_committed = note
        self.member.on_in_sync = made.stands
        made.start()
        return made

    def end_epoch(self) -> None:
        """Keep the in-sync set no longer, if this broker was master."""
        in_sync, self._in_sync = self._in_sync, None
        if in_sync is not None:
            self.member.on_in_sync = None
            in_sync.stop()

    def is_certain(self) -> bool:
        """Whether this broker is certain to be the master still, as which it runs. Hot."""
        return self.member.is_master and self.member.role.epoch == self._serves_epoch and not self._is_switching

    def may_serve(self) -> bool:
        """Whether consumers may be served now: by a replica whose store is whole, and by a master that is certain to be
        it, and lacks no message, unless no other broker can be the master. Hot."""
        if not self._serves_epoch:
            return not self.store.why_not_whole
        return self.is_certain() and (not self.store.gaps or self._giving_up.is_on)

    # --- planned changes

    async def switch(self, to: int) -> int:
        """Make another broker the master, and return its epoch. Requests are held meanwhile, and served by it, or by
        this broker where that is given up. Raises GroupError, which says why nothing was changed."""
        in_sync = self._in_sync
        if in_sync is None or not self.is_certain():
            raise GroupError("this broker is not the master, or another switch is in progress: see `mq ha status`")
        if to == self.replica_id:
            raise GroupError(f"broker {to} is already the master")
        if why_not := in_sync.why_not_next(to):
            raise GroupError(why_not)
        epoch, self._is_switching = self._serves_epoch + 1, True
        self._hold(True)
        log.info("broker {id} becomes the master: requests are held until it is ready", id=to)
        try:
            await self._switch(to, in_sync)
        except Exception as error:
            self._is_switching = False
            self._hold(False)
            log.warn("broker {id} did not become the master: {why}", id=to, why=str(error))
            raise
        return epoch

    async def _switch(self, to: int, in_sync: InSyncSet) -> None:
        began = self._steady()
        why = (
            "after {s} s not all brokers in sync have all messages: this broker is the master still; try again when "
            "they follow closely"
        )
        # In a later iteration, after everything that was read with the request.
        await deferLater(self._clock, 0)
        while True:
            end = in_sync.log_end
            if in_sync.reached() >= end:
                try:
                    if await self.member.hand_over(to, end):
                        return
                except EtcdError as error:
                    why = f"etcd does not answer: {error}; this broker goes on as the master unless etcd names another"
                await self.member.refreshed()
                if self.member.role.epoch > self._serves_epoch:
                    return
            if self._steady() > began + SWITCH_SECONDS:
                raise GroupError(why.format(s=SWITCH_SECONDS))
            await deferLater(self._clock, SWITCH_LOOK_SECONDS)

    async def remove(self, replica_id: int) -> str:
        """Remove a broker that will not come back; returns what was done. Raises GroupError and EtcdError."""
        if not self.is_certain():
            raise GroupError("this broker is not the master: `mq ha status` shows which one is")
        if replica_id == self.replica_id:
            raise GroupError(
                f"broker {replica_id} is the master: make another broker the master first, with `mq ha switch`"
            )
        await self.member.remove(replica_id)
        log.warn("broker {id} is removed from the group", id=replica_id)
        return f"broker {replica_id} was removed; if it comes back, it is treated as a new one"

    @property
    def master_address(self) -> str:
        """Where the master serves, if this broker is a replica of it; else empty."""
        master = self.member.role.master
        return "" if master is None else master.address

    def is_patient(self) -> bool:
        """Whether the former master named the present one a moment ago, which may not serve yet."""
        return self._steady() < self._switched_at + PATIENT_SECONDS

    def settle(self, store: MessageStore, offsets: OffsetTable) -> None:
        """Limit readers, and tables that refer to the log, to the part of it that remains. Called before the store
        starts. Raises OSError."""
        if self._serves_epoch and self._in_sync is not None:
            in_sync = self._in_sync
            store.replicated = lambda: in_sync.confirmed
            store.show_below(store.replicated)
            in_sync.on_confirmed.append(store.limit_moved)
            store.why_not_append = lambda: "" if self.is_certain() else NOT_CERTAIN
        elif not self._serves_epoch:
            offsets.lower_to(store.next_offset)
            store.show_below(lambda: self.store.committed if self.store.is_open else 0)
            self._limit_moved = store.limit_moved

    def answer(self, greeting: Greeting, log_end: int) -> Deferred[tuple[bytes, bytes]]:
        """See `IGroup`."""
        return Deferred.fromCoroutine(self._answer(greeting, log_end))

    async def _answer(self, greeting: Greeting, log_end: int) -> tuple[bytes, bytes]:
        replica_id = greeting.replica_id
        if greeting.group != self._digest:
            raise BadPeer("it belongs to another group (brokerClusterName and brokerName)")
        if not self.member.is_master:
            raise BadPeer("this broker is no longer the master")
        if greeting.epoch != self._serves_epoch:
            raise BadPeer(f"it follows epoch {greeting.epoch}, and this is epoch {self._serves_epoch}")
        if replica_id <= 0:
            raise BadPeer(f"it has brokerId={replica_id}, and the ids in a group are above 0")
        if replica_id == self.replica_id:
            raise BadPeer(f"it has brokerId={replica_id}, as this broker")
        if not self._is_proven(greeting):
            await self.member.refreshed()  # it may have come a moment ago
            if replica_id not in self.member.members:
                raise BadPeer(f"it claims to be broker {replica_id}, which etcd does not have")
            if not self._is_proven(greeting):
                raise BadPeer(
                    f"it did not prove that it is the broker {replica_id} of etcd: it does not count as a replica"
                )
        said = {"begin": self._log_min(), "end": log_end, "gaps": bool(self.store.gaps)}
        history = orjson.dumps({**orjson.loads(self._history.to_json()), **said})
        answer = Answer(self._randbytes(CHALLENGE_BYTES), history).proven(self.member.nonce, greeting)
        return answer.encode(), answer.confirmation(self.member.members[replica_id].nonce, greeting)

    def _is_proven(self, greeting: Greeting) -> bool:
        member = self.member.members.get(greeting.replica_id)
        return member is not None and greeting.is_proven(member.nonce)

    # --- the replica's side

    def progressed(self, committed: int, reported: int) -> None:
        """Called with the master's commit point, and with up to where this broker reports the log."""
        self.store.moved(min(committed, reported), reported)
        self._limit_moved()

    async def compare(self, connection: MasterConnection, raw: ISlaveLog, check: Callable[[], Awaitable[None]]) -> None:
        """Agree with the master on the history of the log. Raises Diverged, MQError, OSError.

        :param check: raises Diverged where the log's last record is not the master's, too.
        """
        role, store = self.member.role, self.store
        has = store.holdings
        why_not = why_set_back(role, has.epoch, has.lease)
        if why_not:
            raise MQError(f"{why_not}: {SET_BACK}")
        is_whole, challenge, nonce = not store.why_not_whole, self._randbytes(CHALLENGE_BYTES), self.member.nonce
        greeting = Greeting(self._digest, role.epoch, self.replica_id, store.committed, is_whole, challenge)
        greeting = greeting.proven(nonce)
        answer = Answer.decode(await connection.greet(greeting))
        theirs, begin, end, has_gaps = self._read_answer(answer, greeting, role)
        connection.confirm(answer.confirmation(nonce, greeting))
        common = self._history.common_end(raw.end, theirs, end)
        if 0 < raw.end <= begin and common is None:  # it may be of those that the master has forgotten
            raise StoreLost(str(FallenBehind.of(raw.end, begin)))
        if common is not None and max(store.committed, 1) <= common == raw.end <= begin:
            raise FallenBehind.of(raw.end, begin)
        if raw.end:
            await self._agree(raw, theirs, end, check, has_gaps)
        if theirs != self._history:
            await self._save(theirs)
        store.conflict, store.whole_at = None, end

    def _read_answer(self, answer: Answer, greeting: Greeting, role: Role) -> tuple[EpochHistory, int, int, bool]:
        if role.master is None or not answer.is_proven(role.master.nonce, greeting):
            self.member.wake()
            raise MQError(
                "it did not prove that it is the master that etcd names, or its response was recorded on another "
                "connection: nothing is copied from it"
            )
        history = EpochHistory.from_json(answer.history)
        said = orjson.loads(answer.history)
        begin, end = said.get("begin", 0), said.get("end")
        if type(end) is not int or type(begin) is not int or not 0 <= begin <= end:
            raise BadHistory("the master does not say where its log begins and ends")
        if history.last != role.epoch or history.lease != role.lease:
            raise MQError(f"the master's log is of epoch {history.last}, not {role.epoch}, or of another {role.epoch}")
        return history, begin, end, said.get("gaps") is True

    async def _agree(
        self, raw: ISlaveLog, theirs: EpochHistory, end: int, check: Callable[[], Awaitable[None]], has_gaps: bool
    ) -> None:
        """Raises where this log is not the beginning of the master's; it is cut back to where they part, if nothing
        there was acknowledged. `has_gaps`: whether the master's log is damaged, too."""
        store, role = self.store, self.member.role
        common, committed = self._history.common_end(raw.end, theirs, end), store.committed
        if store.why_not_whole:
            if store.gaps and not has_gaps:
                raise StoreLost(f"this broker's store has gaps that cannot be filled ({store.why_not_whole})")
            try:
                await check()  # its epochs may not be those of its log
            except Diverged as error:
                if common is not None and not committed <= common < raw.end:
                    why = f"this broker's store is incomplete ({store.why_not_whole}), and {error}"
                    raise StoreLost(why) from None
            else:
                return
        if common is None:
            raise Diverged(
                f"this log shares no epoch with its master's: it does not belong to this group; {START_ANEW}"
            )
        if committed <= common < raw.end and self._was_left_out(theirs, role):
            log.error(
                "this broker was in sync in epoch {epoch}, but its master was not: etcd was restored from an older "
                "state. The whole of this log counts as acknowledged, up to {end}",
                epoch=self._history.last,
                end=raw.end,
            )
            store.moved(raw.end, raw.end)
            committed = raw.end
        if common < committed:
            self._refuse(common, committed, role)
        if common < raw.end:
            log.warn(
                "this log has {n} bytes after {end} that its master does not have, beyond the commit point "
                "({committed}): they are put aside, and the log is truncated",
                n=raw.end - common,
                end=common,
                committed=committed,
            )
            store.note.lower(common)
            self._cut(common, raw.end)
            raise MQError(f"the log is first truncated to {common}")

    def _was_left_out(self, theirs: EpochHistory, role: Role) -> bool:
        """Whether etcd was set back before the election: the epoch before is this log's newest, in which this broker
        was in sync, and the master was not. It could only have come to be by following that epoch's master, whose
        epoch it would have; what was acknowledged without it may lie above the commit point that this broker knows."""
        seen, history = self.store.seen, self._history
        master = 0 if role.master is None else role.master.replica_id
        return (
            seen.epoch == history.last == role.epoch - 1
            and self.replica_id in seen.members
            and master not in seen.members
            and not theirs.has(history.last, history.lease)
        )

    def _refuse(self, common: int, committed: int, role: Role) -> None:
        """Stop following a master that lacks acknowledged messages, and notify the group."""
        store = self.store
        how = f"the group has acknowledged this log up to {committed}, and the master's is another one from {common} on"
        if role.unclean > store.history.last:
            store.conflict = None
            raise Diverged(
                f"{how}: it was elected by uncleanElectionEnable, or chosen by `mq ha rebuild --keep`. With "
                "haResyncEnable=true this store is put aside and copied again; check first whether its messages are "
                "needed"
            )
        store.conflict = Conflict(role.epoch, role.lease)
        self.member.wake()
        raise MQError(
            f"{how}: nothing is truncated, and this broker takes no part, until the group has another master. `mq ha "
            "status` shows what each broker has, and `mq ha rebuild` lets one of them be elected"
        )

    # --- what people see

    def info(self) -> dict[str, str]:
        """What the runtime information says."""
        role, member = self.member.role, self.member
        in_sync = " ".join(map(str, sorted(role.in_sync)))
        found = {"groupReplicaId": str(self.replica_id), "groupEpoch": str(role.epoch), "groupInSync": in_sync}
        found["groupMinInSync"] = str(self._settings.min_in_sync_replicas)
        found["groupKnown"] = " ".join(map(str, member.known))
        found["groupRunning"] = " ".join(map(str, sorted(member.members)))
        if self._serves_epoch and self._in_sync is not None:
            found["groupWhyNotConfirmed"] = self._in_sync.why_not_confirmed()
        if self.store.is_open:
            has = self.store.holdings
            why_not_whole = has.why_not_whole or why_damaged(self.store.gaps)
            found |= {"groupCommitted": str(has.committed), "groupNotWhole": why_not_whole}
            found["groupHasGaps"] = str(has.has_gaps).lower()
            found |= {"groupLogEpoch": str(has.epoch), "groupLogLease": str(has.lease)}
        return {**found, "groupWhyNot": member.why_not, "groupIsMaster": str(member.is_master).lower()}


def etcd_access(settings: BrokerSettings) -> EtcdAccess:
    """How a broker asks etcd: a request that fails leaves time for two more in a lease."""
    return EtcdAccess(
        endpoints=settings.etcd_endpoints,
        first=settings.broker_id - 1,
        timeout_s=min(TIMEOUT_SECONDS, settings.etcd_lease_ttl_seconds / 3),
        username=settings.etcd_username,
        password_file=settings.etcd_password_file,
        ca_file=settings.etcd_ca_file,
        cert_file=settings.etcd_cert_file,
        key_file=settings.etcd_key_file,
    )
