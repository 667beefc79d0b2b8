"""Offsets as brokers know them: what a group has committed, where a queue begins and ends, where a time is in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

from mqbroker.client.net import Net
from mqbroker.client.options import ConsumeFrom
from mqbroker.client.routes import Routes
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RETRY_PREFIX, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_header,
)

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Header)


class Offsets:
    """Asks the brokers on behalf of `group`. All methods raise Unreachable, Refused, or a route's errors."""

    def __init__(self, net: Net, routes: Routes, group: str, timeout_ms: int) -> None:
        self._net = net
        self._routes = routes
        self._group = group
        self._timeout_ms = timeout_ms

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, or None where it has none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        addr = await self._routes.address(queue)
        request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        answer = await self._net.invoke(addr, request, self._timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer.code, answer.remark or "")
        offset = decode_header(QueryConsumerOffsetResponseHeader, answer.ext_fields).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Make `offset` the next one the group consumes."""
        request = self._commit_request(queue, offset)
        answer = await self._net.invoke(await self._routes.address(queue), request, self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer.code, answer.remark or "")

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        """Send a commit that nobody confirms."""
        await self._net.send_oneway(await self._routes.address(queue), self._commit_request(queue, offset))

    async def commit_many(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit all at once; failures are logged, since a consumer that cannot commit repeats and loses nothing."""
        requests = []
        for queue, offset in offsets.items():
            try:
                requests.append((await self._routes.address(queue), self._commit_request(queue, offset)))
            except MQError as error:
                log.warning("offset %d of %s not committed: %s", offset, queue, error)
        for answer in await self._net.invoke_many(requests, self._timeout_ms):
            if isinstance(answer, MQError):
                log.warning("offset of %s not committed: %s", self._group, answer)

    def _commit_request(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def min(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        return (await self._ask(queue, RequestCode.GET_MIN_OFFSET, header, GetMinOffsetResponseHeader)).offset

    async def max(self, queue: MessageQueue) -> int:
        """One beyond the last offset that is stored."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)
        return (await self._ask(queue, RequestCode.GET_MAX_OFFSET, header, GetMaxOffsetResponseHeader)).offset

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """An offset near `timestamp_ms`: a 4.9 broker gives the nearest message, which may be stored before it."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, bname=queue.broker_name
        )
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return (await self._ask(queue, code, header, SearchOffsetResponseHeader)).offset

    async def start(self, queue: MessageQueue, consume_from: ConsumeFrom, timestamp_ms: int) -> int:
        """Where a push consumer starts in `queue`: RebalancePushImpl.computePullFromWhere of 4.9.7.

        A committed offset wins. Without one, a retry topic starts at its beginning, but at its end with TIMESTAMP.
        """
        committed = await self.committed(queue)
        if committed is not None:
            return committed
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if consume_from is ConsumeFrom.FIRST:
            return 0
        if consume_from is ConsumeFrom.LAST:
            return 0 if is_retry else await self.max(queue)
        return await self.max(queue) if is_retry else await self.at_time(queue, timestamp_ms)

    async def _ask(self, queue: MessageQueue, code: RequestCode, header: Header, answer_class: type[H]) -> H:
        addr = await self._routes.address(queue, master_only=True)
        answer = await self._net.invoke(addr, RemotingCommand.request(code, header), self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer.code, answer.remark or "")
        return decode_header(answer_class, answer.ext_fields)
