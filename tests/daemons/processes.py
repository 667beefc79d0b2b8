"""Real daemons in processes of their own, on free ports, in directories of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqbroker
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.commands import decode_frame
from tests.daemons.forks import ForkServer

DEADLINE_SECONDS = 30
#: For a whole demo, or where a JVM is started, which alone may take a third of that on a busy machine.
PATIENCE_SECONDS = 150
SOURCE = str(Path(mqbroker.__file__).parent.parent)


def wait_for(condition: Callable[..., Any], what: str, patience: int = DEADLINE_SECONDS) -> Any:
    """Return what `condition` gives once it is true; fail after `patience` seconds."""
    end = time.monotonic() + patience
    while not (result := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not within {patience} s: {what}")
        threading.Event().wait(0.01)
    return result


class Process:
    """A daemon; its output is collected in files.

    `wrapper`: makes of the folder a command that runs another one in its own place, by exec. `forks`: forks the daemon,
    instead of a new interpreter.
    """

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        *,
        wrapper: Callable[..., Any] = lambda folder: (),
        environment: dict[str, str] | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        self.folder = folder
        self.ports_file = folder / "ports.json"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ROCKETMQ", "NAMESRV"))}
        self._files = [(folder / name).open("wb") for name in ("out", "err")]
        env = {**inherited, "HOME": str(folder), "PYTHONPATH": SOURCE, **(environment or {})}
        self._process: Any
        if forks is not None:
            out, err = (file.fileno() for file in self._files)
            self._process = forks.start(arguments, folder, env, out, err)
            return
        self._process = subprocess.Popen(
            [*wrapper(folder), sys.executable, *arguments],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def wait_for_port(self) -> int:
        port = self.port_or_end()
        if port is None:
            pytest.fail(f"ended with {self._process.returncode}: {self.err}")
        return port

    def port_or_end(self) -> int | None:
        """The port once it serves; None where it ended before."""

        def find() -> Any:
            if self.ports_file.exists():
                return True, json.loads(self.ports_file.read_text())["remoting"]
            return self._process.poll() is not None and (True, None)

        found: tuple[bool, int | None] = wait_for(find, "ports file")
        return found[1]

    def wait_for_line(self, text: str) -> None:
        wait_for(lambda: text in self.out or text in self.err, f"{text!r} in {self.out!r}, {self.err!r}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, patience: int = DEADLINE_SECONDS) -> int:
        """The exit code; negative for a signal that killed it."""
        return self._process.wait(patience)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for file in self._files:
            file.close()


def ask(port: int, code: int, body: bytes = b"", **ext_fields: Any) -> RemotingCommand:
    """Send one request, and return its answer."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connection:
        return ask_on(connection, code, body, **ext_fields)


def ask_on(connection: socket.socket, code: int, body: bytes = b"", **ext_fields: Any) -> RemotingCommand:
    """As `ask`, over a connection that there is."""
    request = RemotingCommand(code, {key: str(value) for key, value in ext_fields.items()}, body, opaque=7)
    connection.sendall(encode_command(request))
    length = receive(connection, 4)
    answer = decode_frame(length + receive(connection, int.from_bytes(length, "big")))
    assert answer.is_response
    assert answer.opaque == 7
    return answer


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "connection closed"
        data += piece
    return data
