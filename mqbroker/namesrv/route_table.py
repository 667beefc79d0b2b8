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
from mqbroker.wire.codes import BENCHMARK_TOPIC, OFFSET_MOVED_EVENT, SELF_TEST_TOPIC, Perm, ResponseCode
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

#: Topics that every broker has from its start and that cannot be deleted or changed, so that a registration of changed
#: topics, which has no mark of its own, never has them all.
TOPICS_OF_EVERY_BROKER = frozenset({BENCHMARK_TOPIC, OFFSET_MOVED_EVENT, SELF_TEST_TOPIC})


@attrs.frozen(kw_only=True)
class Registration:
    """A broker's registration. `has_filter_servers`: whether it has the field, if only empty. `digest`: of the whole
    content, to recognise a repeated one; empty if it must not be recognised. `opaque`: the number of the request, which
    a broker counts from its start on."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    topics: BrokerTopics
    has_filter_servers: bool = True
    digest: bytes = b""
    opaque: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it has all topics of the broker, not only changed ones.

        A 4.9 broker registers one topic that was created or changed by an administrator, and else its whole table,
        under the same code and header.
        """
        return self.topics.queues.keys() >= TOPICS_OF_EVERY_BROKER


@attrs.frozen
class Registered:
    """Result of a registration. A slave learns its master's addresses; `replaced` had the broker's id before.

    `is_wiped`: the broker's topics stay without write permission. `has_started_anew`: they had been, and are no longer.
    """

    master_addr: str | None = None
    ha_server_addr: str | None = None
    is_new: bool = False
    replaced: str | None = None
    is_wiped: bool = False
    has_started_anew: bool = False


