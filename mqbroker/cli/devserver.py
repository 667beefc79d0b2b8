"""The name server and the broker of `mq dev` on one reactor: settings, start, output, stop."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

import attrs
import click
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger, globalLogBeginner
from twisted.python.failure import Failure as TwistedFailure

from mqbroker.broker.broker_service import make_broker
from mqbroker.cli.failures import Failure
from mqbroker.cli.names import DEFAULT_NAME_SERVER
from mqbroker.config import BrokerSettings, LogLevel, NamesrvSettings, load_broker_settings, load_namesrv_settings
from mqbroker.daemons.logs import LineObserver
from mqbroker.daemons.process import install_reactor
from mqbroker.errors import StoreLocked
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.store.layout import LockedFile, lock_file

log = Logger()

LOOPBACK = "127.0.0.1"

#: Small files: a new directory takes some 75 MiB on disk, not gigabytes, and is preallocated quickly.
SMALL_FILES = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
}


@attrs.frozen
class Place:
    """Ports and directory of `mq dev`. A port of 0 takes a free one; `keeps` is false if the directory is removed at
    the end."""

    directory: Path
    port: int
    broker_port: int
    keeps: bool


def namesrv_settings(place: Place) -> NamesrvSettings:
    """On loopback, with its file in the directory."""
    overrides = {
        "listenPort": place.port,
        "bindAddress": LOOPBACK,
        "kvConfigPath": _below(place, "namesrv", "kvConfig.json"),
        "configStorePath": _below(place, "namesrv", "namesrv.properties"),
    }
    return load_namesrv_settings(overrides=_texts(overrides))


def broker_settings(place: Place, namesrv_port: int) -> BrokerSettings:
    """On loopback, with small files, 4 queues for a new topic, and topics created by the first send."""
    overrides = {
        "brokerName": "dev",
        "brokerClusterName": "dev",
        "brokerIP1": LOOPBACK,
        "listenPort": place.broker_port,
        # Any free port: no slave will connect.
        "haListenPort": 0,
        "bindAddress": LOOPBACK,
        "namesrvAddr": f"{LOOPBACK}:{namesrv_port}",
        "storePathRootDir": _below(place, "store"),
        "defaultTopicQueueNums": 4,
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
        # Retention is not needed here, and a laptop's disk is often more than 75 % full.
        "diskMaxUsedSpaceRatio": 95,
        "diskSpaceCleanForciblyRatio": 99,
        "diskSpaceWarningLevelRatio": 99,
        **SMALL_FILES,
    }
    return load_broker_settings(overrides=_texts(overrides))


def _below(place: Place, *parts: str) -> str:
    return str(place.directory.resolve().joinpath(*parts))


def _texts(overrides: dict[str, object]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in overrides.items()]


def serve_dev(place: Place, began: float) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. `began` is the monotonic time of the command. Raises Failure."""
    lock = lock_directory(place)
    try:
        # Imported late: Twisted installs its default reactor on import if there is none.
        install_reactor()
        from twisted.internet import reactor

        _begin_logging(place)
        run = DevRun(place, reactor, began)
        run.until_stopped()
    finally:
        lock.release()
    if run.failure is not None:
        raise run.failure
    click.echo(f"stopped; the messages stay in {place.directory}" if place.keeps else "stopped")


def lock_directory(place: Place) -> LockedFile:
    """Lock the directory before anything else. Raises Failure if another process has it."""
    try:
        return lock_file(str(place.directory / "lock"))
    except StoreLocked as error:
        found = re.search(r"\d+", error.why)
        holder = f"pid {found[0]}" if found else "another process"
        raise Failure(
            f"{place.directory} is locked by {holder}: `mq dev` runs there already, so just use it. For a second one:"
            " mq dev --data OTHER-DIRECTORY --port 9877 --broker-port 10921"
        ) from error


def _begin_logging(place: Place) -> None:
    observers = [
        LineObserver("text", LogLevel.INFO, path=str(place.directory / "dev.log")),
        LineObserver("text", LogLevel.WARN, sys.stderr),
    ]
    globalLogBeginner.beginLoggingTo(observers, redirectStandardIO=False)


class DevRun:
    """From the reactor's start to its stop. `failure` says why it could not start."""

    def __init__(self, place: Place, reactor: Any, began: float) -> None:
        self.failure: Failure | None = None
        self._place = place
        self._reactor = reactor
        self._began = began
        self._started: list[Service] = []

    def until_stopped(self) -> None:
        self._reactor.callWhenRunning(lambda: Deferred.fromCoroutine(self._start()).addErrback(self._not_started))
        self._reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromCoroutine(self._stop()))
        # Twisted handles INT and TERM; a closed terminal must stop it in order, too.
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self._reactor.stop))
        self._reactor.run()

    async def _start(self) -> None:
        namesrv = make_namesrv(namesrv_settings(self._place), self._reactor, steady=time.monotonic)
        await maybeDeferred(namesrv.startService)
        self._started.append(namesrv)
        port = namesrv.ports["remoting"]
        broker = make_broker(broker_settings(self._place, port), self._reactor, SystemRandom(), steady=time.monotonic)
        await maybeDeferred(broker.startService)
        self._started.append(broker)
        await broker.started
        seconds = time.monotonic() - self._began
        for line in welcome(self._place, port, broker.port, seconds):
            click.echo(line)

    def _not_started(self, reason: TwistedFailure) -> None:
        error = reason.value
        if isinstance(error, CannotListenError):
            self.failure = port_in_use(error.port, self._place)
        elif isinstance(error, Exception):
            self.failure = Failure(f"cannot start: {error}. The log is {self._place.directory / 'dev.log'}")
            log.failure("cannot start", reason)
        if self._reactor.running:
            self._reactor.stop()

    async def _stop(self) -> None:
        for service in reversed(self._started):
            await maybeDeferred(service.stopService)


def port_in_use(port: int, place: Place) -> Failure:
    """The error for one of the ports, with a command that would work."""
    whose, option = ("name server", "--port") if port == place.port else ("broker", "--broker-port")
    return Failure(
        f"port {port} on {LOOPBACK}, for the {whose}, is taken: maybe by another `mq dev`, or by a Java {whose}."
        f" Use that one, stop it, or choose another port: mq dev {option} {port + 1 if port < 65535 else port - 1}"
        f" (`ss -ltnp 'sport = :{port}'` shows who has it)"
    )


def welcome(place: Place, port: int, broker_port: int, seconds: float) -> list[str]:
    """The first output: addresses and directory, and what to type next."""
    address = f"{LOOPBACK}:{port}"
    option = "" if address == DEFAULT_NAME_SERVER else f" -n {address}"
    data = f"{place.directory}{'' if place.keeps else '  (goes away at the end)'}"
    return [
        f"ready in {seconds:.1f} s, process {os.getpid()}",
        f"  name server  {address}",
        f"  broker       {LOOPBACK}:{broker_port}",
        f"  data         {data}",
        f"  log          {place.directory / 'dev.log'}",
        "try in other terminals:",
        f"  mq sub hello -g demo{option}",
        f'  mq pub hello "hi"{option}',
        "Ctrl-C ends it",
    ]
