"""Topics that one shard of a broker creates for their first message are created on all, so that consumers know every
queue: those of sends, and the retry, dead letter and given-up transaction topics that the broker itself stores into.

Independent of how the shards communicate.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError
from mqbroker.wire.bodies import TopicConfig
from mqbroker.wire.names import check_topic

log = Logger()


class SiblingTopics:
    """Publishes topics created here to the other shards, and creates theirs.

    :param tell: sends a topic to all other shards, without waiting for them.
    """

    def __init__(self, tell: Callable[[TopicConfig], None]) -> None:
        self._tell = tell
        self._topics: TopicTable | None = None

    def attach(self, topics: TopicTable | None) -> None:
        """Follow the table of a broker that has started; None where it is a slave, whose topics are its master's."""
        self._topics = topics
        if topics is not None:
            topics.on_created.append(self._tell)

    def told(self, topic: TopicConfig) -> None:
        """Create a topic that another shard has created, unless it is here already."""
        topics, name = self._topics, topic.topic_name
        if topics is None or topics.get(name) is not None:
            return
        try:
            check_topic(name)
            topics.put(topic)
        except MQError as error:
            log.warn("topic {topic} of another shard is not created here: {why}", topic=name, why=str(error))
