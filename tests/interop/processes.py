"""Child processes whose output is waited for: never a sleep, and only what was started here is ever stopped."""

import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqbroker.config.shards import PORT_STEP

# Nothing here takes that long on two busy cores; a test that gets here has failed.
PATIENCE_S = 60.0
_PORTS_FIRST, _PORTS_COUNT = 12_002, 4_000
_counted = itertools.count(secrets.randbelow(_PORTS_COUNT))


Event = dict[str, Any]


class ProcessFailed(AssertionError):
    """A process ended, or did not say what it should in time; the message has its last output."""


class Output:
    """Lines that come from elsewhere, on a thread of their own, and can be waited for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        #: When each of them came, by the monotonic clock.
        self.at: list[float] = []
        self._changed = threading.Condition()
        self._ended = False

    @property
    def ended(self) -> bool:
        """There is no more to come."""
        return self._ended

    def _take(self, line: str) -> None:
        with self._changed:
            self.at.append(time.monotonic())
            self.lines.append(line)
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_until(self, what: str, holds: Callable[[list[str]], bool], patience_s: float = PATIENCE_S) -> None:
        """Return once `holds(lines so far)`. Raises ProcessFailed when the output ends or `patience_s` pass before."""
        with self._changed:
            done = self._changed.wait_for(lambda: holds(self.lines) or self._ended, patience_s)
            if not holds(self.lines):
                why = "ended" if done else f"ran {patience_s:g} s"
                raise ProcessFailed(f"{self.name} {why} without: {what}\n{self.tail()}")

    def wait_line(self, text: str, patience_s: float = PATIENCE_S) -> str:
        """Return the first line that contains `text`, waiting for it."""
        self.wait_until(f"a line with {text!r}", lambda lines: any(text in line for line in lines), patience_s)
        return next(line for line in self.lines if text in line)

    def tail(self, count: int = 40) -> str:
        """The last lines, cut to a readable width, for a report."""
        return "\n".join(line[:240] for line in [f"--- {self.name}: stdout", *self.lines[-count:]])


class EventOutput(Output):
    """Some lines are JSON objects, each with its kind under "event"."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._events: list[Event] = []

    def events(self, kind: str) -> list[Event]:
        """What it printed of that kind so far."""
        self._events += map(_event, self.lines[len(self._events) :])
        return [event for event in self._events if event.get("event") == kind]

    def wait_events(self, kind: str, count: int = 1, patience_s: float = PATIENCE_S) -> list[Event]:
        """Wait until `count` of that kind were printed; returns all of them."""
        self.wait_until(f"{count} times {kind!r}", lambda _: len(self.events(kind)) >= count, patience_s)
        return self.events(kind)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status."""
        raise NotImplementedError

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for its end; it must end well."""
        if (status := self.wait(patience_s)) != 0:
            raise ProcessFailed(f"{self.name} ended with {status}\n{self.tail()}")


def _event(line: str) -> Event:
    event: Event = json.loads(line) if line.startswith("{") else {}
    return event


class Process(Output):
    """One child. Its standard output is kept line by line, its standard error in a file below `scratch`."""

    def __init__(self, name: str, command: Sequence[str], scratch: Path, env: dict[str, str] | None = None) -> None:
        super().__init__(name)
        self._stderr_path = scratch / f"{name}.stderr"
        with self._stderr_path.open("ab") as stderr:
            # There are those of its former lives.
            self._stderr_begin = stderr.tell()
            self._last_errors: str | None = None
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=scratch,
                env={**os.environ, **(env or {})},
            )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._take(line.decode("utf-8", "replace").rstrip("\n"))
        self._end()

    @property
    def errors(self) -> str:
        """What it has written to its standard error; also where its directory went with a test that passed."""
        if self._last_errors is not None:
            return self._last_errors
        with self._stderr_path.open("rb") as file:
            file.seek(self._stderr_begin)
            return file.read().decode("utf-8", "replace")

    def write_line(self, line: str) -> None:
        """Hand a line to its standard input."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def close_stdin(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status."""
        try:
            status = self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{self.name} did not end within {patience_s:g} s\n{self.tail()}") from None
        self._close()
        return status

    def begin_stop(self) -> None:
        """Ask it to stop (SIGTERM)."""
        if self.running:
            self._popen.terminate()

    def stop(self, patience_s: float = 30.0) -> int:
        """Ask it to stop (SIGTERM) and wait; returns the exit status. Kills it, and raises, when it does not."""
        self.begin_stop()
        try:
            return self.wait(patience_s)
        except ProcessFailed:
            self.kill()
            raise

    def suspend(self) -> None:
        """SIGSTOP: it does nothing any more, and its connections stay open."""
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `suspend`."""
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        if self.running:
            self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        self._last_errors = self.errors
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()

    def tail(self, count: int = 40) -> str:
        """The last lines of both outputs, cut to a readable width, for a report."""
        stderr = self.errors.splitlines()[-count:]
        lines = [super().tail(count), f"--- {self.name}: stderr", *(line[:240] for line in stderr)]
        return "\n".join(lines)


class EventProcess(Process, EventOutput):
    """A child that prints events: for a peer that needs a JVM of its own."""


def eventually(what: str, holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Ask `holds()` again and again until it gives something true, and return that: for what no process announces."""
    end = time.monotonic() + patience_s
    pause = threading.Event()
    while not (found := holds()):
        if time.monotonic() > end:
            raise ProcessFailed(f"not within {patience_s:g} s: {what}")
        pause.wait(0.05)
    return found


def free_ports(shards: int = 1) -> int:
    """A port p with p - 2, p and p + 1 free: the Java broker takes all three (VIP channel, main, replication). Of a
    broker with several shards also those of the others, ten, twenty ... higher.

    They are below those that Linux gives to connections, so that none takes one of them before a daemon does, or while
    it is being restarted; and processes that look for some begin at different ones.
    """
    for _ in range(1000):
        port = _PORTS_FIRST + 4 * (next(_counted) % _PORTS_COUNT)
        mains = [port + PORT_STEP * shard for shard in range(shards)]
        if all(_is_free(p) for main in mains for p in (main - 2, main, main + 1)):
            for _ in range(PORT_STEP * (shards - 1) // 4 + 1 if shards > 1 else 0):
                next(_counted)  # those up to the last are taken
            return port
    raise ProcessFailed("no three free ports found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            # The Java daemons listen on every address, so it must be free on all.
            probe.bind(("", port))
        except OSError:
            return False
    return True
