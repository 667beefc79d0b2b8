"""The calls of the blocking face that wait.

Generated from aio.py by tests/client/generate_faces.py: change it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mqbroker.client.blocking_net import run
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
    ) -> SendResult:
        """Return the SendResult. Raises SendFailed, Refused, BadMessage or a route's error.

        Without `queue`, `key` or `selector` the queues take turns and a failed attempt is repeated on another broker.
        """
        return run(self._ready().send(message, queue=queue, key=key, selector=selector, timeout_ms=timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, all or none; returns and raises as `send`."""
        return run(self._ready().send_batch(messages, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Return when the bytes are handed to the system; nobody learns whether they arrived."""
        run(self._ready().send_oneway(message, queue=queue, key=key, selector=selector))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of `topic` go to, by broker and id."""
        return run(self._ready().queues(topic))


class PullConsumerCalls(ABC):
    """What a PullConsumer does by its core."""

    @abstractmethod
    def _ready(self) -> PullConsumerCore:
        """Return the core. Raises ClientClosed."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic`, by broker and id."""
        return run(self._ready().queues(topic))

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> PullResult:
        """Read up to `max_count` messages from `offset` on; with `suspend_ms` wait that long for the first."""
        return run(self._ready().pull(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms))

    def fetch_raw(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = ALL, suspend_ms: int = 0
    ) -> RawPull:
        """As `pull`, with the records as bytes."""
        return run(self._ready().fetch_raw(queue, offset, max_count, tags=tags, suspend_ms=suspend_ms))

    def fetch_many(self, wants: Sequence[tuple[MessageQueue, int, int]], *, tags: str = ALL) -> list[RawPull | MQError]:
        """Several `fetch_raw` at once, of (queue, offset, max count); an error stands in its answer's place."""
        return run(self._ready().fetch_many(wants, tags=tags))

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]:
        """`min_offset` and `max_offset` of many queues at once; an error stands in its answer's place."""
        return run(self._ready().offsets.bounds(queues))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        return run(self._ready().offsets.min(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """One beyond the last offset that is stored."""
        return run(self._ready().offsets.max(queue))

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """An offset near `timestamp_ms`; a 4.9 broker gives the nearest message, which may be older."""
        return run(self._ready().offsets.at_time(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, or None where it has none."""
        return run(self._ready().offsets.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Make `offset` the next one the group consumes."""
        run(self._ready().offsets.commit(queue, offset))
