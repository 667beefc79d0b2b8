"""Rate-limited log lines about peers, so that misbehaving peers cannot fill the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger, LogLevel

log = Logger()

MINUTE = 60.0
_LEVELS = list(LogLevel.iterconstants())


class RateLimitedLog:
    """Logs the first lines of each minute, then one line with the number suppressed, at the highest level of those.

    :param what: plural noun for the suppressed lines in that count.
    :param now: returns the time in seconds.
    """

    def __init__(self, what: str, now: Callable[[], float], lines_per_minute: int) -> None:
        self._what = what
        self._now = now
        self._lines_max = lines_per_minute
        self._minute = float("-inf")
        self._lines = 0
        self._untold = 0
        self._untold_level = LogLevel.debug

    def say(self, level: LogLevel, line: str, **values: Any) -> None:
        """Log `line`, or count it as suppressed."""
        self.look()
        if self._lines >= self._lines_max:
            self._untold += 1
            self._untold_level = max(self._untold_level, level, key=_LEVELS.index)
            return
        if not self._lines:
            self._minute = self._now()
        self._lines += 1
        log.emit(level, line, **values)

    def look(self) -> None:
        """Log the number of suppressed lines once their minute is over; to be called periodically."""
        if 0 <= self._now() - self._minute < MINUTE:  # the clock may be set back
            return
        untold, self._untold, self._lines = self._untold, 0, 0
        level, self._untold_level = self._untold_level, LogLevel.debug
        if untold:
            log.emit(level, "{what}: {n} more within a minute", n=untold, what=self._what)
