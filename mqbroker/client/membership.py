"""Membership: a member's place in its group: its subscriptions, what heartbeats say of it, and the queues it has.

A broker that was just started knows only the members whose heartbeat it got; a member that trusted it alone would take
queues that others are consuming. So several brokers are asked, and the union of their members counts. Java asks one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs

from mqbroker.client.allocation import allocated
from mqbroker.client.errors import BadArgument, NoSubscription, TopicNotFound
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.identity import Identity
from mqbroker.client.names import bare_queue
from mqbroker.client.net import Net, checked, without_end
from mqbroker.client.options import MemberOptions, MessageModel, milliseconds
from mqbroker.client.peers import Peer
from mqbroker.client.routes import Route, Routes, java_order, sorted_queues
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import ConsumerData, GetConsumerListByGroupResponseBody, MessageQueue, SubscriptionData
from mqbroker.wire.codes import RETRY_PREFIX, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetConsumerListByGroupRequestHeader
from mqbroker.wire.long_bodies import parse_long_body

log = logging.getLogger(__name__)

#: Number of brokers that are asked for the members.
BROKERS_ASKED_MAX = 3

#: The first pause before another rebalance if one was incomplete; it doubles up to the regular period.
_UNSETTLED_PAUSE_S = 1.0

#: How long a user's RebalanceListener is waited for.
_LISTENER_S = 10.0


@attrs.frozen
class Share:
    """A member's `queues` of one topic; `is_shared` if the group has other members."""

    queues: frozenset[MessageQueue]
    is_shared: bool


