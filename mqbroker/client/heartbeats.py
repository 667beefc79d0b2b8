"""Heartbeats to the brokers of the routes in use, and unregistering from them."""

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


class Heartbeats:
    """One client's heartbeats: as a producer of `producer_group`, or as the consumer that `consumer_data` describes."""

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
        self._net = net
        self._routes = routes
        self._producer_group = producer_group
        self._consumer_data = consumer_data
        self._timeout_ms = timeout_ms
        self.heartbeat_s = heartbeat_s
        self._sent_at: dict[str, float] = {}
        #: Called with the address of a broker that has answered one.
        self.on_answer: Callable[[str], object] = len

    async def send_to_all(self) -> None:
        """Send one to every broker: masters, and slaves too where this client consumes. Failures are logged."""
        await self._send_to_all()

    async def send_first(self) -> None:
        """As `send_to_all`. Raises Refused if all brokers refuse the account."""
        failures = await self._send_to_all()
        if failures and all(is_about_account(error) for error in failures.values()) and not self._sent_at:
            raise next(iter(failures.values()))

    async def _send_to_all(self) -> dict[str, MQError]:
        addresses = self._addresses()
        for gone in self._sent_at.keys() - set(addresses):
            del self._sent_at[gone]
        return await self._send(addresses)

    async def send_to(self, addr: str) -> None:
        """Send one at once."""
        await self._send([addr])

    async def send_to_new(self) -> None:
        """Send one to the brokers of a new route that are not known yet."""
        await self._send([addr for addr in self._addresses() if addr not in self._sent_at])

    def is_due(self, addr: str) -> bool:
        """Whether the broker at `addr`, which has answered a request, got none within the heartbeat's period."""
        sent_at = self._sent_at.get(addr)
        return sent_at is None or self._net.steady() - sent_at >= self.heartbeat_s

    async def unregister(self) -> None:
        """Unregister from every broker that got one. After failures the brokers' own time-out applies."""
        consumer = self._consumer_data() if self._consumer_data else None
        header = UnregisterClientRequestHeader(
            client_id=self._identity.client_id,
            producer_group=self._producer_group,
            consumer_group=consumer.group_name if consumer else None,
        )
        addresses = sorted(self._sent_at)
        requests = [(addr, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)) for addr in addresses]
        self._sent_at.clear()
        for addr, answer in zip(addresses, await self._net.invoke_many(requests, self._timeout_ms), strict=True):
            if isinstance(answer, MQError):
                log.info("could not unregister from %s: %s", addr, answer)

    def _data(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self._identity.client_id,
            producer_data_set=[ProducerData(self._producer_group)] if self._producer_group else [],
            consumer_data_set=[self._consumer_data()] if self._consumer_data else [],
        )

    def _addresses(self) -> list[str]:
        found = {
            addr
            for addresses in self._routes.brokers().values()
            for broker_id, addr in addresses.items()
            if broker_id == MASTER_ID or self._consumer_data
        }
        return sorted(found)

    async def _send(self, addresses: list[str]) -> dict[str, MQError]:
        """Send one to each address. Returns the errors by address."""
        failures: dict[str, MQError] = {}
        for addr in addresses:
            self._sent_at[addr] = self._net.steady()
        request = self.request()
        answers = await self._net.invoke_many([(addr, request) for addr in addresses], self._timeout_ms)
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
            self._sent_at[addr] = self._net.steady()
            self.on_answer(addr)
            return None
        self._sent_at.pop(addr, None)
        why = answer if isinstance(answer, MQError) else Refused(answer.code, answer.remark or "")
        log.warning("heartbeat to %s failed: %s", addr, why)
        return why
