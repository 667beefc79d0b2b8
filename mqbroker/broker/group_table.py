"""The consumer groups of one broker and how each is treated (config/subscriptionGroup.json).

Where the table is full, groups that were heard of and never used are forgotten before anybody is refused: a heartbeat
or a pull is enough to make a group, and its retry topic, so that one peer can fill both tables. A group that was made
so, and has committed nothing, is no loss: it is made again by whoever needs it. Those that nobody is connected for go
first. Source of the rules: SubscriptionGroupManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.live_settings import LiveSettings, full
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.broker.topic_table import TopicTable
from mqbroker.errors import MQError
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from mqbroker.wire.codes import CID_RMQ_SYS_PREFIX, RETRY_PREFIX, SELF_TEST_CONSUMER_GROUP, TOOLS_CONSUMER_GROUP
from mqbroker.wire.names import check_group, is_lmq

log = Logger()

_ONS_GROUPS = ("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONS-HTTP-PROXY")
_SYSTEM_GROUPS = (TOOLS_CONSUMER_GROUP, "FILTERSRV_CONSUMER", SELF_TEST_CONSUMER_GROUP, *_ONS_GROUPS)
#: So many groups are searched for each that is to be forgotten.
SEARCHED_MAX = 100


def _system_group(name: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(name, consume_broadcast_enable=name in _ONS_GROUPS or name in _SYSTEM_GROUPS)


class GroupTable:
    """Group settings by name.

    With enableLmq each %LMQ% name is a group, which is not in the table. No more than groupsMax are made; those of the
    file and of the system count, and stay.
    """

    def __init__(self, file: JsonFile, now: Callable[[], float], live: LiveSettings) -> None:
        """Load the table. `now` gives seconds since the epoch. Raises StoreDamaged."""
        self._file = file
        self._now = now
        self._live = live
        self._has_lmq = live.current.store.enable_lmq
        #: Called where there are too many: they forget groups that nobody needs.
        self.on_full: list[Callable[[], None]] = []
        self._groups = {name: _system_group(name) for name in _SYSTEM_GROUPS}
        self.data_version = DataVersion(self._now_ms(), 0)
        loaded = file.load(partial(SubscriptionGroupWrapper.from_json, dialect_bytes_max=None))
        if loaded is not None:
            self.data_version = loaded.data_version
            self._load(loaded.subscription_group_table)

    def _load(self, table: dict[str, SubscriptionGroupConfig]) -> None:
        for name, group in table.items():
            try:
                check_group(name)
            except MQError as error:
                log.warn("{path}: group {name} is left out: {why}", path=self._file.path, name=name, why=str(error))
            else:
                self._groups[name] = group

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group; None where there is none."""
        return self._groups.get(name)

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        return list(self._groups)

    def may_be_made_again(self, name: str) -> bool:
        """Whether `find` makes the group as it is, should it be forgotten."""
        if not self._live.current.auto_create_subscription_group or name in _SYSTEM_GROUPS:
            return False
        return self._groups.get(name) == SubscriptionGroupConfig(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, made where it is unknown and `autoCreateSubscriptionGroup` allows; None otherwise.

        Raises Refused where there are too many to make one more.
        """
        group = self._groups.get(name)
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
        """Create or replace a group. %LMQ% groups are what they are. Raises Refused where there are too many."""
        if self._has_lmq and is_lmq(group.group_name):
            return
        check_group(group.group_name)
        groups_max = self._live.current.groups_max
        if group.group_name not in self._groups and len(self._groups) >= groups_max:
            for make_room in self.on_full:
                make_room()
            if len(self._groups) >= groups_max:
                raise full("subscription groups", len(self._groups), "groupsMax")
        self._groups[group.group_name] = group
        self.data_version = self.data_version.next(self._now_ms())
        self.persist()

    def remove(self, name: str) -> None:
        """Forget a group; nothing happens where there is none."""
        if self._groups.pop(name, None) is not None:
            log.info("delete subscription group {name}", name=name)
            self.data_version = self.data_version.next(self._now_ms())
            self.persist()

    def snapshot(self) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(dict(self._groups), self.data_version)

    def saved(self) -> Deferred[bool] | None:
        """Fires when all changes so far are on the disk, or could not be written; None where none is under way."""
        return self._file.saved()

    async def when_saved(self) -> None:
        """Return when all changes so far are on the disk, or could not be written."""
        saved = self.saved()
        if saved is not None:
            await saved

    def persist(self) -> Deferred[bool]:
        """Write the file; fires True when it is on the disk."""
        return self._file.save(lambda: self.snapshot().json_pieces())


class UnusedGroupEviction:
    """Forgets unused groups, and their retry topics, where a table is full: searches the table a part at a time."""

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
        for _ in range(min(SEARCHED_MAX, len(self._groups))):
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
