"""Handlers of brokers' requests to a client. Nothing that a peer sends raises an exception here.

A group's member handles changes of the membership, and an administrator's requests that a broker forwards; other
clients decline. Knows nothing of connections.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from mqbroker.client.lite_pull import LitePullConsumerCore
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.net import decline as decline
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.errors import MQError, Refused
from mqbroker.wire.admin_bodies import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC, read_offsets
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.body import BadBody
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
    decode_header,
)
from mqbroker.wire.record import decode_record

log = logging.getLogger(__name__)


#: Requests of brokers to the members of groups.
MEMBER_REQUESTS: Final = frozenset(
    {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)


def is_for(group: str, request: RemotingCommand) -> bool:
    """Whether the request is for the consumer of a group."""
    of = request.ext_fields.get("consumerGroup", request.ext_fields.get("group"))
    return request.code in MEMBER_REQUESTS and of == group


class PullConsumerRequests:
    """The responses of a pull consumer of `group`."""

    def __init__(self, group: str) -> None:
        self._group = group

    def takes(self, request: RemotingCommand) -> bool:
        """Whether the request is for this consumer."""
        return is_for(self._group, request)

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response to `request`, or None if it needs none."""
        if request.code not in MEMBER_REQUESTS:
            return await decline(request)
        remark = (
            f"The Consumer Group <{self._group}> has neither a listener nor queues of its own in this client: it pulls,"
            " and its program decides what and from where"
        )
        return _answer(request, ResponseCode.SYSTEM_ERROR, remark)


class MemberRequests:
    """The responses of a group's member.

    :param member: returns the member; it may not exist yet while its client is being constructed.
    :param stacks: returns the stacks of the threads of this process.
    """

    def __init__(
        self, member: Callable[[], PushConsumerCore | LitePullConsumerCore], stacks: Callable[[], str]
    ) -> None:
        self._member = member
        self._stacks = stacks

    def takes(self, request: RemotingCommand) -> bool:
        """Whether the request is for this member."""
        return is_for(self._member().group, request)

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response to `request`, or None if it needs none."""
        handler = self.HANDLERS.get(request.code)
        if handler is None:
            return await decline(request)
        try:
            return await handler(self, request)
        except Refused as refused:
            log.info("%s refused: %s", request.describe(), refused)
            return _answer(request, refused.code, refused.remark)
        except MQError as error:
            log.info("%s refused: %s", request.describe(), error)
            return _answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception:
            log.exception("a request of a broker failed: %s", request.describe())
            return _answer(request, ResponseCode.SYSTEM_ERROR, "the consumer failed on it; its log says more")

    def _member_of(self, group: str) -> PushConsumerCore | LitePullConsumerCore:
        member = self._member()
        if group != member.group:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return member

    async def _ids_changed(self, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(NotifyConsumerIdsChangedRequestHeader, request.ext_fields)
        self._member().ids_changed(header.consumer_group)
        return _answer(request)

    async def _reset(self, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(ResetOffsetRequestHeader, request.ext_fields)
        member = self._member_of(header.group)
        offsets = _offsets(request.body)
        log.info("offsets of %s in topic %s are reset to time %d", header.group, header.topic, header.timestamp)
        member.reset(header.topic, offsets)
        return _answer(request)

    async def _positions(self, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(GetConsumerStatusRequestHeader, request.ext_fields)
        table = self._member_of(header.group).positions(header.topic)
        return _answer(request, body=GetConsumerStatusBody(message_queue_table=table).to_json())

    async def _running_info(self, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(GetConsumerRunningInfoRequestHeader, request.ext_fields)
        info = self._member_of(header.consumer_group).running_info()
        if header.jstack_enable:
            info = attrs.evolve(info, jstack=self._stacks())
        return _answer(request, body=info.to_json())

    async def _consume_directly(self, request: RemotingCommand) -> RemotingCommand | None:
        header = decode_header(ConsumeMessageDirectlyResultRequestHeader, request.ext_fields)
        member = self._member_of(header.consumer_group)
        record = decode_record(request.body)
        if record.store_size != len(request.body):
            raise Refused(ResponseCode.SYSTEM_ERROR, "the body is not one message alone")
        result = await member.consume_directly(ReceivedMessage.of_record(record, header.broker_name or ""))
        return _answer(request, body=result.to_json())

    HANDLERS: Final[Mapping[int, Callable[[MemberRequests, RemotingCommand], Awaitable[RemotingCommand | None]]]] = {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ids_changed,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _positions,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    }


def _offsets(body: bytes) -> dict[MessageQueue, int]:
    """The table of a reset, in either of its forms. Raises BadBody, or Refused on an invalid offset."""
    try:
        offsets = read_offsets(body, ResetOffsetBody)
    except BadBody as bad:
        # mqadmin can request the form of C++ clients, whatever the consumers are.
        try:
            told = ResetOffsetBodyForC.from_json(body).offset_table
        except BadBody:
            raise bad from None
        offsets = {MessageQueue(entry.topic, entry.broker_name, entry.queue_id): entry.offset for entry in told}
    for queue, offset in offsets.items():
        if offset < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"offset {offset} of {queue} is below 0")
    return offsets


def _answer(
    request: RemotingCommand, code: int = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b""
) -> RemotingCommand | None:
    return None if request.is_oneway else RemotingCommand.response(request, code, remark, body=body)
