"""The pull consumer's core: the caller keeps the offsets. It takes no part in rebalancing and sends no heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from mqbroker.client.errors import ClientClosed, NoBrokerForTopic
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.hooks import Filters
from mqbroker.client.identity import Identity
from mqbroker.client.index_requests import IndexRequests, Queries
from mqbroker.client.messages import PullResult, RawPull, ReceivedMessage
from mqbroker.client.names import bare_message, bare_queue, check_group, queue_within, within
from mqbroker.client.net import Ending, Net
from mqbroker.client.options import PullOptions, milliseconds
from mqbroker.client.queue_requests import Offsets, Reads, read_messages, read_pull_answer
from mqbroker.client.routes import Routes
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.errors import MQError
from mqbroker.wire.bodies import ConsumerData, MessageQueue
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand


class PullConsumerCore:
    """Reads queues for `group`, whose committed offsets it can read and write. Topics and groups are as the user knows
    them, without the namespace."""

    def __init__(self, net: Net, name_servers: tuple[str, ...], group: str, options: PullOptions) -> None:
        self._net = net
        self._timeout_ms = milliseconds("request_timeout_s", options.request_timeout_s)
        self._routes = Routes(net, name_servers, age_s=options.route_age_s, timeout_ms=self._timeout_ms)
        self._namespace = options.namespace
        self.group = group = within(self._namespace, check_group(group))
        self._filters = Filters(options.observers, group, self._namespace, net.steady)
        self._options = options
        self._is_started = self._closed = False
        timeout_ms = self._pull_timeout_ms = milliseconds("pull_timeout_s", options.pull_timeout_s)
        self.offsets = Offsets(net, self._routes, group, self._timeout_ms, options.read_from, self._namespace)
        self._reads = Reads(net, self._routes, group, self.offsets, timeout_ms, options.read_from)
        self.index = IndexRequests(net, self._routes, self._timeout_ms)
        self.queries = Queries(net, self._routes, self._timeout_ms, options.namespace)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic`, by broker and id. Raises TopicNotFound, NameServerUnreachable, NoBrokerForTopic."""
        topic = within(self._namespace, topic)
        route = await self._routes.get(topic)
        if not route.subscribe_queues:
            self._routes.mark_stale(topic)
            raise NoBrokerForTopic(topic, "none allows reading it")
        return [bare_queue(self._namespace, queue) for queue in route.subscribe_queues]

    async def topics(self) -> tuple[frozenset[str], frozenset[str]]:
        """All topics that a name server lists, as it knows them, and the system's among them.

        Raises NameServerUnreachable.
        """
        return await self._routes.topics(), await self._routes.topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = ALL,
        suspend_s: float | timedelta = 0,
    ) -> PullResult:
        """Read up to `max_count` messages (a 4.9 broker returns 32 at most, and of compressed ones no more than
        decompress to some 16 MiB) from `offset` on.

        With `suspend_s` the broker waits that long if there is no message. Raises Refused, Unreachable,
        RequestTimedOut, BadRecord on a corrupt response, or UnexpectedResponse on one with other messages. A message
        whose body cannot be decompressed has a `body_error`.
        """
        queue = queue_within(self._namespace, queue)
        subscription = subscribe_to(queue.topic, tags, 0)
        raw = await self._reads.raw(queue, offset, max_count, subscription, milliseconds("suspend_s", suspend_s, 0))
        found = read_messages(raw, queue, subscription, offset)
        accepted = self._filters.accepted(found.messages)
        messages = tuple(bare_message(self._namespace, message) for message in accepted)
        return PullResult(raw.status, found.next_offset, raw.min_offset, raw.max_offset, messages)

    async def message_by_time(self, queue: MessageQueue, time: datetime | int) -> ReceivedMessage | None:
        """The first message of a queue that was stored at `time` or later, exact on all brokers; None if no such
        message exists. `time` is a datetime with a time zone, or milliseconds since the epoch."""
        found = await self._reads.message_by_time(queue_within(self._namespace, queue), time)
        return None if found is None else bare_message(self._namespace, found)

    async def fetch_raw(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = ALL,
        suspend_s: float | timedelta = 0,
    ) -> RawPull:
        """As `pull`, with the records as bytes. Tags are filtered by hash only: the caller must compare them. No filter
        sees them, and the topics in them have their namespace."""
        queue = queue_within(self._namespace, queue)
        suspend_ms = milliseconds("suspend_s", suspend_s, 0)
        return await self._reads.raw(queue, offset, max_count, subscribe_to(queue.topic, tags, 0), suspend_ms)

    async def fetch_many(
        self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str | Sql = ALL
    ) -> list[RawPull | MQError]:
        """Several `fetch_raw` at once, of (queue, offset, max count): all requests are sent before any response is
        awaited.

        If a request fails, its error is returned in place of the response. Raises TopicNotFound, NameServerUnreachable
        and NoBrokerForTopic before anything is sent.
        """
        return await self.fetch(wants, await self.requests(wants, tags=tags))

    async def requests(
        self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str | Sql = ALL
    ) -> list[tuple[str, RemotingCommand]]:
        """The pulls of `fetch_many` and their addresses. Raises a route's errors."""
        found = []
        for queue, offset, max_count in wants:
            queue = queue_within(self._namespace, queue)
            found.append(await self._reads.request(queue, offset, max_count, subscribe_to(queue.topic, tags, 0)))
        return found

    async def fetch(
        self, wants: Sequence[tuple[MessageQueue, int, int]], requests: Sequence[tuple[str, RemotingCommand]]
    ) -> list[RawPull | MQError]:
        """What `fetch_many` returns, by the pulls that `requests` has made."""
        answers = await self._net.invoke_many(requests, self._pull_timeout_ms)
        results = [_read_or_error(answer) for answer in answers]
        for (queue, _, _), result in zip(wants, results, strict=True):
            if isinstance(result, MQError):
                self._routes.mark_stale(within(self._namespace, queue.topic))
        return results

    def heartbeats(self, identity: Identity, data: Callable[[], ConsumerData]) -> Heartbeats:
        """Heartbeats of a program that is to be seen by tools, as a consumer that `data` describes."""
        return Heartbeats(self._net, self._routes, identity, consumer_data=data, timeout_ms=self._timeout_ms)

    async def start(self) -> None:
        """Connect to a name server. Without this call the first request connects.

        Raises NameServerUnreachable, TlsFailed, and ClientClosed if it was started or closed before.
        """
        if self._is_started or self._closed:
            raise ClientClosed("a pull consumer can be started only once")
        await self._routes.check()
        if self._closed:
            raise ClientClosed("this pull consumer was closed while it started")
        self._is_started = True

    async def close(self) -> None:
        """Close the connections, within `close_timeout_s`."""
        self._closed = True
        await Ending(self._net, self._options.close_timeout_s, self.group).close_net()


def _read_or_error(answer: RemotingCommand | MQError) -> RawPull | MQError:
    if isinstance(answer, MQError):
        return answer
    try:
        return read_pull_answer(answer)
    except MQError as error:
        return error
