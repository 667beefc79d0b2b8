"""The routes: which broker has which topic, where it is, and whether it still lives.

Rules only: values and a time (ms) come in, values go out. It must never know of sockets or requests; a connection is
any object that tells brokers' registrations apart. Source of the rules: RouteInfoManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from mqbroker.wire.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from mqbroker.wire.codes import Perm

C = TypeVar("C")

MASTER_ID = 0

#: A broker that has not registered for longer is taken out.
EXPIRY_MS = 120_000


@attrs.frozen(kw_only=True)
class Registration:
    """What a broker says of itself. `filter_servers` of None leaves those it had."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    topics: TopicConfigSerializeWrapper
    filter_servers: list[str] | None = None


@attrs.frozen
class Registered:
    """What a registration led to. A slave learns its master's addresses; `replaced` had the broker's id until now."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    is_new: bool = False
    replaced: str | None = None


@attrs.frozen
class _Life(Generic[C]):
    """A broker address that registered: when last (ms), with which topics, over what."""

    last_ms: int
    version: DataVersion
    connection: C
    ha_server_addr: str


@attrs.define
class _BrokerSet:
    """The brokers of one name: the master (id 0) and its slaves."""

    cluster: str
    addrs: dict[int, str] = attrs.field(factory=dict)


class RouteTable(Generic[C]):
    """All that the name server knows of brokers. Lives in memory only: brokers tell it anew."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _BrokerSet] = {}
        self._clusters: dict[str, set[str]] = {}
        self._lives: dict[str, _Life[C]] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # --- brokers come and go

    def register(self, registration: Registration, connection: C, now_ms: int) -> Registered:
        """Take in a broker, or that it still lives."""
        name, addr, broker_id = registration.broker_name, registration.broker_addr, registration.broker_id
        self._clusters.setdefault(registration.cluster, set()).add(name)
        brokers = self._brokers.setdefault(name, _BrokerSet(registration.cluster))
        # An address has one id: a slave that became the master is no longer among the slaves.
        for other_id in [key for key, value in brokers.addrs.items() if value == addr and key != broker_id]:
            del brokers.addrs[other_id]
        former = brokers.addrs.get(broker_id)
        brokers.addrs[broker_id] = addr
        # The topics of a set are what its master says they are.
        if broker_id == MASTER_ID and (former is None or self.changed(addr, registration.topics.data_version)):
            for topic in registration.topics.topic_config_table.values():
                self._topics.setdefault(topic.topic_name, {})[name] = _queue_data(name, topic)
        is_new = addr not in self._lives
        self._lives[addr] = _Life(now_ms, registration.topics.data_version, connection, registration.ha_server_addr)
        self._set_filter_servers(addr, registration.filter_servers)
        replaced = former if former not in (None, addr) else None
        master_addr, ha_server_addr = self._master_of(brokers, broker_id)
        return Registered(master_addr, ha_server_addr, is_new, replaced)

    def _set_filter_servers(self, addr: str, servers: list[str] | None) -> None:
        if servers:
            self._filter_servers[addr] = servers
        elif servers is not None:
            self._filter_servers.pop(addr, None)

    def _master_of(self, brokers: _BrokerSet, broker_id: int) -> tuple[str | None, str | None]:
        master_addr = brokers.addrs.get(MASTER_ID)
        life = self._lives.get(master_addr) if master_addr is not None else None
        if broker_id == MASTER_ID or life is None:
            return None, None
        return master_addr, life.ha_server_addr

    def unregister(self, broker_name: str, broker_addr: str, broker_id: int) -> bool:
        """Take out a broker; True where it was there.

        Java looks at the id alone, and so takes out a broker that has since registered with that id elsewhere.
        """
        brokers = self._brokers.get(broker_name)
        if brokers is None or brokers.addrs.get(broker_id) != broker_addr:
            return False
        self._drop(broker_addr)
        return True

    def drop_connection(self, connection: C) -> list[str]:
        """Take out the brokers that registered over `connection` last; return their addresses."""
        gone = [addr for addr, life in self._lives.items() if life.connection is connection]
        for addr in gone:
            self._drop(addr)
        return gone

    def expire(self, now_ms: int) -> list[tuple[str, C]]:
        """Take out the brokers that are silent for too long; return their addresses and connections."""
        late = [(addr, life.connection) for addr, life in self._lives.items() if life.last_ms + EXPIRY_MS < now_ms]
        for addr, _ in late:
            self._drop(addr)
        return late

    def _drop(self, addr: str) -> None:
        self._lives.pop(addr, None)
        self._filter_servers.pop(addr, None)
        for name, brokers in list(self._brokers.items()):
            for broker_id in [key for key, value in brokers.addrs.items() if value == addr]:
                self._forget(name, brokers, broker_id)

    def _forget(self, name: str, brokers: _BrokerSet, broker_id: int) -> None:
        """Take one id out of its set; the last one takes the name, its topics and an empty cluster along."""
        del brokers.addrs[broker_id]
        if brokers.addrs:
            return
        del self._brokers[name]
        for cluster, names in list(self._clusters.items()):
            names.discard(name)
            if not names:
                del self._clusters[cluster]
        for topic in [topic for topic, queues in self._topics.items() if name in queues]:
            self._forget_queues(topic, name)

    def _forget_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is not None and not queues:
            del self._topics[topic]

    # --- versions

    def version_of(self, broker_addr: str) -> DataVersion | None:
        """The version of the topics that the broker registered with last."""
        life = self._lives.get(broker_addr)
        return life.version if life is not None else None

    def changed(self, broker_addr: str, version: DataVersion) -> bool:
        """Whether a broker with topics of `version` has something to tell."""
        return self.version_of(broker_addr) != version

    def touch(self, broker_addr: str, now_ms: int) -> None:
        """Take in that a broker with nothing to tell lives."""
        life = self._lives.get(broker_addr)
        if life is not None:
            self._lives[broker_addr] = attrs.evolve(life, last_ms=now_ms)

    # --- topics

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Take out a topic's routes, those of one cluster only where it is named."""
        if cluster:
            for name in self._clusters.get(cluster, ()):
                self._forget_queues(topic, name)
        else:
            self._topics.pop(topic, None)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Let nobody write to the broker's topics; return how many they are."""
        return self._set_permissions(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let the broker's topics be read and written again; return how many they are."""
        return self._set_permissions(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def _set_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            queue_data = queues.get(broker_name)
            if queue_data is not None:
                queues[broker_name] = attrs.evolve(queue_data, perm=change(queue_data.perm))
                count += 1
        return count

    # --- questions

    def route(self, topic: str) -> TopicRouteData | None:
        """Where `topic` is; None where no broker has it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        broker_datas = [self._broker_data(name) for name in queues if name in self._brokers]
        if not broker_datas:
            return None
        addrs = [addr for data in broker_datas for addr in data.broker_addrs.values()]
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=broker_datas,
            filter_server_table={a: self._filter_servers[a] for a in addrs if a in self._filter_servers},
        )

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        return ClusterInfo(
            {name: self._broker_data(name) for name in self._brokers},
            {cluster: frozenset(names) for cluster, names in self._clusters.items()},
        )

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(frozenset(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics on any broker of `cluster`; none where it is unknown."""
        names = self._clusters.get(cluster, set())
        return TopicList(frozenset(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)))

    def topics_by_flag(self, is_wanted: Callable[[int], bool]) -> TopicList:
        """The topics whose system flag is wanted on any broker. (Java asks one broker, whichever comes first.)"""
        return TopicList(
            frozenset(
                topic
                for topic, queues in self._topics.items()
                if any(is_wanted(queue_data.topic_sys_flag) for queue_data in queues.values())
            )
        )

    def system_topics(self) -> TopicList:
        """Each cluster's and broker's name is a topic; `broker_addr` is one broker that can tell more."""
        names = frozenset(self._clusters).union(*self._clusters.values())
        for brokers in self._brokers.values():
            return TopicList(names, brokers.addrs[min(brokers.addrs)])
        return TopicList(names)

    def _broker_data(self, name: str) -> BrokerData:
        brokers = self._brokers[name]
        return BrokerData(name, brokers.cluster, dict(sorted(brokers.addrs.items())))


def _queue_data(broker_name: str, topic: TopicConfig) -> QueueData:
    return QueueData(broker_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
