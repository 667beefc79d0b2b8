"""Registration of a broker with its name servers: at start, periodically, on each change of topics, until unregistered.

Each name server has its own sequence of requests, so that one that hangs does not delay the others. One request is in
flight at a time; changes meanwhile go with the next. A name server that has some version of the topics gets only the
changes since; one that may have lost them - the connection closed, a request failed - gets all of them. Source of
headers and bodies: BrokerOuterAPI and BrokerController of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredLock, gatherResults, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import ConnectionClosed, MQError
from mqbroker.remoting.client import RemotingClient, succeeded
from mqbroker.remoting.cooperative_tasks import StepRunner
from mqbroker.repeated_call import RepeatedCall
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode
from mqbroker.wire.command import FRAME_BYTES_MAX, RemotingCommand
from mqbroker.wire.registration import STEP_TOPICS, Steps, body_crc32, encode_registration, write_registration

log = Logger()

UNREGISTER_TIMEOUT_MS = 3_000
#: Delay before retrying a name server that failed or closed the connection, and so has removed the broker.
RETRY_SECONDS = 5.0
#: The same, where the last request succeeded: clients have no route to the broker meanwhile.
FIRST_RETRY_SECONDS = 0.5
#: How long a change of a topic waits for name servers that do not answer. Clients time out after 5 s.
CHANGES_SECONDS_MAX = 3.0
#: Added to the error if a name server closes the connection without ever having answered.
LOST_AT_ONCE_HINT = "look whether both sides use TLS (useTLS here, tls.server.mode there)"
#: The room for the body in a name server's frame, beside the header.
BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024


OnMaster = Callable[[str, str], None]


@attrs.frozen
class BrokerIdentity:
    """How a broker is named in its requests to name servers."""

    broker_addr: str
    broker_name: str
    cluster_name: str
    broker_id: int


@attrs.frozen
class _Body:
    """An encoded registration body, and the version of its topics."""

    version: DataVersion
    compressed: bool
    data: bytes


@attrs.define(eq=False)
class RegistrationRequests:
    """Builds a broker's registration requests: once for all name servers, the long ones by `runner` in steps."""

    _identity: BrokerIdentity
    _topics: TopicTable
    _live: LiveSettings
    _runner: StepRunner
    _ha_server_addr: str
    _one_by_one: DeferredLock = attrs.field(init=False, factory=DeferredLock)
    #: The last body of all topics, with its version and permission as the cache key.
    _made: tuple[tuple[DataVersion, int], _Body] | None = attrs.field(init=False, default=None)
    #: Whether the last body of all topics was too large, uncompressed.
    _is_too_large: bool = attrs.field(init=False, default=False)

    async def register(self, changes: set[str] | None) -> tuple[RemotingCommand, DataVersion]:
        """A registration of all topics, or of `changes` alone, and the version a name server has once it accepts it.

        Only one of all topics tells that a topic was removed. It is sent at once unless it is long; then the next
        periodic one tells it.
        """
        topics = self._topics.snapshot()
        table = topics.topic_config_table
        if changes is None or (len(table) <= STEP_TOPICS and not changes <= table.keys()):
            body = await self._one_by_one.run(lambda: Deferred.fromCoroutine(self._all(topics)))
        else:
            body = self._some(topics, changes)
        header = h.RegisterBrokerRequestHeader(
            **attrs.asdict(self._identity),
            ha_server_addr=self._ha_server_addr,
            compressed=body.compressed,
            body_crc32=body_crc32(body.data),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body.data), body.version

    def query(self) -> tuple[RemotingCommand, DataVersion]:
        """A query whether a name server has the current version of the topics, and that version."""
        version = self._topics.snapshot().data_version
        header = h.QueryDataVersionRequestHeader(**attrs.asdict(self._identity))
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, header, version.to_json()), version

    def unregistration(self) -> RemotingCommand:
        header = h.UnRegisterBrokerRequestHeader(**attrs.asdict(self._identity))
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)

    async def _all(self, topics: TopicConfigSerializeWrapper) -> _Body:
        """The body of all topics, cached until they or the permission change."""
        key = topics.data_version, self._live.current.broker_permission
        if self._made is not None and self._made[0] == key:
            return self._made[1]
        compressed = self._live.current.compressed_register
        data = await self._written(topics, compressed)
        was_too_large, self._is_too_large = self._is_too_large, len(data) > BODY_BYTES_MAX and not compressed
        if self._is_too_large:
            log.emit(
                LogLevel.debug if was_too_large else LogLevel.warn,
                "{n} topics are {size} bytes, more than name servers accept: they are registered compressed, as with "
                "compressedRegister=true",
                n=len(topics.topic_config_table),
                size=len(data),
            )
            data, compressed = await self._written(topics, True), True
        body = _Body(topics.data_version, compressed, data)
        self._made = key, body
        return body

    async def _written(self, topics: TopicConfigSerializeWrapper, compressed: bool) -> bytes:
        steps = write_registration(RegisterBrokerBody(topics), compressed=compressed, permission=self._permission())
        if len(topics.topic_config_table) <= STEP_TOPICS:
            return b"".join(steps)
        return await self._runner.run(_joined(steps))

    def _some(self, topics: TopicConfigSerializeWrapper, names: set[str]) -> _Body:
        table = topics.topic_config_table
        some = {name: table[name] for name in sorted(names) if name in table}
        body = RegisterBrokerBody(attrs.evolve(topics, topic_config_table=some))
        compressed = self._live.current.compressed_register
        data = encode_registration(body, compressed=compressed, permission=self._permission())
        return _Body(topics.data_version, compressed, data)

    def _permission(self) -> int | None:
        """The permission that limits all topics, if the broker is not both readable and writable; else None."""
        both = Perm.READ | Perm.WRITE
        permission = self._live.current.broker_permission
        return None if permission & both == both else permission


