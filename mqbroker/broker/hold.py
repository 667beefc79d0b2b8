"""Pulls that found nothing and wait: until a message that they want is there, or their time is up.

Each waits at an offset of one queue. A new message wakes the waiters of its queue; one that looks again and finds only
messages it does not want goes on waiting, from behind them.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mqbroker.remoting.handlers import IConnection

#: How often waiters whose time is up are looked for.
SWEEP_SECONDS = 0.5
#: As many pulls as one connection may have waiting.
HELD_ON_CONNECTION_MAX = 10_000


@attrs.define(eq=False)
class HeldPull:
    """One waiting pull. `look(held, last)` answers it and returns True, or moves `offset` on and returns False.

    `last` is True when its time is up: then it must answer.
    """

    connection: IConnection
    topic: str
    queue_id: int
    offset: int
    deadline: float
    look: Callable[[HeldPull, bool], bool]


class HeldPulls:
    """All waiting pulls, by queue."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._counts: dict[IConnection, int] = {}
        self._sweep = LoopingCall(self.sweep)
        self._sweep.clock = clock

    def start(self) -> None:
        self._sweep.start(SWEEP_SECONDS, now=False)

    def stop(self) -> None:
        """Answer all that wait."""
        if self._sweep.running:
            self._sweep.stop()
        for key in list(self._held):
            for held in self._held.pop(key):
                self._ends(held, True)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, held: HeldPull) -> bool:
        """Let it wait; False, and nothing done, where its connection has too many that do."""
        count = self._counts.get(held.connection, 0)
        if count >= HELD_ON_CONNECTION_MAX:
            return False
        self._counts[held.connection] = count + 1
        self._held.setdefault((held.topic, held.queue_id), []).append(held)
        return True

    def arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Wake the pulls of a queue whose messages now end at `next_offset`."""
        waiting = self._held.pop((topic, queue_id), None)
        if waiting is None:
            return
        staying = [held for held in waiting if held.offset >= next_offset or not self._ends(held, False)]
        if staying:
            self._held.setdefault((topic, queue_id), []).extend(staying)

    def sweep(self) -> None:
        """Answer those whose time is up, and forget those whose connection is gone."""
        now = self._clock.seconds()
        for key, waiting in list(self._held.items()):
            if any(held.deadline <= now or held.connection.closed for held in waiting):
                staying = [held for held in waiting if not self._is_over(held, now)]
                if staying:
                    self._held[key] = staying
                else:
                    del self._held[key]

    def _is_over(self, held: HeldPull, now: float) -> bool:
        return (held.deadline <= now or held.connection.closed) and self._ends(held, True)

    def _ends(self, held: HeldPull, last: bool) -> bool:
        """Let it look again, where anybody is there to answer; True where it waits no longer."""
        if not held.connection.closed and not held.look(held, last):
            return False
        self._counts[held.connection] -= 1
        if not self._counts[held.connection]:
            del self._counts[held.connection]
        return True
