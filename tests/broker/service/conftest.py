"""A reactor in memory, a name server, and brokers that are stopped at the end of the test."""

import pytest

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.service.running import NAMESRV, Reactor, Running
from tests.remoting.link import Network, serve


@pytest.fixture
def reactor():
    return Reactor()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def network(reactor):
    """One name server that notes what it is told."""
    table = HandlerTable()

    def note(request, connection):
        reactor.heard.append(RequestCode(request.code).name)
        return RemotingCommand.response(request)

    table.register(RequestCode.REGISTER_BROKER, note)
    table.register(RequestCode.UNREGISTER_BROKER, note)
    network = Network()
    network.servers[NAMESRV] = serve(reactor, table)
    return network


@pytest.fixture
def make(reactor, network, root):
    made = []

    def make(**fields):
        made.append(Running(reactor, network, fields.pop("root", root), **fields))
        return made[-1]

    yield make
    for running in made:
        running.stop()
