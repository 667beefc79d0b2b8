"""Tells the service manager that started a daemon that it serves, and then again and again that it still does, as
systemd wants it: see sd_notify(3)."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mqbroker.repeated_call import RepeatedCall

log = Logger()

#: Delay before a notification that could not be sent is repeated, seconds.
AGAIN_SECONDS = 0.1


class ServiceManager:
    """Without a service manager in the environment, notifications are dropped.

    :param environ: of the process; the variables for it are taken out, as they are not meant for its children.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int, clock: IReactorTime) -> None:
        path, time_us = environ.pop("NOTIFY_SOCKET", ""), environ.pop("WATCHDOG_USEC", "")
        is_watched = environ.pop("WATCHDOG_PID", str(pid)) == str(pid) and time_us.isdecimal()
        self._path = path
        #: Half of the time after which a daemon that says nothing is killed; 0 if it is not watched.
        self._alive_seconds = int(time_us) / 2e6 if is_watched else 0.0
        self._is_ready = self._has_failed = False
        self._loop = RepeatedCall(self._tell, clock=clock)

    def ready(self) -> None:
        """Tell that the daemon serves, and until it is stopped that it still does."""
        if self._path:
            self._loop.start(AGAIN_SECONDS)

    def stopping(self) -> None:
        """Tell that the daemon stops."""
        if self._loop.running:
            self._loop.stop()
        if self._path:
            self._send(b"STOPPING=1")

    def _tell(self) -> None:
        self._is_ready = self._is_ready or self._send(b"READY=1")
        if self._is_ready and self._alive_seconds:
            self._loop.interval = self._alive_seconds
            self._send(b"WATCHDOG=1")
        elif self._is_ready:
            self._loop.stop()

    def _send(self, message: bytes) -> bool:
        """Returns whether it was sent."""
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message, address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._has_failed:
                log.warn("the service manager at {path} cannot be notified: {why}", path=self._path, why=str(error))
            self._has_failed = True
            return False
        self._has_failed = False
        return True
