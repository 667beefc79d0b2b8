"""Fair scheduling of frames: connections share the reactor's time, so that none starves the others.

Frames are handled as they are read while their address, and all addresses together, have used little of the reactor's
turn. The rest is queued and its connection is not read; queues go on in the next turns, those with the least time used
first, by address and then by connection. Must never know what frames are.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mqbroker.remoting.limits import AddressLoad

#: In one turn of the reactor: how long frames may be handled as they are read, of one address and of all;
AT_ONCE_S = 0.01
ALL_AT_ONCE_S = 0.02
#: and how long those that wait are handled, and one connection of them at a time.
WAITING_S = 0.02
SLICE_S = 0.005
#: Shorter waits are not worth a timed call: they are counted into a later turn.
UNNOTICED_S = 0.002


class Waiting(Protocol):
    """A connection with frames that wait."""

    #: For how long its frames were handled, compared with others that wait.
    handled_s: float
    from_address: AddressLoad

    def go_on(self, until: float) -> bool:
        """Handle what waits until so many seconds on the clock. Returns whether some may be handled still."""


class FairScheduler:
    """Shares out the reactor's time, as `clock` measures it."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._number = 0
        self._used_s = 0.0
        self._call: IDelayedCall | None = None
        self._order = count()
        self._floor_s = 0.0
        self._addresses: list[tuple[float, int, AddressLoad]] = []

    def until(self, address: AddressLoad, now: float) -> float:
        """When frames that are read at `now` must wait; `now` itself where they must at once."""
        if address.turn != self._number:
            address.turn, address.turn_s = self._number, 0.0
        return now + max(0.0, min(AT_ONCE_S - address.turn_s, ALL_AT_ONCE_S - self._used_s))

    def spent(self, address: AddressLoad, seconds: float) -> None:
        """Count time that frames took as they were read."""
        address.turn_s += seconds
        self._used_s += seconds
        if self._used_s > UNNOTICED_S and self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def wait(self, connection: Waiting) -> None:
        """Have `connection` go on when its turn comes. It must not wait already."""
        address = connection.from_address
        if not address.waiting:
            # A connection that was idle gets no credit for that time; it goes first among its equals.
            handled_s = max(address.handled_s, self._floor_s - SLICE_S)
            heappush(self._addresses, (handled_s, next(self._order), address))
        self._enter(connection, address)
        if self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def _enter(self, connection: Waiting, address: AddressLoad) -> None:
        connection.handled_s = max(connection.handled_s, address.floor_s)
        heappush(address.waiting, (connection.handled_s, next(self._order), connection))

    def _turn(self) -> None:
        self._call = None
        self._number += 1
        self._used_s = 0.0
        now = self._clock.seconds()
        end = now + WAITING_S
        while self._addresses and now < end:
            handled_s, _, address = heappop(self._addresses)
            self._floor_s = max(self._floor_s, handled_s)
            address.floor_s, _, connection = heappop(address.waiting)
            more = connection.go_on(min(end, now + SLICE_S))
            then = self._clock.seconds()
            connection.handled_s += then - now
            address.handled_s = handled_s + then - now
            now = then
            if more:
                self._enter(connection, address)
            if address.waiting:
                heappush(self._addresses, (address.handled_s, next(self._order), address))
        if self._addresses:
            self._call = self._clock.callLater(0, self._turn)
