"""Run the comparison with the Java system; what is red is tried once more, alone, against new daemons.

``python -m tests.interop [--core] [options of pytest]``. Java's clients and brokers act by timers of their own, which
no test can turn. The second try is a process of its own, for it must not see what a fixture of a module has collected
before.
"""

import subprocess
import sys
from pathlib import Path

import pytest

#: Red tests in more files than this are no bad luck.
MOST_FILES = 3


#: What each push runs: sends, pulls, transactions, replication and failover, each both ways; of these files what is not
#: marked `thorough`.
CORE = (
    "test_installed.py",
    "test_java_clients.py",
    "test_our_clients.py",
    "test_transactions.py",
    "test_replication.py",
    "test_failover.py",
    "test_group_schedules.py",
    "test_history.py",
)


class RedTests:
    """A plugin that keeps the ids of the tests that failed, in their set-up or tear-down too, by their file."""

    def __init__(self) -> None:
        self.by_file: dict[str, dict[str, None]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.by_file.setdefault(report.nodeid.partition("::")[0], {})[report.nodeid] = None


def main() -> int:
    red = RedTests()
    # Daemons are waited for most of the time: two files at once take little more than half of it.
    given = [option for option in sys.argv[1:] if option != "--core"]
    options = ["-n", "2", "--dist", "loadfile", *given]
    folder = Path(__file__).parent
    if "--core" in sys.argv[1:]:
        options += ["-m", "not thorough", *(str(folder / name) for name in CORE)]
    elif not any(Path(option.partition("::")[0]).exists() for option in given):
        options.insert(0, str(folder))
    code = pytest.main(options, plugins=[red])
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(red.by_file) <= MOST_FILES:
        return code
    again = [test for tests in red.by_file.values() for test in tests]
    print("red, and tried once more:", *again, sep="\n  ", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *again], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
