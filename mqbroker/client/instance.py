"""Instances: the clients of a process and an event loop that have the same name servers, account and TLS share their
connections, their client id, their heartbeats and their routes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Hashable
from functools import partial
from typing import Protocol

import attrs

from mqbroker.client.identity import Identity
from mqbroker.client.loop_net import LoopNet
from mqbroker.client.net import decline
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand

#: Brokers accept no more groups of one client id: see `mqbroker.broker.requests.client_requests`.
GROUPS_MAX = 1000


class Asked(Protocol):
    """A client that brokers ask."""

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response to a broker's request."""

    def takes(self, request: RemotingCommand) -> bool:
        """Whether the request is for this client, and not for another one with the same connections."""


@attrs.frozen(eq=False)
class _Client:
    net: LoopNet
    asked: Callable[[], Asked]
    group: str
    is_member: bool


class Instance:
    """What its clients share. Brokers distinguish the members of a group by the client id, so that it has at most one
    member of each group; and they limit the groups of a client id."""

    def __init__(
        self, first: LoopNet, name_servers: tuple[str, ...], unit_name: str, ended: Callable[[Instance], None]
    ) -> None:
        """`ended` is called when the last client leaves."""
        self.net = first.like(self.answer)
        self.net.identity = Identity(name_servers, first.rng, first.now, unit_name)
        self.net.identity.take()
        self.net.unit_name = unit_name
        self.net.hooks = first.hooks
        self._ended = ended
        #: Members by group; and all other clients, which may have the same groups.
        self._members: dict[str, _Client] = {}
        self._others: dict[_Client, None] = {}
        #: How many of the others have each group.
        self._groups = Counter[str]()

    def can_take(self, client: _Client) -> bool:
        groups: Container[str] = self._members if client.is_member else self._groups
        if client.group in groups:
            return not client.is_member
        return len(self._members) + len(self._groups) < GROUPS_MAX

    def join(self, client: _Client) -> None:
        if client.is_member:
            self._members[client.group] = client
        else:
            self._others[client] = None
            self._groups[client.group] += 1

    def leave(self, client: _Client) -> bool:
        """Remove a client; returns whether others stay."""
        if client.is_member:
            del self._members[client.group]
        else:
            del self._others[client]
            self._groups[client.group] -= 1
            if not self._groups[client.group]:
                del self._groups[client.group]
        stay = bool(self._members or self._others)
        if not stay:
            self._ended(self)
        return stay

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response of the client that a broker's request is for; without such a client, one of them refuses it."""
        # Members first: a pull consumer may have a member's group.
        clients = [each.asked() for each in (*self._members.values(), *self._others)]
        for asked in clients:
            if asked.takes(request):
                return await asked.answer(request)
        for asked in clients:
            response = await asked.answer(request)
            if response is not None and response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return response
        return await decline(request)


#: By process, event loop and whatever else must be the same. None lives longer than its clients, or its loop.
_instances: dict[tuple[Hashable, ...], list[Instance]] = {}


def _join(
    client: _Client, name_servers: tuple[str, ...], unit_name: str, key: tuple[Hashable, ...]
) -> tuple[LoopNet, Callable[[], bool]]:
    for other in list(_instances):
        if getattr(other[1], "is_closed", bool)():  # with clients that were not closed
            _instances.pop(other, None)
    key = os.getpid(), client.net.home, name_servers, unit_name, *key
    found = _instances.setdefault(key, [])

    def ended(instance: Instance) -> None:
        found.remove(instance)
        if not found and _instances.get(key) is found:
            del _instances[key]

    for instance in found:
        if instance.can_take(client):
            break
    else:
        instance = Instance(client.net, name_servers, unit_name, ended)
        found.append(instance)
    instance.join(client)
    return instance.net, partial(instance.leave, client)


class SharedIdentity(Identity):
    """The identity of the instance that a client joins when it starts."""

    def __init__(self, net: LoopNet, name_servers: tuple[str, ...]) -> None:
        super().__init__(name_servers, net.rng, net.now)
        self._net = net

    def take(self) -> None:
        assert self._net.lines.identity is not None
        self.become(self._net.lines.identity)


def share(
    net: LoopNet,
    asked: Callable[[], Asked],
    name_servers: tuple[str, ...],
    group: str,
    unit_name: str,
    *key: Hashable,
    is_member: bool = False,
) -> Identity:
    """Have a client's `net` use the connections of an instance from its first use on, or the start of the client, until
    it is closed. Of an instance all clients have the same name servers and `key`. Returns the client's identity."""
    net.joins(partial(_join, _Client(net, asked, group, is_member), name_servers, unit_name, key))
    return SharedIdentity(net, name_servers)
