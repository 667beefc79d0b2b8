"""Runs a daemon in the foreground, for the console scripts: logs, signals, exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import maybeDeferred
from twisted.logger import Logger, globalLogBeginner
from twisted.python import usage
from twisted.python.failure import Failure

from mqbroker.config import LogLevel
from mqbroker.daemons.daemon import Daemon, Served, StartFailed, install_reload_signals, why_not_started
from mqbroker.daemons.logs import LineObserver
from mqbroker.daemons.options import ConsoleOptions
from mqbroker.daemons.process import AlreadyRunning, PidFile, freeze_collector, install_reactor

if TYPE_CHECKING:
    from mqbroker.daemons.service_manager import ServiceManager

log = Logger()


class Front:
    """The parent process of a daemon: a terminal or a service manager, which is notified of the start and stops it."""

    def say(self, text: str) -> None:
        """Tell that the daemon serves."""
        print(text, flush=True)  # noqa: T201

    def refuse(self, program: str, why: str) -> None:
        """Tell why it does not."""
        sys.stderr.writelines(f"{program}: {line}\n" for line in why.splitlines())

    def stop_when_told(self, reactor: Any, stop: Callable[[str], None]) -> None:
        """Call `stop`, with the source of the request, when the daemon is to stop."""
        self._stop_by_signal(reactor, stop, signal.SIGTERM, signal.SIGINT)

    def _stop_by_signal(self, reactor: Any, stop: Callable[[str], None], *numbers: signal.Signals) -> None:
        for number in numbers:
            signal.signal(number, lambda number, _: reactor.callFromThread(stop, signal.Signals(number).name))


def run_console(
    program: str,
    options: ConsoleOptions,
    make: Callable[[Any, Any], Served],
    argv: list[str] | None = None,
    front: Front | None = None,
) -> int:
    """Parse `argv`, run until a signal, and return the exit code: 0 after an orderly stop that saved everything."""
    front = front or Front()
    pid_file = None
    try:
        options.parseOptions(sys.argv[1:] if argv is None else argv)  # type: ignore[no-untyped-call]
        observer = _begin_logging(options)
        if options["pid-file"] is not None:
            pid_file = PidFile(options["pid-file"])
    except AlreadyRunning as error:
        return _refuse(front, program, str(error))
    except SystemExit as error:
        if isinstance(error.code, str):
            return _refuse(front, program, error.code)
        raise
    except usage.UsageError as error:
        return _refuse(front, program, f"{error}; {program} --help shows what there is")
    except OSError as error:
        return _refuse(front, program, why_not_started(error))
    try:
        return _run(program, options, make, observer, front)
    finally:
        if pid_file is not None:
            pid_file.remove()


def _refuse(front: Front, program: str, why: str) -> int:
    front.refuse(program, why)
    return 1


def _begin_logging(options: ConsoleOptions) -> LineObserver:
    level = options.log_level or options.settings.log_level
    observer = LineObserver(options["log-format"], level, sys.stderr, options["log-file"])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    return observer


def _run(
    program: str, options: ConsoleOptions, make: Callable[[Any, Any], Served], observer: LineObserver, front: Front
) -> int:
    # Imported late: Twisted installs its default reactor on import if there is none.
    install_reactor()
    from twisted.internet import reactor as global_reactor

    from mqbroker.daemons.service_manager import ServiceManager

    reactor: Any = global_reactor

    def set_level(level: LogLevel) -> None:
        observer.level = options.log_level or level

    def reopen() -> None:
        try:
            observer.reopen()
        except OSError as error:
            log.error("the log file cannot be reopened: {why}", why=str(error))

    daemon = Daemon(options, lambda settings: make(settings, reactor), front.say, set_level)
    manager = ServiceManager(os.environ, os.getpid(), reactor)
    life = _RunState(program, daemon, reactor, lambda: observer.errors, front, manager)
    install_reload_signals(reactor, daemon.reload, reopen)
    front.stop_when_told(reactor, life.stop)
    reactor.callWhenRunning(life.start)
    reactor.run(installSignalHandlers=False)
    return life.exit_code


@attrs.define(eq=False)
class _RunState:
    """From the reactor's start to its stop. `errors` returns the number of logged errors."""

    _program: str
    _daemon: Daemon
    _reactor: Any
    _errors: Callable[[], int]
    _front: Front
    _manager: ServiceManager
    exit_code: int = 0
    _stopping: bool = False

    def start(self) -> None:
        maybeDeferred(self._daemon.startService).addCallback(self._started).addErrback(self._failed)

    def _started(self, _: None) -> None:
        freeze_collector()
        if not self._stopping:
            self._manager.ready()

    def _failed(self, failure: Failure) -> None:
        self.exit_code = 1
        if isinstance(failure.value, StartFailed):
            self._front.refuse(self._program, failure.getErrorMessage())
        else:
            log.failure("{program} cannot start", failure, program=self._program)
        self._end()

    def stop(self, who: str) -> None:
        """Stop: a signal, or another process, says so."""
        if self._stopping:
            log.info("{who}: stopping already", who=who)
            return
        log.info("{who}: stopping", who=who)
        self._end()

    def _end(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._manager.stopping()
        before = self._errors()
        stopped = maybeDeferred(self._daemon.stopService)
        stopped.addErrback(self._stop_failed)
        stopped.addCallback(lambda _: self._stopped(self._errors() > before))

    def _stop_failed(self, failure: Failure) -> None:
        self.exit_code = 1
        log.failure("{program} did not stop cleanly", failure, program=self._program)

    def _stopped(self, has_errors: bool) -> None:
        if has_errors:
            self.exit_code = 1
            log.warn("{program} did not stop cleanly: see the errors above", program=self._program)
        elif not self.exit_code:
            log.info("{program} stopped", program=self._program)
        self._reactor.stop()
