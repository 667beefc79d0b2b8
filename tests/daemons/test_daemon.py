"""One daemon's life, without a process: a service that records what is done with it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError

from mqbroker.config import LogLevel
from mqbroker.config.settings import NamesrvSettings
from mqbroker.daemons.daemon import Daemon, Served, StartFailed, why_not_started
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from mqbroker.daemons.process import YOUNGEST
from mqbroker.errors import StoreLocked
from tests.remoting.logs import log_kept


class Recorded(Service):
    def __init__(self, calls: list[Any], start: Any = None) -> None:
        self._calls = calls
        self._start = start

    def startService(self) -> Deferred[Any] | None:
        self._calls.append("start")
        if isinstance(self._start, Exception):
            raise self._start
        return self._start

    def stopService(self) -> None:
        self._calls.append("stop")


class Life:
    """A daemon, and what came of it."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        start: Any = None,
        ready: Deferred[Any] | None = None,
        adopt: Callable[..., list[str]] | None = None,
    ) -> None:
        self.calls, self.said, self.failures, self.levels = list[Any](), list[Any](), list[Any](), list[Any]()
        self.conf = tmp_path / "namesrv.conf"
        self.conf.write_text("listenPort=0\n")
        self.ports_file = tmp_path / "ports.json"
        options = NamesrvConsoleOptions()
        options.parseOptions(["-c", str(self.conf), "--ports-file", str(self.ports_file)])
        served = Served(
            Recorded(self.calls, start),
            lambda: ready or succeed(None),
            lambda: "It serves.",
            lambda: {"remoting": 5},
            adopt,
        )
        self.daemon = Daemon(options, lambda settings: served, self.said.append, self.levels.append)

    def start(self) -> Life:
        self.daemon.startService().addErrback(lambda failure: self.failures.append(failure.value))
        return self


@pytest.fixture
def make_life(tmp_path: Path) -> Callable[..., Any]:
    return lambda **more: Life(tmp_path, **more)


def test_it_says_so_when_it_serves(make_life: Callable[..., Any]) -> None:
    ready = Deferred[Any]()
    life = make_life(ready=ready).start()
    assert (life.calls, life.said) == (["start"], [])
    assert not life.ports_file.exists()
    ready.callback(None)
    assert life.said == ["It serves."]
    assert life.ports_file.read_text() == '{"remoting": 5}\n'
    assert life.daemon.stopService().called
    assert life.calls == ["start", "stop"]
    assert not life.ports_file.exists()


def test_objects_of_a_start_are_collected_seldom(make_life: Callable[..., Any]) -> None:
    thresholds = gc.get_threshold()
    try:
        life = make_life(start=Deferred[Any]()).start()
        assert gc.get_threshold()[0] == YOUNGEST
        life.daemon.stopService()
    finally:
        gc.set_threshold(*thresholds)


def test_a_ports_file_that_another_wrote_stays(make_life: Callable[..., Any]) -> None:
    life = make_life().start()
    life.ports_file.unlink()
    life.ports_file.write_text("of another")
    life.daemon.stopService()
    assert life.ports_file.read_text() == "of another"


def test_one_that_does_not_start_leaves_the_ports_file_of_another(make_life: Callable[..., Any]) -> None:
    life = make_life(start=StoreLocked("/d/lock", "process 5 has it open"))
    life.ports_file.write_text("of another")
    life.start()
    assert life.ports_file.read_text() == "of another"


def test_a_reload_tells_all_that_is_wrong(make_life: Callable[..., Any]) -> None:
    life = make_life().start()
    life.conf.write_text("listenPort=x\nlogLevel=loud\n")
    with log_kept() as logged:
        life.daemon.reload()
    assert [line.split(": ")[:3:2] for line in logged.lines] == [
        ["not reloaded", "listenPort"],
        ["not reloaded", "logLevel"],
    ]


def test_stopped_before_it_served_it_says_nothing(make_life: Callable[..., Any]) -> None:
    ready = Deferred[Any]()
    life = make_life(ready=ready).start()
    life.daemon.stopService()
    ready.callback(None)
    assert (life.calls, life.said, life.failures) == (["start", "stop"], [], [])


