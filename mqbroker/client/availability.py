"""Which brokers sends avoid for a while: those that have failed, or took long (Java's latency fault tolerance)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

#: For how many seconds a broker is avoided below each latency, and above the last one: MQFaultStrategy of 4.9.7.
_LATENCIES_S = (0.55, 1.0, 2.0, 3.0, 15.0)
_AVOIDED_S = (0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
#: The latency that a failed attempt counts as, as in 4.9.7.
_FAILED_S = 30.0


class Availability:
    """The brokers of one producer that are avoided. Where all of a topic's are, none is.

    Java's client avoids one that has failed for ten minutes, whatever happens; here a heartbeat that it answers ends
    that, so that a broker that was restarted has its share again within half a minute.
    """

    def __init__(self, now: Callable[[], float], *, is_enabled: bool) -> None:
        """`now` returns seconds of a clock that is never set."""
        self._now = now
        self._is_enabled = is_enabled
        #: By the broker's name, until when.
        self._until: dict[str, float] = {}

    def took(self, broker: str, seconds: float) -> None:
        """Called when a broker has answered a send after so long."""
        avoided_s = _AVOIDED_S[bisect_right(_LATENCIES_S, seconds)]
        if not avoided_s:
            self._until.pop(broker, None)
        elif self._is_enabled:
            self._until[broker] = self._now() + avoided_s

    def failed(self, broker: str) -> None:
        """Called when an attempt has failed for a reason that may be the broker's."""
        self.took(broker, _FAILED_S)

    def answered(self, brokers: Iterable[str]) -> None:
        """Called when brokers have answered a heartbeat."""
        for broker in brokers:
            self._until.pop(broker, None)

    def avoided(self) -> set[str]:
        """The names of the brokers that are avoided now; none in most cases."""
        if not self._until:
            return set()
        now = self._now()
        for broker in [broker for broker, until in self._until.items() if until <= now]:
            del self._until[broker]
        return set(self._until)