def _joined(pieces: Iterable[bytes]) -> Steps[bytes]:
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(piece)
        yield
    return b"".join(parts)


class _Due(IntEnum):
    """What is to be registered beside changes."""

    NOTHING = 0
    ALL_IF_UNKNOWN = 1
    ALL = 2


@attrs.define(eq=False)
class NameServer:
    """Keeps one broker registered with the name server at `address`.

    :param on_order_topics: called with the ordered topics when a response lists them.
    :param on_master: called with what a response says of a slave's master.
    :param may_register: says no while another broker may have been elected master, whose entry must stay.
    """

    address: str
    _client: RemotingClient
    _requests: RegistrationRequests
    _timeout_ms: int
    _clock: IReactorTime
    _on_order_topics: Callable[[NameServer, frozenset[str]], None]
    _on_master: OnMaster
    _may_register: Callable[[], bool]
    is_reachable: bool | None = attrs.field(init=False, default=None)
    #: The version of the topics that the name server has; None if unknown.
    _known: DataVersion | None = attrs.field(init=False, default=None)
    _due: _Due = attrs.field(init=False, default=_Due.NOTHING)
    _changes: set[str] = attrs.field(init=False, factory=set)
    _working: Deferred[None] | None = attrs.field(init=False, default=None)
    #: Fired when the requests in progress have ended.
    _waiters: list[Deferred[None]] = attrs.field(init=False, factory=list)
    _retry: IDelayedCall | None = attrs.field(init=False, default=None)
    _is_stopped: bool = attrs.field(init=False, default=False)

    def register_all(self, *, force: bool) -> Deferred[None]:
        """Register all topics; without `force`, only if the name server does not have the current version.

        Fires when it has answered or failed. Failures are logged, not propagated.
        """
        self._due = max(self._due, _Due.ALL if force else _Due.ALL_IF_UNKNOWN)
        return self.register_changes()

    def note_change(self, topic: str) -> None:
        """Add the topic to the next registration, whatever causes that.

        It carries the version of all topics, and name servers ignore further requests of the same version.
        """
        self._changes.add(topic)

    def register_changes(self) -> Deferred[None]:
        """Register the changed topics. Fires when the name server has answered or failed."""
        if self._is_stopped:
            return succeed(None)
        done = self._ended()
        if self._working is None:
            working = self._working = Deferred.fromCoroutine(self._work())
            working.addBoth(self._end)
        return done

    def connection_closed(self) -> None:
        """Called when the connection closed: the name server has removed the broker, and may have lost its state."""
        self._known = None
        self._retry_later(FIRST_RETRY_SECONDS if self.is_reachable else RETRY_SECONDS)

    async def unregister(self) -> None:
        """Unregister when the request in flight has ended, or after 3 s. Failures are logged."""
        self._is_stopped = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self._working is not None:
            give_up = self._clock.callLater(UNREGISTER_TIMEOUT_MS / 1000, self._working.cancel)
            await self._ended()
            if give_up.active():
                give_up.cancel()
        if not self._may_register():
            return
        try:
            await self._client.invoke_sync(self.address, self._requests.unregistration(), UNREGISTER_TIMEOUT_MS)
        except MQError as error:
            self._log_change(False, str(error))
        else:
            log.info("unregistered from name server {address}", address=self.address)

    # --- the work

    def _ended(self) -> Deferred[None]:
        self._waiters.append(Deferred())
        return self._waiters[-1]

    def _end(self, result: object) -> None:
        self._working = None
        if isinstance(result, Failure) and result.check(CancelledError) is None:  # type: ignore[no-untyped-call]
            log.failure("registration at name server {address} failed", result, address=self.address)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.callback(None)

    async def _work(self) -> None:
        while (self._due or self._changes) and not self._is_stopped:
            if not self._may_register():
                self._retry_later(RETRY_SECONDS)
                return
            due, self._due = self._due, _Due.NOTHING
            try:
                await self._register(due)
            except MQError as error:
                self.connection_closed()
                self._log_change(False, self._why(error))
                return

    async def _register(self, due: _Due) -> None:
        if due is _Due.ALL_IF_UNKNOWN and self._known is not None and not await self._is_unknown():
            if not self._changes:
                return
            due = _Due.NOTHING
        changes, self._changes = self._changes, set()
        is_all = due is not _Due.NOTHING or self._known is None
        # Nothing is awaited in building changes: they must use the connection of the name server that has the rest.
        command, version = await self._requests.register(None if is_all else changes)
        answer = await self._request(command)
        self._known = version
        self._log_change(True)
        if self._is_stopped:  # it was removed from namesrvAddr meanwhile
            return
        header = h.decode_header(h.RegisterBrokerResponseHeader, answer.ext_fields)
        self._on_master(header.ha_server_addr or "", header.master_addr or "")
        if answer.body:
            self._on_order_topics(self, frozenset(KVTable.from_json(answer.body).table))

    async def _is_unknown(self) -> bool:
        """Whether the name server has another version of the topics."""
        command, version = self._requests.query()
        answer = await self._request(command)
        header = h.decode_header(h.QueryDataVersionResponseHeader, answer.ext_fields)
        return header.changed or bool(answer.body and DataVersion.from_json(answer.body) != version)

    async def _request(self, command: RemotingCommand) -> RemotingCommand:
        return succeeded(await self._client.invoke_sync(self.address, command, self._timeout_ms))

    def _retry_later(self, seconds: float) -> None:
        if not self._is_stopped and (self._retry is None or not self._retry.active()):
            self._retry = self._clock.callLater(seconds, self._retry_now)

    def _retry_now(self) -> None:
        if self._known is None:
            self.register_all(force=True)
        else:  # what waited while another broker could have been master
            self.register_changes()

    def _why(self, error: MQError) -> str:
        if isinstance(error, ConnectionClosed) and self.is_reachable is None:
            return f"{str(error).rstrip('.')}; {LOST_AT_ONCE_HINT}"
        return str(error)

    def _log_change(self, is_reachable: bool, why: str = "") -> None:
        """Log changes of reachability only: a name server that stays unreachable is logged once."""
        if self.is_reachable is is_reachable:
            return
        self.is_reachable = is_reachable
        if is_reachable:
            log.info("register broker to name server {address} OK", address=self.address)
        else:
            log.warn("registration at name server {address} failed: {why}", address=self.address, why=why)


