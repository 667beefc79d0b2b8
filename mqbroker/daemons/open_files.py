"""How many files a daemon may have open: each connection is one, and so is each mapped file of its store."""

from __future__ import annotations

import resource
import sys

from twisted.logger import Logger

from mqbroker.config import NettySettings
from mqbroker.store.os_disk import files_kept

log = Logger()


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files allowed: {hard} instead of {soft}", hard=hard, soft=soft)


def files_for_connections() -> int:
    """How many files may be open while connections are still taken."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - files_kept()


def warn_of_few_files(server: NettySettings) -> None:
    """Say so where there cannot be as many connections as the settings allow."""
    most = files_for_connections()
    if server.connections_max > most:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        log.warn(
            "connectionsMax={wanted} cannot be reached: {allowed} files may be open, of which {kept} are kept for what "
            "is no connection; raise the limit of open files (ulimit -Hn, LimitNOFILE) or lower connectionsMax",
            wanted=server.connections_max,
            allowed=allowed,
            kept=allowed - most,
        )
