"""Telling the name servers: at start, every `registerNameServerPeriod`, on each change of topics, and goodbye.

Each name server is told by itself, so that one that hangs keeps no other waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mqbroker.broker.name_server import NameServer
from mqbroker.broker.registration_requests import BrokerIdentity, RegistrationRequests
from mqbroker.broker.topics import TopicTable
from mqbroker.config import BrokerSettings
from mqbroker.remoting.client import RemotingClient

log = Logger()

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
