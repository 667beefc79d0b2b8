"""How a consumer gets on with each topic: what came and what was consumed within the last minute and hour. Pure.

Minute and hour are those of ConsumerStatsManager of 4.9.7: looked at in steps, so they are up to a step longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mqbroker.wire.admin_bodies import ConsumeStatus

#: (length of a step in seconds, steps)
_MINUTE = (10.0, 6)
_HOUR = (600.0, 6)


class Sums:
    """Sums of three amounts over the last `steps` steps of `step_s` seconds, and the one that has begun."""

    def __init__(self, step_s: float, steps: int, began: float) -> None:
        self._step_s = step_s
        self._back = steps
        self._began = began
        #: (number of the step, sums within it)
        self._steps: deque[tuple[int, list[float]]] = deque(maxlen=steps + 1)
        self._ends = 0.0
        self._newest: list[float] = []

    def add(self, now: float, first: float, second: float, third: float) -> None:
        if now >= self._ends:
            self._begin(int(now // self._step_s))
        sums = self._newest
        sums[0] += first
        sums[1] += second
        sums[2] += third

    def _begin(self, step: int) -> None:
        self._newest = [0.0, 0.0, 0.0]
        self._steps.append((step, self._newest))
        self._ends = (step + 1) * self._step_s

    def totals(self, now: float) -> list[float]:
        """The sums of what is not too old."""
        first = int(now // self._step_s) - self._back
        found = [sums for step, sums in self._steps if step >= first]
        return [sum(column) for column in zip((0.0, 0.0, 0.0), *found, strict=True)]

    def seconds(self, now: float) -> float:
        """How long the time is that `totals` covers; a step at least, so that a start makes no high rates."""
        first = (now // self._step_s - self._back) * self._step_s
        return max(now - max(first, self._began), self._step_s)


class TopicMeter:
    """Counts for one topic. Times are ms."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        began = now()
        self._pulls = Sums(*_MINUTE, began)
        self._consumed = Sums(*_MINUTE, began)
        self._consumed_hour = Sums(*_HOUR, began)

    def pulled(self, took_ms: float) -> None:
        """A pull found something."""
        self._pulls.add(self._now(), 1, took_ms, 0)

    def delivered(self, messages: int) -> None:
        """So many of what a pull found are for the listener."""
        self._pulls.add(self._now(), 0, 0, messages)

    def consumed(self, took_ms: float, is_ok: bool) -> None:
        """The listener is done with a message."""
        now = self._now()
        self._consumed.add(now, is_ok, not is_ok, took_ms)
        self._consumed_hour.add(now, is_ok, not is_ok, took_ms)

    def status(self) -> ConsumeStatus:
        now = self._now()
        pulls, pull_ms, pulled = self._pulls.totals(now)
        ok, failed, took_ms = self._consumed.totals(now)
        hour_ok, hour_failed, hour_ms = self._consumed_hour.totals(now)
        seconds = self._pulls.seconds(now)
        return ConsumeStatus(
            pull_rt=_each(pull_ms, pulls),
            pull_tps=pulled / seconds,
            consume_rt=_each(took_ms, ok + failed) or _each(hour_ms, hour_ok + hour_failed),
            consume_ok_tps=ok / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=int(hour_failed),
        )


class Meters:
    """A meter for each topic that this consumer reads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._topics: dict[str, TopicMeter] = {}

    def of(self, topic: str) -> TopicMeter:
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = TopicMeter(self._now)
        return meter


def _each(total: float, count: float) -> float:
    return total / count if count else 0.0
