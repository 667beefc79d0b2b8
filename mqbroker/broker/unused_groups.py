"""Groups that were heard of and never used: they are forgotten where a table is full, before anybody is refused.

A heartbeat or a pull is enough to make a group, and its retry topic: one peer can fill both tables. A group that was
made so, and has committed nothing, is no loss: it is made again by whoever needs it. Those that nobody is connected for
go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twisted.logger import Logger

from mqbroker.broker.clients import ConsumerRegistry
from mqbroker.broker.groups import GroupTable
from mqbroker.broker.offsets import OffsetTable
from mqbroker.broker.topics import TopicTable
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import RETRY_PREFIX

log = Logger()

#: So many groups are looked at for each that is to be forgotten.
LOOKS = 100


class UnusedGroups:
    """Finds such groups, going round the table a part at a time."""

    def __init__(
        self,
        groups: GroupTable,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerRegistry,
        store: MessageStore,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._names: Iterator[str] = iter(())
        groups.on_full.append(self.make_room_for_group)
        topics.on_full.append(self.make_room_for_topic)

    def make_room_for_group(self) -> None:
        """Forget a group with its retry topic, if one is found among the next that are looked at."""
        self._forget(self._find(lambda name: True))

    def make_room_for_topic(self) -> None:
        """As `make_room_for_group`, of those that have a retry topic, and nothing in it."""
        self._forget(self._find(self._has_empty_topic))

    def _forget(self, name: str | None) -> None:
        if name is None:
            return
        log.info("group {name} was never used, and is forgotten: there is no room for others", name=name)
        self._groups.remove(name)
        if self._has_empty_topic(name):
            self._topics.remove(RETRY_PREFIX + name)

    def _has_empty_topic(self, name: str) -> bool:
        retry = RETRY_PREFIX + name
        topic = self._topics.get(retry)
        if topic is None:
            return False
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        return not any(self._store.max_offset(retry, queue_id) for queue_id in range(queues))

    def _find(self, is_wanted: Callable[[str], bool]) -> str | None:
        online = None
        for _ in range(min(LOOKS, len(self._groups))):
            name = next(self._names, None)
            if name is None:
                self._names = iter(self._groups.names())
                name = next(self._names)
            if not self._groups.may_be_made_again(name) or self._offsets.has_group(name) or not is_wanted(name):
                continue
            if self._consumers.group(name) is None:
                return name
            online = online or name
        return online
