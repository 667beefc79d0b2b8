"""The queues of each topic on each broker, as RouteInfoManager's topicQueueTable has them.

A hundred thousand topics mostly have one of a few sets of queues. Topics with the same queues are one group with one
`TopicQueues`, so that a topic costs its name and a table entry, and its route can be cached for the whole group. When a
broker is removed, its groups are changed without touching the topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.bodies import QueueData
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.registration import QueueNumbers, Steps

#: Five times what is promised; each takes some hundred bytes.
TOPICS_MAX = 1_000_000

#: Topics without a broker stay in the table up to this number, or a quarter of all.
DEAD_MIN = 1000

#: Maximum passes over the groups of a broker whose permission is set, as one that registers again and again could keep
#: it from ending.
_PASSES_MAX = 3

#: Queues of a broker that registers, of topics whose registered queues are not put into the table yet.
_UNKNOWN = QueueNumbers(-1, -1, -1, -1)


@attrs.frozen(eq=False)
class TopicQueues:
    """The queues of a topic: one QueueData per broker, in the order of registration. Topics with equal ones share
    it."""

    queues: tuple[QueueData, ...]

    def of(self, broker_name: str) -> QueueData | None:
        return next((queues for queues in self.queues if queues.broker_name == broker_name), None)

    def is_on(self, broker_names: Collection[str]) -> bool:
        return any(queues.broker_name in broker_names for queues in self.queues)

    def without(self, broker_names: Collection[str]) -> tuple[QueueData, ...]:
        return tuple(queues for queues in self.queues if queues.broker_name not in broker_names)


@attrs.define(eq=False)
class _Group:
    """Topics with equal queues. `topic_queues`: None if no broker has them any more. `merged_into`: the group that its
    remaining topics belong to, since both got equal queues."""

    topic_queues: TopicQueues | None
    count: int = 0
    merged_into: _Group | None = None


class TopicQueueTable:
    """TopicQueues by topic. A topic without queues is not in it."""

    def __init__(self) -> None:
        self._topics: dict[str, _Group] = {}
        #: Number of topics in `_topics` that no broker has.
        self._dead = 0
        self._by_queues: dict[tuple[QueueData, ...], _Group] = {}
        self._by_broker: dict[str, dict[_Group, None]] = {}

    def __len__(self) -> int:
        return len(self._topics) - self._dead

    def get(self, topic: str) -> TopicQueues | None:
        group = self._topics.get(topic)
        if group is None or group.merged_into is None:
            return None if group is None else group.topic_queues
        return _last(group).topic_queues

    def parts(self, size: int) -> Iterator[list[tuple[str, TopicQueues]]]:
        """All topics, in parts. Topics that are added between two parts are left out, and so are removed ones that were
        not returned yet."""
        topics = list(self._topics)
        for begin in range(0, len(topics), size):
            found = ((topic, self.get(topic)) for topic in topics[begin : begin + size])
            yield [(topic, topic_queues) for topic, topic_queues in found if topic_queues is not None]

    def replace(self, broker_name: str, queues: Mapping[str, QueueNumbers], mask: int = -1) -> None:
        """Like `put`, and remove the broker's queues of all other topics. No other topic is looked at."""
        self._check_room(queues)
        unknown = QueueData(broker_name, *_UNKNOWN)
        self._change(list(self._by_broker.get(broker_name, ())), partial(_with, new=unknown))
        self.put(broker_name, queues, mask)
        left = [group for group in self._by_broker.get(broker_name, ()) if _queues_of(group, broker_name) == unknown]
        self._change(left, lambda topic_queues: topic_queues.without([broker_name]))
        self._forget_many_dead()

    def put(self, broker_name: str, queues: Mapping[str, QueueNumbers], mask: int = -1) -> None:
        """Set the queues of topics on a broker, with their permissions in `mask`. Raises Refused if there are too many
        topics."""
        self._check_room(queues)
        topics = self._topics
        targets: dict[tuple[_Group | None, QueueNumbers], _Group] = {}
        former: _Group | None
        for topic, numbers in queues.items():
            former = topics.get(topic)
            if former is not None and former.merged_into is not None:
                former = _last(former)
            target = targets.get((former, numbers))
            if target is None:
                topic_queues = former.topic_queues if former is not None else None
                allowed = numbers._replace(perm=numbers.perm & mask)
                target = self._group(_with(topic_queues, QueueData(broker_name, *allowed)))
                targets[former, numbers] = target
            topics[topic] = target
            target.count += 1
            if former is not None:
                former.count -= 1
                self._dead -= former.topic_queues is None
        for former, _ in targets:
            if former is not None:
                self._forget_empty(former)

    def remove(self, topic: str) -> None:
        """Delete a topic, if it exists."""
        if topic in self._topics:
            group = self._group_of(topic)
            del self._topics[topic]
            group.count -= 1
            self._dead -= group.topic_queues is None
            self._forget_empty(group)

    def remove_from(self, topic: str, broker_names: Collection[str]) -> None:
        """Delete a topic's queues on these brokers."""
        topic_queues = self.get(topic)
        if topic_queues is None or not topic_queues.is_on(broker_names):
            return
        queues = topic_queues.without(broker_names)
        self.remove(topic)
        if queues:
            group = self._topics[topic] = self._group(queues)
            group.count += 1

    def remove_brokers(self, broker_names: Collection[str]) -> None:
        """Delete all queues on these brokers."""
        groups = {group: None for name in broker_names for group in self._by_broker.get(name, ())}
        self._change(groups, lambda topic_queues: topic_queues.without(broker_names))
        self._forget_many_dead()

    def queues_beside(self, broker_name: str) -> int:
        """Number of queues that the topics of a broker have on all brokers, counted once per group."""
        groups = self._by_broker.get(broker_name, ())
        return sum(len(group.topic_queues.queues) for group in groups if group.topic_queues is not None)

    def set_permission(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        """Change the permission of all topics on a broker, in steps; returns their number.

        Topics may change between two steps: those that the broker registers meanwhile get the permission too. `change`
        must be idempotent.
        """
        count = sum(group.count for group in self._by_broker.get(broker_name, ()))
        for _ in range(_PASSES_MAX):
            is_changed = False
            for group in list(self._by_broker.get(broker_name, ())):
                topic_queues = group.topic_queues
                former = topic_queues.of(broker_name) if topic_queues is not None else None
                if topic_queues is None or former is None:  # since the last step
                    continue
                new = attrs.evolve(former, perm=change(former.perm))
                if new != former:
                    self._change([group], partial(_with, new=new))
                    is_changed = True
                yield
            if not is_changed:
                break
        return count

    def _check_room(self, queues: Mapping[str, QueueNumbers]) -> None:
        if len(self._topics) + len(queues) <= TOPICS_MAX:
            return
        self._forget_dead()
        count = len(self._topics) + sum(topic not in self._topics for topic in queues)
        if count > TOPICS_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the name server has no room for {count} topics")

    def _group_of(self, topic: str) -> _Group:
        return _last(self._topics[topic])

    def _group(self, queues: tuple[QueueData, ...]) -> _Group:
        """The group of the topics that have these queues."""
        group = self._by_queues.get(queues)
        if group is None:
            group = _Group(TopicQueues(queues))
            self._link(group, queues)
        return group

    def _change(self, groups: Iterable[_Group], change: Callable[[TopicQueues], tuple[QueueData, ...]]) -> None:
        """Replace the queues of these groups' topics by `change` of them."""
        changes = []
        for group in groups:
            assert group.topic_queues is not None
            changes.append((group, change(group.topic_queues)))
            self._unlink(group)
        for group, queues in changes:
            if not queues:
                group.topic_queues = None
                self._dead += group.count
            elif queues in self._by_queues:
                self._merge(group, self._by_queues[queues])
            else:
                group.topic_queues = TopicQueues(queues)
                self._link(group, queues)

    def _merge(self, group: _Group, other: _Group) -> None:
        """Merge two groups with equal queues into the larger one."""
        if group.count > other.count:
            assert other.topic_queues is not None
            self._unlink(other)
            group.topic_queues = other.topic_queues
            self._link(group, other.topic_queues.queues)
            group, other = other, group
        other.count += group.count
        group.count, group.topic_queues, group.merged_into = 0, None, other

    def _link(self, group: _Group, queues: tuple[QueueData, ...]) -> None:
        self._by_queues[queues] = group
        for each in queues:
            self._by_broker.setdefault(each.broker_name, {})[group] = None

    def _unlink(self, group: _Group) -> None:
        assert group.topic_queues is not None
        del self._by_queues[group.topic_queues.queues]
        for each in group.topic_queues.queues:
            groups = self._by_broker[each.broker_name]
            del groups[group]
            if not groups:
                del self._by_broker[each.broker_name]

    def _forget_empty(self, group: _Group) -> None:
        if not group.count and group.topic_queues is not None:
            self._unlink(group)
            group.topic_queues = None

    def _forget_many_dead(self) -> None:
        if self._dead > max(DEAD_MIN, len(self._topics) // 4):
            self._forget_dead()

    def _forget_dead(self) -> None:
        self._topics = {
            topic: group for topic in self._topics if (group := self._group_of(topic)).topic_queues is not None
        }
        self._dead = 0


def _last(group: _Group) -> _Group:
    while group.merged_into is not None:
        group = group.merged_into
    return group


def _queues_of(group: _Group, broker_name: str) -> QueueData | None:
    return None if group.topic_queues is None else group.topic_queues.of(broker_name)


def _with(former: TopicQueues | None, new: QueueData) -> tuple[QueueData, ...]:
    """`former` with `new` on one broker."""
    if former is None:
        return (new,)
    if former.of(new.broker_name) is None:
        return (*former.queues, new)
    return tuple(new if old.broker_name == new.broker_name else old for old in former.queues)
