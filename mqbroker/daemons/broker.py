"""The broker as a daemon: `mqbroker`, and `twistd mqbroker`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from twisted.logger import Logger

from mqbroker.config import BrokerSettings, load_broker_settings
from mqbroker.daemons.daemon import Served
from mqbroker.daemons.options import ConsoleOptions, DaemonOptions
from mqbroker.daemons.plugin import TwistdOptions, make_twistd_service
from mqbroker.daemons.process import files_for_connections
from mqbroker.daemons.shard_stores import check_shard_stores
from mqbroker.wire.names import join_address

if TYPE_CHECKING:
    from mqbroker.broker.sibling_topics import SiblingTopics

log = Logger()


class _Namesrv:
    """The option -n of the broker, as the Java system has it."""

    overrides: list[tuple[str, str]]

    def opt_namesrvAddr(self, addresses: str) -> None:
        """Name servers, such as '192.168.0.1:9876;192.168.0.2:9876'"""
        self.overrides.append(("namesrvAddr", addresses))

    opt_n = opt_namesrvAddr


class Options(_Namesrv, TwistdOptions):
    """What twistd mqbroker takes."""

    name = "mqbroker"
    synopsis = "[options]"
    load = staticmethod(load_broker_settings)


class BrokerConsoleOptions(_Namesrv, ConsoleOptions):
    """What mqbroker takes."""

    synopsis = "Usage: mqbroker [options]"
    load = staticmethod(load_broker_settings)


def serve(options: DaemonOptions, settings: BrokerSettings, reactor: Any) -> Served:
    """Make the service of a broker or, if there are several shards, of the processes that run them. Raises MQError."""
    for warning in check_shard_stores(settings):
        log.warn("{warning}", warning=warning)
    if settings.shards == 1:
        return serve_broker(settings, reactor)
    from mqbroker.daemons.shard_process import serve_shards

    return serve_shards(options, settings, reactor)


def serve_broker(settings: BrokerSettings, reactor: Any, siblings: SiblingTopics | None = None) -> Served:
    """Make the broker's service. `siblings` are those of a shard."""
    # Imported late, so that a wrong setting is reported before the imports.
    import time
    from random import SystemRandom

    from mqbroker.broker.broker_service import make_broker

    steady = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    broker = make_broker(settings, reactor, SystemRandom(), files_for_connections(), steady)
    broker.siblings = siblings

    def boot_line() -> str:
        address = join_address(settings.broker_ip1, broker.port)
        line = f"The broker[{settings.broker_name}, {address}] boot success. serializeType=JSON"
        servers = ";".join(settings.namesrv_addr)
        return f"{line} and name server is {servers}" if servers else line

    return Served(broker, lambda: broker.started, boot_line, lambda: broker.ports, broker.adopt)


def makeService(options: Options) -> IService:
    """For twistd."""
    return make_twistd_service(options, partial(serve, options))


def main(argv: list[str] | None = None) -> None:
    """The console script."""
    from mqbroker.daemons.console import run_console

    options = BrokerConsoleOptions()
    sys.exit(run_console("mqbroker", options, partial(serve, options), argv))


if __name__ == "__main__":
    main()
