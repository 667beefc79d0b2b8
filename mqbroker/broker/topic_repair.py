"""Creates or extends topics whose queues have messages that no consumer reads: consumers read the queues of the topic
alone.

A group may get more retry queues after its retry topic was created, and a Java broker then stores retries in queues
that the topic does not have. An elected master, or a slave that was promoted, may have messages of a topic that its
master created or extended a moment before it was lost, so that this did not come with its tables.
"""

from __future__ import annotations

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.group_table import GroupTable
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable, how_to_add_queues
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import QUEUES_MAX
from mqbroker.wire.codes import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX, TRANS_OP_HALF_TOPIC
from mqbroker.wire.names import LMQ_PREFIX

log = Logger()

#: The queues of the one are read without a topic, and the other, a template, depends on the settings.
_NEVER_CREATED = frozenset((TRANS_OP_HALF_TOPIC, AUTO_CREATE_TOPIC))


FILE = "topicsCopied.json"
#: Topics that one line of the log names.
NAMES_MAX = 20


@attrs.frozen
class MasterRun:
    """One run of a master: its address, and when it says it started. `has_offsets`: whether all groups and topics in
    the table of offsets are the master's."""

    address: str
    booted: str
    has_offsets: bool


class CopiedTopics:
    """A slave knows the topics of all messages below `end` of its log: topics and queues that it lacks were removed at
    the master. `end` is None on a broker that was not a slave, or has created what it lacked since.

    `run` is the run of the master from which the tables on the disk were copied; None if they come from several, or are
    this broker's own.
    """

    def __init__(self, file: JsonFile) -> None:
        """Load it. Raises StoreDamaged and OSError."""
        self._file = file
        self.end: int | None
        self.end, self.run = file.load(_read) or (None, None)

    def begin(self, log_end: int) -> None:
        """Called when a slave starts: a former master knows the topics of its own messages, except those truncated."""
        self._save(log_end if self.end is None else min(self.end, log_end), self.run)

    def copied(self, log_end: int) -> None:
        """The master's topics were copied after the log had come up to `log_end`."""
        self._save(log_end, self.run)

    def synchronized(self, run: MasterRun) -> None:
        """Called when the tables on disk are copies of those of `run`."""
        self._save(self.end, run)

    def repaired(self) -> None:
        """Called when this broker is a master and has created the topics that it lacked."""
        self._save(None, None)

    def saved(self) -> Deferred[bool] | None:
        """Fires when the last change is written, or could not be; None if no write is in progress."""
        return self._file.saved()

    def _save(self, end: int | None, run: MasterRun | None) -> None:
        self._file.is_dirty |= (end, run) != (self.end, self.run)
        self.end, self.run = end, run
        self._file.save_changes(lambda: orjson.dumps({"end": self.end, "run": self.run and attrs.asdict(self.run)}))


def _read(data: bytes) -> tuple[int | None, MasterRun | None]:
    """With a corrupt file no topic is known to be complete."""
    try:
        table = orjson.loads(data)
        end, run = table["end"], table.get("run")
        source = None if run is None else MasterRun(str(run["address"]), str(run["booted"]), run["has_offsets"] is True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, None
    return (end, source) if end is None or (type(end) is int and end >= 0) else (0, None)


@attrs.define(eq=False)
class TopicRepair:
    """Extends retry topics, and creates and extends lost topics. Of no use to a slave, whose are its master's."""

    _topics: TopicTable
    _groups: GroupTable
    _offsets: OffsetTable
    _store: MessageStore
    _copied: CopiedTopics
    _settings: BrokerSettings

    def start(self) -> None:
        """Create the lost topics, and extend the retry topics that have too few queues for their group, or for messages
        that are not consumed, now and whenever a group changes. Topics without queues are reported."""
        self._serve_stranded()
        self._report_topics_without_queues()
        for name in self._groups.names():
            self.group_changed(name)
        self._groups.on_change.append(self.group_changed)
        saved = self._topics.saved()
        if saved is None:
            self._copied.repaired()
        else:
            saved.addCallback(lambda is_saved: self._copied.repaired() if is_saved else None)

    def group_changed(self, name: str) -> None:
        """Extend the retry topic of a group, if there is one, to as many queues as the group has."""
        group, topic = self._groups.get(name), RETRY_PREFIX + name
        if group is not None and self._topics.get(topic) is not None:
            self._topics.create_internal(topic, group.retry_queue_nums)

    def _report_topics_without_queues(self) -> None:
        """Log which topics nothing can be sent to or read from: a send with defaultTopicQueueNums=0 creates such at a
        Java broker."""
        names = sorted(
            name
            for name, topic in self._topics.snapshot().topic_config_table.items()
            if topic.read_queue_nums <= 0 and topic.write_queue_nums <= 0
        )
        if names:
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            log.warn(
                "topics with 0 queues, which refuse all sends: {names}{more}; {hint}, or delete these topics",
                names=", ".join(names[:NAMES_MAX]), more=more, hint=how_to_add_queues("TOPIC"),
            )  # fmt: skip

    def _serve_stranded(self) -> None:
        last: dict[str, int] = {}
        counts: dict[str, int] = {}
        for topic, queue_id in list(self._store.queues_by_name):
            if not self._is_stranded(topic, queue_id):
                continue
            consumed = 0
            if topic.startswith(RETRY_PREFIX) and self._topics.get(topic) is not None:
                consumed = self._offsets.query(topic.removeprefix(RETRY_PREFIX), topic, queue_id) or 0
            # Including messages that readers do not see yet.
            begin, end = self._store.min_offset(topic, queue_id), self._store.next_offset(topic, queue_id)
            count = end - max(begin, consumed)
            if count > 0:
                last[topic] = max(queue_id, last.get(topic, 0))
                counts[topic] = counts.get(topic, 0) + count
        for topic, queue_id in last.items():
            self._serve(topic, queue_id + 1, counts[topic])

    def _is_stranded(self, topic: str, queue_id: int) -> bool:
        """Whether a queue, if it has messages, should be one that consumers read, and is not."""
        if queue_id >= QUEUES_MAX or topic in _NEVER_CREATED or topic.startswith(LMQ_PREFIX):
            return False
        known = self._topics.get(topic)
        if known is None:
            # Brokers of a group know of each other which topics were removed.
            return bool(self._settings.etcd_endpoints) or self._is_newer(topic, queue_id)
        if queue_id < known.read_queue_nums:
            return False
        # Of other topics an administrator may have taken queues away.
        return topic.startswith(RETRY_PREFIX) or self._is_newer(topic, queue_id)

    def _is_newer(self, topic: str, queue_id: int) -> bool:
        """Whether a queue has messages from after the master's topics were copied."""
        known_end = self._copied.end
        return known_end is not None and self._store.queues_by_name[topic, queue_id].end_of_last() > known_end

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
            created = self._topics.create_internal(
                topic, max(queues, 1 if is_internal else self._settings.default_topic_queue_nums)
            )
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
