"""The broker as one Twisted service, the only module that sees all its parts.

Start order: bind the ports, open the store (lock first; connections opened meanwhile wait), load the tables, build the
request handlers, start the periodic tasks, register with the name servers. Stopping runs in reverse, so that clients
are told first and no acknowledged message or committed offset is lost. It includes draining: no connection is accepted,
sends and pulls are refused so that clients try another broker, and accepted requests are answered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from mqbroker.access.acl_files import AclFiles, acl_places
from mqbroker.broker.assembly import Assembly, Replication
from mqbroker.broker.broker_group import EPOCHS_FILE, NOTE_SYNC_SECONDS, BrokerGroup, StoreLost, etcd_access
from mqbroker.broker.broker_slave import BrokerSlave
from mqbroker.broker.fast_failure import FastFailure, TickingTurnClock, Turns
from mqbroker.broker.name_servers import BrokerIdentity, OnMaster, Registration
from mqbroker.broker.ports import allowed_slaves, exempt_slaves, own_address
from mqbroker.broker.replica_store import cut_store_back, paths_of, put_store_aside
from mqbroker.broker.requests.broker_admin import Save
from mqbroker.broker.sends_to_master import SendsToMaster
from mqbroker.broker.sibling_topics import SiblingTopics
from mqbroker.broker.slave_synchronize import SlaveSynchronize
from mqbroker.config import BrokerRole, BrokerSettings
from mqbroker.config.changes import rewrite_conf
from mqbroker.config.system import resolve
from mqbroker.errors import AlreadyStarted, Refused, StoreUnwritable
from mqbroker.ha.divergence import Diverged, FallenBehind, LogComparison
from mqbroker.ha.etcd import EtcdClient, IEtcd
from mqbroker.ha.link_secret import LinkSecret, read_secret
from mqbroker.ha.master import HaSettings, MasterService, Slaves, Trust
from mqbroker.ha.slave import MasterConnection, SlaveService, SlaveSettings
from mqbroker.ha.slave_check import SlaveCheck, registered_slaves
from mqbroker.remoting.client import Connector, RemotingClient, tcp_connector
from mqbroker.remoting.draining import answered
from mqbroker.remoting.extensions import Extensions, load_extensions
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.listening import ListeningService
from mqbroker.remoting.ordered import stop_in_reverse
from mqbroker.remoting.response_table import Opaques
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.remoting.steady_clock import SteadyClock
from mqbroker.remoting.tcp import Buffers
from mqbroker.remoting.tls import WATCH_SECONDS as TLS_WATCH_SECONDS
from mqbroker.remoting.tls import ServerTls, tls_connector
from mqbroker.repeated_call import RepeatedCall
from mqbroker.store.cut_tails import forget_tails
from mqbroker.store.disk import IDisk
from mqbroker.store.flush import RUNNING_MAX
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.linux_aio import LinuxAio
from mqbroker.store.message_store import MessageStore, open_store_in_turns
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.stores_aside import forget_stores, was_put_aside
from mqbroker.store.syncs import AioSyncs, ISyncs, WorkerSyncs
from mqbroker.store.worker import IWorker, SerialWorker, ThreadWorker
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.names import is_ip, join_address
from mqbroker.wire.record import encode_host
from mqbroker.wire.requests import codes_where

log = Logger()

FILE_RETRY_SECONDS = 5.0
#: How often old tails that were cut off the log are searched for, seconds.
FORGET_SECONDS = 3600.0
#: How long accepted requests may take when the broker stops.
DRAIN_SECONDS_MAX = 5.0
#: How long the connections to name servers outlive a planned change of the master: a name server removes whoever
#: closes its connection, and clients need the former master's entry until the next one has registered.
NAMES_SECONDS = 15.0
#: Makes producers try another broker, and consumers retry.
STOPPING = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now. The broker is stopping")
#: For all disk access except syncs of the log.
DISK_THREADS = 3


@attrs.frozen
class _Follower:
    """What connects a slave to its master."""

    client: RemotingClient
    comparison: LogComparison
    service: SlaveService


@attrs.frozen
class _Server:
    """What listens, and serves connections by `table`."""

    table: HandlerTable
    tls: ServerTls
    factory: RemotingServerFactory
    listening: ListeningService


class BrokerService(Service):
    """One broker. `started` fires when the first registration with the name servers has ended.

    :param etcd: the etcd client with which a group of brokers elects its master; by default one for etcdEndpoints.
    :param steady: seconds of a clock that is never set; by default the reactor's.
    :param resolve: returns the address of a host name, which may take long; raises OSError.
    :param rng: also makes what proves a broker to its group: nobody must be able to guess its numbers.
    """

    name = "mqbroker"

    def __init__(
        self,
        settings: BrokerSettings,
        reactor: Any,
        *,
        disk: IDisk,
        rng: Random,
        worker: IWorker | None = None,
        connector: Connector | None = None,
        files_max: int = sys.maxsize,
        etcd: IEtcd | None = None,
        steady: Callable[[], float] | None = None,
        resolve: Callable[[str], str] = resolve,
    ) -> None:
        self.settings = settings
        self.extensions = Extensions()
        self._resolve = resolve
        #: Tells other shards of the topics that sends create, and creates theirs; None of a broker that is no shard.
        self.siblings: SiblingTopics | None = None
        self._files_max = files_max
        self.started: Deferred[None] = Deferred()
        self.port = 0
        self._vip_port: int | None = None
        self._master: MasterService | None = None
        self._assembly: Assembly | None = None
        self._read_tls: Callable[[], object] | None = None
        self._reactor = reactor
        self._clock = cast(IReactorTime, reactor)
        self._steady = steady or self._clock.seconds
        self._disk = disk
        self._rng = rng
        self._worker = worker
        self._connector = connector
        self._opaques = Opaques()
        self._stops: list[Callable[[], object]] = []
        self._starting: Deferred[None] | None = None
        self._stopping: Deferred[None] | None = None
        #: Whether it was stopped for good: nothing makes it start again then.
        self._is_stopped = False
        #: The settings to start again with, while it stops for that.
        self._next_settings: BrokerSettings | None = None
        #: Called between the stop and the start.
        self._before_next: Callable[[], None] | None = None
        self._may_resync, self._is_stuck = settings.ha_resync_enable, False
        #: What a replica does; None of a master.
        self._slave: BrokerSlave | None = None
        self._server: _Server | None = None
        #: Whether the ports and connections outlive the stop that is planned: the next start serves them.
        self._keeps_server = False
        #: The clients to name servers that outlive a stop, until these calls.
        self._leaving_names: dict[RemotingClient, IDelayedCall] = {}
        self._group: BrokerGroup | None = None
        #: Whether this process has looked for damage of the log.
        self._has_looked = False
        if settings.etcd_endpoints:
            asked = etcd or EtcdClient(reactor, etcd_access(settings))
            self._group = BrokerGroup(
                settings,
                asked,
                self._clock,
                self._steady,
                self._change_role,
                self._follow_elected,
                self._plan_cut,
                disk,
                rng.randbytes,
                self._hold_requests,
            )
            self.settings = self._group.settings(settings)

    @property
    def ports(self) -> dict[str, int]:
        """The ports bound, once the broker runs."""
        more = {"vip": self._vip_port, "ha": None if self._master is None else self._master.port}
        return {"remoting": self.port} | {name: port for name, port in more.items() if port is not None}

    # --- start

    def startService(self) -> Deferred[None]:
        """Start the broker. Fires when it serves requests: at once, unless the store has much to recover.

        Fails with CannotListenError, StoreLocked, StoreDamaged, BadAcl, BadTls or OSError after undoing the start, and
        with CancelledError if stopped meanwhile. Cleanup that waits for the disk may still be under way then;
        `stopService` fires when it is complete. Raises AlreadyStarted if the broker runs or is still stopping.
        """
        if self.running or (self._stopping is not None and not self._stopping.called):
            raise AlreadyStarted(f"the broker {self.settings.broker_name} is already started; stop it first")
        super().startService()  # type: ignore[no-untyped-call]
        self._stopping, self._is_stopped = None, False
        if self.started.called:
            self.started = Deferred()
        starting = self._starting = Deferred.fromCoroutine(self._start_or_undo())
        return starting

    async def _start_or_undo(self) -> None:
        try:
            if self.settings.ha_secret_file:
                read_secret(self.settings.ha_secret_file)  # an error should show now, not when a slave connects
            if self._group is not None:
                self._group.look_for_loss()
            await self._start()
        except BaseException:
            self._starting = None
            self.stopService()
            raise

    async def _start(self) -> None:
        clock, settings = self._clock, self.settings
        table = HandlerTable(extensions=self.extensions)
        server = self._listen(table)
        tls, factory, listening = server.tls, server.factory, server.listening
        worker = self._worker or ThreadWorker(deferToThreadPool, self._reactor, self._make_threads(DISK_THREADS))
        if tls.has_files:
            self._read_tls = partial(tls.look, worker.run)
            self._every(TLS_WATCH_SECONDS, self._read_tls)
        acl = self._read_acl(worker)
        store_host = encode_host((await self._own_address(listening, worker), self.port))
        opening = open_store_in_turns(
            settings.store,
            disk=self._disk,
            clock=clock,
            worker=worker,
            store_host=store_host,
            log_syncs=None if self._worker else self._make_log_syncs(),
        )
        if self._group is not None or not opening.called:
            listening.pause()
        store = await opening
        self._stops.append(store.stop)
        settings = await self._take_role(store, worker)
        follower = self._make_follower(store) if settings.store.broker_role is BrokerRole.SLAVE else None
        parts = self._assembly = Assembly(
            table,
            store,
            settings,
            open_file=lambda name: self._file(name, worker),
            steady=SteadyClock(clock, self._steady),
            rng=self._rng,
            store_host=store_host,
            acl=acl,
            save_settings=self._saver(worker),
            replication=self._replication(follower),
        )
        FastFailure(self._turns(), parts.live).watch(table)
        self._stops += parts.saves()
        factory.on_event = parts.connection_event
        self._start_store(store, parts)
        self._stops += [parts.delay.stop, parts.consumers.stop]
        if follower is None:
            parts.topic_repair.start()
            for part in (parts.delay, parts.half_queue, parts.checks):
                store.when_shown(part.start)
            self._stops += [parts.half_queue.stop, parts.checks.stop]
        for seconds, action in parts.periodic():
            self._every(seconds, action)
        self._save_offsets(parts)
        parts.live.follow(self._plan_start, "brokerRole", "brokerId")
        if follower is None:
            self._serve_slaves(store, parts.slaves)
        if parts.acknowledgements is not None:
            self._stops.append(parts.acknowledgements.stop)
        # The port is bound first, so that a port in use changes nothing, but closed before the parts that serve it.
        self._stops.remove(self._leave_server)
        self._stops += [self._leave_server, lambda: answered(factory.load, clock, DRAIN_SECONDS_MAX)]
        if server.table is not table:
            server.table.become(table)
        listening.resume()
        factory.release()
        parts.held.start()
        self._stops += [parts.stop_pulls, lambda: self._stop_new_work(server)]
        if follower is None:
            self._register(parts)
        else:
            self._follow_master(store, parts, follower)
        self._take_part(store, parts)

    def _start_store(self, store: MessageStore, parts: Assembly) -> None:
        if self._group is not None:
            self._group.settle(store, parts.offsets)
        store.start()

    async def _own_address(self, listening: ListeningService, worker: IWorker) -> str:
        settings = self.settings
        if is_ip(settings.broker_ip1):
            return settings.broker_ip1
        listening.pause()
        found: tuple[str, str] = await worker.run(lambda: own_address(settings, self._resolve))
        log.info("{told}", told=found[1])
        return found[0]

    def _replication(self, follower: _Follower | None) -> Replication:
        service, group = None if follower is None else follower.service, self._group
        if group is None:
            return Replication(follower=service)
        self._stops.append(group.end_epoch)
        sends = None
        if follower is not None:
            sends = SendsToMaster(follower.client, self._clock, lambda: group.master_address, group.is_patient)
        return Replication(
            follower=service,
            make_quorum=group.make_in_sync,
            group_info=group.info,
            is_certain=group.is_certain if follower is None else None,
            may_serve=group.may_serve,
            sends=sends,
            members=group,
        )

    async def _take_role(self, store: MessageStore, worker: IWorker) -> BrokerSettings:
        """The settings; in a group, of the role that the broker has now, and of a master the epoch is noted."""
        group = self._group
        self._every(FORGET_SECONDS, lambda: self._forget_cut(worker))
        if group is None:
            return self.settings
        self._stops.append(group.store.close)
        await worker.run(partial(store.look, is_again=self._has_looked))
        self._has_looked = True
        group.load(self._file(EPOCHS_FILE, worker), store)
        self._every(NOTE_SYNC_SECONDS, lambda: self._sync_note(group, worker))
        settings = self.settings = group.settings(self.settings)
        if settings.store.broker_role is not BrokerRole.SLAVE:
            await group.begin_epoch(store.log_min_offset, store.log_end)
        return settings

    def _sync_note(self, group: BrokerGroup, worker: IWorker) -> None:
        def failed(failure: Failure) -> None:
            log.error("the file that identifies the store cannot be written: {why}", why=failure.getErrorMessage())

        worker.run(group.sync_note).addErrback(failed)
        group.look_at_gaps()

    def _forget_cut(self, worker: IWorker) -> None:
        """Delete the truncated part of the log long ago, and stores that were put aside."""
        paths, now_ms = paths_of(self.settings.store), int(self._clock.seconds() * 1000)

        def done(gone: list[str]) -> None:
            if gone:
                log.info(
                    "expired copies of truncated logs and replaced stores were deleted: {paths}", paths=", ".join(gone)
                )

        def failed(failure: Failure) -> None:
            log.error(
                "expired copies of truncated logs and replaced stores cannot be deleted: {why}",
                why=failure.getErrorMessage(),
            )

        def forget() -> list[str]:
            return forget_tails(self._disk, paths.root, now_ms) + forget_stores(self._disk, paths, now_ms)

        worker.run(forget).addCallbacks(done, failed)

    def _take_part(self, store: MessageStore, parts: Assembly) -> None:
        """Take part in what several brokers do together: shards, and groups that elect their master."""
        if self.siblings is not None:
            self.siblings.attach(parts.topics if self._slave is None else None)
        group = self._group
        if group is None:
            return
        if not group.member.running:
            address = join_address(self.settings.broker_ip1, self.port)
            group.member.join(address, join_address(self.settings.broker_ip2, self.settings.ha_listen_port))
        group.serves()

    def _make_follower(self, store: MessageStore) -> _Follower:
        raw = store.follow()
        client = self._make_client()
        self._stops.append(client.close)
        comparison = LogComparison(raw, client, is_told=lambda: bool(self._current_settings.namesrv_addr))
        connector = self._connector or tcp_connector(self._reactor)
        secret = LinkSecret.of(self.settings, self._rng.randbytes)
        settings = attrs.evolve(SlaveSettings.of(self.settings), secret=secret)

        async def compare(connection: MasterConnection) -> None:
            group = self._group
            if group is not None:
                await self._compare(group.compare(connection, raw, comparison.check))
                return
            await self._compare(comparison.check(connection.bounds))
            if not raw.end and was_put_aside(self._disk, paths_of(self.settings.store)):
                connection.begin_at = await comparison.master_begin(connection.bounds)

        progressed = None if self._group is None else self._group.progressed
        service = SlaveService(self._clock, raw, settings, connector, compare, self._steady, progressed)
        if self._group is not None:
            service.is_expected = self._group.is_patient
        return _Follower(client, comparison, service)

    def _follow_master(self, store: MessageStore, parts: Assembly, follower: _Follower) -> None:
        parts.copied_topics.begin(store.log_end)
        tables = SlaveSynchronize(
            follower.client, parts.topics, parts.groups, parts.offsets, parts.delay, store, parts.copied_topics
        )
        slave = self._slave = BrokerSlave(
            self._clock,
            follower.service,
            follower.comparison,
            tables,
            parts.topics,
            self.settings.ha_master_address,
            lambda: registration.register_all(force=True) if self._group is None else None,
        )
        store.on_dispatch.append(lambda topic, *_: slave.arrived(topic))
        slave.start()
        self._stops.append(slave.stop)
        # In a group, etcd names the master.
        registration = self._register(parts, slave.on_master if self._group is None else None)

    def _serve_slaves(self, store: MessageStore, slaves: Slaves) -> None:
        """Listen for slaves, if some may connect and the port is free. Raises BadAddress."""
        self._master = None
        is_allowed = allowed_slaves(self.settings)
        if is_allowed is None:
            log.info(
                "no slave can connect: aclEnable and tls.server.mode=enforcing need haSecretFile or "
                "haWhiteRemoteAddresses"
            )
            return
        settings = HaSettings.of(self.settings)
        trust = self._trust(store)
        master = MasterService(self._reactor, slaves, settings, is_allowed, self._group, self._steady, trust)
        try:
            master.startService()
        except CannotListenError as error:
            log.error("no slave can connect: {error}; set another haListenPort", error=error)
            return
        self._master = master
        self._stops.append(master.stopService)

    def _trust(self, store: MessageStore) -> Trust:
        """Which slaves count. Raises BadAddress."""
        settings = self.settings
        client = self._make_client()
        self._stops.append(client.close)

        def registered() -> Awaitable[Sequence[str] | None]:
            return registered_slaves(client, self._current_settings.namesrv_addr, settings.broker_name)

        check = SlaveCheck(store.raw_log, client, self._clock, registered)
        is_open = not (settings.ha_secret_file or settings.ha_white_remote_addresses)
        if is_open and settings.store.broker_role is BrokerRole.SYNC_MASTER and self._group is None:
            log.warn(
                "brokerRole=SYNC_MASTER, and any peer that connects to port {port} counts as a slave: set "
                "haSecretFile on all "
                "brokers of this name, or haWhiteRemoteAddresses here",
                port=settings.ha_listen_port,
            )
        return Trust(
            LinkSecret.of(settings, self._rng.randbytes), exempt_slaves(settings) or (lambda host: False), check
        )

    def _read_acl(self, worker: IWorker) -> AclFiles | None:
        if not self.settings.acl_enable:
            return None
        return AclFiles(acl_places(self.settings.rocketmq_home, self.settings.acl_plain_file), worker, self._clock)

    def _turns(self) -> Turns:
        if hasattr(self._reactor, "turn_began"):
            return cast(Turns, self._reactor)
        turns = TickingTurnClock(self._clock.seconds)
        self._every(TickingTurnClock.SECONDS, turns.tick)
        return turns

    def _listen(self, table: HandlerTable) -> _Server:
        """Listen, or take over what listened before."""
        kept, self._keeps_server = self._keeps_server, False
        if kept and self._server is not None:
            self._stops.append(self._leave_server)
            return self._server
        server, tls = self.settings.server, ServerTls(self.settings.tls, self._clock)
        limits = Limits.of(server, self._files_max)
        factory = RemotingServerFactory(
            table, self._clock, limits, tls=tls, steady=self._steady, extensions=self.extensions
        )
        listening = ListeningService(
            self._reactor,
            server.listen_port,
            factory,
            backlog=server.server_socket_backlog,
            interface=server.bind_address,
            buffers=Buffers.of(server),
            other_port=self.settings.vip_port,
        )
        listening.startService()
        self.port, self._vip_port = listening.port, listening.other_port
        made = self._server = _Server(table, tls, factory, listening)
        self._stops.append(self._leave_server)
        return made

    def _leave_server(self) -> Deferred[None]:
        """Stop listening and close connections, unless the next start serves them."""
        server = self._server
        if self._keeps_server or server is None:
            return succeed(None)
        self._server = None
        return server.listening.stopService()

    def _stop_new_work(self, server: _Server) -> object:
        """From now on no requests are accepted; where the next start serves the connections, they wait for that."""
        if self._keeps_server:
            server.factory.hold()
            return None
        server.table.refuse(codes_where(lambda request: request.new_work), STOPPING)
        return server.listening.stop_accepting()

    def _hold_requests(self, is_held: bool) -> None:
        if self._server is None:
            return
        if is_held:
            self._server.factory.hold()
        elif not self._keeps_server:
            self._server.factory.release()

    def _make_log_syncs(self) -> ISyncs:
        """Make the syncs of the log: by Linux AIO where available, else by a dedicated thread."""
        serial = SerialWorker(self._reactor.callFromThread)
        self._make_threads(1).callInThread(serial.serve)
        self._stops.append(serial.stop)
        beside = self._make_threads(RUNNING_MAX - 1)
        syncs = WorkerSyncs(serial, ThreadWorker(deferToThreadPool, self._reactor, beside))
        if not self.settings.store.kernel_sync_enable:
            return syncs
        try:
            expect = getattr(self._reactor, "expect", lambda seconds: None)  # without busy polling
            queue = LinuxAio(self._reactor, self._reactor.seconds, expect, self._reactor.callLater)
        except OSError as error:
            log.info("the log is synced by a thread: Linux AIO is not available: {error}", error=error)
            return syncs
        self._stops.append(queue.stop)
        return AioSyncs(queue, syncs)

    def _make_threads(self, count: int) -> ThreadPool:
        threads = ThreadPool(0, count, "disk")
        threads.start()
        self._stops.append(threads.stop)
        return threads

    def _file(self, name: str, worker: IWorker) -> JsonFile:
        folder = os.path.join(self.settings.store.store_path_root_dir, "config")
        if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            why = "the tables of topics, groups and offsets are kept there, and this process may not write there"
            raise StoreUnwritable(f"{folder}: {why}; correct its permissions, or set another storePathRootDir")
        path = os.path.join(folder, name)
        file = JsonFile(path, worker, self._disk, lambda act: self._reactor.callLater(0, act))
        self._every(FILE_RETRY_SECONDS, file.retry)
        return file

    def _saver(self, worker: IWorker) -> Save | None:
        """Return a function that writes changes to the settings file; None if there is no file."""
        path = self.settings.config_path
        if path is None:
            return None

        def failed(failure: Failure) -> bool:
            log.error("{path} could not be written: {why}", path=path, why=failure.getErrorMessage())
            return False

        def save(changes: Mapping[str, str]) -> Deferred[bool]:
            work = worker.run(lambda: rewrite_conf(path, changes))
            return work.addCallbacks(lambda _: True, failed)

        return save

    def _save_offsets(self, parts: Assembly) -> None:
        saving = self._every(self.settings.flush_consumer_offset_interval_ms / 1000, parts.offsets.persist)

        def restart(settings: BrokerSettings) -> None:
            saving.stop()
            saving.start(settings.flush_consumer_offset_interval_ms / 1000, now=False)

        parts.live.follow(restart, "flushConsumerOffsetInterval")

    def _every(self, seconds: float, action: Callable[[], object]) -> RepeatedCall:
        loop = RepeatedCall(action, clock=self._clock)
        loop.start(seconds, now=False)
        self._stops.append(loop.stop)
        return loop

    def _make_client(self, on_closed: Callable[[str], None] | None = None) -> RemotingClient:
        """Make a client for requests to name servers and brokers."""
        settings, connector = self.settings.client, self._connector
        if connector is None and settings.use_tls:
            connector = tls_connector(self._reactor, self.settings.tls)
        return RemotingClient(
            self._reactor,
            connector=connector,
            connect_timeout_ms=settings.connect_timeout_ms,
            limits=Limits(idle_seconds=settings.client_channel_max_idle_time_seconds),
            requests_max=settings.client_async_semaphore_value,
            on_closed=on_closed,
            opaques=self._opaques,
            steady=self._steady,
        )

    def _register(self, parts: Assembly, on_master: OnMaster | None = None) -> Registration:
        settings = self.settings
        client = self._make_client(lambda address: registration.connection_closed(address))
        address = join_address(settings.broker_ip1, self.port)
        identity = BrokerIdentity(address, settings.broker_name, settings.broker_cluster_name, settings.broker_id)
        ha_addr = "" if self._master is None else join_address(settings.broker_ip2, self._master.port)
        registration = Registration(
            client,
            identity,
            parts.topics,
            parts.live,
            self._clock,
            ha_addr,
            on_master or (lambda ha_address, address: None),
            (lambda: True) if self._group is None else self._group.may_register,
        )
        parts.topics.on_change.append(registration.changed)
        parts.topics.announcers.append(registration.changes_registered)
        self._stops += [lambda: self._leave_names(client), registration.stop]
        registration.start().addCallback(self.started.callback)
        return registration

    def _leave_names(self, client: RemotingClient) -> Deferred[None]:
        if not self._keeps_server:
            return client.close()
        self._leaving_names[client] = self._clock.callLater(NAMES_SECONDS, self._left_names, client)
        return succeed(None)

    def _left_names(self, client: RemotingClient) -> Deferred[None]:
        call = self._leaving_names.pop(client)
        if call.active():
            call.cancel()
        return client.close()

    # --- while it runs

    @property
    def _current_settings(self) -> BrokerSettings:
        """The settings with the changes of this run."""
        return self.settings if self._assembly is None else self._assembly.live.current

    def adopt(self, settings: BrokerSettings) -> list[str]:
        """Apply re-read settings that may change at runtime, and reload accounts and certificates.

        Returns the other keys that differ. Raises BadSetting with no setting changed.
        """
        if self._assembly is None:
            return []
        if self._read_tls is not None:
            self._read_tls()
        return self._assembly.adopt(settings if self._group is None else self._group.settings(settings))

    def _plan_start(self, settings: BrokerSettings) -> None:
        """Restart in the next iteration, so that the request is answered before the parts stop."""
        if self._is_stopped:
            return
        is_planned = self._next_settings is not None
        # At the same address, also where any port was free.
        self._next_settings = attrs.evolve(settings, server=attrs.evolve(settings.server, listen_port=self.port))
        if not is_planned:
            self._clock.callLater(0, lambda: Deferred.fromCoroutine(self._start_again()))

    async def _compare(self, comparing: Awaitable[None]) -> None:
        """Compare a slave's log with its master's; with haResyncEnable begin anew where they differ."""
        try:
            await comparing
        except Diverged as error:
            is_outlived = isinstance(error, FallenBehind)
            is_lost = isinstance(error, StoreLost) or (is_outlived and self._group is not None)
            if (self._may_resync or is_lost) and not self._is_stuck and self._next_settings is None:
                why = str(error) if is_lost else f"{error}: haResyncEnable=true"
                log.warn("{why}; this store is put aside and copied again from the master", why=why)
                self._before_next = partial(self._put_store_aside, is_outlived)
                self._plan_start(self._current_settings)
            raise

    def _change_role(self) -> None:
        if self._starting is None or self._starting.called:  # else that is looked at when the start has ended
            self._plan_start(self._current_settings)
            if self._group is not None and self._group.member.role.is_switched and not self._is_stopped:
                self._hold_requests(True)
                self._keeps_server = True

    def _follow_elected(self, ha_address: str, address: str) -> None:
        if self._slave is not None:
            self._slave.on_master(ha_address, address, is_elected=True)

    def _plan_cut(self, end: int, log_end: int) -> None:
        """Cut the log, which ends at `log_end`, back to `end` between a stop and a start."""

        def cut() -> None:
            now_ms = int(self._clock.seconds() * 1000)
            self._is_stuck = not cut_store_back(self._disk, self.settings.store, end, log_end, now_ms)

        if not self._is_stuck:
            self._before_next = cut
            self._plan_start(self._current_settings)

    def _put_store_aside(self, is_outlived: bool) -> None:
        now_ms = int(self._clock.seconds() * 1000)
        if not put_store_aside(self._disk, self.settings.store, now_ms, is_outlived=is_outlived):
            self._is_stuck = True  # not again in this process: it would be tried each second

    async def _start_again(self) -> None:
        log.info("the broker stops, to start again")
        await self._stop_parts()
        settings, self._next_settings = self._next_settings, None
        before, self._before_next = self._before_next, None
        if settings is None:  # it was stopped for good meanwhile
            return
        try:
            if before is not None:
                before()
            self.settings, self._assembly = settings, None
            await self.startService()
        except CancelledError:
            return  # it is stopped, perhaps to start once more
        except Exception as error:
            log.critical("the broker cannot restart, and exits: {why}", why=str(error) or type(error).__name__)
            self._reactor.stop()
        else:
            log.info("the broker is started with brokerRole={role}", role=self.settings.store.broker_role.value)

    # --- stop

    def stopService(self) -> Deferred[None]:
        """Stop the parts in reverse order of start. Fires when the store is closed and its lock released.

        If a stop or the cleanup of a failed start is under way, fires when that is complete.
        """
        self._is_stopped, self._next_settings = True, None
        self._keeps_server = False
        stopped = self._stop_parts()
        stopped.addCallback(lambda _: self._leave_server())
        for client in list(self._leaving_names):
            self._left_names(client)
        if self._group is None:
            return stopped
        # Last: another broker may be elected as soon as the lease is given back.
        member = self._group.member
        return stopped.addCallback(lambda _: member.stopService())

    def _stop_parts(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        self._slave = None
        starting, self._starting = self._starting, None
        if starting is not None and not starting.called:
            starting.addErrback(_expect_cancelled)
            starting.cancel()
        if self._stopping is None:
            self._stopping = Deferred.fromCoroutine(stop_in_reverse(self._stops))
        done: Deferred[None] = Deferred()
        self._stopping.addCallback(lambda _: done.callback(None))
        return done


def _expect_cancelled(failure: Failure) -> None:
    failure.trap(CancelledError)  # type: ignore[no-untyped-call]


def make_broker(
    settings: BrokerSettings,
    reactor: Any,
    rng: Random,
    files_max: int = sys.maxsize,
    steady: Callable[[], float] | None = None,
) -> BrokerService:
    """Make the broker described by `settings`, on the real disk.

    :param rng: chooses queues for messages whose producer chose none, and makes what proves a broker to its group:
        nobody must be able to guess its numbers.
    :param files_max: with this many open files, no connection is accepted.
    :param steady: see `BrokerService`.

    Raises BadExtension if one that the settings name cannot be loaded.
    """
    broker = BrokerService(settings, reactor, disk=OsDisk(), rng=rng, files_max=files_max, steady=steady)
    broker.extensions = load_extensions(settings.server.extensions, reactor.seconds)
    return broker
