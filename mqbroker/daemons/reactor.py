"""The reactor of the daemons."""

from __future__ import annotations

from twisted.internet.error import ReactorAlreadyInstalledError
from twisted.internet.main import installReactor


def install_reactor() -> None:
    """Install our own, where this system has epoll and no reactor is installed yet."""
    try:
        from mqbroker.daemons.epoll import PlainEPollReactor
    except ImportError:
        return
    try:
        installReactor(PlainEPollReactor())  # type: ignore[no-untyped-call]
    except ReactorAlreadyInstalledError:
        return
