"""Log lines: one text line, or one JSON object, for each event. Never raises.

Peers influence the text and the number of lines: the length of a line is bounded, and the number of a kind per minute.

2026-11-21 12:00:00,123 WARN [mqbroker.namesrv.namesrv_service] broker 127.0.0.1:10911 did not register ...
{"time": "2026-11-21T12:00:00.123+00:00", "level": "warn", "logger": "mqbroker...", "msg": "...", "addr": "..."}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from datetime import UTC, datetime
from typing import Any, Protocol

from twisted.internet.error import CannotListenError
from twisted.logger import ILogObserver, LogEvent, Logger, formatEvent
from twisted.logger import LogLevel as EventLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.config import LogLevel
from mqbroker.config.system import open_log
from mqbroker.errors import MQError

log = Logger()

#: Expected errors, which are logged without traceback.
EXPECTED = (MQError, CannotListenError, ConnectionError)

#: Longest text of a line, without its traceback.
LINE_LENGTH_MAX = 4000
#: Lines per minute of the same format.
LINES_PER_MINUTE = 600
KIND_LENGTH = 200

_RANKS = {EventLevel.debug: 0, EventLevel.info: 1, EventLevel.warn: 2, EventLevel.error: 3, EventLevel.critical: 4}
_LEAST = {LogLevel.DEBUG: 0, LogLevel.INFO: 1, LogLevel.WARN: 2, LogLevel.ERROR: 3}
_PLAIN = (str, int, float, bool, type(None))
#: Characters that break a line, control a terminal, or cannot be encoded: peers influence the text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


#: Key of an event for a line from the log of another process, a shard: all of them are written, as they are.
_RELAYED = "relayed_line"


def relay_line(shard: int, line: str) -> None:
    """Log a line from the log of a shard's process."""
    log.info("shard {shard}: {relayed_line}", shard=shard, relayed_line=line)


def text_line(event: LogEvent) -> str:
    """The event as text; a traceback, if any, follows on lines of its own."""
    if _RELAYED in event:
        return f"shard {event['shard']}: {_one_line(event[_RELAYED])}\n"
    time = datetime.fromtimestamp(event.get("log_time") or 0.0)
    stamp = f"{time:%Y-%m-%d %H:%M:%S},{time.microsecond // 1000:03d}"
    line = f"{stamp} {_level(event).upper()} [{_logger(event)}] {_one_line(_message(event))}\n"
    return line + _traceback(event)


def json_line(event: LogEvent) -> str:
    """The event as a JSON object, with the scalar fields of its message."""
    if _RELAYED in event:
        return json.dumps(_relayed_object(event)) + "\n"
    time = datetime.fromtimestamp(event.get("log_time") or 0.0, UTC)
    found: dict[str, Any] = {
        key: _clipped(value) if type(value) is str else value
        for key, value in event.items()
        if not key.startswith("log_") and type(value) in _PLAIN
    }
    found |= {
        "time": time.isoformat(timespec="milliseconds"),
        "level": _level(event),
        "logger": _logger(event),
        "msg": _message(event),
    }
    traceback = _traceback(event)
    if traceback:
        found["exc"] = traceback
    return json.dumps(found) + "\n"


def _relayed_object(event: LogEvent) -> dict[str, Any]:
    """The event that a shard logged. Output that is not JSON, as after a crash, is wrapped in one."""
    shard, line = event["shard"], event[_RELAYED]
    try:
        found = json.loads(line)
    except ValueError:
        found = line
    if not isinstance(found, dict):
        found = json.loads(json_line({key: value for key, value in event.items() if key != _RELAYED}))
        found["msg"] = line
    return {"shard": shard, **found}


