"""Benches in temporary directories, closed at the end of the test, and what was logged."""

import pytest
from hypothesis import settings
from twisted.internet.task import Clock

from tests.broker.bench import START, Bench
from tests.remoting.logs import log_kept

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def logged():
    with log_kept() as events:
        yield events


@pytest.fixture
def clock():
    clock = Clock()
    clock.advance(START)
    return clock


@pytest.fixture
def make_bench(tmp_path, logged):
    """Make a bench with changed settings."""
    made = []

    def make(name="store", **changes):
        made.append(Bench(tmp_path / name, **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench):
    return make_bench()


@pytest.fixture
def client(bench):
    return bench.client()


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("send"), store={"mapped_file_size_commit_log": 64 * 1024 * 1024})
    yield bench
    bench.close()
