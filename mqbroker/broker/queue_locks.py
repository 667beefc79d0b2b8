"""Queue locks for orderly consumption: which client of a group owns a queue. Locks expire after 60 s.

Source: RebalanceLockManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from mqbroker.wire.bodies import MessageQueue

LOCK_SECONDS = 60.0
#: Locks of all groups together, at most; more are not granted.
LOCKS_MAX = 100_000


class QueueLocks:
    """Locks by group and queue. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock the `queues` that are free, and renew the client's own; return those of `queues` it holds then."""
        held = self._groups.get(group, {})
        now = self._now()
        granted = []
        for queue in queues:
            owner, locked_at = held.get(queue, (client_id, now))
            if owner != client_id and now - locked_at <= LOCK_SECONDS:
                continue
            if queue not in held:
                if not self._has_room(now):
                    continue
                held = self._groups.setdefault(group, held)
                self._count += 1
            held[queue] = client_id, now
            granted.append(queue)
        return frozenset(granted)

    def _has_room(self, now: float) -> bool:
        """Whether another lock may be granted, removing expired locks if there are too many."""
        if self._count >= LOCKS_MAX:
            for group, held in list(self._groups.items()):
                over = [queue for queue, (_, locked_at) in held.items() if now - locked_at > LOCK_SECONDS]
                self._free(group, held, over)
        return self._count < LOCKS_MAX

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of `queues` that the client holds."""
        held = self._groups.get(group, {})
        self._free(group, held, [queue for queue in set(queues) if queue in held and held[queue][0] == client_id])

    def _free(self, group: str, held: dict[MessageQueue, tuple[str, float]], queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            del held[queue]
        self._count -= len(queues)
        if not held:
            self._groups.pop(group, None)
