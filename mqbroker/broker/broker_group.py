"""A broker's part in a group that elects its master: what outlives the stops and starts by which it changes its role.

Each epoch's beginning is noted in `config/epochs.json` before the master of it serves anybody; a replica takes its
master's history over before it takes anything of its log.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import attrs
import orjson
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.broker.lossy_log import LossyLog
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.config import BrokerRole, BrokerSettings, FlushDiskType
from mqbroker.errors import MQError, StoreUnwritable
from mqbroker.ha.divergence import Diverged
from mqbroker.ha.election import GroupMember, GroupSettings, Role
from mqbroker.ha.epochs import BadHistory, Epoch, EpochHistory
from mqbroker.ha.etcd import TIMEOUT_SECONDS, EtcdAccess, IEtcd
from mqbroker.ha.in_sync import InSyncSet, InSyncSettings
from mqbroker.ha.link import BadPeer, Greeting
from mqbroker.ha.master import Slaves
from mqbroker.ha.slave import ISlaveLog, MasterConnection
from mqbroker.store.disk import IDisk
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.layout import StorePaths
from mqbroker.store.message_store import MessageStore

log = Logger()

EPOCHS_FILE = "epochs.json"


class BrokerGroup:
    """Knows which role the broker has, and the epochs of its log.

    :param settings: as they were read: brokerId is the broker's id in its group.
    :param on_role: called when the broker must start again in another role.
    :param on_master: called with the master's addresses, for replication and for requests, when a replica is to follow.
    :param cut: cuts the log back to an offset, and starts the broker again.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        etcd: IEtcd,
        clock: IReactorTime,
        steady: Callable[[], float],
        on_role: Callable[[], None],
        on_master: Callable[[str, str], None],
        cut: Callable[[int], None],
        disk: IDisk,
    ) -> None:
        self._settings, self._clock, self._steady = settings, clock, steady
        self._on_role, self._on_master, self._cut = on_role, on_master, cut
        self.replica_id = settings.broker_id
        own = GroupSettings(
            cluster=settings.broker_cluster_name,
            broker=settings.broker_name,
            replica_id=settings.broker_id,
            ttl_s=settings.etcd_lease_ttl_seconds,
            min_in_sync=settings.min_in_sync_replicas,
            is_unclean_allowed=settings.unclean_election_enable,
        )
        self._lossy = LossyLog(
            disk, StorePaths(settings.store.store_path_root_dir, settings.store.store_path_commit_log)
        )
        #: The log has all that was acknowledged, once it ends there: the master's did when they were compared.
        self._whole_at: int | None = None
        self._log_end: Callable[[], int] = lambda: 0
        self._digest = sha256(own.prefix.encode()).digest()[:8]
        self.member = GroupMember(etcd, clock, steady, own, self._role_changed)
        self.member.lossy_log = self._lossy_log
        self._history = EpochHistory()
        self._file: JsonFile | None = None
        self._in_sync: InSyncSet | None = None
        #: The epoch as whose master the broker runs; 0 for a replica.
        self._serves_epoch = 0

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
        """Whether name servers may be told that this broker runs: of a former master they must not hear any more."""
        return not self._serves_epoch or self.member.is_master

    def _role_changed(self, role: Role) -> None:
        if (role.epoch if role.is_master else 0) != self._serves_epoch:
            self._on_role()
        elif role.master is not None:
            self._on_master(role.master.ha_address, role.master.address)

    def serves(self) -> None:
        """Called when the broker has started: tell it what has changed meanwhile."""
        self._role_changed(self.member.role)

    # --- the epochs

    def look_for_loss(self) -> None:
        """Called before the store is opened. With SYNC_FLUSH only what is on the disk was acknowledged. Raises
        OSError."""
        if self._settings.store.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
            self._lossy.look()

    def _lossy_log(self) -> tuple[int, int] | None:
        """See `GroupMember.lossy_log`."""
        end = self._log_end()
        if self._whole_at is not None and end >= self._whole_at:
            self._is_whole()
        if self._history.last and not self._lossy.is_noted:
            return None
        return self._history.epoch_at(end), end

    def _is_whole(self) -> None:
        if self._lossy.is_noted:
            self._lossy.clear()
            log.info("the log has all that the group has acknowledged")

    def load(self, file: JsonFile, log_end: Callable[[], int]) -> None:
        """Read the epochs of the log, which ends at `log_end()`. Raises StoreDamaged."""
        self._file, self._log_end, self._whole_at = file, log_end, None
        self._history = file.load(EpochHistory.from_json) or EpochHistory()
        self.member.known_epoch = self._history.last
        self._serves_epoch = 0

    async def begin_epoch(self, log_min: int, log_end: int) -> None:
        """Note where the log ends, as the beginning of the epoch. Raises StoreUnwritable."""
        role = self.member.role
        if role.epoch > self._history.last:
            await self._save(self._history.begin(Epoch(role.epoch, log_end, role.lease), log_min))
        self._serves_epoch = role.epoch
        self._is_whole()  # for it is what the others follow

    async def _save(self, history: EpochHistory) -> None:
        assert self._file is not None
        # Twice: the copy that is read where the file is damaged must not be an older history.
        if not (await self._file.save(history.to_json) and await self._file.save(history.to_json)):
            raise StoreUnwritable(f"{self._file.path} cannot be written, and without it no epoch can begin")
        self._history = history
        self.member.known_epoch = history.last

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
        made = self._in_sync = InSyncSet(
            slaves,
            self._clock,
            self._steady,
            limits,
            self.replica_id,
            role.in_sync,
            slaves.log.end,
            lambda: self.member.is_master and self.member.role.epoch == epoch,
            self.member.propose,
        )
        self.member.on_in_sync = made.stands
        made.start()
        return made

    def end_epoch(self) -> None:
        """Keep the in-sync set no longer, if this broker was master."""
        in_sync, self._in_sync = self._in_sync, None
        if in_sync is not None:
            self.member.on_in_sync = None
            in_sync.stop()

    def settle(self, store: MessageStore, offsets: OffsetTable) -> None:
        """Keep what refers to the log from being ahead of what stays of it."""
        if self._serves_epoch and self._in_sync is not None:
            in_sync = self._in_sync
            store.replicated = lambda: in_sync.confirmed
        elif not self._serves_epoch:
            offsets.lower_to(store.max_offset)

    def answer(self, greeting: Greeting, log_end: int) -> bytes:
        """See `IGroup`."""
        if greeting.group != self._digest:
            raise BadPeer("it is of another group (brokerClusterName and brokerName)")
        if not self.member.is_master:
            raise BadPeer("this broker is not the master any more")
        if greeting.epoch != self._serves_epoch:
            raise BadPeer(f"it follows epoch {greeting.epoch}, and this is epoch {self._serves_epoch}")
        if greeting.replica_id <= 0:
            raise BadPeer(f"it has brokerId={greeting.replica_id}, and the ids in a group are above 0")
        if greeting.replica_id == self.replica_id:
            raise BadPeer(f"it has brokerId={greeting.replica_id}, as this broker")
        return orjson.dumps({**orjson.loads(self._history.to_json()), "end": log_end})

    # --- the replica's side

    async def compare(self, connection: MasterConnection, raw: ISlaveLog) -> None:
        """Agree with the master on the history of the log. Raises Diverged, MQError."""
        greeting = Greeting(self._digest, self.member.role.epoch, self.replica_id)
        answer = await connection.greet(greeting)
        theirs, end = _read_answer(answer)
        if theirs.last != greeting.epoch:
            raise MQError(f"the master's log is of epoch {theirs.last}, not {greeting.epoch}")
        if raw.end:
            common = self._history.common_end(raw.end, theirs, end)
            if common is None:
                raise Diverged(
                    "this log shares no epoch with its master's: it is not of this group; start this broker with an "
                    "empty store, or with a copy of the master's"
                )
            if common < raw.end:
                line = "this log has {n} bytes that the group never acknowledged: it is cut back to {end}"
                log.warn(line, n=raw.end - common, end=common)
                self._cut(common)
                raise MQError(f"the log is cut back to {common} first")
        if theirs != self._history:
            await self._save(theirs)
        self._whole_at = end

    # --- what people see

    def info(self) -> dict[str, str]:
        """What the runtime information says."""
        role, member = self.member.role, self.member
        in_sync = " ".join(map(str, sorted(role.in_sync)))
        found = {"groupReplicaId": str(self.replica_id), "groupEpoch": str(role.epoch), "groupInSync": in_sync}
        return {**found, "groupWhyNot": member.why_not}


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


def _read_answer(data: bytes) -> tuple[EpochHistory, int]:
    history = EpochHistory.from_json(data)
    end = orjson.loads(data).get("end")
    if type(end) is not int or end < 0:
        raise BadHistory("the master does not say where its log ends")
    return history, end
