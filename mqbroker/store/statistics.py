"""Store statistics: messages put and got, their rates, and the latency of puts.

A put takes until its message can be got, and under SYNC_FLUSH until it is on disk. Puts that end together all count
with the time of the first. Untimed puts were dispatched at once, and count as no time. Intervals and bounds are those
of StoreStatsService of 4.9.7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Seconds for which samples are kept.
SAMPLES_MAX = 600
#: Period of the distribution of put times; the last full one is reported.
DISTRIBUTION_SECONDS = 60.0
#: Upper bounds, ms, of each class of puts but the last; those of at most 0 are the first.
_CLASSES_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
#: The Java broker's names of them.
CLASS_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
#: Resolution of percentiles, ms: puts up to each bound.
_BOUNDS_MS = (
    *range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10), *range(250, 501, 50),
    *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip


class Sample(NamedTuple):
    """Counters at a time, in seconds: puts, gets that found messages, gets that found none, messages got."""

    time: float
    puts: int
    found: int
    missed: int
    got: int


class StoreStatistics:
    """Counters since the store was opened. `now` returns seconds since the epoch.

    `puts` to `got` are counted by the dispatch and the reader.
    """

    def __init__(self, now: Callable[[], float], is_sync: bool) -> None:
        self._now = now
        self._is_sync = is_sync
        self.began = now()
        self.puts = 0
        self.put_bytes = 0
        self.failed_puts = 0
        self.found = 0
        self.missed = 0
        self.got = 0
        self.longest_put_ms = 0
        self.longest_get_ms = 0
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX + 1)
        self._classes = self._last_classes = [0] * len(CLASS_NAMES)
        self._bounds = self._last_bounds = [0] * (len(_BOUNDS_MS) + 1)
        self._distributed_at = self.began
        self._timed = 0
        self._begin_distribution()

    # Counting

    def put(self, count: int, since_ms: int) -> None:
        """Count messages that can be got now, the last of them stored from `since_ms` on."""
        if not self._is_sync:
            self._timed += count
            self._took(count, int(self._now() * 1000) - since_ms)

    def durable(self, count: int, since: float) -> None:
        """Count sends that were synced, the first of which waited since then (seconds)."""
        self._took(count, int((self._now() - since) * 1000))

    def _took(self, count: int, ms: int) -> None:
        if ms <= 0:
            self._classes[0] += count
            self._bounds[0] += count
            return
        # In whole ms: more than 0 and less than 10 is the second class.
        self._classes[bisect_right(_CLASSES_MS, ms)] += count
        self._bounds[bisect_left(_BOUNDS_MS, ms)] += count
        self.longest_put_ms = max(self.longest_put_ms, ms)

    # Sampling

    def sample(self) -> None:
        """Take a sample; called once a second."""
        now = self._now()
        if not self._is_sync and self.puts > self._timed:
            self._took(self.puts - self._timed, 0)
            self._timed = self.puts
        self._samples.append(Sample(now, self.puts, self.found, self.missed, self.got))
        if now >= self._distributed_at + DISTRIBUTION_SECONDS:
            self._distributed_at = now
            self._last_classes, self._last_bounds = self._classes, self._bounds
            self._begin_distribution()

    def _begin_distribution(self) -> None:
        self._classes = [0] * len(CLASS_NAMES)
        self._bounds = [0] * (len(_BOUNDS_MS) + 1)

    def rates(self, samples: int) -> Sample | None:
        """Rates per second of each counter over so many samples; None if there are not so many yet."""
        if len(self._samples) <= samples:
            return None
        last, before = self._samples[-1], self._samples[-1 - samples]
        seconds = last.time - before.time
        rates = [(new - old) / seconds if seconds > 0 else 0.0 for new, old in zip(last, before, strict=True)]
        return Sample(*rates)  # type: ignore[arg-type]

    @property
    def put_classes(self) -> Sequence[int]:
        """Puts of the last full minute by class of time."""
        return self._last_classes

    def put_percentile_ms(self, share: float) -> float:
        """Percentile of the put times of the last full minute; interpolated between two bounds."""
        wanted = int(sum(self._last_bounds) * share)
        low = 0
        for high, count in zip((*_BOUNDS_MS, _BOUNDS_MS[-1]), self._last_bounds, strict=True):
            if wanted <= count:
                return low + (high - low) * wanted / count if count else float(low)
            wanted -= count
            low = high
        return float(low)
