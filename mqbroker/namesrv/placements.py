"""Which topics lie where: of each topic its queues on each broker.

A hundred thousand topics mostly lie in a few ways. Topics that lie alike share one placement, so that a topic costs
its name and a place in a table, and what is made of a placement can be kept for all of them. It must never know what
brokers are beyond their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from weakref import WeakValueDictionary

import attrs

from mqbroker.errors import Refused
from mqbroker.wire.bodies import QueueData
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.registration import QueueNumbers

#: Five times what is promised; each takes some hundred bytes.
TOPICS_MAX = 1_000_000


@attrs.frozen(eq=False)
class Placement:
    """Where topics lie: one QueueData for each broker, in the order they came. Equal placements are the same object."""

    queues: tuple[QueueData, ...]

    def of(self, broker_name: str) -> QueueData | None:
        return next((queues for queues in self.queues if queues.broker_name == broker_name), None)

    def is_on(self, broker_names: Collection[str]) -> bool:
        return any(queues.broker_name in broker_names for queues in self.queues)


class Placements:
    """Placement by topic. A topic without queues is not in it."""

    def __init__(self) -> None:
        self._topics: dict[str, Placement] = {}
        self._shared: WeakValueDictionary[tuple[QueueData, ...], Placement] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[tuple[str, Placement]]:
        return iter(self._topics.items())

    def get(self, topic: str) -> Placement | None:
        return self._topics.get(topic)

    def names(self) -> frozenset[str]:
        return frozenset(self._topics)

    def put(self, broker_name: str, queues: Mapping[str, QueueNumbers]) -> None:
        """Place topics on a broker, in place of how they lay there. Raises Refused where they are too many."""
        topics = self._topics
        if len(topics) + len(queues) > TOPICS_MAX:
            self._check_room(queues)
        memo: dict[tuple[Placement | None, QueueNumbers], Placement] = {}
        for topic, numbers in queues.items():
            former = topics.get(topic)
            placement = memo.get((former, numbers))
            if placement is None:
                placement = memo[former, numbers] = self._with(former, QueueData(broker_name, *numbers))
            topics[topic] = placement

    def remove(self, topic: str) -> None:
        """Take out a topic, if it is there."""
        self._topics.pop(topic, None)

    def remove_from(self, topic: str, broker_names: Collection[str]) -> None:
        """Take out a topic's queues on these brokers."""
        former = self._topics.get(topic)
        if former is None:
            return
        placement = self._without(former, broker_names)
        if placement is None:
            del self._topics[topic]
        else:
            self._topics[topic] = placement

    def remove_broker(self, broker_name: str) -> None:
        """Take out all queues on a broker."""
        self._change(broker_name, lambda former: self._without(former, (broker_name,)))

    def set_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Change the permission of all topics on a broker; return how many they are."""

        def changed(former: Placement) -> Placement:
            queues = former.of(broker_name)
            assert queues is not None
            return self._with(former, attrs.evolve(queues, perm=change(queues.perm)))

        return self._change(broker_name, changed)

    def _change(self, broker_name: str, change: Callable[[Placement], Placement | None]) -> int:
        """Put another placement for each that the broker has a part in; return how many topics that are."""
        memo: dict[Placement, tuple[bool, Placement | None]] = {}
        count = 0
        for topic, former in list(self._topics.items()):
            found = memo.get(former)
            if found is None:
                has_part = former.of(broker_name) is not None
                found = memo[former] = has_part, change(former) if has_part else former
            has_part, placement = found
            count += has_part
            if placement is None:
                del self._topics[topic]
            elif has_part:
                self._topics[topic] = placement
        return count

    def _check_room(self, queues: Mapping[str, QueueNumbers]) -> None:
        count = len(self._topics) + sum(topic not in self._topics for topic in queues)
        if count > TOPICS_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the name server has no room for {count} topics")

    def _with(self, former: Placement | None, new: QueueData) -> Placement:
        if former is None:
            return self._share((new,))
        if former.of(new.broker_name) is None:
            return self._share((*former.queues, new))
        return self._share(tuple(new if old.broker_name == new.broker_name else old for old in former.queues))

    def _without(self, former: Placement, broker_names: Collection[str]) -> Placement | None:
        queues = tuple(queues for queues in former.queues if queues.broker_name not in broker_names)
        return self._share(queues) if queues else None

    def _share(self, queues: tuple[QueueData, ...]) -> Placement:
        placement = self._shared.get(queues)
        if placement is None:
            placement = self._shared[queues] = Placement(queues)
        return placement
