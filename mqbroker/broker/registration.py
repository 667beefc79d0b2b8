"""Telling the name servers: at start, every `registerNameServerPeriod`, on each change of topics, and goodbye.

One registration is under way at a time; a change during it is told by the next, at once after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import BrokerSettings
from mqbroker.remoting.client import RemotingClient
from mqbroker.wire.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import RegisterBrokerRequestHeader, UnRegisterBrokerRequestHeader
from mqbroker.wire.registration import body_crc32, encode_registration

log = Logger()

UNREGISTER_TIMEOUT_MS = 3_000


@attrs.frozen
class BrokerIdentity:
    """What a broker calls itself towards name servers."""

    address: str
    name: str
    cluster: str
    broker_id: int
    ha_address: str


class Registration:
    """Keeps one broker registered with all `addresses`. A name server that is away is tried again each period."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        identity: BrokerIdentity,
        topics: Callable[[], TopicConfigSerializeWrapper],
        settings: BrokerSettings,
        clock: IReactorTime,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._identity = identity
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._loop = LoopingCall(self._tick)
        self._loop.clock = clock
        self._under_way = False
        self._again = False
        self._reachable: dict[str, bool] = {}

    def start(self) -> Deferred[None]:
        """Register now; fires when every name server has answered or failed."""
        self._loop.start(self._settings.register_name_server_period_ms / 1000, now=False)
        return self.register()

    def changed(self, _topic: str = "") -> None:
        """Register soon: all changes of this turn together."""
        if self._loop.running and not self._again:
            self._again = True
            self._clock.callLater(0, self._register_again)

    def _tick(self) -> Deferred[None] | None:
        return None if self._under_way else self.register()

    def _register_again(self) -> None:
        if self._loop.running and self._again and not self._under_way:
            self.register()

    def register(self) -> Deferred[None]:
        """Tell all name servers; fires when all have answered or failed. Failures are logged, not passed on."""
        self._under_way, self._again = True, False
        requests = [self._tell(address) for address in self._addresses]
        return gatherResults(requests).addBoth(self._told)

    def _told(self, _: Any) -> None:
        self._under_way = False
        if self._again:
            self._clock.callLater(0, self._register_again)

    def stop(self) -> Deferred[None]:
        """Unregister everywhere; fires when all have answered or failed."""
        if self._loop.running:
            self._loop.stop()
        me = self._identity
        header = UnRegisterBrokerRequestHeader(
            broker_name=me.name, broker_addr=me.address, cluster_name=me.cluster, broker_id=me.broker_id
        )
        gone = []
        for address in self._addresses:
            command = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)
            d = self._client.invoke_sync(address, command, UNREGISTER_TIMEOUT_MS)
            gone.append(d.addCallbacks(partial(self._unregistered, address), partial(self._failed, address)))
        return gatherResults(gone).addCallback(lambda _: None)

    def _tell(self, address: str) -> Deferred[None]:
        timeout_ms = self._settings.register_broker_timeout_ms
        d = self._client.invoke_sync(address, self._request(), timeout_ms)
        return d.addCallbacks(partial(self._registered, address), partial(self._failed, address))

    def _request(self) -> RemotingCommand:
        me = self._identity
        body = RegisterBrokerBody(self._visible_topics())
        compressed = self._settings.compressed_register
        data = encode_registration(body, compressed=compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=me.name,
            broker_addr=me.address,
            cluster_name=me.cluster,
            ha_server_addr=me.ha_address,
            broker_id=me.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(data),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, data)

    def _visible_topics(self) -> TopicConfigSerializeWrapper:
        """All topics, each with the broker's own permission where that is less than reading and writing."""
        topics = self._topics()
        perm = self._settings.broker_permission
        if perm & Perm.READ and perm & Perm.WRITE:
            return topics
        table = {name: attrs.evolve(topic, perm=perm) for name, topic in topics.topic_config_table.items()}
        return attrs.evolve(topics, topic_config_table=table)

    def _registered(self, address: str, answer: RemotingCommand) -> None:
        if answer.code:
            self._say(address, False, f"code {answer.code}: {answer.remark}")
        else:
            self._say(address, True, "")

    def _unregistered(self, address: str, _: RemotingCommand) -> None:
        log.info("unregistered from name server {address}", address=address)

    def _failed(self, address: str, failure: Failure) -> None:
        self._say(address, False, failure.getErrorMessage())

    def _say(self, address: str, reachable: bool, why: str) -> None:
        """Log only what changed: a name server that stays away is one line."""
        if self._reachable.get(address) is reachable:
            return
        self._reachable[address] = reachable
        if reachable:
            log.info("register broker to name server {address} OK", address=address)
        else:
            log.warn("name server {address} is not told of this broker: {why}", address=address, why=why)
