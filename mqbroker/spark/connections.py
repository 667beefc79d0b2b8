"""The clients of this process: one for each set of name servers and account, shared by tasks and triggers.

Spark reuses its Python workers, so that a client's connections and routes serve the next task too. A client itself
drops a connection that failed or has pending responses; idle ones are always clean.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache

import attrs

from mqbroker.client.blocking import Producer, PullConsumer
from mqbroker.client.faces import core
from mqbroker.client.heartbeats import Heartbeats
from mqbroker.client.identity import Identity
from mqbroker.client.loop_thread import LoopThread
from mqbroker.client.messages import RawPull, SendResult
from mqbroker.client.names import bare, queue_within, within
from mqbroker.client.options import ProducerOptions, PullOptions
from mqbroker.client.producer import ProducerCore
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.send import Outgoing
from mqbroker.client.subscription import ALL, Sql, subscribe_to
from mqbroker.client.thread_clients import parts
from mqbroker.client.tls import ClientTls
from mqbroker.errors import MQError
from mqbroker.kernel import compiled
from mqbroker.spark.options import ReadFrom, SourceOptions
from mqbroker.spark.reading import PullsAhead
from mqbroker.spark.sink_options import Guarantee, SinkOptions
from mqbroker.wire.bodies import ConsumerData, MessageQueue
from mqbroker.wire.codes import MASTER_ID
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

_HEARTBEAT_S = 30.0
_PULL_TIMEOUT_S = 15.0
_SEND_TIMEOUT_S = 5.0
#: How soon a stream notices new queues, and brokers that came back.
_ROUTE_AGE_S = 10.0
#: The broker id that is asked for a slave; where a set lacks it, another broker of the set answers.
_SLAVE_ID = 1


@attrs.frozen
class Way:
    """How brokers are reached, and as whom."""

    name_servers: tuple[str, ...]
    group: str
    namespace: str
    credentials: Credentials | None
    tls: ClientTls | None


class QueueClient:
    """The requests of a query by pull consumers of this process, for topics without the namespace of `way`.

    :param pulls: where messages are read: the next of them where the one before did not answer for a broker.
    :param bounds: where the ends of queues are asked for.
    """

    def __init__(self, pulls: Sequence[PullConsumer], bounds: Sequence[PullConsumer], way: Way) -> None:
        self._pulls, self._bounds, self._way, self._namespace = pulls, bounds, way, way.namespace
        self._heartbeats: Heartbeats | None = None
        self._beat_at = -math.inf
        self._reporting: Future[None] | None = None
        self._reported: dict[MessageQueue, int] = {}
        self._topics: set[str] = set()
        #: By broker that has failed: the index in `pulls` of the client that is tried next.
        self._turn: dict[str, int] = {}

    def queues(self, topic: str) -> list[MessageQueue]:
        """Raises as `PullConsumer.queues` does."""
        found = self._bounds[0].queues(within(self._namespace, topic))
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in found]

    def topics(self) -> tuple[set[str], set[str]]:
        """All topics of the namespace, and those of them that are the system's. Raises NameServerUnreachable."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)
        listed, internal = thread.run(consumer.topics())
        names = {bare(topic, self._namespace or None): topic for topic in listed} if self._namespace else {}
        inside = {name for name, topic in names.items() if within(self._namespace, name) == topic}
        return (inside if self._namespace else set(listed)), set(internal)

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """As `Offsets.bounds`."""
        inside = [self._inside(queue) for queue in queues]
        found = self._bounds[0].bounds(inside)
        for other in self._bounds[1:]:
            failed = [n for n, each in enumerate(found) if isinstance(each, MQError)]
            for n, each in zip(failed, other.bounds([inside[n] for n in failed]) if failed else (), strict=True):
                found[n] = each
        return found

    def bounds_by_topic(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """As `Offsets.bounds_by_topic`, from the brokers that a stream reads bounds from."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)
        return thread.run(consumer.offsets.bounds_by_topic([self._inside(queue) for queue in queues]))

    def fetch_ahead(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str | Sql = ALL) -> PullsAhead:
        """As `PullConsumer.fetch_ahead`; all wants are of brokers with the same index in `pulls`."""
        broker = wants[0][0].broker_name
        source = self._pulls[self._turn.get(broker, 0) % len(self._pulls)]
        inside = [(self._inside(queue), at, count) for queue, at, count in wants]
        pulls = source.fetch_ahead(inside, tags=tags)
        return pulls if len(self._pulls) == 1 else _Watched(pulls, lambda: self._failed(broker))

    def _failed(self, broker: str) -> None:
        self._turn[broker] = self._turn.get(broker, 0) + 1

    def committed(self, queues: Sequence[MessageQueue]) -> list[int | None]:
        """The group's offset in each queue. Raises as `Offsets.committed`."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)
        return _all([thread.submit(consumer.offsets.committed(self._inside(queue))) for queue in queues])

    def at_times(self, times: Sequence[tuple[MessageQueue, int]]) -> list[int | None]:
        """The first offset stored at each time or later. Raises as `PullConsumer.message_by_time`."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)

        async def find(queue: MessageQueue, at: int) -> int | None:
            message = await consumer.message_by_time(queue, at)
            return None if message is None else message.queue_offset

        return _all([thread.submit(find(self._inside(queue), at)) for queue, at in times])

    def places(self, topic: str, key: str, *, is_unique: bool = True) -> list[tuple[MessageQueue, int]] | None:
        """As `IndexRequests.places`."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)
        found = thread.run(consumer.index.places(within(self._namespace, topic), key, is_unique=is_unique))
        if found is None:
            return None
        return [(MessageQueue(topic, queue.broker_name, queue.queue_id), offset) for queue, offset in found]

    def report(self, positions: Mapping[MessageQueue, int]) -> None:
        """Commit `positions` as the group's, and be seen as its consumer, without waiting: what fails is logged, and
        the next report replaces it."""
        thread, client = parts(self._bounds[0])
        consumer: PullConsumerCore = core(client)
        if self._reporting is not None and not self._reporting.done():
            return
        if self._heartbeats is None:
            identity = Identity(self._way.name_servers, random.Random(), time.time)
            identity.take()
            self._heartbeats = consumer.heartbeats(identity, self._consumer_data)
        self._topics |= {queue.topic for queue in positions}
        self._reporting = thread.submit(self._report(consumer, self._heartbeats, positions))

    async def _report(
        self, consumer: PullConsumerCore, heartbeats: Heartbeats, positions: Mapping[MessageQueue, int]
    ) -> None:
        inside = {self._inside(queue): at for queue, at in positions.items()}
        try:
            if time.monotonic() - self._beat_at >= _HEARTBEAT_S:
                for topic in {queue.topic for queue in inside}:
                    await consumer.queues(topic)
                await heartbeats.send_to_all()
                self._beat_at = time.monotonic()
            changed = {queue: at for queue, at in inside.items() if self._reported.get(queue) != at}
            await consumer.offsets.commit_many(changed)
            self._reported |= changed
        except MQError as error:
            log.warning("the offsets of group %s are not committed: %s", self._way.group, error)

    def _consumer_data(self) -> ConsumerData:
        topics = sorted(within(self._namespace, topic) for topic in self._topics)
        return ConsumerData(
            group_name=within(self._namespace, self._way.group),
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=[subscribe_to(topic, ALL, 0) for topic in topics],
        )

    def _inside(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        return MessageQueue(within(self._namespace, queue.topic), queue.broker_name, queue.queue_id)


class _Watched:
    """Pulls in flight; `failed` is called if none of them is answered."""

    def __init__(self, pulls: PullsAhead, failed: Callable[[], None]) -> None:
        self._pulls, self._failed = pulls, failed

    def finish(self) -> list[RawPull | MQError]:
        answers = self._pulls.finish()
        if all(isinstance(answer, MQError) for answer in answers):
            self._failed()
        return answers

    def abandon(self) -> None:
        self._pulls.abandon()


def _all(futures: Sequence[Future[int | None]]) -> list[int | None]:
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


@cache
def _say_if_not_compiled() -> None:
    if compiled is None:
        log.warning("mqbroker's compiled module is not there, as with a bundle: reads and writes take more CPU")


def client_for(options: SourceOptions) -> QueueClient:
    """The client of this process for `options`; it connects when it is used."""
    _say_if_not_compiled()
    # A stream that asked one broker after another would see queues that end before they did.
    asks_master = options.is_stream or options.read_from is ReadFrom.MASTER
    way = Way(options.name_servers, options.group, options.namespace, options.credentials, options.tls)
    return _client(way, options.read_from, asks_master)


@cache
def _client(way: Way, read_from: ReadFrom, asks_master: bool) -> QueueClient:
    if read_from is ReadFrom.MASTER:
        pulls = [_consumer(way, MASTER_ID)]
    elif read_from is ReadFrom.SLAVE:
        pulls = [_consumer(way, _SLAVE_ID)]
    else:
        pulls = [_consumer(way, MASTER_ID), _consumer(way, _SLAVE_ID)]
    return QueueClient(pulls, [_consumer(way, MASTER_ID)] if asks_master else pulls, way)


@cache
def _consumer(way: Way, read_from: int) -> PullConsumer:
    options = PullOptions(
        credentials=way.credentials,
        tls=way.tls,
        pull_timeout_s=_PULL_TIMEOUT_S,
        route_age_s=_ROUTE_AGE_S,
        read_from=read_from,
    )
    return PullConsumer(way.name_servers, within(way.namespace, way.group), options=options)


class ClientSender:
    """Sends with the producer of this process: see `writing.Sender`. Topics are given without the `namespace`."""

    def __init__(self, producer: Producer, namespace: str = "") -> None:
        self._producer, self._namespace = producer, namespace
        self._is_started = False

    def start(self) -> None:
        """Connect to a name server, once. Raises NameServerUnreachable at once if none responds; a request would retry
        for as long as a broker may be away."""
        if not self._is_started:
            self._producer.start()
            self._is_started = True

    def _parts(self) -> tuple[LoopThread, ProducerCore]:
        self.start()
        thread, client = parts(self._producer)
        return thread, core(client)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Raises as `Producer.queues` does."""
        self.start()
        return self._producer.queues(topic)

    def send(self, outgoing: Outgoing, queue: MessageQueue | None) -> Future[SendResult]:
        """Returns when it is under way. Raises NameServerUnreachable."""
        thread, sender = self._parts()
        if self._namespace:
            outgoing = attrs.evolve(outgoing, topic=within(self._namespace, outgoing.topic))
            queue = None if queue is None else queue_within(self._namespace, queue)
        return thread.submit(sender.send_packed(outgoing, queue=queue))

    def find(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """As `IndexRequests.find`."""
        thread, sender = self._parts()
        return thread.run(sender.index.find(within(self._namespace, topic), keys))

    def positions(self, topic: str) -> dict[str, tuple[int, int]]:
        """As `IndexRequests.positions`."""
        thread, sender = self._parts()
        return thread.run(sender.index.positions(within(self._namespace, topic)))


def sender_for(options: SinkOptions) -> ClientSender:
    """The sender of this process for `options`; it connects when it is used."""
    _say_if_not_compiled()
    # A send without an answer is looked up before it is sent again.
    retries = 0 if options.guarantee is Guarantee.EFFECTIVELY_ONCE else None
    return _sender(options.name_servers, options.group, options.namespace, options.credentials, options.tls, retries)


@cache
def _sender(
    name_servers: tuple[str, ...],
    group: str,
    namespace: str,
    credentials: Credentials | None,
    tls: ClientTls | None,
    retries: int | None,
) -> ClientSender:
    options = ProducerOptions(
        credentials=credentials, tls=tls, namespace=namespace, retries=retries, send_timeout_s=_SEND_TIMEOUT_S
    )
    return ClientSender(Producer(name_servers, group, options=options), namespace)
