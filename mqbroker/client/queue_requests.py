"""Requests about a queue: pulls, committed offsets, and its minimum and maximum offset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from mqbroker.client.errors import UnexpectedResponse
from mqbroker.client.messages import PullStatus, RawPull, ReceivedMessage
from mqbroker.client.names import queue_within
from mqbroker.client.net import Net, checked
from mqbroker.client.offset_stores import OffsetStore
from mqbroker.client.options import ConsumeFrom, check_number, check_timestamp, to_timestamp
from mqbroker.client.routes import Routes
from mqbroker.client.subscription import ALL, matches, subscribe_to
from mqbroker.errors import MQError, Refused
from mqbroker.wire.admin_bodies import topic_bounds
from mqbroker.wire.bodies import MessageQueue, SubscriptionData
from mqbroker.wire.body import BadBody
from mqbroker.wire.codes import MASTER_ID, RETRY_PREFIX, PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_header,
)
from mqbroker.wire.names import LMQ_PREFIX

log = logging.getLogger(__name__)

#: Extra time for a response that the broker delays (long polling).
_SUSPEND_GRACE_MS = 5000

#: The name of the offset in a pull.
QUEUE_OFFSET = "queueOffset"

_STATUSES: dict[int, PullStatus] = {status.value: status for status in PullStatus}


def pull_request(
    queue: MessageQueue,
    offset: int,
    max_count: int,
    *,
    group: str,
    subscription: SubscriptionData,
    suspend_ms: int = 0,
    carry_subscription: bool = False,
) -> RemotingCommand:
    """A pull of up to `max_count` messages from `offset` on.

    With `suspend_ms` the broker holds the request that long if there is nothing new. `carry_subscription` includes the
    expression, for a client that sends no heartbeats.
    """
    sys_flag = PullSysFlag.SUSPEND if suspend_ms else 0
    sys_flag |= PullSysFlag.SUBSCRIPTION if carry_subscription else 0
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_count,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if carry_subscription else None,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        bname=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def pull_from(first: RemotingCommand, offset: int) -> RemotingCommand:
    """The pull of `first`, which `pull_request` has made, from another offset."""
    return RemotingCommand(first.code, {**first.ext_fields, QUEUE_OFFSET: str(offset)})


def read_pull_answer(answer: RemotingCommand) -> RawPull:
    """Raises Refused if the broker did not read messages at all."""
    status = _STATUSES.get(answer.code)
    if status is None:
        raise Refused(answer.code, answer.remark or "")
    header = decode_header(PullMessageResponseHeader, answer.ext_fields)
    return RawPull(
        status=status,
        next_offset=header.next_begin_offset,
        min_offset=header.min_offset,
        max_offset=header.max_offset,
        body=answer.body,
        broker_id=header.suggest_which_broker_id,
    )


class PulledMessages(NamedTuple):
    """The messages of a pull that match the subscription, those of them whose bodies are unreadable, and where the next
    pull starts: earlier than the response says, if the bodies decompress to too much for one turn."""

    messages: list[ReceivedMessage]
    unreadable: list[ReceivedMessage]
    next_offset: int


def read_messages(pulled: RawPull, queue: MessageQueue, subscription: SubscriptionData, offset: int) -> PulledMessages:
    """The messages of a response to a pull from `offset` on. Raises BadRecord, and UnexpectedResponse if they are not
    what was asked for."""
    if pulled.next_offset < 0:
        raise UnexpectedResponse(queue, f"the broker named {pulled.next_offset} as the next offset")
    if pulled.status != PullStatus.FOUND:
        return PulledMessages([], [], pulled.next_offset)
    if pulled.next_offset <= offset:
        why = f"the broker found messages from {offset} on, and named {pulled.next_offset} as the next offset"
        raise UnexpectedResponse(queue, why)
    # A light queue has the messages of other topics, with their offsets there.
    asked, light = (None, queue.topic) if queue.topic.startswith(LMQ_PREFIX) else (queue, None)
    messages, unreadable, left_at = ReceivedMessage.read(pulled.body, queue.broker_name, asked, offset, light)
    if left_at is not None and not offset < left_at < pulled.next_offset:
        why = f"the broker sent offset {left_at} to a pull from {offset} to {pulled.next_offset}"
        raise UnexpectedResponse(queue, why)
    if asked is not None and messages and messages[-1].queue_offset >= pulled.next_offset:
        why = f"the broker sent offset {messages[-1].queue_offset}, and named {pulled.next_offset} as the next one"
        raise UnexpectedResponse(queue, why)
    if subscription.tags_set:  # without tags all match
        messages = [message for message in messages if matches(subscription, message.tags)]
        unreadable = [message for message in unreadable if matches(subscription, message.tags)]
    return PulledMessages(messages, unreadable, pulled.next_offset if left_at is None else left_at)


H = TypeVar("H", bound=Header)


class Offsets(OffsetStore):
    """Offset requests on behalf of `group`. All methods raise Unreachable, Refused, or a route's errors.

    The ends of queues are asked of masters, or of `read_from` if that is another broker of the set.
    """

    def __init__(
        self, net: Net, routes: Routes, group: str, timeout_ms: int, read_from: int = MASTER_ID, namespace: str = ""
    ) -> None:
        """Queues may be given as the user knows them, without `namespace`."""
        self._read_from = read_from
        self._namespace = namespace
        self._net = net
        self._routes = routes
        self._group = group
        self._timeout_ms = timeout_ms

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, or None if it has none."""
        queue = queue_within(self._namespace, queue)
        code, kind = RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader
        request = _request(code, kind, queue, consumer_group=self._group)
        answer = await self._net.invoke(await self._routes.address(queue), request, self._timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = _read(answer, QueryConsumerOffsetResponseHeader).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit `offset` as the next one that the group consumes."""
        check_number("offset", offset, 0, 2**63 - 1)
        queue = queue_within(self._namespace, queue)
        request = self._commit_request(queue, offset)
        checked(await self._net.invoke(await self._routes.address(queue), request, self._timeout_ms))

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        """Send a commit without confirmation; a failure is only logged, as the next commit replaces it."""
        try:
            await self._net.send_oneway(await self._routes.address(queue), self._commit_request(queue, offset))
        except MQError as error:
            log.info("offset %d of %s not committed: %s", offset, queue, error)

    async def commit_many(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit all, the first of each topic before its others; failures are only logged, since a consumer that cannot
        commit repeats messages and loses none.

        ConsumerOffsetManager.commitOffset of 4.9.7 makes the offsets of a topic that it does not know yet without a
        lock: of first commits at once it keeps one.
        """
        firsts: dict[tuple[str, str], tuple[str, RemotingCommand]] = {}
        others: list[tuple[str, RemotingCommand]] = []
        for queue, offset in offsets.items():
            try:
                addr = await self._routes.address(queue)
            except MQError as error:
                log.warning("offset %d of %s not committed: %s", offset, queue, error)
                continue
            request = addr, self._commit_request(queue, offset)
            if firsts.setdefault((addr, queue.topic), request) is not request:
                others.append(request)
        for requests in (list(firsts.values()), others):
            for answer in await self._net.invoke_many(requests, self._timeout_ms):
                if isinstance(answer, MQError):
                    log.warning("offset of %s not committed: %s", self._group, answer)

    def _commit_request(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        code, kind = RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader
        return _request(code, kind, queue, consumer_group=self._group, commit_offset=offset)

    async def min(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        queue = queue_within(self._namespace, queue)
        return (await self._ask(queue, _min_request(queue), GetMinOffsetResponseHeader)).offset

    async def max(self, queue: MessageQueue) -> int:
        """One beyond the last offset that is stored."""
        queue = queue_within(self._namespace, queue)
        return (await self._ask(queue, _max_request(queue), GetMaxOffsetResponseHeader)).offset

    async def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """`min` and `max` of each queue, requested at once; errors are returned in their places."""
        found: dict[MessageQueue, tuple[int, int] | MQError] = {}
        asked: list[MessageQueue] = []
        requests: list[tuple[str, RemotingCommand]] = []
        queues = [queue_within(self._namespace, queue) for queue in queues]
        for queue in queues:
            try:
                addr = await self._routes.address(queue, self._read_from, master_only=self._read_from == MASTER_ID)
            except MQError as error:
                found[queue] = error
                continue
            asked.append(queue)
            requests += [(addr, _min_request(queue)), (addr, _max_request(queue))]
        answers = iter(await self._net.invoke_many(requests, self._timeout_ms))
        for queue, low, high in zip(asked, answers, answers, strict=True):
            try:
                first = _read(low, GetMinOffsetResponseHeader).offset
                found[queue] = first, _read(high, GetMaxOffsetResponseHeader).offset
            except MQError as error:
                self._routes.mark_stale(queue.topic)
                found[queue] = error
        return [found[queue] for queue in queues]

    async def bounds_by_topic(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """As `bounds`, with one request for all queues of a topic on a broker, which an account may send without a
        right to read the topic. Queues that the response lacks, as those of light topics, are requested one by one."""
        queues = [queue_within(self._namespace, queue) for queue in queues]
        found: dict[MessageQueue, tuple[int, int] | MQError] = {}
        asked: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            asked.setdefault((queue.topic, queue.broker_name), []).append(queue)
        requests: dict[tuple[str, str], tuple[str, RemotingCommand]] = {}
        for place, (queue, *_) in asked.items():
            try:
                addr = await self._routes.address(queue, self._read_from, master_only=self._read_from == MASTER_ID)
            except MQError as error:
                found |= dict.fromkeys(asked[place], error)
                continue
            header = GetTopicStatsInfoRequestHeader(topic=queue.topic)
            requests[place] = addr, RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, header)
        answers = await self._net.invoke_many(list(requests.values()), self._timeout_ms)
        for place, answer in zip(requests, answers, strict=True):
            try:
                bounds = topic_bounds(checked(answer).body, place[0])
            except (Refused, BadBody):
                continue
            except MQError as error:
                self._routes.mark_stale(place[0])
                found |= dict.fromkeys(asked[place], error)
                continue
            found |= {queue: bounds[queue.queue_id] for queue in asked[place] if queue.queue_id in bounds}
        left = [queue for queue in queues if queue not in found]
        found |= zip(left, await self.bounds(left), strict=True)
        return [found[queue] for queue in queues]

    async def at_time(self, queue: MessageQueue, time: datetime | int) -> int:
        """The offset of the first message stored at `time` or later; the queue's end without such a message.

        `time` is a datetime with a time zone, or milliseconds since the epoch.

        A Java broker of 4.9 returns the nearest message, which may be stored before that time.
        """
        timestamp_ms = to_timestamp(time)
        check_timestamp("time", timestamp_ms)
        queue = queue_within(self._namespace, queue)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        request = _request(code, SearchOffsetRequestHeader, queue, timestamp=timestamp_ms)
        return (await self._ask(queue, request, SearchOffsetResponseHeader)).offset

    async def start(self, queue: MessageQueue, consume_from: ConsumeFrom, timestamp_ms: int) -> int:
        """Where a member without a committed offset starts in `queue`: RebalancePushImpl.computePullFromWhere of 4.9.7.

        A retry topic starts at its beginning, but at its end with TIMESTAMP.
        """
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if consume_from is ConsumeFrom.FIRST:
            return 0
        if consume_from is ConsumeFrom.LAST:
            return 0 if is_retry else await self.max(queue)
        return await self.max(queue) if is_retry else await self.at_time(queue, timestamp_ms)

    async def _ask(self, queue: MessageQueue, request: RemotingCommand, answer_class: type[H]) -> H:
        addr = await self._routes.address(queue, self._read_from, master_only=self._read_from == MASTER_ID)
        return _read(await self._net.invoke(addr, request, self._timeout_ms), answer_class)


class Reads:
    """Single pulls of queues for `group`, which need no membership, from `read_from` of each set of brokers. Queues and
    messages are as brokers know them."""

    def __init__(
        self, net: Net, routes: Routes, group: str, offsets: Offsets, timeout_ms: int, read_from: int = MASTER_ID
    ) -> None:
        self._net = net
        self._routes = routes
        self._group = group
        self._offsets = offsets
        self._timeout_ms = timeout_ms
        self._read_from = read_from

    async def request(
        self, queue: MessageQueue, offset: int, max_count: int, subscription: SubscriptionData, suspend_ms: int = 0
    ) -> tuple[str, RemotingCommand]:
        """A pull, and the address that it goes to. Raises a route's errors, and BadArgument."""
        check_number("offset", offset, 0)
        check_number("max_count", max_count, 1)
        request = pull_request(
            queue,
            offset,
            max_count,
            group=self._group,
            subscription=subscription,
            suspend_ms=suspend_ms,
            carry_subscription=True,
        )
        return await self._routes.address(queue, self._read_from), request

    async def raw(
        self, queue: MessageQueue, offset: int, max_count: int, subscription: SubscriptionData, suspend_ms: int = 0
    ) -> RawPull:
        """The response to a pull. Raises as `request` does, Refused and Unreachable."""
        addr, request = await self.request(queue, offset, max_count, subscription, suspend_ms)
        timeout_ms = max(self._timeout_ms, suspend_ms + _SUSPEND_GRACE_MS if suspend_ms else 0)
        try:
            return read_pull_answer(await self._net.invoke(addr, request, timeout_ms))
        except MQError:
            self._routes.mark_stale(queue.topic)
            raise

    async def messages(self, queue: MessageQueue, offset: int, max_count: int) -> list[ReceivedMessage]:
        subscription = subscribe_to(queue.topic, ALL, 0)
        return read_messages(
            await self.raw(queue, offset, max_count, subscription), queue, subscription, offset
        ).messages

    async def message_by_time(self, queue: MessageQueue, time: datetime | int) -> ReceivedMessage | None:
        """The first message of a queue that was stored at `time` or later, exact on all brokers; None if no such
        message exists. `time` is a datetime with a time zone, or milliseconds since the epoch."""
        timestamp_ms = to_timestamp(time)
        hint = await self._offsets.at_time(queue, time)
        low, high = await self._offsets.min(queue), await self._offsets.max(queue)
        at = min(max(low, hint - 1), high)
        found: ReceivedMessage | None = None
        # Messages before `low` are older; those from `high` on are not.
        while low < high:
            messages = await self.messages(queue, at, 2)
            if not messages:
                high = at
            for number, message in enumerate(messages):
                if message.store_timestamp_ms >= timestamp_ms:
                    high = min(high, message.queue_offset if number else at)
                    if found is None or message.queue_offset < found.queue_offset:
                        found = message
                    break
                low = message.queue_offset + 1
            at = (low + high) // 2
        return found


def _request(code: RequestCode, kind: Callable[..., Header], queue: MessageQueue, **fields: Any) -> RemotingCommand:
    header = kind(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name, **fields)
    return RemotingCommand.request(code, header)


def _min_request(queue: MessageQueue) -> RemotingCommand:
    return _request(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader, queue)


def _max_request(queue: MessageQueue) -> RemotingCommand:
    return _request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, queue)


def _read(answer: RemotingCommand | MQError, answer_class: type[H]) -> H:
    return decode_header(answer_class, checked(answer).ext_fields)
