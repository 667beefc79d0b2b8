"""The producer's core: which queue, which broker next, when to give up. It sees the network only through Net."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mqbroker.client.errors import NoBrokerForTopic, SendFailed
from mqbroker.client.messages import Message, SendResult
from mqbroker.client.net import LiveNet, Net, Task, every
from mqbroker.client.options import ProducerOptions
from mqbroker.client.presence import Presence
from mqbroker.client.routes import Route, Routes
from mqbroker.client.send import (
    RETRIABLE_CODES,
    Outgoing,
    Rotation,
    prepare,
    prepare_batch,
    queue_for_key,
    read_send_answer,
    send_request,
)
from mqbroker.errors import MQError, Refused, RequestTimedOut
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.names import check_group

log = logging.getLogger(__name__)

#: Chooses the queue of a message among those the topic has, in their order.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

#: The pause before a broker is tried a second time; it doubles, and varies by half.
_RETRY_PAUSE_S = 0.05


class ProducerCore:
    """Sends for one group; `next_id` makes UNIQ_KEYs."""

    def __init__(
        self,
        net: Net,
        routes: Routes,
        presence: Presence,
        group: str,
        options: ProducerOptions,
        next_id: Callable[[], str],
    ) -> None:
        self._net = net
        self._routes = routes
        self._group = check_group(group)
        self._options = options
        self._next_id = next_id
        self._presence = presence
        self._rotation = Rotation(net.rng)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` go to. Raises TopicNotFound, NameServerUnreachable, NoBrokerForTopic."""
        return list((await self._writable(topic)).publish_queues)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and return what the broker said.

        Without `queue`, `key` or `selector` the queues take turns and a failed attempt is repeated, on another broker
        where there is one; with one of them there is one attempt, since the place was asked for. All attempts together
        end after `timeout_ms`. Raises SendFailed where every attempt failed, Refused where the broker will never take
        the message, BadMessage, TopicNotFound, NameServerUnreachable, NoBrokerForTopic.
        """
        outgoing = prepare(message, self._options, self._next_id, self._now_ms())
        choose = _chooser(message, queue, key, selector)
        return await self._send(outgoing, choose, timeout_ms)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, all or none. Raises as `send` does."""
        outgoing = prepare_batch(messages, self._options, self._next_id, self._now_ms())
        choose = _chooser(messages[0], queue, key, None)
        return await self._send(outgoing, choose, timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send without an answer: returns when the bytes are handed over, and nobody learns whether they arrived."""
        outgoing = prepare(message, self._options, self._next_id, self._now_ms())
        choose = _chooser(message, queue, key, selector)
        route = await self._writable(message.topic)
        chosen = choose(route.publish_queues) if choose else self._rotation.next(message.topic, route.publish_queues)
        request = send_request(outgoing, chosen, self._group, self._options)
        await self._net.send_oneway(_master(route, chosen), request)

    def keep_alive(self, net: LiveNet) -> list[Task]:
        """Send heartbeats and refresh routes beside the sends, on a running loop; the tasks are the caller's to end."""
        return [
            net.spawn(every(net, self._options.heartbeat_s, self._presence.beat)),
            net.spawn(every(net, self._options.route_age_s, self._routes.refresh_all)),
        ]

    async def close(self) -> None:
        """Leave the brokers and close the connections; sends under way fail."""
        await self._presence.leave()
        await self._net.close()

    def _now_ms(self) -> int:
        return int(self._net.now() * 1000)

    async def _writable(self, topic: str) -> Route:
        route = await self._routes.get(topic, create=True)
        if not route.publish_queues:
            self._routes.doubt(topic)
            raise NoBrokerForTopic(topic, "no master of it is up, or none lets it be written to")
        return route

    async def _send(
        self,
        outgoing: Outgoing,
        choose: Callable[[Sequence[MessageQueue]], MessageQueue] | None,
        timeout_ms: int | None,
    ) -> SendResult:
        allowed_s = (self._options.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        deadline = self._net.now() + allowed_s
        failed: list[tuple[str, str, MQError]] = []
        for attempt in range(1 if choose else 1 + self._options.retries):
            route = await self._writable(outgoing.topic)
            avoid = {broker for broker, _, _ in failed}
            queue = (
                choose(route.publish_queues)
                if choose
                else self._rotation.next(outgoing.topic, route.publish_queues, avoid)
            )
            if queue.broker_name in avoid:
                await self._net.sleep(_RETRY_PAUSE_S * 2**attempt * self._net.rng.uniform(0.5, 1.0))
            left_ms = int((deadline - self._net.now()) * 1000)
            addr = _master(route, queue)
            if left_ms <= 0:
                failed.append((queue.broker_name, addr, RequestTimedOut(f"{allowed_s:g} s passed before this attempt")))
                break
            try:
                return await self._attempt(outgoing, queue, addr, left_ms)
            except MQError as error:
                if not _worth_retrying(error):
                    raise
                self._routes.doubt(outgoing.topic)
                failed.append((queue.broker_name, addr, error))
        raise SendFailed(outgoing.topic, tuple(failed)) from failed[-1][2]

    async def _attempt(self, outgoing: Outgoing, queue: MessageQueue, addr: str, timeout_ms: int) -> SendResult:
        request = send_request(outgoing, queue, self._group, self._options)
        answer = await self._net.invoke(addr, request, timeout_ms)
        result = read_send_answer(outgoing, queue, answer)
        await self._presence.contact(addr)
        return result


def make_producer(
    net: Net,
    name_servers: tuple[str, ...],
    group: str,
    options: ProducerOptions,
    *,
    client_id: str,
    next_id: Callable[[], str],
    live: bool,
) -> ProducerCore:
    """Put a producer together. `live` says that `keep_alive` will run, so routes need no refreshing on use."""
    routes = Routes(
        net,
        name_servers,
        age_s=None if live else options.route_age_s,
        default_topic_queues=options.default_topic_queues,
        timeout_ms=options.send_timeout_ms,
    )
    presence = Presence(
        net,
        routes,
        client_id,
        producer_group=group,
        heartbeat_s=options.heartbeat_s,
        timeout_ms=options.send_timeout_ms,
    )
    return ProducerCore(net, routes, presence, group, options, next_id)


def _worth_retrying(error: MQError) -> bool:
    return error.code in RETRIABLE_CODES if isinstance(error, Refused) else error.retriable


def _master(route: Route, queue: MessageQueue) -> str:
    addr = route.master(queue.broker_name)
    if addr is None:
        raise NoBrokerForTopic(queue.topic, f"the name server knows no master of broker {queue.broker_name}")
    return addr


def _chooser(
    message: Message, queue: MessageQueue | None, key: str | None, selector: Selector | None
) -> Callable[[Sequence[MessageQueue]], MessageQueue] | None:
    """How the caller wants the queue chosen; None leaves it to the rotation."""
    if queue is not None:
        return lambda queues: queue
    if key is not None:
        return lambda queues: queue_for_key(queues, key)
    if selector is not None:
        return lambda queues: selector(queues, message)
    return None
