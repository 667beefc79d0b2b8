"""The topics of one broker, who may create them, and their file (config/topics.json).

Source of the rules: TopicConfigManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.versioned_table import VersionedTable
from mqbroker.config import BrokerSettings
from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import QUEUES_MAX, TopicConfig, TopicConfigSerializeWrapper
from mqbroker.wire.codes import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT,
    REPLY_TOPIC_POSTFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    Perm,
    is_system_topic,
)
from mqbroker.wire.names import check_topic, is_lmq

log = Logger()

READ_WRITE = Perm.READ | Perm.WRITE


def system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """The topics that every broker has from the start, as in the Java broker."""

    def topic(name: str, queues: int = 16, perm: int = READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    cluster_perm = Perm.INHERIT | (READ_WRITE if settings.cluster_topic_enable else 0)
    broker_perm = Perm.INHERIT | (READ_WRITE if settings.broker_topic_enable else 0)
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, 1024),
        topic(settings.broker_cluster_name, perm=cluster_perm),
        topic(settings.broker_name, 1, broker_perm),
        topic(OFFSET_MOVED_EVENT, 1),
        topic(SCHEDULE_TOPIC, 18),
        topic(f"{settings.broker_cluster_name}_{REPLY_TOPIC_POSTFIX}", 1),
    ]
    if settings.auto_create_topic_enable:
        topics.append(_template(settings))
    if settings.trace_topic_enable:
        topics.append(topic(settings.msg_trace_topic_name, 1))
    return topics


def describe_topic(topic: TopicConfig) -> str:
    """A topic as the Java broker shows it in remarks."""
    bits = zip("RWX", (Perm.READ, Perm.WRITE, Perm.INHERIT), strict=True)
    perm = "".join(letter if topic.perm & bit else "-" for letter, bit in bits)
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm}, topicFilterType={topic.topic_filter_type}, "
        f"topicSysFlag={topic.topic_sys_flag}, order={str(topic.order).lower()}]"
    )


def halved(queue_id: int) -> Iterator[int]:
    """The queues of a topic in which a message for `queue_id` may be: that one, the one of half its number, and so on
    down to 0."""
    while queue_id > 0:
        yield queue_id
        queue_id //= 2
    yield 0


def how_to_add_queues(name: str) -> str:
    """What to do about a topic without write queues."""
    return f"set them with `mqadmin updateTopic -t {name} -r 8 -w 8`"


def _template(settings: BrokerSettings) -> TopicConfig:
    """The template of topics that are created when a message is first sent to them."""
    queues = settings.default_topic_queue_nums
    perm = READ_WRITE | (Perm.INHERIT if settings.auto_create_topic_enable else 0)
    return TopicConfig(AUTO_CREATE_TOPIC, queues, queues, perm)


def _check(table: Mapping[str, TopicConfig], name: str) -> None:
    """Raise MQError if this broker cannot have the topic."""
    check_topic(name)
    queues = max(table[name].read_queue_nums, table[name].write_queue_nums)
    if queues > QUEUES_MAX:
        raise MQError(f"it has {queues} queues, {QUEUES_MAX} at most")


class TopicTable(VersionedTable[TopicConfig]):
    """Topics by name. Every change is persisted and reported to `on_change`.

    With enableLmq each %LMQ% name is a topic of one queue without being in the table. At most topicsMax topics are
    created; those of the file and of the system count, and are kept beyond that.
    """

    def __init__(self, file: JsonFile, now: Callable[[], float], live: LiveSettings) -> None:
        """Load the table. `now` returns seconds since the epoch. Raises StoreDamaged."""
        super().__init__(file, now, live, "topic")
        #: Each returns a Deferred that fires when name servers have the changes so far, or did not answer in time.
        self.announcers: list[Callable[[], Deferred[None]]] = []
        #: Called with each topic that became ordered, or is no longer; `on_change` is not: name servers know.
        self.on_order: list[Callable[[str], None]] = []
        #: Called with each topic that was created for its first message.
        self.on_created: list[Callable[[TopicConfig], None]] = []
        self._values = {topic.topic_name: topic for topic in system_topics(live.current)}
        #: Names that no user may create or delete: those of every broker, and this broker's own.
        self.system_names = SYSTEM_TOPICS | self._values.keys()
        loaded = file.load(partial(TopicConfigSerializeWrapper.from_json, dialect_bytes_max=None))
        if loaded is not None:
            self._load(loaded.data_version, loaded.topic_config_table, partial(_check, loaded.topic_config_table))

    def follow(self, master: TopicConfigSerializeWrapper) -> None:
        """Replace the topics by a master's, unless these are newer."""
        self._replace(master.data_version, master.topic_config_table, partial(_check, master.topic_config_table))

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Update the template topic, which controls whether topics are created on send."""
        template = _template(settings)
        known = self._values.get(AUTO_CREATE_TOPIC)
        if known != template and (known is not None or settings.auto_create_topic_enable):
            self.put(template)

    def get(self, name: str) -> TopicConfig | None:
        topic = self._values.get(name)
        if topic is None and self._has_lmq and is_lmq(name):
            return TopicConfig(name, 1, 1, READ_WRITE)
        return topic

    def is_system(self, name: str) -> bool:
        """Whether no user may create or delete the topic. Includes the cluster's and the broker's own name."""
        return name in self.system_names or is_system_topic(name)

    def snapshot(self) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper(dict(self._values), self.data_version)

    def put(self, topic: TopicConfig) -> None:
        """Create or replace a topic; no effect on %LMQ% topics. Raises Refused if there are too many."""
        if self._has_lmq and is_lmq(topic.topic_name):
            return
        known = self._values.get(topic.topic_name)
        if known is None:
            is_system = self.is_system(topic.topic_name)
            self._make_room(lambda: is_system or len(self._values) < self._live.current.topics_max, "topicsMax")
        log.info("{what} topic {topic}", what="update" if known else "create", topic=topic)
        self._values[topic.topic_name] = topic
        self._changed(topic.topic_name)

    def create(self, topic: TopicConfig) -> None:
        """Create a topic for its first message, on all shards. Raises Refused if there are too many."""
        self.put(topic)
        for callback in self.on_created:
            callback(topic)

    def remove(self, name: str) -> None:
        """Remove a topic if it exists."""
        if self._values.pop(name, None) is not None:
            self._changed(name)

    def set_order_topics(self, names: frozenset[str]) -> None:
        """Mark exactly these topics as ordered. The next registration reports it to the name servers."""
        changed = {
            name: attrs.evolve(topic, order=name in names)
            for name, topic in self._values.items()
            if topic.order is not (name in names)
        }
        if changed:
            log.info("ordered topics are now: {names}", names=sorted(names & self._values.keys()))
            self._values |= changed
            self.mark_changed()
            for callback in self.on_order:
                for name in changed:
                    callback(name)

    def for_send(self, name: str, default_name: str, queues_wanted: int, sys_flag: int = 0) -> TopicConfig | None:
        """The topic `name` as a send is to create it, from the template topic that the producer names; None if it may
        not, or would create a topic without queues."""
        template = self._values.get(default_name)
        if not self._live.current.auto_create_topic_enable or template is None or not template.perm & Perm.INHERIT:
            return None
        queues = min(queues_wanted, template.write_queue_nums)
        if queues <= 0:
            return None
        return attrs.evolve(
            template,
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~Perm.INHERIT,
            topic_sys_flag=sys_flag,
            order=False,
        )

    def internal(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """The retry or dead letter topic `name` as it is, or as it is to be created or extended to have at least one
        queue, and `queues`, that consumers read. Raises Refused on an illegal name."""
        topic = self._values.get(name)
        queues = max(1, min(queues, QUEUES_MAX))
        if topic is None:
            return TopicConfig(check_topic(name), queues, queues, READ_WRITE, topic_sys_flag=sys_flag)
        if topic.read_queue_nums >= queues:
            return topic
        return attrs.evolve(topic, read_queue_nums=queues, write_queue_nums=max(queues, topic.write_queue_nums))

    def create_internal(self, name: str, queues: int, sys_flag: int = 0, *, has_message: bool = False) -> TopicConfig:
        """`internal`, created or extended. With `has_message` a new one is created on all shards, as by `create`:
        a shard without such a message would not create it. Extensions follow each shard's own groups."""
        known = self._values.get(name)
        topic = self.internal(name, queues, sys_flag)
        if known is None and has_message:
            self.create(topic)
        elif topic is not known:
            self.put(topic)
        return topic

    def readable_queue(self, name: str, queue_id: int) -> int:
        """The queue for a message that was to be stored in queue `queue_id` of a topic: another one, found by halving
        the number, if the topic has fewer queues that consumers read now. `queue_id` if there is no topic. Hot."""
        topic = self._values.get(name)
        if topic is None or queue_id < topic.read_queue_nums:
            return queue_id
        queues = max(1, topic.read_queue_nums or topic.write_queue_nums)
        return next(possible for possible in halved(queue_id) if possible < queues)

    async def when_announced(self) -> None:
        """Return when the name servers have all changes so far, or did not answer in time."""
        for announced in self.announcers:
            await announced()
