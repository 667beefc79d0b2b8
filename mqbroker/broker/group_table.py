"""The consumer groups of one broker and their settings (config/subscriptionGroup.json).

When the table is full, unused groups are evicted before new ones are refused: a heartbeat or a pull is enough to create
a group and its retry topic, so that one client could fill both tables. A group created this way that has committed no
offset can be evicted safely, since it is created again on use. Groups without connected clients are evicted first.
Source of the rules: SubscriptionGroupManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs
from twisted.logger import Logger

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.live_settings import LiveSettings
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.broker.versioned_table import VersionedTable
from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from mqbroker.wire.codes import CID_RMQ_SYS_PREFIX, RETRY_PREFIX, SELF_TEST_CONSUMER_GROUP, TOOLS_CONSUMER_GROUP
from mqbroker.wire.names import check_group, is_lmq

log = Logger()

_SYSTEM_GROUPS = (
    *(TOOLS_CONSUMER_GROUP, "FILTERSRV_CONSUMER", SELF_TEST_CONSUMER_GROUP),
    *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONS-HTTP-PROXY"),
)
#: Groups examined for one eviction, at most.
SEARCHED_MAX = 100
#: A retry topic with more queues stays: to look at all, of each group, would take too long. By default it has one.
EMPTY_QUEUES_MAX = 100


class GroupTable(VersionedTable[SubscriptionGroupConfig]):
    """Group settings by name.

    With enableLmq each %LMQ% name is a group without being in the table. At most groupsMax groups are created; those of
    the file and of the system count, and are kept beyond that.
    """

    def __init__(self, file: JsonFile, now: Callable[[], float], live: LiveSettings) -> None:
        """Load the table. `now` returns seconds since the epoch. Raises StoreDamaged."""
        super().__init__(file, now, live, "subscription group")
        self._values = {name: SubscriptionGroupConfig(name) for name in _SYSTEM_GROUPS}
        loaded = file.load(partial(SubscriptionGroupWrapper.from_json, dialect_bytes_max=None))
        if loaded is not None:
            self._load(loaded.data_version, loaded.subscription_group_table, check_group)

    def follow(self, master: SubscriptionGroupWrapper) -> None:
        """Replace the groups by a master's, unless these are newer."""
        self._replace(master.data_version, master.subscription_group_table, check_group)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None if there is no such group."""
        return self._values.get(name)

    def __len__(self) -> int:
        return len(self._values)

    def may_be_made_again(self, name: str) -> bool:
        """Whether `find` would create the group again with the same settings after its removal."""
        if not self._live.current.auto_create_subscription_group or name in _SYSTEM_GROUPS:
            return False
        return self._values.get(name) == SubscriptionGroupConfig(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings. An unknown group is created if `autoCreateSubscriptionGroup` allows, else None.

        Raises Refused if there are too many groups to create one.
        """
        group = self._values.get(name)
        if group is None and self._has_lmq and is_lmq(name):
            return SubscriptionGroupConfig(name)
        if group is None and (self._live.current.auto_create_subscription_group or name.startswith(CID_RMQ_SYS_PREFIX)):
            try:
                check_group(name)
            except MQError:
                return None
            group = SubscriptionGroupConfig(name)
            self.put(group)
            log.info("create subscription group {name}", name=name)
        return group

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group; no effect on %LMQ% groups. Raises Refused if there are too many."""
        if self._has_lmq and is_lmq(group.group_name):
            return
        check_group(group.group_name)
        if group.group_name not in self._values:
            self._make_room(lambda: len(self._values) < self._live.current.groups_max, "groupsMax")
        self._values[group.group_name] = group
        self._changed(group.group_name)

    def remove(self, name: str) -> None:
        """Remove a group if it exists."""
        if self._values.pop(name, None) is not None:
            log.info("delete subscription group {name}", name=name)
            self._changed(name)

    def snapshot(self) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(dict(self._values), self.data_version)


@attrs.define(eq=False)
class UnusedGroupEviction:
    """Evicts unused groups and their retry topics when a table is full, searching a part of the table at a time."""

    _groups: GroupTable
    _topics: TopicTable
    _offsets: OffsetTable
    _consumers: ConsumerRegistry
    _store: MessageStore
    _names: Iterator[str] = attrs.field(init=False, factory=lambda: iter(()))

    def __attrs_post_init__(self) -> None:
        self._groups.on_full.append(self.make_room_for_group)
        self._topics.on_full.append(self.make_room_for_topic)

    def make_room_for_group(self) -> None:
        """Evict an unused group with its retry topic, if the next SEARCHED_MAX groups include one."""
        self._forget(self._find(lambda name: True))

    def make_room_for_topic(self) -> None:
        """As `make_room_for_group`, but only a group with an empty retry topic."""
        self._forget(self._find(self._has_empty_topic))

    def _forget(self, name: str | None) -> None:
        if name is None:
            return
        log.info("unused group {name} is removed: the table is full", name=name)
        self._groups.remove(name)
        if self._has_empty_topic(name):
            self._topics.remove(RETRY_PREFIX + name)

    def _has_empty_topic(self, name: str) -> bool:
        retry = RETRY_PREFIX + name
        topic = self._topics.get(retry)
        if topic is None:
            return False
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        return queues <= EMPTY_QUEUES_MAX and not any(
            self._store.max_offset(retry, queue_id) for queue_id in range(queues)
        )

    def _find(self, is_wanted: Callable[[str], bool]) -> str | None:
        online = None
        for _ in range(min(SEARCHED_MAX, len(self._groups))):
            name = next(self._names, None)
            if name is None:
                self._names = iter(self._groups.names())
                name = next(self._names)
            if not self._groups.may_be_made_again(name) or self._offsets.has_group(name) or not is_wanted(name):
                continue
            if self._consumers.known(name) is None:
                return name
            online = online or name
        return online
