"""Daemons forked from a process that has imported them: an interpreter's start and the imports take most of a second.

For tests that start many and are not about how a daemon starts. The process runs `python -m tests.daemons.forks`, knows
no reactor, has no other thread, and ends with the one that started it.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

#: What a broker imports on its way to serve, and a client on Twisted.
PRELOADED = (
    *("mqbroker.broker.broker_service", "mqbroker.daemons.broker", "mqbroker.daemons.console"),
    *(
        "mqbroker.daemons.epoll",
        "mqbroker.daemons.logs",
        "mqbroker.daemons.plugin",
        "mqbroker.store",
        "tests.client.on_twisted",
        "tests.daemons.failpoint_broker",
    ),
    *("twisted.application.app", "twisted.internet.endpoints", "twisted.internet.epollreactor", "twisted.internet.ssl"),
    "twisted.scripts._twistd_unix",
)
#: A request's JSON: arguments and environment.
REQUEST_BYTES = 1 << 17
_NUMBER = struct.Struct("i")
_DESCRIPTORS = 3


class ForkServer:
    """The process that forks daemons, started at the first use."""

    def __init__(self, source: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.daemons.forks", str(theirs.fileno())],
                cwd=source,
                env={**os.environ, "PYTHONPATH": source},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments: list[str], folder: Path, environment: dict[str, str], out: int, err: int) -> Forked:
        """Start `-m MODULE ...` as `python` would, in `folder`, with these files for its output."""
        ours, theirs = socket.socketpair()
        request = json.dumps({"arguments": arguments, "folder": str(folder), "environment": environment}).encode()
        assert len(request) < REQUEST_BYTES
        descriptors = array.array("i", [theirs.fileno(), out, err])
        with theirs:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        return Forked(ours)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Forked:
    """One of its children, as subprocess.Popen has them."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        number: int = _NUMBER.unpack(self._keeper.recv(_NUMBER.size))[0]
        return number

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; negative for a signal that killed it. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._keeper.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def become(request: dict[str, Any], out: int, err: int) -> NoReturn:
    """Be the daemon, as a new interpreter would."""
    with open(os.devnull, "rb") as nothing:
        for number, descriptor in enumerate((nothing.fileno(), out, err)):
            os.dup2(descriptor, number)
    os.close(out)
    os.close(err)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    option, module, *arguments = request["arguments"]
    assert option == "-m"
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()
    sys.exit()


def keep(request: dict[str, Any], asker: socket.socket, out: int, err: int) -> None:
    """Start a daemon and tell its process id, and, once it has ended, how. Returns in the daemon alone."""
    pid = os.fork()
    if not pid:
        asker.close()
        return
    os.close(out)
    os.close(err)
    with contextlib.suppress(OSError):  # who asked may have ended
        asker.sendall(_NUMBER.pack(pid))
        asker.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    assert "twisted.internet.reactor" not in sys.modules, "each daemon has a reactor of its own"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    space = socket.CMSG_SPACE(_DESCRIPTORS * _NUMBER.size)
    while True:
        data, ancillary, _, _ = requests.recvmsg(REQUEST_BYTES, space)
        if not data:
            return
        given = array.array("i")
        given.frombytes(ancillary[0][2])
        if os.fork():
            for descriptor in given:
                os.close(descriptor)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        request, (asker, out, err) = json.loads(data), given
        keep(request, socket.socket(fileno=asker), out, err)
        become(request, out, err)


if __name__ == "__main__":
    main()
