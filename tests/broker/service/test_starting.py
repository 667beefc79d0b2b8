"""Starts that take long, and starts that fail: these leave nothing behind."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.python.filepath import FilePath

from mqbroker.errors import StoreDamaged, StoreLocked, StoreUnwritable
from mqbroker.store import open_store
from mqbroker.store.layout import lock_file
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from tests.broker.service.running import NAMESRV, Reactor, Running, is_locked
from tests.fakes import SteppedWorker
from tests.remoting.link import Network, result, waiting


@pytest.fixture
def unindexed(make: Callable[..., Running], root: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A broker whose store takes several turns to open."""
    running = make()
    store = open_store(running.settings.store, disk=OsDisk(), clock=Clock(), worker=InlineWorker(), store_host=bytes(8))
    for _ in range(3):
        store.append([(b"T", 0, 0, 0, 0, bytes(8), 0, 0, b"x", b"")] * 1000)
    store.stop()
    shutil.rmtree(root / "consumequeue")
    monkeypatch.setattr("mqbroker.store.stepwise.TURN_S", -1)
    return running


def test_nobody_is_accepted_while_the_store_is_recovered(unindexed: Running, reactor: Reactor) -> None:
    started = unindexed.service.startService()
    assert not started.called
    assert reactor.heard == ["pause"]
    unindexed.turn()
    assert result(started) is None
    assert reactor.heard[:2] == ["pause", "resume"]
    (answer,) = unindexed.client().send()
    assert answer.code == 0


def test_stopping_while_the_store_is_recovered_ends_that(
    unindexed: Running, reactor: Reactor, network: Network, root: Path
) -> None:
    network.servers[NAMESRV].doStop()
    started = unindexed.service.startService()
    stopped = unindexed.service.stopService()
    assert result(stopped) is None
    assert result(started) is None
    assert reactor.heard == ["pause", "port closed"]
    assert_undone(unindexed, reactor, root)


# --- starts that fail


def start_of(running: Running) -> None:
    """Start it, and raise what it fails with."""
    failures: list[Any] = []
    running.service.startService().addErrback(failures.append)
    for failure in failures:
        failure.raiseException()


def snapshot(root: Path) -> list[str] | None:
    return sorted(path.path for path in FilePath(str(root)).walk()) if root.exists() else None


def assert_undone(running: Running, reactor: Reactor, root: Path, locked: bool = False) -> None:
    for _ in range(5):
        running.turn()
    assert is_locked(root) == locked
    assert not running.service.running
    assert "REGISTER_BROKER" not in reactor.heard
    assert not [call for call in reactor.getDelayedCalls() if "IdleWatch" not in str(call)]
    assert result(running.service.stopService()) is None  # what follows a failed start


def test_a_port_in_use_touches_nothing(
    make: Callable[..., Running], reactor: Reactor, network: Network, root: Path
) -> None:
    network.servers[NAMESRV].doStop()
    reactor.taken = True
    running = make()
    with pytest.raises(CannotListenError):
        start_of(running)
    assert snapshot(root) is None
    assert result(running.service.stopService()) is None


def test_a_locked_store_is_left_alone(
    make: Callable[..., Running], reactor: Reactor, network: Network, root: Path
) -> None:
    network.servers[NAMESRV].doStop()
    running = make().start()
    running.client().send()
    running.stop()
    reactor.heard.clear()
    lock = lock_file(str(root / "lock"))
    before = snapshot(root)
    other = make()
    with pytest.raises(StoreLocked):
        start_of(other)
    assert snapshot(root) == before
    assert_undone(other, reactor, root, locked=True)
    assert reactor.heard == ["port closed"]
    lock.release()


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"])
def test_a_damaged_table_stops_the_start_and_frees_the_store(
    make: Callable[..., Running], reactor: Reactor, network: Network, root: Path, name: str
) -> None:
    network.servers[NAMESRV].doStop()
    os.makedirs(root / "config")
    (root / "config" / name).write_text("{")
    running = make()
    with pytest.raises(StoreDamaged) as caught:
        start_of(running)
    assert caught.value.path.endswith(name)
    assert_undone(running, reactor, root)
    assert (root / "config" / name).read_text() == "{"  # for whoever will repair it


def test_tables_that_could_not_be_written_stop_the_start(
    make: Callable[..., Running], reactor: Reactor, network: Network, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.servers[NAMESRV].doStop()
    folder = root / "config"
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(folder))  # root may write anywhere
    running = make()
    with pytest.raises(StoreUnwritable, match=f"{folder}: the tables of topics, groups and offsets are kept there"):
        start_of(running)
    assert_undone(running, reactor, root)


def test_a_start_that_failed_and_is_stopped_at_once_ends_in_order(
    make: Callable[..., Running], network: Network, reactor: Reactor, root: Path
) -> None:
    """A daemon stops what it could not start: both must not walk through the steps at the same time."""
    network.servers[NAMESRV].doStop()
    os.makedirs(root / "config")
    (root / "config" / "delayOffset.json").write_text("{")
    worker = SteppedWorker(at_once=False)
    running = make(worker=worker)
    with pytest.raises(StoreDamaged):
        start_of(running)
    stopped = running.service.stopService()
    running.turn()
    assert result(stopped) is waiting
    while not stopped.called:
        worker.work()
        running.turn()
    assert not is_locked(root)


def test_a_directory_that_cannot_be_made(
    make: Callable[..., Running], tmp_path: Path, reactor: Reactor, network: Network
) -> None:
    network.servers[NAMESRV].doStop()
    (tmp_path / "file").write_text("")
    running = make(root=tmp_path / "file" / "store")
    with pytest.raises(OSError, match="file"):
        start_of(running)
    assert result(running.service.stopService()) is None
