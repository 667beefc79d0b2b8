"""What holds for all tests."""

from __future__ import annotations

from collections import defaultdict

import pytest

#: A process has one file at a time: the slow ones come first, or one process ends long after the others.
_LONGEST = ("tests/spark/", "tests/store/simulation/", "tests/demo/", "tests/daemons/", "tests/filter/")
#: How many files are in the table of durations.
_FILES_SHOWN = 15


def pytest_configure() -> None:
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # mypy's environment, and that of a plugin's test
        return
    # A busy machine is not a failure, and a run repeats another.
    settings.register_profile(
        "any machine",
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any machine")


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(_LONGEST) if item.nodeid.startswith(folder)), len(_LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A table of the files that take longest, in seconds of all their tests."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if sum(seconds.values()) < 60:
        return
    terminalreporter.section("slowest files")
    for file, duration in sorted(seconds.items(), key=lambda item: -item[1])[:_FILES_SHOWN]:
        terminalreporter.write_line(f"{duration:7.1f} s  {file}")
