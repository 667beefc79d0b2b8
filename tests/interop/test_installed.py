"""What an installation puts beside the interpreter: this environment has a wheel, not the checkout."""

import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent


def test_twistd_lists_both_daemons(tmp_path: Path) -> None:
    listed = subprocess.run(
        [BIN / "twistd", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    commands = {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("    ") and line.split()}
    assert {"namesrv", "mqbroker"} <= commands


def test_the_console_scripts_are_there() -> None:
    assert all((BIN / name).exists() for name in ("mq", "mqbroker", "mqnamesrv"))
