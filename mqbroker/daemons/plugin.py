"""Runs a daemon under twistd, which owns the reactor, the log and the pid file."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from twisted.python.logfile import LogFile

from mqbroker.config import LogLevel
from mqbroker.config.system import open_log
from mqbroker.daemons.daemon import Daemon, Served, StartFailed, install_reload_signals
from mqbroker.daemons.logs import LineObserver, Stream
from mqbroker.daemons.options import DaemonOptions
from mqbroker.daemons.process import freeze_collector, install_reactor

#: Default log file of a twistd in the background.
_FILE = "twistd.log"


@attrs.frozen
class TwistdLog:
    """`observer` writes the log; `rotate` starts a new file, if there is one."""

    observer: LineObserver
    rotate: Callable[[], None]


def make_twistd_log(twistd: Mapping[str, Any], log_format: str, level: LogLevel, stdout: Stream) -> TwistdLog | None:
    """The log of twistd's own options; None to leave it to twistd. SystemExit with one line if its file cannot be
    opened."""
    path = twistd.get("logfile")
    in_foreground = bool(twistd.get("nodaemon"))
    if twistd.get("logger") or twistd.get("syslog") or (path == "-" and not in_foreground):
        return None
    if path == "-" or (in_foreground and not path):
        return TwistdLog(LineObserver(log_format, level, stdout), lambda: None)
    try:
        os.close(open_log(path or _FILE))  # which refuses links of others; twistd's follows them
        file = LogFile.fromFullPath(path or _FILE)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise SystemExit(f"{path or _FILE}: the log cannot be written there: {error.strerror}") from None
    return TwistdLog(LineObserver(log_format, level, file), file.rotate)


log = Logger()

#: Default pid file of twistd; two daemons in one directory would share it.
_PID_FILE = "twistd.pid"


class TwistdOptions(DaemonOptions):
    """Options of a sub-command of twistd, and its defaults for twistd's own options."""

    #: Set by each daemon: the sub-command's name.
    name: str

    def postOptions(self) -> None:
        # No reactor is installed yet, except by twistd's own --reactor.
        install_reactor()
        super().postOptions()
        twistd: dict[str, Any] | None = self.parent
        if twistd is None:
            return
        if twistd.get("pidfile") == _PID_FILE and not _is_given("--pidfile"):
            twistd["pidfile"] = f"{self.name}.pid"
        in_foreground = twistd.get("nodaemon") or twistd.get("debug")
        if not (in_foreground or twistd.get("logfile") or twistd.get("logger") or twistd.get("syslog")):
            twistd["logfile"] = f"{self.name}.log"


def _is_given(option: str) -> bool:
    """Whether twistd was given an option, possibly abbreviated."""
    return any(len(given) > 3 and option.startswith(given.partition("=")[0]) for given in sys.argv[1:])


def make_twistd_service(options: DaemonOptions, make: Callable[[Any, Any], Served]) -> IService:
    """Make the service that a twistd plugin returns."""
    # twistd has installed its reactor by now.
    from twisted.internet import reactor

    level = options.settings.log_level
    twistd: Mapping[str, Any] = options.parent or {}
    twistd_log = make_twistd_log(twistd, options["log-format"], level, sys.stdout)

    def set_level(level: LogLevel) -> None:
        if twistd_log is not None:
            twistd_log.observer.level = level

    daemon = Daemon(options, lambda settings: make(settings, reactor), print, set_level)
    parent = None if twistd.get("nodaemon", True) else _Parent()
    return _TwistdService(daemon, reactor, twistd_log, parent)


class _Parent:
    """The parent process of a twistd in the background, which waits for the result of the start.

    Twistd would end it as soon as startService has returned, when most of a start is still to come. So after the fork
    it waits until the child reports the result, or has ended.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._reads, self._writes = os.pipe()
        os.register_at_fork(after_in_parent=self._wait)

    def _wait(self) -> None:
        if os.getpid() != self._pid:
            return
        os.close(self._writes)
        with open(self._reads, encoding="utf-8", errors="replace") as told:
            why_not = told.read()
        if why_not != _STARTED:
            why_not = why_not.strip() or "it ended before it had started: its log may say why"
            os.write(2, f"{why_not}\n".encode(errors="replace"))  # sys.stderr is redirected to the log by now
            os._exit(1)

    def tell(self, why_not: str | None) -> None:
        """Report the result of the start: None for success. Later calls have no effect."""
        writes, self._writes = self._writes, -1
        if writes >= 0:
            with contextlib.suppress(OSError):  # the parent may be gone
                os.write(writes, (_STARTED if why_not is None else why_not).encode(errors="replace"))
            os.close(writes)


_STARTED = "\0"


class _TwistdService(Service):
    """Ends the process after a failed start: twistd would continue without the service."""

    def __init__(self, daemon: Daemon, reactor: Any, twistd_log: TwistdLog | None, parent: _Parent | None) -> None:
        """`parent`: the waiting parent of a daemon in the background."""
        self._parent = parent
        self._daemon = daemon
        self._reactor = reactor
        self._log = twistd_log
        self._starting = True

    def setServiceParent(self, parent: Any) -> None:  # noqa: N802
        # twistd asks its application for an observer before it creates its own.
        if self._log is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer)  # type: ignore[no-untyped-call]
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        install_reload_signals(self._reactor, self._daemon.reload, self._reopen())
        # Until the reactor runs and has installed its handler, the signal would kill the process.
        signal.signal(signal.SIGTERM, lambda *_: self._reactor.callWhenRunning(self._reactor.stop))
        failed: list[Failure] = []
        starting = self._daemon.startService()
        starting.addCallbacks(lambda _: self._started(), self._failed, errbackArgs=(failed,))
        self._starting = False
        if failed:
            self._give_up(failed[0])

    def _give_up(self, failure: Failure) -> None:
        """End the process with one line on standard error. Raises."""
        if self._parent is None:
            raise SystemExit(failure.getErrorMessage())
        log.error("cannot start: {why}", why=failure.getErrorMessage())
        # twistd removes its pid file for no other exceptions than these; their tracebacks are not shown.
        sys.excepthook = lambda *_: None
        raise StartFailed(failure.getErrorMessage())

    def _started(self) -> None:
        if self._parent is not None:
            self._parent.tell(None)
        self._reactor.callWhenRunning(freeze_collector)

    def _reopen(self) -> Callable[[], None] | None:
        if self._log is not None:
            return self._log.rotate
        # twistd's handler rotates its own log file; without one the signal would end the process.
        return None if callable(signal.getsignal(signal.SIGUSR1)) else lambda: None

    def _failed(self, failure: Failure, failed: list[Failure]) -> None:
        if self._parent is not None:
            self._parent.tell(failure.getErrorMessage())
        if self._starting and isinstance(failure.value, StartFailed):
            failed.append(failure)
        else:
            log.failure("cannot start", failure)
            # twistd would exit with 0, which a supervisor takes for success.
            atexit.register(_end_with_1)
            self._reactor.callWhenRunning(self._reactor.stop)

    def stopService(self) -> Deferred[None]:
        if self._parent is not None:
            self._parent.tell("it was stopped before it had started")  # unless it has
        super().stopService()  # type: ignore[no-untyped-call]
        return self._daemon.stopService()


def _end_with_1() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(1)