class Registration:
    """Keeps one broker registered with all name servers of namesrvAddr, which may change. Unreachable ones are retried
    indefinitely.

    :param ha_server_addr: the address for slaves; empty if the broker serves none.
    :param on_master: called with the master's addresses for replication and for requests, as responses to a slave
        have them; empty where they are unknown.
    :param may_register: see `NameServer`.
    """

    def __init__(
        self,
        client: RemotingClient,
        identity: BrokerIdentity,
        topics: TopicTable,
        live: LiveSettings,
        clock: IReactorTime,
        ha_server_addr: str = "",
        on_master: OnMaster = lambda ha_address, address: None,
        may_register: Callable[[], bool] = lambda: True,
    ) -> None:
        self._topics = topics
        self._live = live
        self._clock = clock
        self._is_scheduled = False
        self._loop = RepeatedCall(self._tick, clock=clock)
        requests = RegistrationRequests(identity, topics, live, StepRunner(clock), ha_server_addr)
        timeout_ms = live.current.register_broker_timeout_ms
        self._make: Callable[[str], NameServer] = lambda address: NameServer(
            address, client, requests, timeout_ms, clock, self._set_order_topics, on_master, may_register
        )
        self._servers: list[NameServer] = []
        #: The name servers that were taken from namesrvAddr, until the broker is unregistered there.
        self._leaving: dict[str, Deferred[None]] = {}
        live.follow(self._permission_changed, "brokerPermission")
        live.follow(lambda _: self._follow_addresses(), "namesrvAddr")

    def start(self) -> Deferred[None]:
        """Register now; fires when every name server has answered or failed."""
        self._loop.start(self._live.current.register_name_server_period_ms / 1000, now=False)
        return self._follow_addresses()

    def stop(self) -> Deferred[None]:
        """Unregister from all name servers; fires when all have answered or failed."""
        if self._loop.running:
            self._loop.stop()
        for server in self._servers:
            self._leave(server)
        return gatherResults(list(self._leaving.values())).addCallback(lambda _: None)

    def _follow_addresses(self) -> Deferred[None]:
        """Register with the name servers that were added to namesrvAddr, and unregister from those that were removed.

        Fires when the added ones have answered or failed.
        """
        if not self._loop.running:
            return succeed(None)
        known = {server.address: server for server in self._servers}
        # One that was removed and is there again is added when the broker is unregistered, lest that comes last.
        wanted = [at for at in dict.fromkeys(self._live.current.namesrv_addr) if at not in self._leaving]
        added = {address: self._make(address) for address in wanted if address not in known}
        removed = [server for address, server in known.items() if address not in wanted]
        self._servers = [(known | added)[address] for address in wanted]
        for server in removed:
            self._leave(server)
        if removed and not self._servers:
            log.warn(
                "namesrvAddr is empty: this broker is not registered anywhere; set it to the addresses of name servers"
            )
        told = [server.register_all(force=True) for server in added.values()]
        return gatherResults(told).addCallback(lambda _: None)

    def _leave(self, server: NameServer) -> None:
        def left(_: None) -> None:
            del self._leaving[server.address]
            self._follow_addresses()

        leaving = Deferred.fromCoroutine(server.unregister())
        leaving.addErrback(
            lambda failure: log.failure("unregistering from {address} failed", failure, address=server.address)
        )
        self._leaving[server.address] = leaving
        leaving.addCallback(left)

    def changed(self, topic: str) -> None:
        """Schedule the registration of a changed topic, together with the other changes of this reactor turn."""
        if not self._loop.running:
            return
        for server in self._servers:
            server.note_change(topic)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(0, self._register_changes)

    def changes_registered(self) -> Deferred[None]:
        """Fires when all name servers have the changes so far, or failed, and after 3 s at the latest."""
        told: Deferred[None] = Deferred()
        late = self._clock.callLater(CHANGES_SECONDS_MAX, told.callback, None)

        def done(_: object) -> None:
            if late.active():
                late.cancel()
                told.callback(None)

        gatherResults([server.register_changes() for server in self._servers]).addCallback(done)
        return told

    def connection_closed(self, address: str) -> None:
        """Called when the connection to a name server closes: it has removed the broker."""
        for server in self._servers:
            if server.address == address:
                server.connection_closed()

    def _permission_changed(self, _: object) -> None:
        """Register the changed broker permission; the version of the topics has been incremented already."""
        if self._loop.running:
            self.register_all(force=True)

    def _tick(self) -> None:
        self.register_all(force=self._live.current.force_register)

    def register_all(self, *, force: bool) -> Deferred[None]:
        """Register now; fires when every name server has answered or failed. `force`: see `NameServer`."""
        told = [server.register_all(force=force) for server in self._servers]
        return gatherResults(told).addCallback(lambda _: None)

    def _register_changes(self) -> None:
        self._is_scheduled = False
        if self._loop.running:
            for server in self._servers:
                server.register_changes()

    def _set_order_topics(self, server: NameServer, topics: frozenset[str]) -> None:
        """Accept ordered topics from the first reachable name server only: two that differ would make topics flap."""
        if next((each for each in self._servers if each.is_reachable), None) is server:
            self._topics.set_order_topics(topics)
