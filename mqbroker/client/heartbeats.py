"""Heartbeats to the brokers of the routes in use, and unregistering from them. Clients that share their connections
share them too: each of them has all groups."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import attrs

from mqbroker.client.errors import is_about_account
from mqbroker.client.identity import Identity
from mqbroker.client.net import Lock, Net, without_end
from mqbroker.client.routes import Routes
from mqbroker.errors import ConnectionClosed, MQError, Refused
from mqbroker.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from mqbroker.wire.codes import MASTER_ID, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UnregisterClientRequestHeader

log = logging.getLogger(__name__)


#: A period may end this much early, seconds, because clocks round.
_EARLY_S = 0.01
#: Estimated size of the subscriptions in one request, of which one group alone may have more: brokers read 6 MiB.
SUBSCRIPTION_BYTES_MAX = 4 * 1024 * 1024
#: Size of a subscription without its topic and tags, and of the hash of each tag. Each tag appears twice.
_SUBSCRIPTION_BYTES, _TAG_BYTES = 200, 16
#: After a heartbeat to a broker failed, sends to it cause no other one for this time, seconds.
_PAUSE_S = 5.0


@attrs.define(eq=False)
class _Sent:
    """A heartbeat that has not failed: when it was sent or answered, and which clients it has, those with numbers below
    `before`."""

    at: float
    before: int


@attrs.define(eq=False)
class _Line:
    """The clients that request a heartbeat to a broker: while it handles one, they wait, and share the next one."""

    lock: Lock
    #: How many heartbeats were requested, how many of these requests the last one has served, and why it failed.
    asked: int = 0
    answered: int = 0
    error: MQError | None = None


@attrs.define(eq=False)
class SharedHeartbeats:
    """The clients that share connections, and the heartbeats that brokers got from them."""

    parts: dict[Heartbeats, None] = attrs.field(factory=dict)
    next_number: int = 0
    #: By address: the last heartbeat, unless it failed; and when it failed.
    sent: dict[str, _Sent] = attrs.field(factory=dict)
    failed_at: dict[str, float] = attrs.field(factory=dict)
    lines: dict[str, _Line] = attrs.field(factory=dict)
    #: By group: how many clients are producers of it, and the number of the first one.
    producers: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    def join(self, part: Heartbeats) -> None:
        """Let heartbeats include a client from now on. One more producer of a group changes nothing for brokers."""
        if part in self.parts:
            return
        self.parts[part] = None
        part.number, self.next_number = self.next_number, self.next_number + 1
        if (group := part.producer_group) is not None:
            count, part.number = self.producers.get(group, (0, part.number))
            self.producers[group] = count + 1, part.number

    def leave(self, part: Heartbeats) -> bool:
        """Remove a client; returns whether another one is a producer of its group."""
        if part in self.parts:
            del self.parts[part]
            if (group := part.producer_group) is not None:
                count, number = self.producers.pop(group)
                if count > 1:
                    self.producers[group] = count - 1, number
        return part.producer_group in self.producers

    def live(self) -> list[Heartbeats]:
        """The clients that are not closed; the others are removed."""
        for part in [part for part in self.parts if part.net.is_closed]:
            self.leave(part)
        return list(self.parts)


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
        #: Its number among the clients with the same connections, once it has joined them: see `_Sent.before`.
        self.number = sys.maxsize
        #: Called with the address of a broker that has answered one.
        self.on_answer: Callable[[str], object] = len

    async def send_to_all(self) -> dict[str, MQError]:
        """Send one to every broker: masters, and slaves too where this client consumes. Returns the failures, which are
        logged, by address."""
        return await self._send(self.addresses_in_use())

    async def keep_sending(self) -> None:
        """Send one to each broker to which no client with the same connections has sent one for a period, until this is
        cancelled."""
        self._join()

        async def send_due() -> None:
            now = self.net.steady()
            sent_at = [self._sent_at(addr) for addr in self.addresses_in_use()]
            first = min((at for at in sent_at if at is not None), default=now)
            await self.net.sleep(max(_EARLY_S, first + self.heartbeat_s - now))
            await self._send([addr for addr in self.addresses_in_use() if self._has_ended(self._sent_at(addr))])

        await without_end(self.net, _EARLY_S, send_due)

    async def send_first(self) -> None:
        """As `send_to_all`. Raises Refused if all brokers refuse the account."""
        failures = await self.send_to_all()
        if failures and all(is_about_account(error) for error in failures.values()) and not self._reached():
            raise next(iter(failures.values()))

    def _join(self) -> SharedHeartbeats:
        shared: SharedHeartbeats = self.net.heartbeats
        if not self._is_over:
            shared.join(self)
        return shared

    def _sent_at(self, addr: str) -> float | None:
        """When the broker at `addr` last got this client's group; None if it has not, or the last one has failed."""
        sent = self.net.heartbeats.sent.get(addr)
        return sent.at if sent is not None and self.number < sent.before else None

    def _has_ended(self, since: float | None) -> bool:
        """Whether the period that began at `since` has ended; True for None."""
        return since is None or self.net.steady() - since >= self.heartbeat_s - _EARLY_S

    def _reached(self) -> list[str]:
        """The addresses of brokers that have this client's group."""
        return sorted(addr for addr in self.net.heartbeats.sent if self._sent_at(addr) is not None)

    def _forget_gone(self) -> None:
        """Forget the brokers that no client's route has any more."""
        shared = self.net.heartbeats
        in_use = {addr for part in shared.live() for addr in part.addresses_in_use()}
        for known in (shared.sent, shared.failed_at, shared.lines):
            for gone in known.keys() - in_use:
                del known[gone]

    async def send_to(self, addr: str) -> None:
        """Send one at once."""
        await self._send([addr])

    async def send_to_new(self) -> None:
        """Send one to the brokers of a new route that are not known yet."""
        await self._send([addr for addr in self.addresses_in_use() if self._sent_at(addr) is None])

    def is_due(self, addr: str) -> bool:
        """Whether the broker at `addr`, which responds, got no heartbeat within the period, and none failed within
        `_PAUSE_S`."""
        if not self._has_ended(self._sent_at(addr)):
            return False
        failed_at = self.net.heartbeats.failed_at.get(addr)
        return failed_at is None or self.net.steady() - failed_at >= min(_PAUSE_S, self.heartbeat_s)

    async def unregister(self) -> None:
        """Unregister from every broker that got one. After failures the brokers' own time-out applies."""
        addresses, self._is_over = self._reached(), True
        if self.net.heartbeats.leave(self):
            return  # others of the group have the same client id
        consumer = self.consumer_data() if self.consumer_data else None
        header = UnregisterClientRequestHeader(
            client_id=self._identity.client_id,
            producer_group=self.producer_group,
            consumer_group=consumer.group_name if consumer else None,
        )
        requests = [(addr, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)) for addr in addresses]
        for addr, answer in zip(addresses, await self.net.invoke_many(requests, self._timeout_ms), strict=True):
            if isinstance(answer, MQError):
                log.info("could not unregister from %s: %s", addr, answer)

    def _data(self) -> HeartbeatData:
        shared = self._join()
        parts = shared.live()
        return HeartbeatData(
            client_id=self._identity.client_id,
            producer_data_set=[ProducerData(group) for group in shared.producers],
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
        if self._is_over or not addresses:
            return {}
        shared = self._join()
        for addr in addresses:  # before any wait, so that no other client begins one, too
            shared.sent[addr] = _Sent(self.net.steady(), shared.next_number)
        try:
            errors = await self.net.all_of([self._send_in_line(addr) for addr in addresses])
        except BaseException:
            for addr in addresses:
                shared.sent.pop(addr, None)
            raise
        for error in errors:
            if error is not None and not isinstance(error, MQError):
                raise error
        return {addr: error for addr, error in zip(addresses, errors, strict=True) if error is not None}

    async def _send_in_line(self, addr: str) -> MQError | None:
        """Send one, unless another client sends one after this call. Returns why it failed."""
        shared: SharedHeartbeats = self.net.heartbeats
        line = shared.lines.setdefault(addr, _Line(self.net.lock()))
        line.asked += 1
        mine = line.asked
        async with line.lock:
            if line.answered < mine:
                asked = line.asked
                line.error = await self._send_now(addr)
                line.answered = asked
            return line.error

    async def _send_now(self, addr: str) -> MQError | None:
        shared: SharedHeartbeats = self.net.heartbeats
        self._forget_gone()
        first, *others = self.requests()
        shared.sent[addr] = _Sent(self.net.steady(), shared.next_number)
        (answer,) = await self.net.invoke_many([(addr, first)], self._timeout_ms)
        for request in others:
            if isinstance(answer, MQError) or answer.code != ResponseCode.SUCCESS:
                break
            (answer,) = await self.net.invoke_many([(addr, request)], self._timeout_ms)
        return self.answered(addr, answer)

    def requests(self) -> list[RemotingCommand]:
        """A heartbeat: one request, or several if one could be longer than brokers read. Brokers keep what a request
        leaves out."""
        whole = self._data()
        parts: list[list[ConsumerData]] = [[]]
        size = 0
        for consumer in whole.consumer_data_set:
            more = sum(map(_size, consumer.subscription_data_set))
            size += more
            if size > SUBSCRIPTION_BYTES_MAX and parts[-1]:
                parts.append([])
                size = more
            parts[-1].append(consumer)
        bodies = [attrs.evolve(whole, consumer_data_set=part) for part in parts]
        return [RemotingCommand.request(RequestCode.HEART_BEAT, body=body.to_json()) for body in bodies]

    def answered(self, addr: str, answer: RemotingCommand | MQError) -> MQError | None:
        """Note the result of a heartbeat; returns the error, which is logged, if it failed."""
        shared = self.net.heartbeats
        if not isinstance(answer, MQError) and answer.code == ResponseCode.SUCCESS:
            shared.failed_at.pop(addr, None)
            if (sent := shared.sent.get(addr)) is not None:
                sent.at = self.net.steady()
                for part in [part for part in shared.parts if part.number < sent.before]:
                    part.on_answer(addr)
            return None
        shared.sent.pop(addr, None)
        why = answer if isinstance(answer, MQError) else Refused(answer.code, answer.remark or "")
        if not isinstance(why, ConnectionClosed):
            shared.failed_at[addr] = self.net.steady()
        log.warning("heartbeat to %s failed: %s", addr, why)
        return why


def _size(subscription: SubscriptionData) -> int:
    """Its estimated size in a heartbeat, bytes."""
    expression = 2 * len(subscription.sub_string) + _TAG_BYTES * len(subscription.tags_set)
    return _SUBSCRIPTION_BYTES + len(subscription.topic) + expression