class Membership:
    """One member of `group`.

    `assigned` is called with queues to begin with, and whether the group has other members, one of which may have had
    them; `revoked` with queues to end with, whose offsets it commits.
    """

    def __init__(
        self,
        net: Net,
        routes: Routes,
        identity: Identity,
        group: str,
        options: MemberOptions,
        assigned: Callable[[Sequence[MessageQueue], bool], None],
        revoked: Callable[[Sequence[MessageQueue]], Awaitable[None]],
        consume_type: str = "CONSUME_PASSIVELY",
    ) -> None:
        self._net = net
        self._routes = routes
        self._identity = identity
        self._group = group
        self._options = options
        self._assigned = assigned
        self._revoked = revoked
        self._consume_type = consume_type
        self._timeout_ms = milliseconds("request_timeout_s", options.request_timeout_s)
        self.heartbeats = Heartbeats(
            net,
            routes,
            identity,
            consumer_data=self._data,
            heartbeat_s=options.heartbeat_s,
            timeout_ms=self._timeout_ms,
        )
        self.subscriptions: dict[str, SubscriptionData] = {}
        #: The version of the subscription that was made last.
        self._sub_version = 0
        #: The queues that it has.
        self.queues: set[MessageQueue] = set()
        #: Set to request a rebalance.
        self.has_changed = net.signal()
        self.is_over = False
        self._peer = Peer(group, lambda: identity.client_id, self.subscriptions, net.steady)

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Add or change a subscription. Raises BadArgument on an invalid one."""
        # Brokers keep the former one unless the version, a time, is larger: the clock may be set back.
        version = max(int(self._net.now() * 1000), self._sub_version + 1)
        self.subscriptions[topic] = subscribe_to(topic, expression, version)
        self._sub_version = version

    async def apply(self, topic: str) -> None:
        """Apply an added, changed or removed subscription."""
        self._peer.changed()
        await self._revoke([queue for queue in self.queues if queue.topic == topic])
        await self.heartbeats.send_to_all()
        self.has_changed.set()

    def check_subscribed(self, what: str) -> None:
        """Raises NoSubscription if there is none but that of the retry topic."""
        if not self.subscriptions.keys() - {RETRY_PREFIX + self._group}:
            raise NoSubscription(f"the {what} of {self._group} has no subscription")

    async def join(self) -> bool:
        """Join the group, and take the first share; returns whether that is complete. A topic that does not exist yet
        is waited for. Raises NameServerUnreachable, and Refused if all brokers refuse the account."""
        self._identity.take()
        self._peer.join(self._net.home, self._routes.name_servers)
        for topic in self.subscriptions:
            try:
                await self._routes.get(topic)
            except TopicNotFound as error:
                if not topic.startswith(RETRY_PREFIX):
                    log.warning("waiting for the topic: %s", error)
        await self.heartbeats.send_first()
        return await self.balance()

    async def keep_balanced(self, settled: bool) -> None:
        """Balance at each change, and periodically, until this is cancelled."""
        pause_s = _UNSETTLED_PAUSE_S

        async def balance_next() -> None:
            nonlocal pause_s, settled
            if not await self.has_changed.wait(self._options.rebalance_s if settled else pause_s):
                self._peer.compare()
            pause_s = _UNSETTLED_PAUSE_S if settled else min(pause_s * 2, self._options.rebalance_s)
            settled = False  # unless it ends
            settled = await self.balance()

        await without_end(self._net, _UNSETTLED_PAUSE_S, balance_next)

    async def balance(self) -> bool:
        """Assign and revoke queues; False if the share of some topic could not be computed, or may soon be larger."""
        settled = True
        for topic in list(self.subscriptions):
            try:
                await self._routes.get(topic)
                await self.heartbeats.send_to_new()
                share = await self.share(topic)
            except MQError as error:
                is_users = isinstance(error, BadArgument)
                log.log(
                    logging.WARNING if is_users else logging.INFO,
                    "not balancing %s of %s: %s",
                    topic,
                    self._group,
                    error,
                )
                settled = False
                continue
            if self.is_over:
                return True
            if topic in self.subscriptions:
                await self._change_to(topic, share)
            settled = settled and not self._routes.has_left(topic)
        return settled

    async def lose(self) -> None:
        """Lose all queues, as others may have had them meanwhile, and join again."""
        lost, self.queues = sorted(self.queues), set()
        await self._tell("lost", lost)
        await self.heartbeats.send_to_all()
        self.has_changed.set()

    async def tell_revoked(self) -> None:
        """Tell the user's listener that all queues are given up, at the end."""
        self._peer.leave()
        await self._tell("revoked", sorted(self.queues))

    async def _change_to(self, topic: str, share: Share) -> None:
        await self._revoke([queue for queue in self.queues if queue.topic == topic and queue not in share.queues])
        new = sorted(share.queues - self.queues)
        if not new:
            return
        for queue in new:
            log.info("%s is assigned %s", self._group, queue)
        self.queues.update(new)
        self._assigned(new, share.is_shared)
        await self._tell("assigned", new)

    async def _revoke(self, queues: Iterable[MessageQueue]) -> None:
        gone = sorted(queues)
        if not gone:
            return
        await self._tell("revoked", gone)
        gone = [queue for queue in gone if queue in self.queues]
        self.queues.difference_update(gone)
        for queue in gone:
            log.info("%s releases %s", self._group, queue)
        await self._revoked(gone)

    async def _tell(self, what: str, queues: Sequence[MessageQueue]) -> None:
        listener = self._options.rebalance_listener
        if listener is None or not queues:
            return
        namespace = self._options.namespace
        try:
            told = getattr(listener, what)(frozenset(bare_queue(namespace, queue) for queue in queues))
            if inspect.isawaitable(told):
                await self._net.within(_LISTENER_S, _awaited(told))
        except TimeoutError:
            log.warning("%s of the rebalance listener of %s took more than %g s", what, self._group, _LISTENER_S)
        except Exception as error:
            if self._net.is_cancelled(error):
                raise
            log.exception("%s of the rebalance listener of %s failed", what, self._group)

    def _data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=self._consume_type,
            message_model=self._options.model.value,
            consume_from_where=self._options.consume_from.value,
            subscription_data_set=list(self.subscriptions.values()),
        )

    async def share(self, topic: str) -> Share:
        """This member's part of `topic`. Raises MQError if the route or the members are unknown, or the allocation
        fails."""
        route = await self._routes.get(topic)
        if self._options.model is MessageModel.BROADCASTING:
            return Share(frozenset(route.subscribe_queues), is_shared=False)
        members = await self._members(route)
        me = self._identity.client_id
        if me not in members:
            log.warning("the broker does not count this client among the members of %s", self._group)
        mine = allocated(self._options.allocation, me, sorted_queues(route.subscribe_queues), members)
        return Share(mine, is_shared=len(members) > 1)

    async def _members(self, route: Route) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        names = sorted(route.brokers)
        self._net.rng.shuffle(names)
        last: MQError = Refused(ResponseCode.SYSTEM_ERROR, f"the route of {route.topic} names no broker")
        members: set[str] = set()
        answered = 0
        for name in names:
            if answered == BROKERS_ASKED_MAX:
                break
            addr = route.any_address(name)
            if addr is None:
                continue
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            try:
                answer = checked(await self._net.invoke(addr, request, self._timeout_ms))
                listed = parse_long_body(answer.body, GetConsumerListByGroupResponseBody)
                members.update(GetConsumerListByGroupResponseBody.from_value(listed).consumer_id_list)
                answered += 1
            except MQError as error:
                last = error
        if members:
            return sorted(members, key=java_order)
        self._routes.mark_stale(route.topic)
        raise last


