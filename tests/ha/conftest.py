"""The log of each test."""

from collections.abc import Iterator

import pytest

from tests.remoting.logs import Logged, log_kept


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events
