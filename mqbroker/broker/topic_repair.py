"""Creates or extends topics whose queues have messages that no consumer reads: consumers read the queues of the topic
alone.

A group may get more retry queues after its retry topic was created, and a Java broker then stores retries in queues
that the topic does not have. An elected master may have messages of a topic that its master created a moment before it
was lost, so that the topic did not come with its tables.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import Refused
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import QUEUES_MAX
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX, TRANS_OP_HALF_TOPIC
from mqbroker.wire.names import LMQ_PREFIX

log = Logger()

#: The queues of the one are read without a topic, and the other, a template, depends on the settings.
_NEVER_CREATED = frozenset((TRANS_OP_HALF_TOPIC, AUTO_CREATE_TOPIC))


@attrs.define(eq=False)
class TopicRepair:
    """Extends retry topics, and creates lost topics. A slave's are its master's, and it does not use this."""

    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _store: MessageStore
    #: Queues of a topic that was lost; None unless this broker was elected: others may have deleted such topics.
    _queues_of_lost: int | None = None

    def start(self) -> None:
        """Create the lost topics, and extend the retry topics that have too few queues for their group, or for messages
        that are not consumed; and from now on those of groups that change."""
        self._serve_stranded()
        for name in self._groups.names():
            self.group_changed(name)
        self._groups.on_change.append(self.group_changed)

    def group_changed(self, name: str) -> None:
        """Extend the retry topic of a group, if there is one, to as many queues as the group has."""
        group, topic = self._groups.get(name), RETRY_PREFIX + name
        if group is not None and self._topics.get(topic) is not None:
            self._topics.create_internal(topic, group.retry_queue_nums)

    def _serve_stranded(self) -> None:
        last: dict[str, int] = {}
        counts: dict[str, int] = {}
        for topic, queue_id in list(self._store.queues_by_name):
            known = self._topics.get(topic)
            consumed = 0
            if queue_id >= QUEUES_MAX:
                continue
            if known is None:
                if self._queues_of_lost is None or topic in _NEVER_CREATED or topic.startswith(LMQ_PREFIX):
                    continue
            elif topic.startswith(RETRY_PREFIX) and queue_id >= known.read_queue_nums:
                consumed = self._offsets.query(topic.removeprefix(RETRY_PREFIX), topic, queue_id) or 0
            else:
                continue
            # Also those that readers do not see yet.
            begin, end = self._store.min_offset(topic, queue_id), self._store.next_offset(topic, queue_id)
            count = end - max(begin, consumed)
            if count > 0:
                last[topic] = max(queue_id, last.get(topic, 0))
                counts[topic] = counts.get(topic, 0) + count
        for topic, queue_id in last.items():
            self._serve(topic, queue_id + 1, counts[topic])

    def _serve(self, topic: str, queues: int, count: int) -> None:
        if self._topics.get(topic) is not None:
            self._topics.create_internal(topic, queues)
            log.warn(
                "{topic} has {n} messages in queues that no consumer read, because the topic had fewer queues; it has "
                "{queues} now, so that consumers get them",
                topic=topic, n=count, queues=queues,
            )  # fmt: skip
            return
        # The topics that brokers create for themselves have one queue at first, whatever the settings.
        is_internal = self._topics.is_system(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        try:
            created = self._topics.create_internal(topic, max(queues, 1 if is_internal else self._queues_of_lost or 1))
        except Refused as error:
            log.warn(
                "{topic} has {n} messages, but was not among the topics of the former master, and cannot be created, "
                "so that no consumer reads them: {why}",
                topic=topic, n=count, why=error.remark,
            )  # fmt: skip
            return
        log.warn(
            "{topic} has {n} messages, but was not among the topics of the former master: it is created with {queues} "
            "queues; if it had others, set them with `mqadmin updateTopic`",
            topic=topic, n=count, queues=created.write_queue_nums,
        )  # fmt: skip
