"""The process of one shard, as its supervisor starts it: `python -m mqbroker.daemons.shard --shard=1 -c FILE`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet import fdesc
from twisted.internet.abstract import FileDescriptor
from twisted.internet.error import ConnectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.config import BrokerSettings
from mqbroker.config.shards import shard_settings
from mqbroker.daemons.broker import BrokerConsoleOptions, serve_broker
from mqbroker.daemons.console import Front, run_console
from mqbroker.daemons.daemon import Served
from mqbroker.daemons.supervisor import END_FD, STATUS_FD

if TYPE_CHECKING:
    from mqbroker.broker.sibling_topics import SiblingTopics
    from mqbroker.wire.bodies import TopicConfig

log = Logger()


class ShardOptions(BrokerConsoleOptions):
    """What a shard's process takes. Warnings and advice about the settings are its supervisor's."""

    optParameters: list[list[Any]] = [["shard", None, 0, "Which of the broker's shards this is", int]]
    gives_advice = False

    def load_settings(self, warn: Callable[[str], None]) -> BrokerSettings:
        settings = super().load_settings(lambda warning: None)
        return shard_settings(settings, self["shard"])


class SupervisorFront(Front):
    """The supervisor, as a shard sees it: two pipes. When the one from it is closed, the shard stops.

    Each line on either pipe is a JSON object. One with `topic` is a topic that a shard created for its first message;
    the supervisor passes it on to the other shards.
    """

    def __init__(self) -> None:
        # Imported late, so that a wrong setting is reported before the imports.
        from mqbroker.broker.sibling_topics import SiblingTopics

        self.siblings = SiblingTopics(self._tell_topic)

    def _tell_topic(self, topic: TopicConfig) -> None:
        os.set_blocking(STATUS_FD, False)  # a short line is written at once, or not at all
        try:
            self.say(json.dumps({"topic": topic.to_value()}))
        except BlockingIOError:
            log.warn(
                "the supervisor does not respond: topic {topic} is created on this shard only; create it on all "
                "shards with mqadmin updateTopic -c",
                topic=topic.topic_name,
            )

    def _told(self, line: bytes) -> None:
        from mqbroker.wire.bodies import TopicConfig

        self.siblings.told(TopicConfig.from_value(json.loads(line)["topic"]))

    def say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed, and its shards stop
            os.write(STATUS_FD, text.encode() + b"\n")

    def refuse(self, program: str, why: str) -> None:
        self.say(json.dumps({"why_not": "; ".join(why.splitlines())}))

    def stop_when_told(self, reactor: Any, stop: Callable[[str], None]) -> None:
        self._stop_by_signal(reactor, stop, signal.SIGTERM)
        reactor.addReader(_Lines(END_FD, reactor, self._told, lambda: stop("the supervisor")))


class _Lines(FileDescriptor):
    """A pipe that is read: `on_line` is called with each line, `on_end` when it ends."""

    def __init__(self, fd: int, reactor: Any, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        super().__init__(reactor)
        self._fd = fd
        self._on_line = on_line
        self._on_end = on_end
        self._rest = b""
        fdesc.setNonBlocking(fd)  # type: ignore[no-untyped-call]

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> Any:  # noqa: N802
        return fdesc.readFromFD(self._fd, self._received)  # type: ignore[no-untyped-call]

    def _received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line)

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        if reason.check(ConnectionDone):  # type: ignore[no-untyped-call]  # else the reactor stops
            self._on_end()


def serve_shard(settings: BrokerSettings, reactor: Any, siblings: SiblingTopics) -> Served:
    """Make the service of a shard; the line that says that it serves is its status."""
    served = serve_broker(settings, reactor, siblings)

    def status() -> str:
        return json.dumps({"boot_line": served.boot_line(), "ports": served.ports()})

    return attrs.evolve(served, boot_line=status)


def main() -> None:
    """Run one shard, with the supervisor's pipes."""
    # Ctrl-C in a terminal signals all its processes, and the supervisor stops each shard.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    front = SupervisorFront()
    sys.exit(run_console("mqbroker", ShardOptions(), partial(serve_shard, siblings=front.siblings), front=front))


if __name__ == "__main__":
    main()