class LogRateLimiter:
    """Limits the events of each format to so many per minute."""

    def __init__(self) -> None:
        self._minute = float("-inf")
        self._counts: dict[str, int] = {}
        #: The highest level of each kind.
        self._levels: dict[str, Any] = {}

    def passes(self, event: LogEvent) -> bool:
        """Whether to write the line of `event`."""
        kind = str(event.get("log_format") or "")[:KIND_LENGTH]
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > LINES_PER_MINUTE:
            level = event.get("log_level") or EventLevel.info
            self._levels[kind] = max(self._levels.get(kind, level), level, key=_RANKS.__getitem__)
        return count <= LINES_PER_MINUTE

    def over(self, now: float) -> list[LogEvent]:
        """If the minute is over at `now`: the number of suppressed lines of each kind."""
        if 0 <= now - self._minute < 60.0:
            return []
        counts, self._counts, self._minute = self._counts, {}, now
        levels, self._levels = self._levels, {}
        return [
            {
                "log_level": levels[kind],
                "log_namespace": __name__,
                "log_time": now,
                "log_format": "{n} more lines as {kind!r} within a minute",
                "n": count - LINES_PER_MINUTE,
                "kind": kind,
            }
            for kind, count in counts.items()
            if count > LINES_PER_MINUTE
        ]


FORMATS = {"text": text_line, "json": json_line}


class Stream(Protocol):
    """Destination of lines."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def close(self) -> object: ...


@implementer(ILogObserver)
class LineObserver:
    """Writes events of at least `level` as lines to a stream, or to the file at `path`, which can be reopened."""

    def __init__(self, log_format: str, level: LogLevel, stream: Stream | None = None, path: str | None = None) -> None:
        """Raises OSError if the file cannot be opened."""
        self.level = level
        #: Number of errors, written or not.
        self.errors = 0
        self._few = LogRateLimiter()
        self._line = FORMATS[log_format]
        self._path = path
        self._stream = os.fdopen(open_log(path), "a", encoding="utf-8") if path is not None else stream

    def __call__(self, event: LogEvent) -> None:
        rank = _rank(event)
        self.errors += rank >= _LEAST[LogLevel.ERROR]
        is_relayed = _RELAYED in event
        if self._stream is None or (rank < _LEAST[self.level] and not is_relayed):
            return
        lines = [self._line(each) for each in self._few.over(event.get("log_time") or 0.0)]
        if is_relayed or self._few.passes(event):
            lines.append(self._line(event))
        # A full disk or a closed pipe must not stop a daemon.
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._stream.write(line)
            if lines:
                self._stream.flush()

    def close(self) -> None:
        """Stop writing; closes the file."""
        stream, self._stream = self._stream, None
        if self._path is not None and stream is not None:
            with contextlib.suppress(OSError):
                stream.close()

    def reopen(self) -> None:
        """Reopen the file, if there is one, after it was moved away. Keeps the former if that fails."""
        if self._path is None:
            return
        stream = os.fdopen(open_log(self._path), "a", encoding="utf-8")
        former, self._stream = self._stream, stream
        if former is not None:
            with contextlib.suppress(OSError):
                former.close()


def _rank(event: LogEvent) -> int:
    rank = _RANKS.get(event.get("log_level"), 1)
    # Twisted logs every port that it opens and closes; ours are logged with their purpose. The start and end of twistd
    # are useful.
    logger = _logger(event)
    is_noise = logger.startswith(("log_legacy", "twisted.")) and not logger.startswith("twisted.scripts.")
    return 0 if rank == 1 and is_noise else rank


def _level(event: LogEvent) -> str:
    level = event.get("log_level")
    return level.name if level is not None else "info"


def _logger(event: LogEvent) -> str:
    return event.get("log_namespace") or "-"


def _message(event: LogEvent) -> str:
    message = formatEvent(event)
    failure = _failure(event)
    if failure is None:
        return _clipped(message)
    return _clipped(f"{message}: {failure.getErrorMessage()}" if message else failure.getErrorMessage())


def _clipped(text: str) -> str:
    """Peers' names may be of any length."""
    if len(text) <= LINE_LENGTH_MAX:
        return text
    half = LINE_LENGTH_MAX // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"


def _failure(event: LogEvent) -> Failure | None:
    failure = event.get("log_failure")
    return failure if isinstance(failure, Failure) else None


def _traceback(event: LogEvent) -> str:
    failure = _failure(event)
    if failure is None or isinstance(failure.value, EXPECTED):
        return ""
    text: str = failure.getTraceback()
    return text if text.endswith("\n") else text + "\n"


def _one_line(text: str) -> str:
    if _UNPRINTABLE.search(text) is None:
        return text
    return _UNPRINTABLE.sub(_escaped, text.replace("\\", "\\\\"))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
