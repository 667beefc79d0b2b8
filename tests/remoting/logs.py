"""What was logged during a test. A failure that nobody handled fails the test."""

from __future__ import annotations

import gc
from contextlib import contextmanager

from twisted.logger import formatEvent, globalLogPublisher


class Logged(list):
    """Log events; `lines` are their texts."""

    @property
    def lines(self):
        return [formatEvent(event) for event in self]

    @property
    def failures(self):
        return [event["log_failure"] for event in self if "log_failure" in event]


@contextmanager
def log_kept():
    """The events until the end of the block; none may tell of a failure that nobody handled, or be misspelt."""
    events = Logged()
    globalLogPublisher.addObserver(events.append)
    try:
        yield events
        gc.collect(1)
    finally:
        globalLogPublisher.removeObserver(events.append)
    assert not [line for line in events.lines if "Unhandled" in line or "Unable to format" in line]
