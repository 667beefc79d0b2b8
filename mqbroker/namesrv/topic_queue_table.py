"""The queues of each topic on each broker, as RouteInfoManager's topicQueueTable has them.

A hundred thousand topics mostly have one of a few sets of queues. Topics with the same queues are one group with one
`TopicQueues`, so that a topic costs its name and a place in a table, and what is made of its queues can be kept for all
of them. When a broker goes, the groups that it has a part in are changed, and no topic is looked at. It must never know
what brokers are beyond their names.
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

#: Topics without a broker stay in the table until they are so many, or a quarter of all.
DEAD_MIN = 1000

#: So often the groups of a broker are looked through whose permission is set, lest one that registers again and again
#: keeps it from coming to an end.
_PASSES_MAX = 3


@attrs.frozen(eq=False)
class TopicQueues:
    """The queues of a topic: one QueueData for each broker, in the order they came. Topics with equal ones share it."""

    queues: tuple[QueueData, ...]

    def of(self, broker_name: str) -> QueueData | None:
        return next((queues for queues in self.queues if queues.broker_name == broker_name), None)

    def is_on(self, broker_names: Collection[str]) -> bool:
        return any(queues.broker_name in broker_names for queues in self.queues)

    def without(self, broker_names: Collection[str]) -> tuple[QueueData, ...]:
        return tuple(queues for queues in self.queues if queues.broker_name not in broker_names)


@attrs.define(eq=False)
class _Group:
    """Topics with equal queues. `topic_queues`: None where no broker has them any more. `merged_into`: the group that
    those of its topics belong to that are still found here, since both came to have equal queues."""

    topic_queues: TopicQueues | None
    count: int = 0
    merged_into: _Group | None = None


class TopicQueueTable:
    """TopicQueues by topic. A topic without queues is not in it."""

    def __init__(self) -> None:
        self._topics: dict[str, _Group] = {}
        #: What is in `_topics` though no broker has it.
        self._dead = 0
        self._by_queues: dict[tuple[QueueData, ...], _Group] = {}
        self._by_broker: dict[str, dict[_Group, None]] = {}

    def __len__(self) -> int:
        return len(self._topics) - self._dead

    def __iter__(self) -> Iterator[tuple[str, TopicQueues]]:
        for topic in self._topics:
            topic_queues = self._group_of(topic).topic_queues
            if topic_queues is not None:
                yield topic, topic_queues

    def get(self, topic: str) -> TopicQueues | None:
        group = self._topics.get(topic)
        if group is None or group.merged_into is None:
            return None if group is None else group.topic_queues
        return _last(group).topic_queues

    def parts(self, size: int) -> Iterator[list[tuple[str, TopicQueues]]]:
        """All topics, so many at a time. Between two parts they may change: what came since is not there, what went
        is not there either, unless it was already."""
        topics = list(self._topics)
        for begin in range(0, len(topics), size):
            found = ((topic, self.get(topic)) for topic in topics[begin : begin + size])
            yield [(topic, topic_queues) for topic, topic_queues in found if topic_queues is not None]

    def put(self, broker_name: str, queues: Mapping[str, QueueNumbers]) -> None:
        """Set the queues of topics on a broker. Raises Refused where the topics are too many."""
        if len(self._topics) + len(queues) > TOPICS_MAX:
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
                target = self._group(_with(topic_queues, QueueData(broker_name, *numbers)))
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
        if self._dead > max(DEAD_MIN, len(self._topics) // 4):
            self._forget_dead()

    def queues_beside(self, broker_name: str) -> int:
        """How many queues the topics of a broker have on all brokers, those counted once that are alike."""
        groups = self._by_broker.get(broker_name, ())
        return sum(len(group.topic_queues.queues) for group in groups if group.topic_queues is not None)

    def set_permission(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        """Change the permission of all topics on a broker, in steps; return how many they are.

        Between two steps topics may change: what the broker registers meanwhile gets the permission too. `change`, done
        twice, is as done once.
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
        """Give the topics of these groups the queues that `change` makes of theirs."""
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
        """Make one group of two that have equal queues: the larger takes the topics of both."""
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

    def _forget_dead(self) -> None:
        self._topics = {
            topic: group for topic in self._topics if (group := self._group_of(topic)).topic_queues is not None
        }
        self._dead = 0


def _last(group: _Group) -> _Group:
    while group.merged_into is not None:
        group = group.merged_into
    return group


def _with(former: TopicQueues | None, new: QueueData) -> tuple[QueueData, ...]:
    """The queues of topics that had `former`, and on one broker have `new`."""
    if former is None:
        return (new,)
    if former.of(new.broker_name) is None:
        return (*former.queues, new)
    return tuple(new if old.broker_name == new.broker_name else old for old in former.queues)
