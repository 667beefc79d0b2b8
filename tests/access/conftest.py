"""Benches with access control, closed at the end of the test, and what was logged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.acl import write_acl
from tests.broker.bench import Bench
from tests.remoting.logs import Logged, log_kept


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory as ROCKETMQ_HOME, with accounts."""
    write_acl(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def make_bench(tmp_path: Path, home: Path, logged: Logged) -> Iterator[Callable[..., Bench]]:
    made = []

    def make(**changes: Any) -> Bench:
        made.append(Bench(tmp_path / "store", acl_enable=True, rocketmq_home=str(home), **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
