"""The log of a daemon that twistd runs: where twistd was told to write it, in our lines and from our level on.

twistd knows neither levels nor JSON. What it is told by --logger and --syslog stays with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.python.logfile import LogFile

from mqbroker.config import LogLevel
from mqbroker.daemons.logs import LineObserver, Stream

#: Where twistd writes in the background when it is not told.
_FILE = "twistd.log"


@attrs.frozen
class TwistdLog:
    """`observer` writes the log; `rotate` begins a new file, and does nothing where there is none."""

    observer: LineObserver
    rotate: Callable[[], None]


def make_twistd_log(twistd: Mapping[str, Any], log_format: str, level: LogLevel, stdout: Stream) -> TwistdLog | None:
    """The log that twistd's own options ask for; None where twistd is to see to it. SystemExit with one line where its
    file cannot be opened."""
    path = twistd.get("logfile")
    in_foreground = bool(twistd.get("nodaemon"))
    if twistd.get("logger") or twistd.get("syslog") or (path == "-" and not in_foreground):
        return None
    if path == "-" or (in_foreground and not path):
        return TwistdLog(LineObserver(log_format, level, stdout), lambda: None)
    try:
        file = LogFile.fromFullPath(path or _FILE)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise SystemExit(f"{path or _FILE}: the log cannot be written there: {error.strerror}") from None
    return TwistdLog(LineObserver(log_format, level, file), file.rotate)
