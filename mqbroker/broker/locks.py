"""Which client of a group may consume a queue in order. A lock not renewed for 60 s is anybody's.

Source: RebalanceLockManager of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqbroker.wire.bodies import MessageQueue

LOCK_SECONDS = 60.0
#: As many queues as one group may lock; more are not granted.
LOCKS_MAX = 100_000


class QueueLocks:
    """Locks by group and queue. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock, or renew, what is free or the client's own; return what it holds of `queues`."""
        held = self._groups.setdefault(group, {})
        now = self._now()
        granted = []
        for queue in queues:
            owner, locked_at = held.get(queue, (client_id, now))
            if (owner == client_id or now - locked_at > LOCK_SECONDS) and (queue in held or len(held) < LOCKS_MAX):
                held[queue] = client_id, now
                granted.append(queue)
        return frozenset(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those of `queues` that the client holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            if queue in held and held[queue][0] == client_id:
                del held[queue]
