"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

#: A process has one file at a time: the slow ones come first, or one process ends long after the others.
_LONGEST = (
    "tests/spark/",
    "tests/broker/service/test_group_runs.py",
    "tests/test_examples.py",
    "tests/store/simulation/",
    "tests/docs/",
    "tests/demo/",
    "tests/daemons/",
    "tests/filter/",
)
#: Objects between collections of garbage: by default 700, and a tenth of the CPU time of tests was spent in them.
_GARBAGE_THRESHOLD = 10_000
#: While thousands of tests are collected, of which nothing is garbage: a sixth of that time was spent in collections.
_GARBAGE_THRESHOLD_COLLECTING = 50_000
#: How many files are in the table of durations.
_FILES_SHOWN = 40
#: CPU seconds of this process and its children at the last report.
_CPU_NOTED = pytest.StashKey[float]()
#: By file, whether the tests that are marked `alone` have passed in one process.
_PASSED_TOGETHER = pytest.StashKey[dict[Path, bool]]()


def pytest_configure() -> None:
    gc.set_threshold(_GARBAGE_THRESHOLD_COLLECTING)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts jobs in the background: what tests start would ignore it, too, and never stop.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
        max_examples=int(os.environ.get("MQBROKER_EXAMPLES", "100")),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `alone` in another process, with those of its file, if this one has xdist's thread."""
    if "PYTEST_XDIST_WORKER" not in os.environ or pyfuncitem.get_closest_marker("alone") is None:
        return None
    stash = pyfuncitem.session.stash.setdefault(_PASSED_TOGETHER, {})
    if pyfuncitem.path not in stash:
        items = [item for item in pyfuncitem.session.items if item.path == pyfuncitem.path]
        together = [item.nodeid for item in items if item.get_closest_marker("alone") is not None]
        stash[pyfuncitem.path] = _run_without_xdist(pyfuncitem.config, together).returncode == 0
    if not stash[pyfuncitem.path]:
        done = _run_without_xdist(pyfuncitem.config, [pyfuncitem.nodeid])
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return True


def _run_without_xdist(config: pytest.Config, tests: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=config.rootpath, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """On the disk MQBROKER_TESTS_DISK, if that is set, for tests of daemons and those marked `disk`: others may be in
    memory."""
    disk = os.environ.get("MQBROKER_TESTS_DISK")
    if disk is None or not {"daemons", "disk"} & {mark.name for mark in request.node.iter_markers()}:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="test-", dir=disk, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True, scope="module")
def _no_client_stays_open() -> Iterator[None]:
    """A blocking client that a file leaves open would keep its thread, which files after it count."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "mq-client"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """End a run whose reactor has stopped: pytest-twisted would blame the test that comes next, and all after it."""
    try:
        yield
    except (AssertionError, RuntimeError):
        twisted = sys.modules.get("pytest_twisted")
        greenlet = twisted._instances.gr_twisted if twisted is not None else None
        if greenlet is not None and greenlet.dead:
            pytest.exit("the reactor was stopped: by a test, or by a signal such as the SIGTERM of timeout(1)", 2)
        raise


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(_LONGEST) if item.nodeid.startswith(folder)), len(_LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A single process runs files as they were named: known mistakes are found by the first of theirs.
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Collections of garbage come less often, and need not look at the thousands of tests."""
    gc.set_threshold(_GARBAGE_THRESHOLD)
    if sys.version_info < (3, 14):  # where hypothesis warns of its random generator if that is frozen
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the CPU seconds since the last report: of this process and of what it has waited for."""
    report = yield
    now = sum(os.times()[:4])
    report.user_properties.append(("cpu", now - item.config.stash.get(_CPU_NOTED, now)))
    item.config.stash[_CPU_NOTED] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A table of the files that take longest, in seconds of all their tests."""
    seconds: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] += report.duration
                cpu[file] += sum(value for _, value in report.user_properties if isinstance(value, float))
    if sum(seconds.values()) < 60:
        return
    terminalreporter.section("slowest files")
    for file, duration in sorted(seconds.items(), key=lambda item: -item[1])[:_FILES_SHOWN]:
        terminalreporter.write_line(f"{duration:7.1f} s, {cpu[file]:7.1f} s of CPU  {file}")
    total = f"{sum(seconds.values()):7.1f} s, {sum(cpu.values()):7.1f} s of CPU"
    terminalreporter.write_line(f"{total}  all {len(seconds)} files, without what outlives its tests")
