"""The route table: the brokers of each topic, their addresses, and their expiry.

No I/O: the time (ms) is a parameter, and a connection is any object that identifies the origin of registrations. Source
of the rules: RouteInfoManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, TypeVar

import attrs

from mqbroker.errors import Refused
from mqbroker.namesrv.topic_queue_table import TopicQueues, TopicQueueTable
from mqbroker.wire.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    TopicList,
    TopicRouteData,
)
from mqbroker.wire.codes import Perm, ResponseCode
from mqbroker.wire.registration import BrokerTopics, Steps

C = TypeVar("C")
K = TypeVar("K")
V = TypeVar("V")

#: Selects topics by their queues.
Which = Callable[[TopicQueues], bool]

MASTER_ID = 0

#: A broker that has not registered for longer is removed.
EXPIRY_MS = 120_000

#: Ten times the largest clusters.
BROKERS_MAX = 10_000


@attrs.frozen(kw_only=True)
class Registration:
    """A broker's registration. `has_filter_servers`: whether it has the field, if only empty. `digest`: of the whole
    content, to recognise a repeated one; empty if it must not be recognised."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    topics: BrokerTopics
    has_filter_servers: bool = True
    digest: bytes = b""


@attrs.frozen
class Registered:
    """Result of a registration. A slave learns its master's addresses; `replaced` had the broker's id before."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    is_new: bool = False
    replaced: str | None = None


@attrs.frozen
class _LiveBroker(Generic[C]):
    """A registered broker address: time of the last registration (ms), connection, what it registered without the
    queues."""

    last_ms: int
    connection: C
    registration: Registration


@attrs.define
class _BrokerSet:
    """The brokers of one name: the master (id 0) and its slaves. `former` had ids that others have now."""

    cluster: str
    addrs: dict[int, str] = attrs.field(factory=dict)
    former: dict[int, str] = attrs.field(factory=dict)


def each(topic_queues: TopicQueues) -> bool:
    """Each topic."""
    return True


def of_flag(is_wanted: Callable[[int], bool]) -> Which:
    """The topics whose system flag matches on any broker. (Java checks one broker, whichever comes first.)"""
    return lambda topic_queues: any(is_wanted(queues.topic_sys_flag) for queues in topic_queues.queues)


class RouteTable(Generic[C]):
    """The name server's table of brokers and topics. In memory only: brokers register again."""

    def __init__(self) -> None:
        #: Incremented whenever a broker is added, removed, or changes its routes.
        self.brokers_version = 0
        #: Incremented whenever topics, clusters, or queues of topics may have changed.
        self.topics_version = 0
        self._topics = TopicQueueTable()
        self._brokers: dict[str, _BrokerSet] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, _LiveBroker[C]] = {}
        # Reverse indexes, to remove a broker without a scan of all others.
        self._addrs_of: dict[C, set[str]] = {}
        self._names_of: dict[str, set[str]] = {}
        self._clusters_of: dict[str, set[str]] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # --- brokers come and go

    def register(self, registration: Registration, connection: C, now_ms: int) -> Registered:
        """Register or renew a broker. Raises Refused if there is no room for it."""
        name, addr, broker_id = registration.broker_name, registration.broker_addr, registration.broker_id
        self.topics_version += 1
        is_new = addr not in self._live
        self._check_room(registration, is_new)
        former = self._brokers[name].addrs.get(broker_id) if name in self._brokers else None
        # The topics of a set are those of its master.
        if broker_id == MASTER_ID and (former is None or self.changed(addr, registration.topics.data_version)):
            self._topics.put(name, registration.topics.queues)
        brokers = self._set_address(registration)
        kept = attrs.evolve(registration, topics=attrs.evolve(registration.topics, queues={}))
        self._set_live(addr, _LiveBroker(now_ms, connection, kept))
        if registration.has_filter_servers:
            self._set_filter_servers(addr, registration.topics.filter_servers)
        replaced = former if former not in (None, addr) else None
        master_addr, ha_server_addr = self._master_of(brokers, broker_id)
        return Registered(master_addr, ha_server_addr, is_new, replaced)

    def renew(self, addr: str, digest: bytes, connection: C, now_ms: int) -> Registered | None:
        """Renew a broker whose registration equals the last one byte for byte; None otherwise."""
        life = self._live.get(addr)
        if life is None or not digest or life.registration.digest != digest:
            return None
        brokers = self._brokers.get(life.registration.broker_name)
        if brokers is None or brokers.addrs.get(life.registration.broker_id) != addr:
            return None
        self._set_live(addr, attrs.evolve(life, last_ms=now_ms, connection=connection))
        return Registered(*self._master_of(brokers, life.registration.broker_id))

    def _set_live(self, addr: str, life: _LiveBroker[C]) -> None:
        self._forget_live(addr)
        self._live[addr] = life
        self._addrs_of.setdefault(life.connection, set()).add(addr)

    def _forget_live(self, addr: str) -> None:
        life = self._live.pop(addr, None)
        if life is not None:
            _discard(self._addrs_of, life.connection, addr)

    def _check_room(self, registration: Registration, is_new: bool) -> None:
        for is_one_more, table in (
            (is_new, self._live),
            (registration.broker_name not in self._brokers, self._brokers),
            (registration.cluster not in self._clusters, self._clusters),
        ):
            if is_one_more and len(table) >= BROKERS_MAX:
                remark = f"the name server has no room for more than {BROKERS_MAX} brokers"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)

    def _set_address(self, registration: Registration) -> _BrokerSet:
        """Set the address of an id, and remove it from others: a slave that became the master is no longer a slave."""
        name, addr, broker_id = registration.broker_name, registration.broker_addr, registration.broker_id
        self._clusters.setdefault(registration.cluster, set()).add(name)
        self._clusters_of.setdefault(name, set()).add(registration.cluster)
        self._names_of.setdefault(addr, set()).add(name)
        brokers = self._brokers.setdefault(name, _BrokerSet(registration.cluster))
        former = brokers.addrs.get(broker_id, addr)
        if former != addr:
            _discard(self._names_of, former, name)
            brokers.former[broker_id] = former
        kept = {key: value for key, value in brokers.addrs.items() if value != addr} | {broker_id: addr}
        if kept != brokers.addrs:
            brokers.addrs = kept
            self.brokers_version += 1
            self._restore(name, brokers)
        return brokers

    def _restore(self, name: str, brokers: _BrokerSet) -> None:
        """Let brokers have ids again that others have given up, if they are still registered with these: the
        registration of a former master may arrive late, after that of the one that was elected."""
        for broker_id in brokers.former.keys() - brokers.addrs.keys():
            addr = brokers.former.pop(broker_id)
            life = self._live.get(addr)
            own = None if life is None else (life.registration.broker_name, life.registration.broker_id)
            if own == (name, broker_id):
                brokers.addrs[broker_id] = addr
                self._names_of.setdefault(addr, set()).add(name)

    def _set_filter_servers(self, addr: str, servers: list[str]) -> None:
        if servers == self._filter_servers.get(addr, []):
            return
        self.brokers_version += 1
        if servers:
            self._filter_servers[addr] = servers
        else:
            del self._filter_servers[addr]

    def _master_of(self, brokers: _BrokerSet, broker_id: int) -> tuple[str | None, str | None]:
        master_addr = brokers.addrs.get(MASTER_ID)
        life = self._live.get(master_addr) if master_addr is not None else None
        if broker_id == MASTER_ID or life is None:
            return None, None
        return master_addr, life.registration.ha_server_addr

    def unregister(self, broker_name: str, broker_addr: str, broker_id: int) -> bool:
        """Remove a broker; True if it was registered.

        Java compares only the id, and so removes a broker that has since registered that id from another address.
        """
        brokers = self._brokers.get(broker_name)
        if brokers is not None and brokers.former.get(broker_id) == broker_addr:
            del brokers.former[broker_id]
        if brokers is None or brokers.addrs.get(broker_id) != broker_addr:
            return False
        self._drop([broker_addr])
        return True

    def drop_connection(self, connection: C) -> list[str]:
        """Remove the brokers whose last registration came over `connection`; returns their addresses."""
        gone = sorted(self._addrs_of.get(connection, ()))
        self._drop(gone)
        return gone

    def expire(self, now_ms: int) -> list[str]:
        """Remove the brokers that have not registered for too long; return their addresses."""
        late = [addr for addr, life in self._live.items() if life.last_ms + EXPIRY_MS < now_ms]
        self._drop(late)
        return late

    def _drop(self, addrs: list[str]) -> None:
        """Remove brokers from their sets; with the last of a set go its name, its topics and a cluster left empty."""
        self.brokers_version += len(addrs)
        names = []
        for addr in addrs:
            self._forget_live(addr)
            self._filter_servers.pop(addr, None)
            for name in self._names_of.pop(addr, ()):
                brokers = self._brokers[name]
                brokers.addrs = {key: value for key, value in brokers.addrs.items() if value != addr}
                self._restore(name, brokers)
                if not brokers.addrs:
                    names.append(name)
        for name in names:
            del self._brokers[name]
            for cluster in self._clusters_of.pop(name):
                _discard(self._clusters, cluster, name)
        self.topics_version += len(names)
        self._topics.remove_brokers(names)

    # --- versions

    def version_of(self, broker_addr: str) -> DataVersion | None:
        """The version of the topics that the broker registered with last."""
        life = self._live.get(broker_addr)
        return life.registration.topics.data_version if life is not None else None

    def changed(self, broker_addr: str, version: DataVersion) -> bool:
        """Whether a broker with topics of `version` must register."""
        return self.version_of(broker_addr) != version

    def touch(self, broker_addr: str, now_ms: int) -> None:
        """Renew a broker without changes."""
        life = self._live.get(broker_addr)
        if life is not None:
            self._live[broker_addr] = attrs.evolve(life, last_ms=now_ms)

    # --- topics

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic's routes, only of one cluster if it is given."""
        self.topics_version += 1
        if cluster:
            self._topics.remove_from(topic, self._clusters.get(cluster, ()))
        else:
            self._topics.remove(topic)

    def queues_beside(self, broker_name: str) -> int:
        """Number of queues that the steps of the next two process."""
        return self._topics.queues_beside(broker_name)

    def wipe_write_permission(self, broker_name: str) -> Steps[int]:
        """Remove the write permission of the broker's topics, in the steps of `TopicQueueTable.set_permission`."""
        return self._topics.set_permission(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_permission(self, broker_name: str) -> Steps[int]:
        """Restore read and write permission of the broker's topics, in the same steps."""
        return self._topics.set_permission(broker_name, lambda _: Perm.READ | Perm.WRITE)

    # --- questions

    def topic_queues(self, topic: str) -> TopicQueues | None:
        """The queues of `topic`; None if no broker has it."""
        return self._topics.get(topic)

    def route_by(self, topic_queues: TopicQueues) -> TopicRouteData:
        """The route of topics with these queues."""
        names = [queues.broker_name for queues in topic_queues.queues]
        broker_datas = [self._broker_data(name) for name in names if name in self._brokers]
        addrs = [addr for data in broker_datas for addr in data.broker_addrs.values()]
        return TopicRouteData(
            queue_datas=list(topic_queues.queues),
            broker_datas=broker_datas,
            filter_server_table={a: self._filter_servers[a] for a in addrs if a in self._filter_servers},
        )

    @property
    def brokers_count(self) -> int:
        return len(self._brokers)

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        return ClusterInfo(
            {name: self._broker_data(name) for name in self._brokers},
            {cluster: frozenset(names) for cluster, names in self._clusters.items()},
        )

    @property
    def topics_count(self) -> int:
        return len(self._topics)

    def topics(self, which: Which = each) -> TopicList:
        """The topics whose queues `which` accepts: all, by default."""
        return TopicList(frozenset(chain.from_iterable(self.topics_in_parts(which, max(1, self.topics_count)))))

    def topics_in_parts(self, which: Which, size: int) -> Iterator[list[str]]:
        """The same in parts; topics may change between two parts."""
        memo: dict[TopicQueues, bool] = {}
        for part in self._topics.parts(size):
            found = []
            for topic, topic_queues in part:
                is_wanted = memo.get(topic_queues)
                if is_wanted is None:
                    is_wanted = memo[topic_queues] = which(topic_queues)
                if is_wanted:
                    found.append(topic)
            yield found

    def of_cluster(self, cluster: str) -> Which:
        """The topics on any broker of `cluster`; empty if it is unknown."""
        names = self._clusters.get(cluster, set())
        return lambda topic_queues: topic_queues.is_on(names)

    def system_topics(self) -> TopicList:
        """The names of clusters and brokers are topics; `broker_addr` is a broker that knows the others."""
        names = frozenset(self._clusters).union(*self._clusters.values())
        for brokers in self._brokers.values():
            return TopicList(names, brokers.addrs[min(brokers.addrs)])
        return TopicList(names)

    def _broker_data(self, name: str) -> BrokerData:
        brokers = self._brokers[name]
        return BrokerData(name, brokers.cluster, dict(sorted(brokers.addrs.items())))


def _discard(table: dict[K, set[V]], key: K, value: V) -> None:
    """Remove a value from the set of a key, and the key with its last value."""
    values = table.get(key)
    if values is not None:
        values.discard(value)
        if not values:
            del table[key]
