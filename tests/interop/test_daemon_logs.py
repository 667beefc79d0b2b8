"""The logs of our daemons are checked after each test."""

import sys
from pathlib import Path

import pytest

from tests.interop.fleet import Fleet
from tests.interop.java import JavaSystem
from tests.interop.peers import PeerHost
from tests.interop.processes import Process

CRITICAL = "2026-11-21 12:00:00,123 CRITICAL [mqbroker.remoting] unexpected"
TRACEBACK = "Traceback (most recent call last):"


def log_of(fleet: Fleet, *lines: str) -> None:
    """Have a daemon that logs these lines."""
    code = "import sys; sys.stderr.write(sys.argv[1])"
    process = Process(fleet._name("ours-broker"), [sys.executable, "-c", code, "\n".join([*lines, ""])], fleet.scratch)
    fleet._keep(process).wait()


@pytest.mark.parametrize("line", [CRITICAL, TRACEBACK])
def test_an_unexpected_error_in_a_log_is_reported_once(
    java: JavaSystem, host: PeerHost, tmp_path: Path, line: str
) -> None:
    fleet = Fleet(tmp_path, java, host)
    log_of(fleet, "2026-11-21 12:00:00,123 WARN [mqbroker.broker] a CRITICAL [word] in a name", "an ordinary line")
    fleet.check_logs()
    log_of(fleet, "before", line, "what follows")
    with pytest.raises(AssertionError, match="what follows"):
        fleet.check_logs()
    fleet.check_logs()
    log_of(fleet, line)
    with pytest.raises(AssertionError, match="a daemon logged"):
        fleet.stop_all()
