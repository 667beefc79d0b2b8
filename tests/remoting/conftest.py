"""A clock, and what was logged. A failure that nobody handled fails the test."""

import gc

import pytest
from hypothesis import settings
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher


settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


class Logged(list):
    """Log events; `lines` are their texts."""

    @property
    def lines(self):
        return [formatEvent(event) for event in self]

    @property
    def failures(self):
        return [event["log_failure"] for event in self if "log_failure" in event]


@pytest.fixture
def clock():
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture(autouse=True)
def logged():
    events = Logged()
    globalLogPublisher.addObserver(events.append)
    yield events
    gc.collect(1)
    globalLogPublisher.removeObserver(events.append)
    assert not [line for line in events.lines if "Unhandled" in line]
