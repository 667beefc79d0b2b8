"""A reactor in memory, a name server, and brokers that are stopped at the end of the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.service.group import Group
from tests.broker.service.pair import Pair
from tests.broker.service.running import NAMESRV, Reactor, Running
from tests.broker.test_name_servers import FakeClient
from tests.remoting.link import Network, serve


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path / "pair")
    yield made
    made.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path / "group")
    yield group
    group.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def network(reactor: Reactor) -> Network:
    """One name server that notes what it is told."""
    table = HandlerTable()

    def note(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        reactor.heard.append(RequestCode(request.code).name)
        if request.code == RequestCode.REGISTER_BROKER:
            reactor.registered.append(request)
        return RemotingCommand.response(request)

    table.register(RequestCode.REGISTER_BROKER, note)
    table.register(RequestCode.UNREGISTER_BROKER, note)
    network = Network()
    network.servers[NAMESRV] = serve(reactor, table)
    return network


@pytest.fixture
def make(reactor: Reactor, network: FakeClient, root: Path) -> Iterator[Callable[..., Running]]:
    made = []

    def make(**fields: Any) -> Running:
        made.append(Running(reactor, network, fields.pop("root", root), **fields))
        return made[-1]

    yield make
    for running in made:
        running.stop()
