"""The name server as a daemon: `mqnamesrv`, and `twistd namesrv`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from twisted.application.service import IService
from twisted.internet.defer import succeed

from mqbroker.config import NamesrvSettings, load_namesrv_settings
from mqbroker.daemons.daemon import Served
from mqbroker.daemons.options import ConsoleOptions
from mqbroker.daemons.plugin import TwistdOptions, make_twistd_service
from mqbroker.daemons.process import files_for_connections

BOOT_LINE = "The Name Server boot success. serializeType=JSON"


class Options(TwistdOptions):
    """What twistd namesrv takes."""

    name = "namesrv"
    synopsis = "[options]"
    load = staticmethod(load_namesrv_settings)


class NamesrvConsoleOptions(ConsoleOptions):
    """What mqnamesrv takes."""

    synopsis = "Usage: mqnamesrv [options]"
    load = staticmethod(load_namesrv_settings)


def serve(settings: NamesrvSettings, reactor: Any) -> Served:
    """Make the name server's service."""
    # Imported late, so that a wrong setting is reported before the imports.
    import time

    from mqbroker.namesrv.namesrv_service import make_namesrv

    steady = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    namesrv = make_namesrv(settings, reactor, files_max=files_for_connections(), steady=steady)

    return Served(namesrv, lambda: succeed(None), lambda: BOOT_LINE, lambda: namesrv.ports, namesrv.adopt)


def makeService(options: Options) -> IService:
    """For twistd."""
    return make_twistd_service(options, serve)


def main(argv: list[str] | None = None) -> None:
    """The console script."""
    from mqbroker.daemons.console import run_console

    sys.exit(run_console("mqnamesrv", NamesrvConsoleOptions(), serve, argv))


if __name__ == "__main__":
    main()
