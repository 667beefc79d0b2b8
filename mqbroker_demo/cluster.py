"""A name server and two brokers as processes, on free loopback ports; each process started here is ended here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mqbroker.daemons.process import import_path, python_command
from mqbroker.errors import MQError

#: What would change the daemons' settings: the demo's are its own.
_SETTINGS = ("ROCKETMQ_", "NAMESRV_ADDR")


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without settings, and with this package where Python looks first."""
    found = {key: value for key, value in environ.items() if not key.startswith(_SETTINGS)}
    return {**found, "PYTHONPATH": import_path(environ)}


def spawn(
    command: Sequence[str], log_path: Path, environ: Mapping[str, str], *, piped: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that leads a session and a group of its own: Ctrl-C is for us alone, and we end it in order.

    Its errors, and its output where it is not `piped`, are added to the log.
    """
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )


BROKERS = ("broker-a", "broker-b")
NAMESRV = "namesrv"

START_PATIENCE_S = 30.0
STOP_PATIENCE_S = 10.0
_POLL_S = 0.02

_LOOPBACK = {"bindAddress": "127.0.0.1"}
_SMALL_FILES = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
}


class DaemonFailed(MQError):
    """A daemon ended, or was not ready in time."""


class Daemon:
    """One daemon: its settings, log and process. Started again, it takes the port it had."""

    def __init__(self, name: str, module: str, directory: Path, settings: Mapping[str, object]) -> None:
        self.name = name
        self.port = 0
        self.log = directory / f"{name}.log"
        self._module = module
        self._conf = directory / f"{name}.conf"
        self._ports = directory / f"{name}.ports"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self) -> None:
        """Return when it serves. Raises DaemonFailed."""
        settings = {**self._settings, "listenPort": self.port}
        self._conf.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in settings.items()))
        # One that was killed could not take its file away.
        self._ports.unlink(missing_ok=True)
        command = python_command(self._module, "-c", str(self._conf), "--ports-file", str(self._ports))
        self._process = process = spawn(command, self.log, child_environ(os.environ))
        await wait_until(lambda: self._ports.exists() or process.poll() is not None, START_PATIENCE_S)
        if process.poll() is not None:
            raise DaemonFailed(f"{self.name} ended with {process.returncode} at its start: {self._last_line()}")
        if not self._ports.exists():
            raise DaemonFailed(f"{self.name} was not ready in {START_PATIENCE_S:g} s; its log is {self.log}")
        self.port = json.loads(self._ports.read_text())["remoting"]

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def signal(self, number: int) -> None:
        """Send a signal, where it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told. Returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, and make it, where it does not."""
        self.signal(signal.SIGTERM)
        await wait_until(lambda: self.pid is None, STOP_PATIENCE_S)
        self.kill()


async def wait_until(holds: Callable[[], bool], patience_s: float) -> bool:
    """Wait for what no process announces; return whether it came to hold within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    return holds()


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\")


class Cluster:
    """The three daemons, with all their files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        kv = directory / "namesrv" / "kvConfig.json"
        self.namesrv = Daemon(NAMESRV, "mqbroker.daemons.namesrv", directory, {**_LOOPBACK, "kvConfigPath": kv})
        self.brokers: dict[str, Daemon] = {}

    async def start(self) -> None:
        """Return when all serve and the brokers are registered. Raises DaemonFailed."""
        await self.namesrv.start()
        for name in BROKERS:
            settings = {
                "brokerClusterName": "demo",
                "brokerName": name,
                "brokerIP1": "127.0.0.1",
                "namesrvAddr": self.namesrv.address,
                "storePathRootDir": self._directory / name,
                "diskMaxUsedSpaceRatio": 95,
                **_LOOPBACK,
                **_SMALL_FILES,
            }
            self.brokers[name] = Daemon(name, "mqbroker.daemons.broker", self._directory, settings)
        await asyncio.gather(*(broker.start() for broker in self.brokers.values()))

    async def stop(self) -> None:
        """Brokers first, so that they can say goodbye to the name server."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        await self.namesrv.stop()

    def kill(self) -> None:
        """End at once whatever still runs."""
        for daemon in (*self.brokers.values(), self.namesrv):
            daemon.kill()


def end_group(process: subprocess.Popen[bytes], patience_s: float = STOP_PATIENCE_S) -> None:
    """End a process that leads a group of its own, and the group with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s if number == signal.SIGTERM else None)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _close(pipe for pipe in (process.stdin, process.stdout) if pipe is not None)


def _close(pipes: Iterable[object]) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[attr-defined]
