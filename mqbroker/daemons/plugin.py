"""Runs a daemon under twistd, which owns the reactor, the log and the pid file."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.daemons.collector import settle_collector
from mqbroker.daemons.daemon import Daemon, Served, StartFailed, install_reload_signals
from mqbroker.daemons.options import DaemonOptions

log = Logger()


def make_twistd_service(options: DaemonOptions, make: Callable[[Any, Any], Served]) -> IService:
    """The service that a twistd plugin returns."""
    # twistd has chosen its reactor by now.
    from twisted.internet import reactor

    return _TwistdService(Daemon(options, lambda settings: make(settings, reactor), print), reactor)


class _TwistdService(Service):
    """Turns a failed start into the end of the process: twistd would go on without it."""

    def __init__(self, daemon: Daemon, reactor: Any) -> None:
        self._daemon = daemon
        self._reactor = reactor
        self._starting = True

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        install_reload_signals(self._reactor, self._daemon.reload, self._reopen())
        failed: list[Failure] = []
        starting = self._daemon.startService()
        starting.addCallbacks(lambda _: self._settle(), self._failed, errbackArgs=(failed,))
        self._starting = False
        if failed:
            raise SystemExit(failed[0].getErrorMessage())

    def _settle(self) -> None:
        self._reactor.callWhenRunning(settle_collector)

    def _reopen(self) -> Callable[[], None] | None:
        # twistd rotates its own log file on SIGUSR1; without one it leaves the signal deadly.
        return None if callable(signal.getsignal(signal.SIGUSR1)) else lambda: None

    def _failed(self, failure: Failure, failed: list[Failure]) -> None:
        if self._starting and isinstance(failure.value, StartFailed):
            failed.append(failure)
        else:
            log.failure("cannot start", failure)
            self._reactor.callWhenRunning(self._reactor.stop)

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        return self._daemon.stopService()
