"""The calls of the Twisted face that return Deferreds.

Generated from aio.py by tests/client/generate_faces.py: change it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from twisted.internet.defer import Deferred

from mqbroker.client.messages import Message, PullResult, RawPull, SendResult
from mqbroker.client.producer import ProducerCore, Selector
from mqbroker.client.pull_consumer import PullConsumerCore
from mqbroker.client.subscription import ALL
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue


class ProducerCalls(ABC):
    """What a Producer does by its core."""

    @abstractmethod
    def _ready(self) -> ProducerCore:
        """Return the core. Raises ClientClosed."""

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Deferred[SendResult]:
        """Fire with the SendResult. Fails with SendFailed, Refused, BadMessage or a route's error.

        Without `queue`, `key` or `selector` the queues take turns and a failed attempt is repeated on another broker.
        """
        return Deferred.fromCoroutine(
            self._ready().send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms)
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Deferred[SendResult]:
        """Send messages of one topic to one queue, all or none; fires and fails as `send`."""
        return Deferred.fromCoroutine(self._ready().send_batch(messages, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> Deferred[None]:
        """Fire when the bytes are handed to the system; nobody learns whether they arrived."""
        return Deferred.fromCoroutine(self._ready().send_oneway(message, queue=queue, key=key, selector=selector))

    def queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """The queues that messages of `topic` go to, by broker and id."""
        return Deferred.fromCoroutine(self._ready().queues(topic))


class PullConsumerCalls(ABC):
    """What a PullConsumer does by its core."""

    @abstractmethod
    def _ready(self) -> PullConsumerCore:
        """Return the core. Raises ClientClosed."""

    def queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """The queues of `topic`, by broker and id."""
        return Deferred.fromCoroutine(self._ready().queues(topic))

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> Deferred[PullResult]:
        """Read up to `max_count` messages from `offset` on; with `suspend_ms` wait that long for the first."""
        return Deferred.fromCoroutine(self._ready().pull(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms))

    def fetch_raw(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> Deferred[RawPull]:
        """As `pull`, with the records as bytes."""
        return Deferred.fromCoroutine(
            self._ready().fetch_raw(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms)
        )

    def fetch_many(
        self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL
    ) -> Deferred[list[RawPull | MQError]]:
        """Several `fetch_raw` at once, of (queue, offset, max count); an error stands in its answer's place."""
        return Deferred.fromCoroutine(self._ready().fetch_many(wants, tags=tags))

    def bounds(self, queues: Sequence[MessageQueue]) -> Deferred[list[tuple[int, int] | MQError]]:
        """`min_offset` and `max_offset` of many queues at once; an error stands in its answer's place."""
        return Deferred.fromCoroutine(self._ready().offsets.bounds(queues))

    def min_offset(self, queue: MessageQueue) -> Deferred[int]:
        """The first offset that is still stored."""
        return Deferred.fromCoroutine(self._ready().offsets.min(queue))

    def max_offset(self, queue: MessageQueue) -> Deferred[int]:
        """One beyond the last offset that is stored."""
        return Deferred.fromCoroutine(self._ready().offsets.max(queue))

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> Deferred[int]:
        """An offset near `timestamp_ms`; a 4.9 broker gives the nearest message, which may be older."""
        return Deferred.fromCoroutine(self._ready().offsets.at_time(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> Deferred[int | None]:
        """The group's offset, or None where it has none."""
        return Deferred.fromCoroutine(self._ready().offsets.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> Deferred[None]:
        """Make `offset` the next one the group consumes."""
        return Deferred.fromCoroutine(self._ready().offsets.commit(queue, offset))
