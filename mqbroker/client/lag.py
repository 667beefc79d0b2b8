"""Lag: how far a member of a group is behind the ends of its queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from mqbroker.client.names import bare_queue
from mqbroker.client.offset_stores import OffsetStore
from mqbroker.errors import MQError
from mqbroker.wire.bodies import MessageQueue

if TYPE_CHECKING:
    from mqbroker.client.assigned_queues import AssignedQueues
    from mqbroker.client.queue_requests import Offsets


@attrs.frozen
class Lag:
    """Messages of each assigned queue that are not consumed (of a lite pull consumer: were not polled) yet, and of all;
    -1 where the broker does not say."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        return sum(max(0, lag) for lag in self.queues.values())


async def lag_of(
    assigned: AssignedQueues,
    offsets: Offsets,
    store: OffsetStore,
    namespace: str = "",
    returned: Mapping[MessageQueue, int] | None = None,
) -> Lag:
    """The lag in the assigned queues, named without `namespace`; as many messages of each as were `returned` do not
    count."""
    queues = sorted(assigned)
    found: dict[MessageQueue, int] = {}
    for queue, bounds in zip(queues, await offsets.bounds(queues), strict=True):
        mine = assigned.get(queue)
        if mine is None:
            continue
        name, position = bare_queue(namespace, queue), mine.committable
        if isinstance(bounds, MQError):
            found[name] = -1
        elif position is None:
            committed = await store.committed(queue)
            found[name] = max(0, bounds[1] - (bounds[0] if committed is None else committed))
        else:
            found[name] = max(0, bounds[1] - position - (returned or {}).get(queue, 0))
    return Lag(found)