async def _awaited(told: Awaitable[Any]) -> None:
    await told


_TICK_S = 1.0
#: A loop that was blocked for so long is warned of, once a minute.
_BLOCKED_S = 5.0
_WARN_EVERY_S = 60.0
#: Brokers give up a member that sent no heartbeat for so long: BrokerController and ClientManageProcessor of 4.9.7.
_EXPIRY_S = 120.0
_MARGIN_S = 10.0


class LoopWatch:
    """Whether a member of `group` was away for so long that brokers may have given its queues to others."""

    def __init__(
        self, net: Net, group: str, listener: str, heartbeat_s: float, come_back: Callable[[], Awaitable[None]]
    ) -> None:
        """`come_back` rebalances the member, which gets its queues again."""
        self._net = net
        self._group = group
        self._listener = listener
        # The last heartbeat may have been sent `heartbeat_s` before the loop stopped.
        self._away_s = max(_BLOCKED_S, _EXPIRY_S - _MARGIN_S - heartbeat_s)
        self._come_back = come_back
        self._lock = net.lock()
        #: When it counts as away, unless the loop runs before.
        self.away_at = float("inf")
        self._warn_again_at = float("-inf")

    @property
    def was_away(self) -> bool:
        """Whether nothing may be handed out or committed before `ensure_member`."""
        return self._net.steady() > self.away_at

    async def ensure_member(self) -> None:
        """Come back where the member was away."""
        async with self._lock:
            if self.was_away:
                self.away_at = float("-inf")
                await self._come_back()
                self.away_at = self._net.steady() + self._away_s

    async def run(self) -> None:
        """Watch, until this is cancelled."""
        ticked_at = self._net.steady()
        self.away_at = ticked_at + self._away_s

        async def tick() -> None:
            nonlocal ticked_at
            await self._net.sleep(_TICK_S)
            now = self._net.steady()
            blocked_s = now - ticked_at - _TICK_S
            if blocked_s >= _BLOCKED_S and now >= self._warn_again_at:
                self._warn_again_at = now + _WARN_EVERY_S
                log.warning(
                    "the event loop did not run for %.0f s: group %s sent no heartbeat and committed nothing meanwhile."
                    " If its listener %s blocks, run blocking calls with asyncio.to_thread or deferToThread, or use"
                    " mqbroker.client.blocking",
                    blocked_s,
                    self._group,
                    self._listener,
                )
            if self.was_away:
                await self.ensure_member()
            ticked_at = now
            self.away_at = now + self._away_s

        await without_end(self._net, _TICK_S, tick)