def test_stopped_while_its_start_takes_long_it_says_nothing(make_life: Callable[..., Any]) -> None:
    starting = Deferred[Any]()
    life = make_life(start=starting).start()
    life.daemon.stopService()
    starting.cancel()
    assert (life.calls, life.said, life.failures) == (["start", "stop"], [], [])


@pytest.mark.parametrize("error", [StoreLocked("/d/lock", "process 5 has it open"), OSError(28, "No space", "/d")])
def test_what_the_user_can_mend_is_a_start_failed(make_life: Callable[..., Any], error: Exception) -> None:
    life = make_life(start=error).start()
    assert [type(failure) for failure in life.failures] == [StartFailed]
    assert life.calls == ["start", "stop"]


def test_a_bug_stays_what_it_is(make_life: Callable[..., Any]) -> None:
    life = make_life(start=ZeroDivisionError()).start()
    assert [type(failure) for failure in life.failures] == [ZeroDivisionError]


def test_a_ports_file_that_cannot_be_written_is_a_start_failed(make_life: Callable[..., Any]) -> None:
    life = make_life()
    life.ports_file.mkdir()
    life.start()
    assert [str(failure) for failure in life.failures] == [f"{life.ports_file}: Is a directory"]
    assert life.calls == ["start", "stop"]


def test_reloading_sets_the_level(make_life: Callable[..., Any]) -> None:
    life = make_life().start()
    life.conf.write_text("listenPort=0\nlogLevel=error\n")
    life.daemon.reload()
    life.conf.write_text("listenPort=x\n")
    life.daemon.reload()
    life.conf.unlink()
    life.daemon.reload()
    assert life.levels == [LogLevel.ERROR]


def test_reloading_gives_settings_to_what_is_served(make_life: Callable[..., Any]) -> None:
    adopted = []

    def adopt(settings: NamesrvSettings) -> list[str]:
        adopted.append(settings)
        return ["listenPort", "logLevel"]

    life = make_life(adopt=adopt)
    life.conf.write_text("listenPort=5\nlogLevel=error\norderMessageEnable=true\n")
    life.daemon.reload()
    assert adopted == []  # nothing is served yet
    life.start()
    with log_kept() as logged:
        life.daemon.reload()
    assert [settings.order_message_enable for settings in adopted] == [True]
    assert [line for line in logged.lines if "takes effect" in line] == [
        "listenPort=5 takes effect after a restart",
        "logLevel=error takes effect now",
        "orderMessageEnable=true takes effect now",
    ]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            CannotListenError("", 9876, OSError(98, "Address already in use")),
            "cannot listen on *:9876: Address already in use; stop what has the port, or set another listenPort",
        ),
        (
            StoreLocked("/d/lock", "process 5 has it open"),
            "/d/lock is locked: process 5 has it open; stop that first: each broker has a directory of its own",
        ),
        (
            CannotListenError("192.0.2.1", 9876, OSError(99, "Cannot assign requested address")),
            "cannot listen on 192.0.2.1:9876: Cannot assign requested address; no network card of this machine "
            "has that address; set another bindAddress",
        ),
        (
            CannotListenError("", 80, OSError(13, "Permission denied")),
            "cannot listen on *:80: Permission denied; only root may use ports below 1024; set a higher listenPort",
        ),
        (
            CannotListenError("", 80, "no luck"),
            "cannot listen on *:80: no luck; set another bindAddress or listenPort",
        ),
        (
            OSError(13, "Permission denied", "/d"),
            f"/d: Permission denied; this process runs as user {os.geteuid()}: correct the mount or the permissions, "
            "or give another path",
        ),
        (OSError(20, "Not a directory", "/d"), "/d: Not a directory"),
        (OSError("two\nlines"), "two lines"),
        (OSError(), "OSError"),
    ],
)
def test_why_it_did_not_start_is_one_line(error: Exception | OSError, line: str) -> None:
    assert why_not_started(error) == line


def test_what_other_processes_tell_is_not_told_twice(make_life: Callable[..., Any]) -> None:
    life = make_life(adopt=lambda settings: None).start()
    life.conf.write_text("listenPort=5\nlogLevel=error\n")
    with log_kept() as logged:
        life.daemon.reload()
    assert logged.lines == []
    assert life.levels == [LogLevel.ERROR]
