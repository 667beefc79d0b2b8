"""Starts the process of a shard: the command, its environment and its pipes; the broker's service where there are
several shards."""

from __future__ import annotations

import os
import signal
from typing import Any

from twisted.internet.interfaces import IProcessTransport
from twisted.internet.process import reapAllProcesses
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from mqbroker.config import BrokerSettings
from mqbroker.daemons.daemon import Served
from mqbroker.daemons.options import DaemonOptions
from mqbroker.daemons.process import import_path, python_command
from mqbroker.daemons.shard_tables import begin_new_stores
from mqbroker.daemons.supervisor import END_FD, STATUS_FD, ShardSupervisor, Spawn

log = Logger()

SHARD_MODULE = "mqbroker.daemons.shard"


def serve_shards(options: DaemonOptions, settings: BrokerSettings, reactor: Any) -> Served:
    """Make the service that runs the shards of `settings`, which `options` led to. Raises OSError."""
    for shard in begin_new_stores(settings):
        log.info("shard {shard} is new: it starts with the topics and groups of shard 0", shard=shard)
    supervisor = ShardSupervisor(settings.shards, _spawner(options, settings.shards, reactor), reactor)
    # The console scripts run their reactor without Twisted's handlers of signals.
    signal.signal(signal.SIGCHLD, lambda *_: reactor.callFromThread(reapAllProcesses))

    def adopt(read: BrokerSettings) -> None:
        if read.shards != settings.shards:
            log.info("shards={n} takes effect after a restart", n=read.shards)
        supervisor.reload()

    return Served(
        supervisor, lambda: supervisor.started, lambda: supervisor.boot_lines, lambda: supervisor.ports, adopt
    )


def shard_command(options: DaemonOptions, count: int, shard: int) -> list[str]:
    """The command of one of `count` shards: with the same settings, and lines as its supervisor's log has them."""
    command = python_command(SHARD_MODULE, f"--shard={shard}", f"--log-format={options['log-format']}")
    if options.log_level is not None:
        command.append(f"--log-level={options.log_level}")
    if options["config"] is not None:
        command += ["-c", options["config"]]
    # The file may say another number meanwhile, for the next start.
    for key, value in [*options.overrides, ("shards", str(count))]:
        command += ["-o", f"{key}={value}"]
    return command


def _spawner(options: DaemonOptions, count: int, reactor: Any) -> Spawn:
    def spawn(protocol: ProcessProtocol, shard: int) -> IProcessTransport:
        command = shard_command(options, count, shard)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            transport: IProcessTransport = reactor.spawnProcess(
                protocol,
                command[0],
                command,
                env={**os.environ, "PYTHONPATH": import_path(os.environ)},
                path=options.directory,
                childFDs={0: nothing, 1: "r", 2: "r", END_FD: "w", STATUS_FD: "r"},
            )
        finally:
            os.close(nothing)
        return transport

    return spawn
