"""A lock for coroutines on an event loop, which get it in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from types import TracebackType

import attrs

from mqbroker.client.loop import Future, Loop, wake

#: Of those that wait, so many at most wake up when the lock is released.
AWAKE_MAX = 1024


@attrs.define(eq=False)
class _Place:
    """In the line of those that wait."""

    sleep: Future | None = None

    def wake(self) -> None:
        wake(self.sleep)


class FifoLock:
    """Unlike asyncio.Lock, it lets many go on in one turn of the loop, if each of them releases it before it suspends.

    Callers that find what is guarded ready must not overtake those that waited for it, or sends would be reordered: as
    long as anybody waits, they wait too. If one a turn went on, at least as many would come under load, and the line
    would never end: one request would be sent in a turn.

    Where a holder suspends, those that woke up with it did so in vain: one wakes up at the next release, and twice as
    many after each that has got it.

    :param loop: is asked for where somebody waits.
    """

    def __init__(self, loop: Callable[[], Loop]) -> None:
        self._loop = loop
        self._is_held = False
        self._places: deque[_Place] = deque()
        self._to_wake = AWAKE_MAX

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return not (self._is_held or self._places)

    async def __aenter__(self) -> None:
        place = _Place()
        self._places.append(place)
        try:
            while self._is_held or self._places[0] is not place:
                loop = self._loop()
                place.sleep = loop.create_future()
                if self._is_held:
                    await place.sleep
                    self._woke_up()
                else:  # the first one is awake
                    loop.call_soon(place.wake)
                    await place.sleep
            self._is_held = True
        except BaseException:
            self._places.remove(place)
            self._wake()
            raise
        self._places.popleft()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._is_held = False
        self._wake()

    def _woke_up(self) -> None:
        self._to_wake = 1 if self._is_held else min(2 * self._to_wake, AWAKE_MAX)

    def _wake(self) -> None:
        """Wake the first ones, unless it is held: its release does."""
        if not self._is_held:
            for place in islice(self._places, self._to_wake):
                place.wake()
