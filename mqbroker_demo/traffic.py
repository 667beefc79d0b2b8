"""The demo's clients: one producer and a group of two push consumers, all on one asyncio loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from mqbroker.client import ConsumeFrom, Message, ProducerOptions, PushOptions, ReceivedMessage
from mqbroker.client.aio import Producer, PushConsumer
from mqbroker.client.aio_net import AioNet
from mqbroker.client.broker_requests import decline
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import TopicRouteData
from mqbroker.wire.codes import Perm, RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import CreateTopicRequestHeader, GetRouteInfoRequestHeader
from mqbroker_demo.cluster import wait_until
from mqbroker_demo.corpus import Line, Tally, file_key, line_key

TOPIC = "demo-lines"
GROUP = "demo-readers"
PRODUCER_GROUP = "demo-writer"
CONSUMERS = 2
QUEUES_PER_BROKER = 4

#: Sends under way at once, and how long one line is tried before the demo gives up.
SENDS_AT_ONCE = 32
SEND_PATIENCE_S = 30.0
_RETRY_PAUSE_S = 0.1
_REQUEST_TIMEOUT_MS = 3000
_ROUTE_PATIENCE_S = 10.0
_BALANCE_PATIENCE_S = 5.0


async def create_topic(name_server: str, brokers: Iterable[str]) -> None:
    """Create the topic at each of `brokers` (addresses); return when the name server knows all. Raises MQError."""
    net = AioNet(decline, random.Random())
    header = CreateTopicRequestHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=QUEUES_PER_BROKER,
        write_queue_nums=QUEUES_PER_BROKER,
        perm=Perm.READ | Perm.WRITE,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )
    wanted = set(brokers)
    try:
        for address in wanted:
            request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            answer = await net.invoke(address, request, _REQUEST_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(answer.code, answer.remark or "")
        deadline = time.monotonic() + _ROUTE_PATIENCE_S
        while not wanted <= await _addresses(net, name_server):
            if time.monotonic() > deadline:
                raise MQError(f"the name server did not learn of topic {TOPIC} in {_ROUTE_PATIENCE_S:g} s")
            await asyncio.sleep(0.02)
    finally:
        await net.close()


async def _addresses(net: AioNet, name_server: str) -> set[str]:
    """The brokers that have the topic, as the name server knows it."""
    header = GetRouteInfoRequestHeader(topic=TOPIC)
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    answer = await net.invoke(name_server, request, _REQUEST_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        return set()
    route = TopicRouteData.from_json(answer.body)
    return {address for broker in route.broker_datas for address in broker.broker_addrs.values()}


class Publisher:
    """Sends lines until each is acknowledged. A line whose answer was lost goes again, and may then be there twice."""

    def __init__(self, name_server: str, on_progress: Callable[[int], None]) -> None:
        self.acknowledged = Tally()
        self.retried = 0
        self.by_broker: Counter[str] = Counter()
        self._on_progress = on_progress
        options = ProducerOptions(retries=3, heartbeat_s=5.0, route_age_s=1.0)
        self._producer = Producer(name_server, PRODUCER_GROUP, options=options)

    async def start(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close()

    async def publish(self, lines: Iterable[Line]) -> None:
        """Return when all are acknowledged. Raises MQError where a line is not in SEND_PATIENCE_S."""
        left = iter(lines)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(SENDS_AT_ONCE):
                    group.create_task(self._send_from(left))
        except* MQError as errors:
            raise _first(errors) from errors

    async def _send_from(self, lines: Iterator[Line]) -> None:
        for line in lines:
            await self._send(line)
            self._on_progress(self.acknowledged.distinct)

    async def _send(self, line: Line) -> None:
        key = line_key(line)
        message = Message(TOPIC, line.body, keys=(file_key(line.file), key))
        deadline = time.monotonic() + SEND_PATIENCE_S
        while True:
            try:
                result = await self._producer.send(message)
            except MQError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                self.retried += 1
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                self.acknowledged.add(key, line.body)
                self.by_broker[result.queue.broker_name] += 1
                return


def _first(errors: BaseExceptionGroup[MQError]) -> MQError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MQError)
    return error


class Readers:
    """The group of push consumers. `shares` says how many messages each got."""

    def __init__(self, name_server: str, on_progress: Callable[[int], None]) -> None:
        self.consumed = Tally()
        self.shares = [0] * CONSUMERS
        self._on_progress = on_progress
        options = PushOptions(
            concurrency=64,
            consume_from=ConsumeFrom.FIRST,
            # A broker goes and comes back within seconds here.
            rebalance_s=1.0,
            route_age_s=1.0,
            heartbeat_s=5.0,
            commit_s=1.0,
            pull_error_pause_s=0.2,
        )
        self._members = [
            PushConsumer(name_server, GROUP, self._listener(number), options=options) for number in range(CONSUMERS)
        ]

    async def start(self) -> None:
        """Join the group; return when each has queues, or after a while without. Raises MQError."""
        for member in self._members:
            await member.subscribe(TOPIC)
            await member.start()
        await wait_until(lambda: all(_has_queues(member) for member in self._members), _BALANCE_PATIENCE_S)

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self._members), return_exceptions=True)

    def _listener(self, number: int) -> Callable[[ReceivedMessage], None]:
        def take(message: ReceivedMessage) -> None:
            self.shares[number] += 1
            self.consumed.add(message.keys[1], message.body)
            self._on_progress(self.consumed.distinct)

        return take


def _has_queues(member: PushConsumer) -> bool:
    return any(queue.topic == TOPIC for queue in member.assigned)
