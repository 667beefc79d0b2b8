"""What a machine has to permit for a fault to be made, and how a test says that it does not.

A test that cannot be run is skipped, with a reason that begins with `NOT_PERMITTED`; the end of the run counts them.
"""

import shutil
import subprocess
import types
from typing import Any

import pytest

NOT_PERMITTED = "this machine does not permit it"


def skip(what: str, why: str) -> None:
    pytest.skip(f"{NOT_PERMITTED}: {what}: {why}")


def need(what: str, command: list[str]) -> None:
    """Skip the test where `command` does not work here."""
    if shutil.which(command[0]) is None:
        skip(what, f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        skip(what, " ".join((done.stderr or f"{command[0]} ended with {done.returncode}").split()))


def skipped_reasons(reports: list[types.SimpleNamespace]) -> dict[str, int]:
    """Reason -> how many tests were skipped for it, of pytest's reports of skipped tests."""
    counts: dict[Any, Any] = {}
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_PERMITTED in reason:
            reason = reason.partition(f"{NOT_PERMITTED}: ")[2]
            counts[reason] = counts.get(reason, 0) + 1
    return counts
