"""Benches in temporary directories, closed at the end of the test, and what was logged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from twisted.internet.task import Clock

from tests.broker.bench import START, Bench, Client
from tests.remoting.logs import Logged, log_kept

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(START)
    return clock


@pytest.fixture
def make_bench(tmp_path: Path, logged: Logged) -> Iterator[Callable[..., Bench]]:
    """Make a bench with changed settings."""
    made = []

    def make(name: str = "store", **changes: Any) -> Bench:
        made.append(Bench(tmp_path / name, **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("send"), store={"mapped_file_size_commit_log": 64 * 1024 * 1024})
    yield bench
    bench.close()
