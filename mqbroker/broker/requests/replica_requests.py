"""Requests of `mq ha` to the master of a group of brokers: another master (29001), and a member less (29002).

Their codes are ours, and the body is the brokerId in question, in decimal digits.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

import attrs
from twisted.logger import Logger

from mqbroker.errors import MQError, Refused
from mqbroker.remoting.handlers import Call, answers
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand

log = Logger()

T = TypeVar("T")

ID_DIGITS_MAX = 18
NO_GROUP = "this broker is of no group that elects its master (etcdEndpoints)"


class IMembers(Protocol):
    """The group, as its master sees it. The errors of both are GroupErrors, upon which nothing has changed."""

    def switch(self, to: int) -> Awaitable[int]:
        """Make broker `to` the master; its epoch."""

    def remove(self, replica_id: int) -> Awaitable[str]:
        """Remove a broker that will not come back; returns what was done."""


@attrs.frozen
class ReplicaRequests:
    """:param group: None of a broker without one."""

    group: IMembers | None

    @answers(RequestCode.SWITCH_GROUP_MASTER)
    async def switch(self, call: Call[None]) -> RemotingCommand:
        """Make another broker the master; the remark says of which epoch."""
        to, group = _broker_id(call.request.body), self._group()
        log.info("{peer} requests that broker {id} become the master", peer=call.connection.remote_addr, id=to)
        epoch = await _told(group.switch(to))
        return RemotingCommand.response(call.request, remark=f"broker {to} is the master of epoch {epoch}")

    @answers(RequestCode.REMOVE_GROUP_MEMBER)
    async def remove(self, call: Call[None]) -> RemotingCommand:
        """Remove a broker; the remark says what was done."""
        gone, group = _broker_id(call.request.body), self._group()
        log.info("{peer} requests that broker {id} be removed", peer=call.connection.remote_addr, id=gone)
        return RemotingCommand.response(call.request, remark=await _told(group.remove(gone)))

    def _group(self) -> IMembers:
        if self.group is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, NO_GROUP)
        return self.group


async def _told(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except MQError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None


def _broker_id(body: bytes) -> int:
    if not (body.isdigit() and len(body) <= ID_DIGITS_MAX):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the body of this request is the brokerId of a member of the group")
    return int(body)
