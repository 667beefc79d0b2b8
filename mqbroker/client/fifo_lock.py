"""A lock for tasks of an asyncio loop, which get it in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from types import TracebackType

import attrs

#: Of those that wait, so many wake up when the lock is released; each that gets it wakes one behind them.
AWAKE_MAX = 1024


@attrs.define(eq=False)
class _Place:
    """In the line of those that wait."""

    sleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.sleep is not None and not self.sleep.done():
            self.sleep.set_result(None)


class FifoLock:
    """Unlike asyncio.Lock, it lets many go on in one turn of the loop, if each of them releases it before it suspends.

    Callers that find what is guarded ready must not overtake those that waited for it, or sends would be reordered: as
    long as anybody waits, they wait too. If one a turn went on, at least as many would come under load, and the line
    would never end: one request would be sent in a turn.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._places: deque[_Place] = deque()
        self._gone = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return not (self._is_held or self._places)

    async def __aenter__(self) -> None:
        place, number = _Place(), self._gone + len(self._places)
        self._places.append(place)
        try:
            while self._is_held or self._places[0] is not place:
                if not self._is_held and number - self._gone < AWAKE_MAX:
                    await asyncio.sleep(0)  # those before it are awake, and come first
                else:
                    place.sleep = asyncio.get_running_loop().create_future()
                    await place.sleep
            self._is_held = True
        finally:
            self._places.remove(place)
            self._gone += 1
            if len(self._places) >= AWAKE_MAX:
                self._places[AWAKE_MAX - 1].wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._is_held = False
        for place in islice(self._places, AWAKE_MAX):
            place.wake()
