"""Real daemons, started and ended by fixtures."""

import pytest

pytest.register_assert_rewrite("tests.daemons.history")

from tests.daemons.permits import skipped_reasons  # noqa: E402
from tests.daemons.processes import Process  # noqa: E402


def pytest_terminal_summary(terminalreporter):
    """Count what was not tested for want of permission: a run that skips it is not a run that passes it."""
    reasons = skipped_reasons(terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section(f"{sum(reasons.values())} tests skipped: this machine does not permit their faults")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5} {reason}")


@pytest.fixture
def start(tmp_path):
    """Start `python` with arguments; all that were started are ended with the test."""
    processes = []

    def start_process(*arguments, **options):
        folder = tmp_path / f"process{len(processes)}"
        folder.mkdir()
        processes.append(Process(folder, [str(argument) for argument in arguments], **options))
        return processes[-1]

    yield start_process
    for process in processes:
        process.end()


@pytest.fixture
def daemon(start, tmp_path):
    """Start a daemon on the loopback and a free port, with a ports file."""

    def start_daemon(name, *arguments, port=0, **options):
        return start(
            *("-m", f"mqbroker.daemons.{name}", "-o", "bindAddress=127.0.0.1", "-o", f"listenPort={port}"),
            *("--ports-file", "ports.json", *arguments),
            **options,
        )

    return start_daemon
