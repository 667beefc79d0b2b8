"""What systemd does with a broker by the unit of docs/howto/systemd.rst: one that says nothing any more is killed, and
one that ended is started again."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from tests.interop.processes import Process

#: WatchdogSec and RestartSec.
WATCHDOG_S, RESTART_S = 5.0, 2.0


class Systemd:
    """That of one broker; who uses it starts the broker again."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        self._heard_at = 0.0
        self._thread = threading.Thread(target=self._listen, name=path.name, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while message := self._socket.recv(100):
            if message in (b"READY=1", b"WATCHDOG=1"):
                self._heard_at = time.monotonic()

    def is_over(self, process: Process) -> bool:
        """Whether the process ended; it is killed if it has said nothing for too long."""
        if process.running and self._heard_at and time.monotonic() > self._heard_at + WATCHDOG_S:
            process.kill()
        return not process.running

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()
