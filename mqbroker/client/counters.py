"""Counters of the messages that a program's clients have sent and consumed."""

from __future__ import annotations

import threading
from collections import Counter

from mqbroker.client.lag import Lag
from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import SendResult
from mqbroker.client.observers import ConsumeObserver, Consumption, Send, SendObserver
from mqbroker.wire.bodies import MessageQueue


class Counters(SendObserver, ConsumeObserver):
    """Give it to producers, push and lite pull consumers as one of their `observers`, and read it at any time, on any
    thread. Several clients may share one; all counts are of messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Stored by a broker; if sent oneway, written to a connection.
        self.sent = 0
        #: Not sent, because the send failed.
        self.failed = 0
        #: In flight, or waiting for a slot.
        self.waiting = 0
        #: Taken by listeners.
        self.consumed = 0
        #: Sent back by listeners, to be delivered again or moved to the dead letters.
        self.retried = 0
        #: With listeners now, or handed out and not settled.
        self.consuming = 0
        self._lags: dict[tuple[str, str], Lag] = {}

    @property
    def lag(self) -> int:
        """Not consumed yet, of all queues that the consumers have: as of the last `lag_s` of each."""
        with self._lock:
            return sum(lag.total for lag in self._lags.values())

    @property
    def lag_by_queue(self) -> dict[MessageQueue, int]:
        """The lag of each queue, summed over the groups; queues of which brokers do not say it are left out."""
        found: Counter[MessageQueue] = Counter()
        with self._lock:
            for lag in self._lags.values():
                found.update({queue: count for queue, count in lag.queues.items() if count >= 0})
        return dict(found)

    def before_send(self, send: Send) -> None:
        with self._lock:
            self.waiting += len(send.messages)

    def after_send(self, send: Send, outcome: list[SendResult] | BaseException) -> None:
        count = len(send.messages)
        with self._lock:
            self.waiting -= count
            if isinstance(outcome, BaseException):
                self.failed += count
            else:
                self.sent += count

    def before_consume(self, consumption: Consumption) -> None:
        with self._lock:
            self.consuming += len(consumption.messages)

    def after_consume(self, consumption: Consumption, outcome: ConsumeResult | BaseException) -> None:
        count = len(consumption.messages)
        with self._lock:
            self.consuming -= count
            if outcome is ConsumeResult.SUCCESS:
                self.consumed += count
            else:
                self.retried += count

    def lagging(self, group: str, client_id: str, lag: Lag) -> None:
        with self._lock:
            self._lags[group, client_id] = lag
            if not lag.queues:
                del self._lags[group, client_id]
