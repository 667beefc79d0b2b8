"""Keeps a broker registered with its name servers: at the start, every period, on each change of topics, until goodbye.

Each name server is told by itself, so that one that hangs keeps no other waiting. One request to it is under way at a
time, and what comes up meanwhile is told by the next. A name server that has the topics of a version needs only the
changes since; one that may have lost them - the connection closed, a request failed - is told all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.broker.registration_requests import BrokerIdentity, RegistrationRequests
from mqbroker.broker.topic_table import TopicTable
from mqbroker.config import BrokerSettings
from mqbroker.errors import ConnectionClosed, MQError, Refused
from mqbroker.remoting.client import RemotingClient
from mqbroker.wire.bodies import DataVersion, KVTable
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import QueryDataVersionResponseHeader, decode_header

log = Logger()

UNREGISTER_TIMEOUT_MS = 3_000

#: A name server that is away, or closed the connection, is tried again so soon. It has taken the broker out.
RETRY_SECONDS = 5.0


#: Where a name server closes the connection and has never answered.
LOST_AT_ONCE_HINT = "look whether both sides use TLS (useTLS here, tls.server.mode there)"


class _Wanted(IntEnum):
    """What is to be told beside changes."""

    NOTHING = 0
    ALL_IF_UNKNOWN = 1
    ALL = 2


class NameServer:
    """Keeps one broker registered with the name server at `address`.

    :param on_order_topics: is told which topics are ordered, by each answer that says so.
    """

    def __init__(
        self,
        address: str,
        client: RemotingClient,
        requests: RegistrationRequests,
        timeout_ms: int,
        clock: IReactorTime,
        on_order_topics: Callable[[NameServer, frozenset[str]], None],
    ) -> None:
        self.address = address
        self.is_reachable: bool | None = None
        self._client = client
        self._requests = requests
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._on_order_topics = on_order_topics
        self._knows: DataVersion | None = None
        self._wanted = _Wanted.NOTHING
        self._changes: set[str] = set()
        self._working: Deferred[None] | None = None
        self._retry: IDelayedCall | None = None
        self._is_stopped = False

    def tell_all(self, *, force: bool) -> Deferred[None]:
        """Register; without `force` only where the name server says that it does not have this version of the topics.

        Fires when it has answered or failed. Failures are logged, not passed on.
        """
        self._wanted = max(self._wanted, _Wanted.ALL if force else _Wanted.ALL_IF_UNKNOWN)
        return self._go()

    def note_change(self, topic: str) -> None:
        """Have it told by the next request, whatever that is made for.

        The request has the version of all topics, and name servers do not look at another one of that version.
        """
        self._changes.add(topic)

    def tell_changes(self) -> Deferred[None]:
        """Register what changed. Fires when the name server has answered or failed."""
        return self._go()

    def connection_closed(self) -> None:
        """The name server took the broker out, and may have lost all it knew."""
        self._knows = None
        self._try_again_soon()

    def stop(self) -> Deferred[None]:
        """Tell nothing more, and wait for what is under way, for 3 s at most."""
        self._is_stopped = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        working = self._working
        if working is None:
            return _fired()
        give_up = self._clock.callLater(UNREGISTER_TIMEOUT_MS / 1000, working.cancel)

        def ended(_: None) -> None:
            if give_up.active():
                give_up.cancel()

        return _follow(working).addCallback(ended)

    async def unregister(self) -> None:
        """Say goodbye. Failures are logged."""
        await self.stop()
        try:
            await self._client.invoke_sync(self.address, self._requests.goodbye(), UNREGISTER_TIMEOUT_MS)
        except MQError as error:
            self._say(False, str(error))
        else:
            log.info("unregistered from name server {address}", address=self.address)

    # --- steps

    def _go(self) -> Deferred[None]:
        if self._is_stopped:
            return _fired()
        if self._working is None:
            working = self._working = Deferred.fromCoroutine(self._work())
            working.addBoth(self._ended)
            if working.called:
                self._working = None
                return working
        return _follow(self._working)

    def _ended(self, result: object) -> None:
        self._working = None
        if isinstance(result, Failure) and result.check(CancelledError) is None:  # type: ignore[no-untyped-call]
            log.failure("name server {address} is not told of this broker", result, address=self.address)

    async def _work(self) -> None:
        while (self._wanted or self._changes) and not self._is_stopped:
            wanted, self._wanted = self._wanted, _Wanted.NOTHING
            try:
                await self._tell(wanted)
            except MQError as error:
                self._knows = None
                self._say(False, self._why(error))
                self._try_again_soon()
                return

    async def _tell(self, wanted: _Wanted) -> None:
        if wanted is _Wanted.ALL_IF_UNKNOWN and self._knows is not None and not await self._is_unknown():
            if not self._changes:
                return
            wanted = _Wanted.NOTHING
        changes, self._changes = self._changes, set()
        is_all = wanted is not _Wanted.NOTHING or self._knows is None
        # Changes are written at once: they go out over the connection of the name server that knows the rest.
        command, version = await self._requests.register(None if is_all else changes)
        answer = await self._ask(command)
        self._knows = version
        self._say(True, "")
        if answer.body:
            self._on_order_topics(self, frozenset(KVTable.from_json(answer.body).table))

    async def _is_unknown(self) -> bool:
        """Whether the name server has another version of the topics."""
        command, version = self._requests.query()
        answer = await self._ask(command)
        header = decode_header(QueryDataVersionResponseHeader, answer.ext_fields)
        return header.changed or bool(answer.body and DataVersion.from_json(answer.body) != version)

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        answer = await self._client.invoke_sync(self.address, command, self._timeout_ms)
        if answer.code:
            raise Refused(answer.code, answer.remark or "")
        return answer

    def _try_again_soon(self) -> None:
        if self._is_stopped or (self._retry is not None and self._retry.active()):
            return
        self._retry = self._clock.callLater(RETRY_SECONDS, self._retried)

    def _retried(self) -> None:
        if self._knows is None:
            self.tell_all(force=True)

    def _why(self, error: MQError) -> str:
        if isinstance(error, ConnectionClosed) and self.is_reachable is None:
            why = str(error).rstrip(".")
            return f"{why}; {LOST_AT_ONCE_HINT}"
        return str(error)

    def _say(self, is_reachable: bool, why: str) -> None:
        """Log only what changed: a name server that stays away is one line."""
        if self.is_reachable is is_reachable:
            return
        self.is_reachable = is_reachable
        if is_reachable:
            log.info("register broker to name server {address} OK", address=self.address)
        else:
            log.warn("name server {address} is not told of this broker: {why}", address=self.address, why=why)


def _fired() -> Deferred[None]:
    done: Deferred[None] = Deferred()
    done.callback(None)
    return done


def _follow(working: Deferred[None]) -> Deferred[None]:
    """Fires when `working` has ended, however that was."""
    done: Deferred[None] = Deferred()

    def pass_on(result: None) -> None:
        done.callback(None)
        return result

    working.addCallback(pass_on)
    return done


#: How long who changed a topic waits for name servers that do not answer. Clients wait for 5 s.
TOLD_SECONDS_MAX = 3.0


class Registration:
    """Keeps one broker registered with all `addresses`. A name server that is away is tried again and again."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        identity: BrokerIdentity,
        topics: TopicTable,
        settings: BrokerSettings,
        clock: IReactorTime,
    ) -> None:
        self._client = client
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._requests = RegistrationRequests(
            identity,
            topics.snapshot,
            settings.broker_permission,
            clock,
            compressed=settings.compressed_register,
        )
        self._is_to_tell = False
        self._loop = LoopingCall(self._tick)
        self._loop.clock = clock
        self._servers = [self._server(address) for address in addresses]

    def start(self) -> Deferred[None]:
        """Register now; fires when every name server has answered or failed."""
        self._loop.start(self._settings.register_name_server_period_ms / 1000, now=False)
        return self._tell_all(force=True)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Register with the broker's permission where that is another now; the topics have another version already."""
        former, self._settings = self._settings, settings
        if settings.broker_permission != former.broker_permission and self._loop.running:
            self.permission_changed(settings.broker_permission)

    def changed(self, topic: str) -> None:
        """Register a topic that changed soon: all changes of this turn together."""
        if not self._loop.running:
            return
        for server in self._servers:
            server.note_change(topic)
        if not self._is_to_tell:
            self._is_to_tell = True
            self._clock.callLater(0, self._tell_changes)

    def told(self) -> Deferred[None]:
        """Fires when all name servers were told of the changes so far, or failed, and after 3 s at the latest."""
        heard: Deferred[None] = Deferred()
        late = self._clock.callLater(TOLD_SECONDS_MAX, heard.callback, None)

        def done(_: object) -> None:
            if late.active():
                late.cancel()
                heard.callback(None)

        gatherResults([server.tell_changes() for server in self._servers]).addCallback(done)
        return heard

    def permission_changed(self, permission: int) -> Deferred[None]:
        """Register with another permission of the broker; the topics have another version already."""
        self._requests.permission = permission
        return self._tell_all(force=True)

    def connection_closed(self, address: str) -> None:
        """Hear of a connection that closed: that name server has taken the broker out."""
        for server in self._servers:
            if server.address == address:
                server.connection_closed()

    def use(self, addresses: Sequence[str]) -> None:
        """Register with these name servers from now on. Others take the broker out as the connection closes."""
        former = {server.address: server for server in self._servers}
        self._servers = [former.pop(each) if each in former else self._server(each) for each in addresses]
        for server in former.values():
            server.stop()
            self._client.drop(server.address, "it is no longer among the name servers")
        for server in self._servers:
            if server.is_reachable is None:
                server.tell_all(force=True)

    def stop(self) -> Deferred[None]:
        """Unregister everywhere; fires when all have answered or failed."""
        if self._loop.running:
            self._loop.stop()
        gone = [Deferred.fromCoroutine(server.unregister()) for server in self._servers]
        return gatherResults(gone).addCallback(lambda _: None)

    # --- steps

    def _server(self, address: str) -> NameServer:
        timeout_ms = self._settings.register_broker_timeout_ms
        return NameServer(address, self._client, self._requests, timeout_ms, self._clock, self._hear_order_topics)

    def _tick(self) -> None:
        self._tell_all(force=self._settings.force_register)

    def _tell_all(self, *, force: bool) -> Deferred[None]:
        told = [server.tell_all(force=force) for server in self._servers]
        return gatherResults(told).addCallback(lambda _: None)

    def _tell_changes(self) -> None:
        self._is_to_tell = False
        if self._loop.running:
            for server in self._servers:
                server.tell_changes()

    def _hear_order_topics(self, speaker: NameServer, topics: frozenset[str]) -> None:
        """Take the word of the first name server that answers: two that differ would change topics to and fro."""
        if next(server for server in self._servers if server.is_reachable) is speaker:
            self._topics.set_order_topics(topics)
