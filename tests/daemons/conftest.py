"""Real daemons, started and ended by fixtures."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.daemons.history")

from tests.daemons.forks import ForkServer  # noqa: E402
from tests.daemons.permits import skipped_reasons  # noqa: E402
from tests.daemons.processes import SOURCE, Process  # noqa: E402


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count what was not tested for want of permission: a run that skips it is not a run that passes it."""
    reasons = skipped_reasons(terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section(f"{sum(reasons.values())} tests skipped: this machine does not permit their faults")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5} {reason}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `python` with arguments; all that were started are ended with the test."""
    processes: list[Any] = []

    def start_process(*arguments: str, **options: Any) -> Process:
        folder = tmp_path / f"process{len(processes)}"
        folder.mkdir()
        processes.append(Process(folder, [str(argument) for argument in arguments], **options))
        return processes[-1]

    yield start_process
    for process in processes:
        process.end()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Forks daemons for tests that start many, and are not about their start."""
    server = ForkServer(SOURCE)
    yield server
    server.close()


@pytest.fixture
def daemon(start: Callable[..., Process], tmp_path: Path) -> Callable[..., Process]:
    """Start a daemon on the loopback and a free port, with a ports file."""

    def start_daemon(name: str, *arguments: str, port: int = 0, **options: Any) -> Process:
        return start(
            *("-m", f"mqbroker.daemons.{name}", "-o", "bindAddress=127.0.0.1", "-o", f"listenPort={port}"),
            *("--ports-file", "ports.json", *arguments),
            **options,
        )

    return start_daemon
