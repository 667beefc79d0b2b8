"""A daemon as a service: start, ready, reload, stop. Used by console scripts and twistd."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from mqbroker.config import BrokerSettings, LogLevel, NamesrvSettings, TlsMode, show_settings
from mqbroker.daemons.options import DaemonOptions
from mqbroker.daemons.process import (
    WrittenFile,
    keep_freed_memory,
    raise_file_limit,
    relax_collector,
    report_few_files,
)
from mqbroker.errors import MQError

log = Logger()

#: Advice for a port that cannot be listened on.
_LISTEN_HINTS = {
    errno.EADDRINUSE: "stop what has the port, or set another listenPort",
    errno.EADDRNOTAVAIL: "no network card of this machine has that address; set another bindAddress",
    errno.EACCES: "only root may use ports below 1024; set a higher listenPort",
}
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOOPBACK = ("127.", "::1")


@attrs.frozen
class Served:
    """A service with what a daemon needs of it.

    ready: called after the start; its Deferred fires when the service is up and registered. boot_line: printed then.
    ports: written to the ports file then. adopt: applies re-read settings that may change while it runs, and reloads
    files; returns the other keys that differ, or None if other processes tell them. Without it, all wait for the next
    start.
    """

    service: IService
    ready: Callable[[], Deferred[None]]
    boot_line: Callable[[], str]
    ports: Callable[[], Mapping[str, Any]]
    adopt: Callable[[Any], list[str] | None] | None = None


class Daemon(Service):
    """Runs the service that `make` returns for the settings of `options`."""

    def __init__(
        self,
        options: DaemonOptions,
        make: Callable[[Any], Served],
        say: Callable[[str], None],
        set_level: Callable[[LogLevel], None] = lambda level: None,
    ) -> None:
        self._options = options
        self._settings = options.settings
        self._make = make
        self._say = say
        self._set_level = set_level
        self._served: Served | None = None
        path = options["ports-file"]
        self._ports_file = WrittenFile(path) if path is not None else None

    def startService(self) -> Deferred[None]:
        """Fires when the service is up. Fails with StartFailed, with everything undone."""
        super().startService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        for warning in self._options.warnings:
            log.warn("{warning}", warning=warning)
        raise_file_limit()
        relax_collector()
        keep_freed_memory()
        try:
            self._served = served = self._make(self._settings)
            await maybeDeferred(served.service.startService)
            await served.ready()
            if not self.running:
                return
            if self._ports_file is not None:
                self._ports_file.write(json.dumps(served.ports()) + "\n")
        except Exception as error:
            if not self.running:  # it was stopped while it started
                return
            # A typed error is the user's to fix; another is a bug, and keeps its traceback.
            await self.stopService()
            if not isinstance(error, MQError | OSError | CannotListenError):
                raise
            raise StartFailed(why_not_started(error)) from error
        if self._options.gives_advice:
            for line in advice(self._settings):
                log.warn("{line}", line=line)
            report_few_files(self._settings.server)
        self._say(served.boot_line())

    def stopService(self) -> Deferred[None]:
        """Fires when all is stopped."""
        super().stopService()  # type: ignore[no-untyped-call]
        served, self._served = self._served, None
        if served is None:
            return maybeDeferred(lambda: None)
        if self._ports_file is not None:
            self._ports_file.remove()
        return maybeDeferred(served.service.stopService)

    def reload(self) -> None:
        """Read the settings again: the log level and other live settings change now; a log line names those that wait
        for a restart."""
        try:
            settings = self._options.load_settings(lambda warning: log.warn("{warning}", warning=warning))
        except SystemExit as error:
            for why in str(error).splitlines():
                log.error("not reloaded: {why}", why=why)
            return
        changed = sorted(set(show_settings(settings)) - set(show_settings(self._settings)))
        later = self._adopt(settings, changed)
        if later is not None:
            self._tell(changed, later)
        self._set_level(settings.log_level)
        if later is not None:
            log.info("reloaded; settings that differ from the start: {n}", n=len(changed))

    def _tell(self, changed: list[str], later: list[str]) -> None:
        for line in changed:
            key = line.partition("=")[0]
            when = "after a restart" if key in later and key != "logLevel" else "now"
            log.info("{setting} takes effect {when}", setting=line, when=when)

    def _adopt(self, settings: Any, changed: list[str]) -> list[str] | None:
        """Apply new settings to the service; returns the keys that wait for a restart, None if that is told already."""
        if self._served is None or self._served.adopt is None:
            return [line.partition("=")[0] for line in changed]
        return self._served.adopt(settings)


def advice(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    """Warnings about settings that are valid, but possibly not intended; one line each."""
    found = []
    if isinstance(settings, BrokerSettings) and not settings.namesrv_addr:
        found.append(
            "no name server is set, so this broker registers nowhere and only who knows its address finds it; "
            "set namesrvAddr, the environment's NAMESRV_ADDR or -n"
        )
    exposed = _exposed(settings)
    return found if exposed is None else [*found, exposed]


def _exposed(settings: BrokerSettings | NamesrvSettings) -> str | None:
    server, tls = settings.server, settings.tls
    is_broker = isinstance(settings, BrokerSettings)
    controlled = isinstance(settings, BrokerSettings) and settings.acl_enable
    encrypted = tls.mode is TlsMode.ENFORCING and not tls.test_mode
    if controlled or encrypted or server.bind_address.startswith(_LOOPBACK):
        return None
    # A name server has no accounts.
    ways = "aclEnable, tls.server.mode" if is_broker else "tls.server.mode with tls.server.need.client.auth"
    can = "read, write and delete" if is_broker else "register brokers and delete routes"
    return (
        f"SERVING {server.bind_address or 'ALL ADDRESSES'} WITHOUT ACCESS CONTROL OR ENCRYPTION: anyone who can "
        "reach port "
        f"{server.listen_port} can {can}; set bindAddress=127.0.0.1, or let only those in who may ({ways})"
    )


class StartFailed(MQError):
    """The daemon cannot start; the text is one line for the user."""


def why_not_started(error: BaseException) -> str:
    """One line with the cause and, if known, the remedy."""
    if isinstance(error, CannotListenError):
        where = f"{error.interface or '*'}:{error.port}"
        why = getattr(error.socketError, "strerror", None) or error.socketError
        hint = _LISTEN_HINTS.get(getattr(error.socketError, "errno", 0), "set another bindAddress or listenPort")
        return f"cannot listen on {where}: {why}; {hint}"
    if isinstance(error, OSError) and error.filename is not None:
        line = f"{error.filename}: {error.strerror}"
        if error.errno in _FORBIDDEN:
            line += (
                f"; this process runs as user {os.geteuid()}: correct the mount or the permissions, or give another "
                "path"
            )
        return line
    return " ".join(str(error).split()) or type(error).__name__


def install_reload_signals(reactor: Any, reload: Callable[[], None], reopen: Callable[[], None] | None) -> None:
    """SIGHUP reloads; SIGUSR1 reopens logs, if `reopen` is given. By default both would end the process."""
    signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reload))
    if reopen is not None:
        signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(reopen))