@attrs.frozen
class _LiveBroker(Generic[C]):
    """A registered broker address: time of the last registration (ms), connection, what it registered without the
    queues. `is_complete`: whether the routes are those of the registered version."""

    last_ms: int
    connection: C
    registration: Registration
    is_complete: bool = True


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
        # Brokers whose write permission was wiped: the address and the opaque of their master's last registration. They
        # stay when the connection closes, and go when the broker starts anew.
        self._wiped: dict[str, tuple[str, int]] = {}

    # --- brokers come and go

    def register(self, registration: Registration, connection: C, now_ms: int) -> Registered:
        """Register or renew a broker. Raises Refused if there is no room for it."""
        name, addr, broker_id = registration.broker_name, registration.broker_addr, registration.broker_id
        self.topics_version += 1
        is_new = addr not in self._live
        self._check_room(registration, is_new)
        former = self._brokers[name].addrs.get(broker_id) if name in self._brokers else None
        is_complete, has_started_anew = True, False
        # The topics of a set are those of its master.
        if broker_id == MASTER_ID:
            is_complete = self._has_rest_of(registration)
            has_started_anew = self._has_started_anew(name, addr, registration.opaque)
            is_wiped = name in self._wiped and not has_started_anew
            put = self._topics.replace if registration.is_whole else self._topics.put
            put(name, registration.topics.queues, ~Perm.WRITE if is_wiped else -1)
            self._note_start(name, addr, registration.opaque, has_started_anew)
        brokers = self._set_address(registration)
        kept = attrs.evolve(registration, topics=attrs.evolve(registration.topics, queues={}))
        self._set_live(addr, _LiveBroker(now_ms, connection, kept, is_complete))
        if registration.has_filter_servers:
            self._set_filter_servers(addr, registration.topics.filter_servers)
        replaced = former if former not in (None, addr) else None
        if replaced is not None:
            self._set_incomplete(replaced)
        master_addr, ha_server_addr = self._master_of(brokers, broker_id)
        return Registered(master_addr, ha_server_addr, is_new, replaced, name in self._wiped, has_started_anew)

    def renew(self, addr: str, digest: bytes, connection: C, now_ms: int, opaque: int = 0) -> Registered | None:
        """Renew a broker whose registration equals the last one byte for byte; None otherwise, or if the routes are
        not those of that registration."""
        life = self._live.get(addr)
        if life is None or not digest or life.registration.digest != digest or not life.is_complete:
            return None
        name, broker_id = life.registration.broker_name, life.registration.broker_id
        brokers = self._brokers.get(name)
        if brokers is None or brokers.addrs.get(broker_id) != addr:
            return None
        if broker_id == MASTER_ID:
            if self._has_started_anew(name, addr, opaque):
                return None
            self._note_start(name, addr, opaque, False)
        registration = attrs.evolve(life.registration, opaque=opaque)
        self._set_live(addr, attrs.evolve(life, last_ms=now_ms, connection=connection, registration=registration))
        return Registered(*self._master_of(brokers, broker_id))

    def _has_rest_of(self, registration: Registration) -> bool:
        """Whether the routes are those of the registered version, once its topics are put into them.

        Of changed topics they are if each was changed once since the last registration; else a change is missing, such
        as the removal of a topic, which a Java broker registers with its whole table only.
        """
        life = self._live.get(registration.broker_addr)
        if registration.is_whole or life is None or not life.is_complete:
            return registration.is_whole
        known, topics = life.registration, registration.topics
        is_same = (known.broker_name, known.broker_id) == (registration.broker_name, registration.broker_id)
        changes = topics.data_version.counter - known.topics.data_version.counter
        return is_same and changes == len(topics.queues)

    def _has_started_anew(self, name: str, addr: str, opaque: int) -> bool:
        """Whether the write permission of `name` was wiped, and its master has been started since: it counts its
        requests from the beginning again."""
        wiped = self._wiped.get(name)
        return wiped is not None and wiped[0] == addr and opaque <= wiped[1]

    def _note_start(self, name: str, addr: str, opaque: int, has_started_anew: bool) -> None:
        if has_started_anew:
            del self._wiped[name]
        elif name in self._wiped:
            self._wiped[name] = addr, opaque

    def _set_incomplete(self, addr: str | None) -> None:
        """Have the broker's next registration read, whatever its version."""
        life = self._live.get(addr) if addr is not None else None
        if addr is not None and life is not None:
            self._live[addr] = attrs.evolve(life, is_complete=False)

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
        if broker_name not in self._brokers:
            self._wiped.pop(broker_name, None)
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
        life = self._live.get(broker_addr)
        return life is None or not life.is_complete or life.registration.topics.data_version != version

    def touch(self, broker_addr: str, now_ms: int) -> None:
        """Renew a broker without changes."""
        life = self._live.get(broker_addr)
        if life is not None:
            self._live[broker_addr] = attrs.evolve(life, last_ms=now_ms)

    # --- topics

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic's routes, only of one cluster if it is given, until a broker registers it again."""
        self.topics_version += 1
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            return
        names = {queues.broker_name for queues in topic_queues.queues}
        if cluster:
            names &= self._clusters.get(cluster, set())
        self._topics.remove_from(topic, names)
        for name in names:
            self._set_incomplete(self._master_addr(name))

    def _master_addr(self, name: str) -> str | None:
        return self._brokers[name].addrs.get(MASTER_ID) if name in self._brokers else None

    def queues_beside(self, broker_name: str) -> int:
        """Number of queues that the steps of the next two process."""
        return self._topics.queues_beside(broker_name)

    def wipe_write_permission(self, broker_name: str) -> Steps[int]:
        """Remove the write permission of the broker's topics, in the steps of `TopicQueueTable.set_permission`; and of
        those that it registers later, until it starts anew or gets the permission again."""
        if broker_name in self._brokers:
            addr = self._master_addr(broker_name)
            life = self._live.get(addr) if addr is not None else None
            self._forget_wiped()
            self._wiped[broker_name] = ("", 0) if addr is None or life is None else (addr, life.registration.opaque)
        return self._topics.set_permission(broker_name, lambda perm: perm & ~Perm.WRITE)

    def _forget_wiped(self) -> None:
        """Make room for one: those that are not registered go first, as they may never come back."""
        if len(self._wiped) >= BROKERS_MAX:
            self._wiped = {name: last for name, last in self._wiped.items() if name in self._brokers}

    def add_write_permission(self, broker_name: str) -> Steps[int]:
        """Give read and write permission to the broker's topics, in the same steps. Its next registration tells
        which ones have others."""
        self._wiped.pop(broker_name, None)
        count = yield from self._topics.set_permission(broker_name, lambda _: Perm.READ | Perm.WRITE)
        self._set_incomplete(self._master_addr(broker_name))
        return count

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
