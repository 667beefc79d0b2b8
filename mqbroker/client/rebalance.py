"""Rebalance: assigns a topic's queues, from its route, to the group's members, as its brokers know them.

A broker that was just started knows only the members whose heartbeat it got; a member that trusted it alone would take
queues that others are consuming. So several brokers are asked, and the union of their members counts. Java asks one.
"""

from __future__ import annotations

import logging

import attrs

from mqbroker.client.allocation import Allocation, allocated
from mqbroker.client.identity import Identity
from mqbroker.client.net import Net
from mqbroker.client.routes import Route, Routes, java_order, sorted_queues
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import GetConsumerListByGroupResponseBody, MessageQueue
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import GetConsumerListByGroupRequestHeader

log = logging.getLogger(__name__)

#: Number of brokers that are asked for the members.
BROKERS_ASKED_MAX = 3


@attrs.frozen
class Share:
    """A member's `queues` of one topic; `is_shared` if the group has other members."""

    queues: frozenset[MessageQueue]
    is_shared: bool


class Rebalance:
    """Computes a member's share in `group`."""

    def __init__(
        self, net: Net, routes: Routes, group: str, identity: Identity, allocation: Allocation, timeout_ms: int
    ) -> None:
        self._net = net
        self._routes = routes
        self._group = group
        self._identity = identity
        self._allocation = allocation
        self._timeout_ms = timeout_ms

    async def share(self, topic: str) -> Share:
        """This member's part of `topic`. Raises MQError if the route or the members are unknown, or the allocation
        fails."""
        route = await self._routes.get(topic)
        members = await self._members(route)
        me = self._identity.client_id
        if me not in members:
            log.warning("the broker does not count this client among the members of %s", self._group)
        mine = allocated(self._allocation, me, sorted_queues(route.subscribe_queues), members)
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
                answer = await self._net.invoke(addr, request, self._timeout_ms)
                if answer.code == ResponseCode.SUCCESS:
                    members.update(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list)
                    answered += 1
                else:
                    last = Refused(answer.code, answer.remark or "")
            except MQError as error:
                last = error
        if members:
            return sorted(members, key=java_order)
        self._routes.mark_stale(route.topic)
        raise last
