"""A run of tests that is asked to end says so, and blames no test."""

import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

TESTS = """
import os
import signal


def test_first():
    os.kill(os.getpid(), signal.SIGTERM)


def test_second():
    pass


def test_third():
    pass
"""


def test_a_run_that_gets_sigterm_ends_and_no_test_is_said_to_have_failed(tmp_path: Path) -> None:
    file = tmp_path / "test_run.py"
    file.write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.conftest", f"--rootdir={tmp_path}", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "the reactor was stopped" in done.stdout, done.stdout + done.stderr
    assert " failed" not in done.stdout
    assert done.returncode == 2
