"""Telling brokers that this client is there: heartbeats to all brokers of the routes in use, and leaving them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqbroker.client.errors import is_about_account
from mqbroker.client.net import Net
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from mqbroker.wire.codes import MASTER_ID, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader

log = logging.getLogger(__name__)


class Heartbeats:
    """One client's presence: as a producer of `producer_group`, or as the consumer that `consumer_data` describes."""

    def __init__(
        self,
        net: Net,
        routes: Routes,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_data: Callable[[], ConsumerData] | None = None,
        heartbeat_s: float = 30.0,
        timeout_ms: int = 3000,
    ) -> None:
        self.client_id = client_id
        self._net = net
        self._routes = routes
        self._producer_group = producer_group
        self._consumer_data = consumer_data
        self._timeout_ms = timeout_ms
        self._heartbeat_s = heartbeat_s
        self._told_at: dict[str, float] = {}

    async def beat(self) -> None:
        """Tell every broker: masters, and slaves too where this client consumes. Failures are logged."""
        await self._beat()

    async def begin(self) -> None:
        """As `beat`. Raises Refused where all brokers refuse the account: nothing can come of it."""
        failures = await self._beat()
        if failures and all(is_about_account(error) for error in failures.values()) and not self._told_at:
            raise next(iter(failures.values()))

    async def _beat(self) -> dict[str, MQError]:
        addresses = self._addresses()
        for gone in self._told_at.keys() - set(addresses):
            del self._told_at[gone]
        return await self._tell(addresses)

    async def beat_to(self, addr: str) -> None:
        """Tell one broker at once: it has said that it does not know this client."""
        await self._tell([addr])

    async def meet(self) -> None:
        """Tell the brokers that have not been told yet: a new route brought them."""
        await self._tell([addr for addr in self._addresses() if addr not in self._told_at])

    async def contact(self, addr: str) -> None:
        """This client has just talked to `addr`: tell it, unless it was told within the heartbeat's period."""
        told_at = self._told_at.get(addr)
        if told_at is None or self._net.now() - told_at >= self._heartbeat_s:
            await self._tell([addr])

    async def leave(self) -> None:
        """Unregister from every broker that was told. Failures are left to the brokers' own time-out."""
        consumer = self._consumer_data() if self._consumer_data else None
        header = UnregisterClientRequestHeader(
            client_id=self.client_id,
            producer_group=self._producer_group,
            consumer_group=consumer.group_name if consumer else None,
        )
        addresses = sorted(self._told_at)
        requests = [(addr, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)) for addr in addresses]
        self._told_at.clear()
        for addr, answer in zip(addresses, await self._net.invoke_many(requests, self._timeout_ms), strict=True):
            if isinstance(answer, MQError):
                log.info("could not unregister from %s: %s", addr, answer)

    def _data(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
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

    async def _tell(self, addresses: list[str]) -> dict[str, MQError]:
        """Returns what failed, by address."""
        failures: dict[str, MQError] = {}
        for addr in addresses:
            self._told_at[addr] = self._net.now()
        body = self._data().to_json()
        requests = [(addr, RemotingCommand.request(RequestCode.HEART_BEAT, body=body)) for addr in addresses]
        for addr, answer in zip(addresses, await self._net.invoke_many(requests, self._timeout_ms), strict=True):
            if not isinstance(answer, MQError) and answer.code == ResponseCode.SUCCESS:
                continue
            self._told_at.pop(addr, None)
            why = answer if isinstance(answer, MQError) else Refused(answer.code, answer.remark or "")
            failures[addr] = why
            log.warning("heartbeat to %s failed: %s", addr, why)
        return failures
