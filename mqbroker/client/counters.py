"""Counts of what a program's clients have sent and consumed."""

from __future__ import annotations

import threading

from mqbroker.client.listeners import ConsumeResult
from mqbroker.client.messages import SendResult
from mqbroker.client.observers import ConsumeObserver, Consumption, Send, SendObserver


class Counters(SendObserver, ConsumeObserver):
    """Give it to producers and push consumers as one of their `observers`, and read it at any time, on any thread.
    Several clients may share one; all counts are of messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Stored by a broker, or written to a connection, where they were sent oneway.
        self.sent = 0
        #: Whose sends failed.
        self.failed = 0
        #: Under way, or waiting for their turn.
        self.waiting = 0
        #: Taken by listeners.
        self.consumed = 0
        #: That listeners had come again, or gave up to the dead letters.
        self.retried = 0
        #: With listeners now, or handed out and not settled.
        self.consuming = 0

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
