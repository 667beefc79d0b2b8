"""Starting Python processes that run this very package, whatever directory the user is in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).parents[3]

#: What would change the daemons' settings: the demo's are its own.
_SETTINGS = ("ROCKETMQ_", "NAMESRV_ADDR")


def python(module: str, *arguments: str) -> list[str]:
    """The command; -P keeps another `mqbroker` in the user's directory out."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without settings, and with this package where Python looks first."""
    found = {key: value for key, value in environ.items() if not key.startswith(_SETTINGS)}
    return {**found, "PYTHONPATH": os.pathsep.join(filter(None, [str(_HERE), environ.get("PYTHONPATH", "")]))}


def spawn(
    command: Sequence[str], log_path: Path, environ: Mapping[str, str], *, piped: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that leads a session and a group of its own: Ctrl-C is for us alone, and we end it in order.

    Its errors, and its output where it is not `piped`, are added to the log.
    """
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
