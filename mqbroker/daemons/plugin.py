"""Runs a daemon under twistd, which owns the reactor, the log and the pid file."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.failure import Failure

from mqbroker.config import LogLevel
from mqbroker.daemons.collector import settle_collector
from mqbroker.daemons.daemon import Daemon, Served, StartFailed, install_reload_signals
from mqbroker.daemons.options import DaemonOptions
from mqbroker.daemons.twistd_log import TwistdLog, make_twistd_log

log = Logger()


def make_twistd_service(options: DaemonOptions, make: Callable[[Any, Any], Served]) -> IService:
    """The service that a twistd plugin returns."""
    # twistd has chosen its reactor by now.
    from twisted.internet import reactor

    level = options.settings.log_level
    twistd: Mapping[str, Any] = options.parent or {}
    twistd_log = make_twistd_log(twistd, options["log-format"], level, sys.stdout)

    def set_level(level: LogLevel) -> None:
        if twistd_log is not None:
            twistd_log.observer.level = level

    daemon = Daemon(options, lambda settings: make(settings, reactor), print, set_level)
    return _TwistdService(daemon, reactor, twistd_log, is_in_background=not twistd.get("nodaemon", True))


class _TwistdService(Service):
    """Turns a failed start into the end of the process: twistd would go on without it."""

    def __init__(self, daemon: Daemon, reactor: Any, twistd_log: TwistdLog | None, is_in_background: bool) -> None:
        self._is_in_background = is_in_background
        self._daemon = daemon
        self._reactor = reactor
        self._log = twistd_log
        self._starting = True

    def setServiceParent(self, parent: Any) -> None:  # noqa: N802
        # twistd asks its application for an observer before it makes one of its own.
        if self._log is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log.observer)  # type: ignore[no-untyped-call]
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        install_reload_signals(self._reactor, self._daemon.reload, self._reopen())
        failed: list[Failure] = []
        starting = self._daemon.startService()
        starting.addCallbacks(lambda _: self._settle(), self._failed, errbackArgs=(failed,))
        self._starting = False
        if failed:
            self._give_up(failed[0])

    def _give_up(self, failure: Failure) -> None:
        """End the process, which has one line to say. Raises."""
        if not self._is_in_background:
            raise SystemExit(failure.getErrorMessage())
        # The twistd in the foreground waits until the one in the background tells it how it starts. That is done for
        # no other exceptions than these; their tracebacks are told nobody.
        log.error("cannot start: {why}", why=failure.getErrorMessage())
        sys.excepthook = lambda *_: None
        raise StartFailed(failure.getErrorMessage())

    def _settle(self) -> None:
        self._reactor.callWhenRunning(settle_collector)

    def _reopen(self) -> Callable[[], None] | None:
        if self._log is not None:
            return self._log.rotate
        # twistd has it rotate a log file of its own; without one it leaves the signal deadly.
        return None if callable(signal.getsignal(signal.SIGUSR1)) else lambda: None

    def _failed(self, failure: Failure, failed: list[Failure]) -> None:
        if self._starting and isinstance(failure.value, StartFailed):
            failed.append(failure)
        else:
            log.failure("cannot start", failure)
            # twistd would end with 0, from which who watches it concludes that all was well.
            atexit.register(_end_with_1)
            self._reactor.callWhenRunning(self._reactor.stop)

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        return self._daemon.stopService()


def _end_with_1() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(1)
