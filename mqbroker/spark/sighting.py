"""What the driver asks brokers: which queues the topics have, and what each holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqbroker.client.errors import TopicNotFound, is_about_account
from mqbroker.errors import MQError, Refused
from mqbroker.spark.errors import NotReadable
from mqbroker.spark.offsets import Bounds, describe
from mqbroker.spark.plan import Sighting
from mqbroker.spark.pulling import Patience
from mqbroker.wire.bodies import MessageQueue


class QueueSource(Protocol):
    """Who is asked: a blocking PullConsumer."""

    def queues(self, topic: str) -> list[MessageQueue]: ...

    def bounds(self, queues: Sequence[MessageQueue]) -> list[tuple[int, int] | MQError]: ...


def look(source: QueueSource, topics: Sequence[str], patience: Patience, *, wait_for_topics: bool = True) -> Sighting:
    """Ask once, waiting only where a topic has no queue at all. Raises TopicNotFound or NameServerUnreachable.

    A queue whose broker does not answer, or refuses, has no bounds in the result; where it refuses the account, its
    Refused is raised.
    """
    queues = [queue for topic in topics for queue in _queues(source, topic, patience, wait_for_topics)]
    bounds = {}
    for queue, found in zip(queues, source.bounds(queues), strict=True):
        if not isinstance(found, MQError):
            bounds[queue] = Bounds(*found)
        elif is_about_account(found) or not (found.retriable or isinstance(found, Refused)):
            raise found
    return Sighting(frozenset(queues), bounds)


def look_until_whole(source: QueueSource, topics: Sequence[str], patience: Patience) -> Sighting:
    """As `look`, until every queue that is listed has answered. Raises NotReadable where that takes too long.

    A topic that does not exist raises TopicNotFound at once.
    """
    while True:
        seen = look(source, topics, patience, wait_for_topics=False)
        missing = seen.silent()
        if not missing:
            return seen
        patience.wait(NotReadable(f"the broker of {describe(missing[0])} does not answer, or refuses"))


def _queues(source: QueueSource, topic: str, patience: Patience, wait_for_topics: bool) -> list[MessageQueue]:
    while True:
        try:
            return source.queues(topic)
        except MQError as error:
            if not error.retriable or (isinstance(error, TopicNotFound) and not wait_for_topics):
                raise
            patience.wait(error)
