"""A clock, and what was logged."""

import pytest
from hypothesis import settings
from twisted.internet.task import Clock

from tests.remoting.logs import log_kept

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def clock():
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture(autouse=True)
def logged():
    with log_kept() as events:
        yield events
