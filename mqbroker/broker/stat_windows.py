"""Counts that only grow, and how much they grew within the last minute, hour and day.

A window looks at its counts at a fixed pace, and answers from two looks: the newest, and that which its length lies
before. Looking costs nothing for counts that did not change. Paces and lengths are those of StatsItem of 4.9.7, which
also takes a count that it sees for the first time to have been 0 one step before. Must never know what is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

#: As many keys a table has; beyond, the one that was not counted for the longest time goes.
KEYS_MAX = 20_000


@attrs.frozen
class Growth:
    """How much a count grew in a window: in all, per second, and each time something was counted."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Counts:
    """What is counted under one key: how often, and one or several amounts."""

    __slots__ = ("looks", "numbers")

    def __init__(self, amounts: int) -> None:
        #: How often, then the amounts.
        self.numbers = [0] * (amounts + 1)
        #: By window: (number of the look, the numbers then) wherever they had changed.
        self.looks: tuple[list[_Look], ...] = ([], [], [])


_Look = tuple[int, list[int]]


class Window:
    """One window of all counts of a broker.

    :param number: which of `Counts.looks` is its own.
    :param looks_max: how many looks it keeps; it is one step less long.
    """

    def __init__(self, number: int, step_s: float, looks_max: int) -> None:
        self.step_s = step_s
        self._number = number
        self._steps = looks_max - 1
        self._times: deque[float] = deque(maxlen=looks_max)
        self._last = 0
        #: What changed since the last look.
        self.waiting: dict[Counts, None] = {}

    def changed(self, counts: Counts) -> None:
        """Tell of a change since the last look."""
        self.waiting[counts] = None

    def forget(self, counts: Counts) -> None:
        self.waiting.pop(counts, None)

    def look(self, now: float) -> None:
        """`now` in seconds."""
        self._last += 1
        self._times.append(now)
        changed, self.waiting = self.waiting, {}
        for counts in changed:
            looks = counts.looks[self._number]
            if not looks:
                looks.append((self._last - 1, [0] * len(counts.numbers)))
            looks.append((self._last, counts.numbers.copy()))
            while looks[1][0] <= self._last - self._steps:
                del looks[0]

    def growth(self, counts: Counts, amount: int) -> Growth:
        """How much an amount (1 the first) grew; nothing where it was not looked at yet."""
        looks = counts.looks[self._number]
        if not looks:
            return Growth()
        first = max(looks[0][0], self._last - self._steps)
        before = next(numbers for look, numbers in reversed(looks) if look <= first)
        numbers = looks[-1][1]
        total = numbers[amount] - before[amount]
        times = numbers[0] - before[0]
        seconds = self._seconds_since(first)
        return Growth(total, total / seconds if seconds > 0 else 0.0, total / times if times > 0 else 0.0)

    def _seconds_since(self, look: int) -> float:
        steps = self._last - look
        if steps < len(self._times):
            return self._times[-1] - self._times[-1 - steps]
        return self._times[-1] - self._times[0] + self.step_s


class Windows:
    """Minute, hour and day. `tick` is to be called once a second or so, `now` gives seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.minute = Window(0, 10.0, 7)
        self.hour = Window(1, 600.0, 7)
        self.day = Window(2, 3600.0, 25)
        self._all = (self.minute, self.hour, self.day)
        began = now()
        self._next = [began + window.step_s for window in self._all]

    def tick(self) -> None:
        """Let those windows look whose step is over."""
        now = self._now()
        for i, window in enumerate(self._all):
            if now >= self._next[i]:
                window.look(now)
                missed = (now - self._next[i]) // window.step_s
                self._next[i] += (missed + 1) * window.step_s

    def changed(self, counts: Counts) -> None:
        for window in self._all:
            window.changed(counts)

    def forget(self, counts: Counts) -> None:
        for window in self._all:
            window.forget(counts)


class CountTable:
    """Counts by key."""

    def __init__(self, windows: Windows, amounts: int = 1, keys_max: int = KEYS_MAX) -> None:
        self._windows = windows
        self._amounts = amounts
        self._keys_max = keys_max
        # In the order of their last change.
        self._counts: dict[str, Counts] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, key: str) -> Counts | None:
        return self._counts.get(key)

    def add(self, key: str, times: int, *amounts: int) -> None:
        """Count."""
        counts = self._counts.pop(key, None) or self._new()
        self._counts[key] = counts
        numbers = counts.numbers
        numbers[0] += times
        for i, amount in enumerate(amounts, 1):
            numbers[i] += amount
        self._windows.changed(counts)

    def _new(self) -> Counts:
        if len(self._counts) >= self._keys_max:
            self._forget(next(iter(self._counts)))
        return Counts(self._amounts)

    def remove(self, is_meant: Callable[[Sequence[str]], bool]) -> None:
        """Forget the keys of which `is_meant` says so; it is given their parts, between the @."""
        for key in [key for key in self._counts if is_meant(key.split("@"))]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._windows.forget(self._counts.pop(key))
