"""The limit of open files, as a daemon reports it at its start."""

import resource
from collections.abc import Iterator

import pytest

from mqbroker.config import NettySettings
from mqbroker.daemons import process
from tests.remoting.logs import Logged, log_kept


@pytest.fixture
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.mark.parametrize(
    ("files", "connections_max", "levels"),
    [
        (resource.RLIM_INFINITY, None, []),
        (100_000, None, []),
        (4096, None, ["info"]),  # a default system: nobody asked for 20,000
        (4096, 10_000, ["warn"]),
        (4096, 1000, []),
        (1024, None, ["warn"]),  # too few for many brokers
    ],
)
def test_connections_that_cannot_be_reached_are_a_warning_where_somebody_asked_for_them(
    monkeypatch: pytest.MonkeyPatch, logged: Logged, files: int, connections_max: int | None, levels: list[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    settings = NettySettings() if connections_max is None else NettySettings(connections_max=connections_max)
    process.report_few_files(settings)
    assert [event["log_level"].name for event in logged] == levels
    assert all("raise the limit of open files" in line for line in logged.lines)
