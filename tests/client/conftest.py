"""Our own servers in memory for the cores of clients, and on loopback for those that need sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.client import testing
from mqbroker.store import dispatch
from tests.client.called_faces import OnAsyncio, OnSockets, OnTwisted
from tests.client.faults import SILENT
from tests.client.in_memory import InMemory
from tests.client.loopback import Loopback
from tests.client.own_cluster import NAME_SERVER, OwnCluster
from tests.client.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One name server and two brokers, each with a master."""
    cluster = OwnCluster(tmp_path, brokers={"a": "10.0.0.2:10911", "b": "10.0.0.3:10911"})
    yield World(cluster)
    cluster.close()


@pytest.fixture
def one_queue(world: World) -> World:
    """Topic T with one queue on broker a, and the group's retry topic."""
    world.cluster.add_topic("T", queues=1, brokers=["a"])
    world.cluster.add_topic("%RETRY%g", queues=1, brokers=["a"])
    return world


@pytest.fixture
def name_server() -> str:
    return NAME_SERVER


@pytest.fixture
def silent() -> object:
    return SILENT


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Loopback]:
    server = Loopback(tmp_path)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _dispatch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers' clock stands still: the dispatch need not wait for the end of a millisecond."""
    monkeypatch.setattr(dispatch, "BUSY_S", 0.0)
    monkeypatch.setattr(dispatch, "IDLE_S", 0.0)


# The same on each face: for the contract of the clients.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The contract is kept by the broker in memory as well."""
    if "cluster" in metafunc.fixturenames and getattr(metafunc.module, "ON_EACH_BROKER", False):
        metafunc.parametrize("cluster", ["real", "in-memory"], indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if getattr(request, "param", "real") == "in-memory":
        monkeypatch.setattr(testing, "NAME", "a")
        cluster: Any = InMemory()
    else:
        cluster = Loopback(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture(params=[OnTwisted, OnAsyncio, OnSockets], ids=["twisted", "asyncio", "blocking"])
def face(request: Any, cluster: Loopback) -> Any:
    face = request.param(cluster)
    yield face
    face.close()


@pytest.fixture
def producer(face: Any) -> Any:
    with face.make("Producer", "pg") as producer:
        yield producer


@pytest.fixture
def consumer(face: Any) -> Any:
    with face.make("PullConsumer", "cg") as consumer:
        yield consumer
