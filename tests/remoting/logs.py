"""What was logged during a test. A failure that nobody handled fails the test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from twisted.python.failure import Failure


class Logged(list):
    """Log events; `lines` are their texts."""

    @property
    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self]

    @property
    def failures(self) -> list[Failure]:
        return [event["log_failure"] for event in self if "log_failure" in event]


@contextmanager
def log_kept() -> Iterator[Logged]:
    """The events until the end of the block; none may tell of a failure that nobody handled, or be misspelt."""
    events = Logged()
    globalLogPublisher.addObserver(cast(ILogObserver, events.append))
    try:
        yield events
        gc.collect(1)
    finally:
        globalLogPublisher.removeObserver(cast(ILogObserver, events.append))
    assert not [line for line in events.lines if "Unhandled" in line or "Unable to format" in line]
