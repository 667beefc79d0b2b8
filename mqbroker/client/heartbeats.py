"""Heartbeats to the brokers of the routes in use, and unregistering from them. Clients that share their connections
share them too: each of them has all groups."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqbroker.client.errors import is_about_account
from mqbroker.client.identity import Identity
from mqbroker.client.net import Net
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from mqbroker.wire.codes import MASTER_ID, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader

log = logging.getLogger(__name__)


#: A period may end so much early, as clocks round.
_EARLY_S = 0.01


class Heartbeats:
    """One client's part in heartbeats: as a producer of `producer_group`, or as the consumer that `consumer_data`
    describes."""

    def __init__(
        self,
        net: Net,
        routes: Routes,
        identity: Identity,
        *,
        producer_group: str | None = None,
        consumer_data: Callable[[], ConsumerData] | None = None,
        heartbeat_s: float = 30.0,
        timeout_ms: int = 3000,
    ) -> None:
        self._identity = identity
        self.net = net
        self._routes = routes
        self.producer_group = producer_group
        self.consumer_data = consumer_data
        self._timeout_ms = timeout_ms
        self.heartbeat_s = heartbeat_s
        self._is_over = False
        #: When a broker got one that has this client's group.
        self.sent_at: dict[str, float] = {}
        #: Called with the address of a broker that has answered one.
        self.on_answer: Callable[[str], object] = len

    async def send_to_all(self) -> dict[str, MQError]:
        """Send one to every broker: masters, and slaves too where this client consumes. Returns the failures, which are
        logged, by address."""
        return await self._send(self._reached())

    async def keep_sending(self) -> None:
        """Send one to each broker to which no client with the same connections has sent one for a period, until this is
        cancelled."""
        while True:
            sent_at = [self.sent_at[addr] for addr in self.addresses_in_use() if addr in self.sent_at]
            now = self.net.steady()
            await self.net.sleep(max(_EARLY_S, min(sent_at, default=now) + self.heartbeat_s - now))
            await self._send([addr for addr in self._reached() if self.is_due(addr)])

    async def send_first(self) -> None:
        """As `send_to_all`. Raises Refused if all brokers refuse the account."""
        failures = await self.send_to_all()
        if failures and all(is_about_account(error) for error in failures.values()) and not self.sent_at:
            raise next(iter(failures.values()))

    def _reached(self) -> list[str]:
        """The addresses of this client's brokers. Those that no route has any more are forgotten."""
        for gone in self.sent_at.keys() - {addr for part in self._parts() for addr in part.addresses_in_use()}:
            del self.sent_at[gone]
        return self.addresses_in_use()

    def _parts(self) -> list[Heartbeats]:
        """Those of all clients with the same connections, this one included until it is over."""
        parts: list[Heartbeats] = self.net.heartbeats
        if self not in parts and not self._is_over:
            parts.append(self)
        return parts

    async def send_to(self, addr: str) -> None:
        """Send one at once."""
        await self._send([addr])

    async def send_to_new(self) -> None:
        """Send one to the brokers of a new route that are not known yet."""
        await self._send([addr for addr in self.addresses_in_use() if addr not in self.sent_at])

    def is_due(self, addr: str) -> bool:
        """Whether the broker at `addr`, which responds, got no heartbeat within the period."""
        sent_at = self.sent_at.get(addr)
        return sent_at is None or self.net.steady() - sent_at >= self.heartbeat_s - _EARLY_S

    async def unregister(self) -> None:
        """Unregister from every broker that got one. After failures the brokers' own time-out applies."""
        parts, self._is_over = self._parts(), True
        if self in parts:
            parts.remove(self)
        if self.producer_group and any(part.producer_group == self.producer_group for part in parts):
            return  # others of the group have the same client id
        consumer = self.consumer_data() if self.consumer_data else None
        header = UnregisterClientRequestHeader(
            client_id=self._identity.client_id,
            producer_group=self.producer_group,
            consumer_group=consumer.group_name if consumer else None,
        )
        addresses = sorted(self.sent_at)
        requests = [(addr, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)) for addr in addresses]
        self.sent_at.clear()
        for addr, answer in zip(addresses, await self.net.invoke_many(requests, self._timeout_ms), strict=True):
            if isinstance(answer, MQError):
                log.info("could not unregister from %s: %s", addr, answer)

    def _data(self) -> HeartbeatData:
        parts = self._parts()
        groups = [part.producer_group for part in parts]
        return HeartbeatData(
            client_id=self._identity.client_id,
            producer_data_set=[ProducerData(group) for group in dict.fromkeys(groups) if group],
            consumer_data_set=[part.consumer_data() for part in parts if part.consumer_data],
        )

    def addresses_in_use(self) -> list[str]:
        found = {
            addr
            for addresses in self._routes.brokers().values()
            for broker_id, addr in addresses.items()
            if broker_id == MASTER_ID or self.consumer_data
        }
        return sorted(found)

    async def _send(self, addresses: list[str]) -> dict[str, MQError]:
        """Send one to each address. Returns the errors by address."""
        failures: dict[str, MQError] = {}
        if self._is_over or not addresses:
            return failures
        request = self.request()
        for part in self._parts():
            for addr in addresses:
                part.sent_at[addr] = self.net.steady()
        answers = await self.net.invoke_many([(addr, request) for addr in addresses], self._timeout_ms)
        for addr, answer in zip(addresses, answers, strict=True):
            why = self.answered(addr, answer)
            if why is not None:
                failures[addr] = why
        return failures

    def request(self) -> RemotingCommand:
        """A heartbeat."""
        return RemotingCommand.request(RequestCode.HEART_BEAT, body=self._data().to_json())

    def answered(self, addr: str, answer: RemotingCommand | MQError) -> MQError | None:
        """Note the result of a heartbeat; returns the error, which is logged, if it failed."""
        if not isinstance(answer, MQError) and answer.code == ResponseCode.SUCCESS:
            for part in self._parts():
                if addr in part.sent_at:  # else it has begun meanwhile, and the broker does not know of it
                    part.sent_at[addr] = self.net.steady()
                    part.on_answer(addr)
            return None
        for part in self._parts():
            part.sent_at.pop(addr, None)
        why = answer if isinstance(answer, MQError) else Refused(answer.code, answer.remark or "")
        log.warning("heartbeat to %s failed: %s", addr, why)
        return why
