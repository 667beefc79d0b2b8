"""The process of one shard, as its supervisor starts it: `python -m mqbroker.daemons.shard --shard=1 -c FILE`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet import fdesc
from twisted.internet.abstract import FileDescriptor
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from mqbroker.config import BrokerSettings
from mqbroker.config.shards import shard_settings
from mqbroker.daemons.broker import BrokerConsoleOptions, serve_broker
from mqbroker.daemons.console import Front, run_console
from mqbroker.daemons.daemon import Served
from mqbroker.daemons.supervisor import END_FD, STATUS_FD


class ShardOptions(BrokerConsoleOptions):
    """What a shard's process takes. Warnings and advice about the settings are its supervisor's."""

    optParameters: list[list[Any]] = [["shard", None, 0, "Which of the broker's shards this is", int]]
    gives_advice = False

    def load_settings(self, warn: Callable[[str], None]) -> BrokerSettings:
        settings = super().load_settings(lambda warning: None)
        return shard_settings(settings, self["shard"])


class SupervisorFront(Front):
    """The supervisor, as a shard sees it: two pipes. When the one from it ends, the shard stops."""

    def say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed, and its shards stop
            os.write(STATUS_FD, text.encode() + b"\n")

    def refuse(self, program: str, why: str) -> None:
        self.say(json.dumps({"why_not": "; ".join(why.splitlines())}))

    def stop_when_told(self, reactor: Any, stop: Callable[[str], None]) -> None:
        self._stop_by_signal(reactor, stop, signal.SIGTERM)
        reactor.addReader(_End(END_FD, reactor, lambda: stop("the supervisor")))


class _End(FileDescriptor):
    """A pipe to which nothing is written; `on_end` is called when it ends."""

    def __init__(self, fd: int, reactor: Any, on_end: Callable[[], None]) -> None:
        super().__init__(reactor)
        self._fd = fd
        self._on_end = on_end
        fdesc.setNonBlocking(fd)  # type: ignore[no-untyped-call]

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> Any:  # noqa: N802
        return fdesc.readFromFD(self._fd, lambda data: None)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        if reason.check(ConnectionDone):  # type: ignore[no-untyped-call]  # else the reactor stops
            self._on_end()


def serve_shard(settings: BrokerSettings, reactor: Any) -> Served:
    """Make the service of a shard; the line that says that it serves is its status."""
    served = serve_broker(settings, reactor)

    def status() -> str:
        return json.dumps({"boot_line": served.boot_line(), "ports": served.ports()})

    return attrs.evolve(served, boot_line=status)


def main() -> None:
    """Run one shard, with the supervisor's pipes."""
    # Ctrl-C in a terminal goes to all its processes, and the supervisor tells each shard.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(run_console("mqbroker", ShardOptions(), serve_shard, front=SupervisorFront()))


if __name__ == "__main__":
    main()
