"""Fair scheduling of frames: connections share the reactor's time so that none starves the others.

Frames are handled as they are read until their address, or all addresses together, have used their time in the current
reactor iteration. The rest is queued and reading from its connection pauses; queues are processed in the next
iterations, least time used first, by address and then by connection. This module does not interpret frames.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mqbroker.remoting.limits import AddressLoad

log = Logger()

#: Time per reactor iteration for handling frames as they are read, for one address and for all.
AT_ONCE_S = 0.01
ALL_AT_ONCE_S = 0.02
#: Time per reactor iteration for queued frames, and the slice for one connection.
WAITING_S = 0.02
SLICE_S = 0.005
#: Less time than this does not schedule a call: it is counted in a later iteration.
UNNOTICED_S = 0.002


class Waiting(Protocol):
    """A connection with queued frames."""

    #: Time spent handling its frames, relative to other waiting connections.
    handled_s: float
    from_address: AddressLoad

    def go_on(self, until: float) -> bool:
        """Handle queued frames until clock time `until`, in seconds. Return whether more may be handled."""


class FairScheduler:
    """Divides the reactor's time, measured by `clock`, among connections."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._number = 0
        self._used_s = 0.0
        #: Whether so little was used in this turn that no address has used up its time.
        self.has_time_for_all = True
        self._call: IDelayedCall | None = None
        self._order = count()
        self._floor_s = 0.0
        self._addresses: list[tuple[float, int, AddressLoad]] = []

    def until(self, address: AddressLoad, now: float) -> float:
        """Clock time until which frames read at `now` may be handled; `now` if they must be queued."""
        return now + max(0.0, self._left_s(address))

    def has_time(self, address: AddressLoad) -> bool:
        """Whether frames of `address` that are read now may be handled."""
        return self._left_s(address) > 0

    def _left_s(self, address: AddressLoad) -> float:
        if address.turn != self._number:
            address.turn, address.turn_s = self._number, 0.0
        return min(AT_ONCE_S - address.turn_s, ALL_AT_ONCE_S - self._used_s)

    def spent(self, address: AddressLoad, seconds: float) -> None:
        """Charge the time spent handling frames as they were read."""
        address.turn_s += seconds
        self._used_s += seconds
        if self._used_s > UNNOTICED_S and self._call is None:
            self._call = self._clock.callLater(0, self._turn)
        self.has_time_for_all = self._used_s < AT_ONCE_S

    def wait(self, connection: Waiting) -> None:
        """Queue `connection` to be called back in its turn. It must not be queued already."""
        address = connection.from_address
        if not address.waiting:
            # An address gets no credit for idle time; it goes first among equals.
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
        self._used_s, self.has_time_for_all = 0.0, True
        now = self._clock.seconds()
        end = now + WAITING_S
        while self._addresses and now < end:
            handled_s, _, address = heappop(self._addresses)
            self._floor_s = max(self._floor_s, handled_s)
            address.floor_s, _, connection = heappop(address.waiting)
            try:
                more = connection.go_on(min(end, now + SLICE_S))
            except Exception:  # it could not even be closed: the others go on
                log.failure("unexpected error of a connection, which is ignored from now on")
                more = False
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
