"""Keeps the retry topics of groups as wide as their retries need: consumers read the queues of the topic alone.

A group may get more retry queues after its retry topic was created, and a Java broker then stores retries in queues
that the topic does not have.
"""

from __future__ import annotations

from contextlib import suppress

import attrs
from twisted.logger import Logger

from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import QUEUES_MAX
from mqbroker.wire.codes import RETRY_PREFIX
from mqbroker.wire.names import LMQ_PREFIX

log = Logger()


@attrs.define(eq=False)
class RetryTopics:
    """Extends retry topics. A slave's are its master's, and it does not use this."""

    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _store: MessageStore
    #: Queues of a topic whose messages came without it; None unless this broker was elected.
    _queues_of_lost: int | None = None

    def start(self) -> None:
        """Extend the retry topics that have too few queues for their group, or for messages that are not consumed;
        and from now on those of groups that change. An elected master creates the topics that it has messages of."""
        if self._queues_of_lost is not None:
            self._create_lost(self._queues_of_lost)
        for name in self._groups.names():
            self.group_changed(name)
        self._serve_stranded()
        self._groups.on_change.append(self.group_changed)

    def _create_lost(self, queues: int) -> None:
        """A topic that was made a moment before the former master was lost did not come with its tables."""
        lost: dict[str, int] = {}
        for topic, queue_id in list(self._store.queues_by_name):
            if self._topics.get(topic) is None and not topic.startswith(LMQ_PREFIX) and queue_id < QUEUES_MAX:
                begin, end = self._store.bounds(topic, queue_id) or (0, 0)
                if end > begin:
                    lost[topic] = max(queue_id + 1, lost.get(topic, queues))
        for topic, count in lost.items():
            with suppress(MQError):  # of a name that no topic can have
                self._topics.create_internal(topic, count)
                log.warn(
                    "{topic} has messages, but was not among the topics of the former master: it is created with "
                    "{queues} queues",
                    topic=topic, queues=count,
                )  # fmt: skip

    def group_changed(self, name: str) -> None:
        """Extend the retry topic of a group, if there is one, to as many queues as the group has."""
        group, topic = self._groups.get(name), RETRY_PREFIX + name
        if group is not None and self._topics.get(topic) is not None:
            self._topics.create_internal(topic, group.retry_queue_nums)

    def _serve_stranded(self) -> None:
        last: dict[str, int] = {}
        counts: dict[str, int] = {}
        for topic, queue_id in list(self._store.queues_by_name):
            known = self._topics.get(topic) if topic.startswith(RETRY_PREFIX) and queue_id < QUEUES_MAX else None
            if known is None or queue_id < known.read_queue_nums:
                continue
            begin, end = self._store.bounds(topic, queue_id) or (0, 0)
            consumed = self._offsets.query(topic.removeprefix(RETRY_PREFIX), topic, queue_id) or 0
            count = end - max(begin, consumed)
            if count > 0:
                last[topic] = max(queue_id, last.get(topic, 0))
                counts[topic] = counts.get(topic, 0) + count
        for topic, queue_id in last.items():
            self._topics.create_internal(topic, queue_id + 1)
            log.warn(
                "{topic} has {n} messages in queues that no consumer read, because the topic had fewer queues; it has "
                "{queues} now, so that consumers get them",
                topic=topic,
                n=counts[topic],
                queues=queue_id + 1,
            )
