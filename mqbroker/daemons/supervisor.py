"""Runs a broker's shards, one process each: starts all at once, restarts one that exits, and stops all.

A shard has two pipes. The one to it is closed to stop it, which also happens when the supervisor is killed. On the
other it reports that it serves, or why not, and the topics that sends created, which are passed on to the other shards.
How a process is started is in shard_process.py; no store or port is opened here.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall, IProcessTransport, IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.daemons.logs import relay_line
from mqbroker.errors import MQError

log = Logger()

#: The ends of the pipes in a shard's process.
END_FD, STATUS_FD = 3, 4
#: Delay before a shard that died is restarted, seconds: doubled from the first value to the second, and the first again
#: after the shard has served for the third.
WAIT_SECONDS, WAIT_SECONDS_MAX, SERVED_SECONDS = 1.0, 30.0, 60.0
#: A shard that has not stopped by then is killed: before systemd loses patience with all of them, after 90 s.
STOP_SECONDS_MAX = 80.0
#: Maximum number of topics that wait to be passed on to a shard, which serves no messages meanwhile.
UNTOLD_MAX = 10_000
#: Output without the end of a line is passed on in pieces of this size.
PIECE_BYTES = 64 * 1024

Spawn = Callable[[ProcessProtocol, int], IProcessTransport]


class _Process(ProcessProtocol):
    """One process of a shard: its lines go to our log, its status to `on_status`, its end to `on_end`."""

    transport: Any

    def __init__(
        self, shard: int, on_status: Callable[[dict[str, Any]], None], on_end: Callable[[Failure], None]
    ) -> None:
        self._shard = shard
        self._on_status = on_status
        self._on_end = on_end
        self._rests: dict[int, bytes] = {}

    def childDataReceived(self, childFD: int, data: bytes) -> None:  # noqa: N802, N803
        *lines, rest = (self._rests.get(childFD, b"") + data).split(b"\n")
        if len(rest) >= PIECE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rests[childFD] = rest
        for line in lines:
            self._take(childFD, line)

    def processEnded(self, reason: Failure) -> None:  # noqa: N802
        for fd, rest in self._rests.items():
            if rest:
                self._take(fd, rest)
        self._on_end(reason)

    def _take(self, fd: int, line: bytes) -> None:
        if fd == STATUS_FD:
            try:
                self._on_status(json.loads(line))
            except Exception:  # the reactor would close the pipe
                log.failure("a report of shard {shard} is ignored", shard=self._shard)
        else:
            relay_line(self._shard, line.decode(errors="backslashreplace"))


@attrs.define(eq=False)
class _Shard:
    """A shard, with the process that serves it, if there is one."""

    number: int
    process: _Process | None = None
    #: What its process says when it serves: the line that a broker prints then, and its ports.
    status: dict[str, Any] | None = None
    #: Why its process said that it cannot start.
    why_not: str = ""
    #: Topics of other shards that were not passed on to it yet, by name.
    untold: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    serves_since: float = 0.0
    wait: float = WAIT_SECONDS
    start: IDelayedCall | None = None
    kill: IDelayedCall | None = None


class ShardSupervisor(Service):
    """The shards of a broker. `started` fires when all serve; it fails with MQError if one cannot start.

    :param spawn: starts the process of a shard, and reports its output and end to the given protocol.
    """

    def __init__(self, count: int, spawn: Spawn, clock: IReactorTime) -> None:
        self.started: Deferred[None] = Deferred()
        self._shards = [_Shard(number) for number in range(count)]
        self._spawn = spawn
        self._clock = clock
        #: Whether all have served: from then on one that dies is started again.
        self._is_up = False
        self._stopped: Deferred[None] | None = None

    @property
    def boot_lines(self) -> str:
        """The lines of all shards, once they serve."""
        return "\n".join(shard.status["boot_line"] for shard in self._shards if shard.status is not None)

    @property
    def ports(self) -> dict[str, Any]:
        """The ports of the first shard, and those of each under `shards`."""
        ports = [shard.status["ports"] for shard in self._shards if shard.status is not None]
        return {**(ports[0] if ports else {}), "shards": ports}

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        for shard in self._shards:
            self._begin(shard)

    def reload(self) -> None:
        """Have the shards that serve read the settings again; the others do when they start."""
        for shard in self._shards:
            if shard.process is not None and shard.status is not None:
                with contextlib.suppress(ProcessExitedAlready):  # it is started again
                    shard.process.transport.signalProcess("HUP")

    def stopService(self) -> Deferred[None]:
        """Stop all shards. Fires when all have ended; those that take too long are killed."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._stopped is None:
            self._stopped = Deferred()
            for shard in self._shards:
                self._end(shard)
            self._look_for_end()
        if self._stopped.called:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._stopped.addCallback(lambda _: done.callback(None))
        return done

    def _begin(self, shard: _Shard) -> None:
        shard.start, shard.why_not = None, ""
        process = shard.process = _Process(
            shard.number,
            lambda status: self._told(shard, status),
            lambda reason: self._ended(shard, reason) if shard.process is process else None,
        )
        try:
            transport = self._spawn(process, shard.number)
        except Exception as error:
            shard.process = None
            if not self._is_up:
                raise
            if not isinstance(error, OSError):
                log.failure("unexpected error in starting the process of shard {shard}", shard=shard.number)
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._plan(shard, f"no process can be started: {why}")
            return
        log.info("shard {shard} runs as process {pid}", shard=shard.number, pid=transport.pid)

    def _told(self, shard: _Shard, status: dict[str, Any]) -> None:
        if "why_not" in status:
            shard.why_not = status["why_not"]
            return
        if "topic" in status:
            self._share(shard, status)
            return
        shard.status = status
        shard.serves_since = self._clock.seconds()
        self._tell_topics(shard)
        if self._is_up:
            log.info("shard {shard} serves again", shard=shard.number)
        elif self.running and all(each.status is not None for each in self._shards):
            self._is_up = True
            self.started.callback(None)

    def _share(self, source: _Shard, line: dict[str, Any]) -> None:
        """Pass a topic on to the other shards; to those that do not serve yet, later."""
        for shard in self._shards:
            if shard is not source and len(shard.untold) < UNTOLD_MAX:
                shard.untold[line["topic"]["topicName"]] = line
                self._tell_topics(shard)

    def _tell_topics(self, shard: _Shard) -> None:
        if self._stopped is not None or shard.process is None or shard.status is None:
            return
        for name, line in list(shard.untold.items()):
            try:
                shard.process.transport.writeToChild(END_FD, json.dumps(line).encode() + b"\n")
            except KeyError:  # the pipe is closed, and the process about to end: the next one is told
                return
            del shard.untold[name]

    def _ended(self, shard: _Shard, reason: Failure) -> None:
        shard.process = None
        served, shard.status = shard.status is not None, None
        how = shard.why_not or _how(reason)
        if self._stopped is not None:
            self._stopped_one(shard, reason, how)
        elif self._is_up:
            if served and self._clock.seconds() - shard.serves_since >= SERVED_SECONDS:
                shard.wait = WAIT_SECONDS
            self._plan(shard, how)
        elif not self.started.called:
            why = how if shard.why_not else f"{how} while it started: see its lines in the log"
            # The caller that waits for `started` stops the other shards.
            self.started.errback(MQError(f"shard {shard.number}: {why}"))

    def _plan(self, shard: _Shard, how: str) -> None:
        log.error(
            "shard {shard} exited: {how}; restarting it in {wait:.0f} s",
            shard=shard.number,
            how=how,
            wait=shard.wait,
        )
        shard.start = self._clock.callLater(shard.wait, self._begin, shard)
        shard.wait = min(2 * shard.wait, WAIT_SECONDS_MAX)

    def _end(self, shard: _Shard) -> None:
        if shard.start is not None:
            shard.start.cancel()
            shard.start = None
        if shard.process is not None:
            shard.process.transport.closeChildFD(END_FD)
            shard.kill = self._clock.callLater(STOP_SECONDS_MAX, self._kill, shard)

    def _kill(self, shard: _Shard) -> None:
        shard.kill = None
        if shard.process is not None:
            what = "shard {shard} did not stop within {seconds:.0f} s and is killed"
            log.error(what, shard=shard.number, seconds=STOP_SECONDS_MAX)
            with contextlib.suppress(ProcessExitedAlready):
                shard.process.transport.signalProcess("KILL")

    def _stopped_one(self, shard: _Shard, reason: Failure, how: str) -> None:
        if shard.kill is not None:
            shard.kill.cancel()
            shard.kill = None
        if isinstance(reason.value, ProcessTerminated) and self._is_up:
            log.error("shard {shard} did not stop cleanly: {how}", shard=shard.number, how=how)
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self._stopped is not None and all(shard.process is None for shard in self._shards):
            self._stopped.callback(None)


def _how(reason: Failure) -> str:
    """How a process ended."""
    error: Any = reason.value
    if error.signal is not None:
        names = {each.value: each.name for each in signal.Signals}
        return f"it was killed by {names.get(error.signal, f'signal {error.signal}')}"
    return f"it ended with exit code {error.exitCode}"
