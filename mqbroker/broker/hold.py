"""Pulls that found nothing and wait: until a message that they want is there, or their time is up.

Each waits at an offset of one queue. A new message wakes the waiters of its queue; one that looks again and finds only
messages it does not want goes on waiting, from behind them.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import LogLevel

from mqbroker.config import BrokerSettings
from mqbroker.remoting.complaints import Complaints
from mqbroker.remoting.handlers import IConnection
from mqbroker.remoting.limits import Shares

#: How often waiters whose time is up are looked for.
SWEEP_SECONDS = 0.5
#: As many pulls as one connection, and all together, may have waiting; by their weights.
HELD_ON_CONNECTION_MAX = 10_000
HELD_MAX = 200_000
#: Of what a pull brings to say which messages it wants: so much of it weighs as a pull without.
BYTES_PER_WEIGHT = 64


@attrs.define(eq=False)
class HeldPull:
    """One waiting pull. `look(held, last)` answers it and returns True, or moves `offset` on and returns False.

    `last` is True when its time is up: then it must answer. `weight` is 1 where it keeps no more than usual.
    """

    connection: IConnection
    topic: str
    queue_id: int
    offset: int
    deadline: float
    look: Callable[[HeldPull, bool], bool]
    weight: int = 1


class HeldPulls:
    """All waiting pulls, by queue.

    :param held_max: no more are held, by their weights; those there are go on waiting. Of them an address and a
        connection have no more than leaves some to others.
    """

    def __init__(self, clock: IReactorTime, held_max: int = HELD_MAX) -> None:
        self._clock = clock
        self._held_max = held_max
        self._complaints = Complaints("pulls not held", clock.seconds, 1)
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._shares = Shares()
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

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._held_max = settings.held_pulls_max

    def hold(self, held: HeldPull) -> bool:
        """Let it wait; False, with nothing done but a line in the log, where too many do already."""
        if self._shares.of(held.connection) + held.weight > HELD_ON_CONNECTION_MAX:
            line = "{n} pulls of {peer} wait: no more of its are held"
            self._complaints.say(LogLevel.warn, line, n=HELD_ON_CONNECTION_MAX, peer=held.connection.remote_addr)
            return False
        if not self._shares.take(held.connection, held.weight, self._held_max):
            line = "{n} pulls wait, with heldPullsMax={max}: {peer} has its share of them, and is answered at once"
            self._complaints.say(
                LogLevel.warn, line, n=self._shares.taken, max=self._held_max, peer=held.connection.remote_addr
            )
            return False
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
        self._complaints.look()

    def _is_over(self, held: HeldPull, now: float) -> bool:
        return (held.deadline <= now or held.connection.closed) and self._ends(held, True)

    def _ends(self, held: HeldPull, last: bool) -> bool:
        """Let it look again, where anybody is there to answer; True where it waits no longer."""
        if not held.connection.closed and not held.look(held, last):
            return False
        self._shares.give_back(held.connection, held.weight)
        return True
