"""What a daemon tells systemd, or whoever has started it as systemd does."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from mqbroker.daemons.service_manager import AGAIN_SECONDS, ServiceManager
from tests.daemons.processes import DEADLINE_SECONDS, Process
from tests.daemons.test_twistd import settings
from tests.remoting.logs import log_kept


class Manager:
    """The socket of a service manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{path[1:]}" if path.startswith("@") else path)

    def heard(self) -> list[bytes]:
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(100, socket.MSG_DONTWAIT))
        return found

    def next(self, seconds: float = DEADLINE_SECONDS) -> bytes:
        """Raises TimeoutError."""
        self._socket.settimeout(seconds)
        return self._socket.recv(100)

    def drain(self) -> None:
        """Return when nothing has come for two intervals and a half."""
        with suppress(TimeoutError):
            while self.next(0.5):
                continue

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def test_it_is_told_that_the_daemon_serves_and_still_does_and_stops(manager: Manager) -> None:
    clock, environ = Clock(), {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "7", "A": "B"}
    told = ServiceManager(environ, 7, clock)
    assert environ == {"A": "B"}  # its children are not watched
    clock.advance(10)
    assert manager.heard() == []
    told.ready()
    assert manager.heard() == [b"READY=1", b"WATCHDOG=1"]
    for _ in range(3):
        clock.pump([0.5] * 5)
        assert manager.heard() == [b"WATCHDOG=1"]
    told.stopping()
    assert manager.heard() == [b"STOPPING=1"]
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize(
    "watched", [{}, {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "x"}]
)
def test_who_is_not_watched_says_that_it_serves_and_no_more(manager: Manager, watched: dict[str, str]) -> None:
    clock = Clock()
    told = ServiceManager({"NOTIFY_SOCKET": manager.path, **watched}, 7, clock)
    told.ready()
    assert manager.heard() == [b"READY=1"]
    assert not clock.getDelayedCalls()
    told.stopping()
    assert manager.heard() == [b"STOPPING=1"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "5000000"}])
def test_without_a_service_manager_nobody_is_told(environ: dict[str, str]) -> None:
    clock = Clock()
    told = ServiceManager(environ, 7, clock)
    told.ready()
    told.stopping()
    assert not clock.getDelayedCalls()


def test_a_name_that_is_no_file_begins_with_an_at_sign() -> None:
    manager = Manager(f"@mqbroker-test-{os.getpid()}")
    ServiceManager({"NOTIFY_SOCKET": manager.path}, 7, Clock()).ready()
    assert manager.heard() == [b"READY=1"]
    manager.close()


def test_a_manager_that_is_away_or_reads_nothing_is_told_later(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "notify"), Clock()
    told = ServiceManager({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "5000000"}, 7, clock)
    with log_kept() as log:
        told.ready()
        clock.pump([AGAIN_SECONDS] * 5)
    assert log.lines == [f"the service manager at {path} cannot be notified: [Errno 2] No such file or directory"]
    manager = Manager(path)
    clock.advance(AGAIN_SECONDS)
    assert manager.heard() == [b"READY=1", b"WATCHDOG=1"]
    clock.pump([2.5] * 1000)  # nothing is read
    assert set(manager.heard()) == {b"WATCHDOG=1"}
    manager.close()
    Path(path).unlink()
    clock.advance(2.5)
    manager = Manager(path)
    clock.advance(2.5)
    assert manager.heard() == [b"WATCHDOG=1"]
    manager.close()
    told.stopping()


@pytest.mark.daemons
@pytest.mark.parametrize("shards", [1, 2])
def test_a_suspended_daemon_says_nothing(
    daemon: Callable[..., Process], manager: Manager, tmp_path: Path, shards: int
) -> None:
    given = [part.replace("--option=", "") for part in settings(tmp_path)[2:]]
    options = [part for setting in (f"shards={shards}", *given) for part in ("-o", setting)]
    environment = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}
    process = daemon("broker", *options, environment=environment)
    assert manager.next() == b"READY=1"
    assert [manager.next() for _ in range(3)] == [b"WATCHDOG=1"] * 3
    process.signal(signal.SIGSTOP)
    manager.drain()
    process.signal(signal.SIGCONT)
    assert manager.next() == b"WATCHDOG=1"
    process.signal(signal.SIGTERM)
    while (last := manager.next()) == b"WATCHDOG=1":
        continue
    assert last == b"STOPPING=1"
    assert process.wait() == 0
