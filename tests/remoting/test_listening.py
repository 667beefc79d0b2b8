"""Listening while the service runs, on a reactor in memory."""

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.listening import ListeningService
from mqbroker.remoting.server import RemotingServerFactory


class Refusing(MemoryReactorClock):
    def listenTCP(self, port: int, factory: RemotingServerFactory, backlog: int = 50, interface: str = "") -> None:
        raise CannotListenError(interface, port, OSError(98, "Address already in use"))


def make(reactor: MemoryReactorClock) -> tuple[RemotingServerFactory, ListeningService]:
    factory = RemotingServerFactory(HandlerTable(), reactor)
    return factory, ListeningService(reactor, 5, factory, backlog=7, interface="127.0.0.1")


def test_it_listens_while_it_runs() -> None:
    reactor = MemoryReactorClock()
    factory, service = make(reactor)
    assert reactor.tcpServers == []
    service.startService()
    assert reactor.tcpServers == [(5, factory, 7, "127.0.0.1")]
    assert service.port == 5
    assert service.running
    assert service.stopService().called
    assert not service.running


def test_stopping_waits_for_the_last_connection() -> None:
    reactor = MemoryReactorClock()
    factory, service = make(reactor)
    service.startService()
    transports = [StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", port)) for port in (1, 2)]
    protocols = [factory.buildProtocol(None) for _ in transports]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.makeConnection(transport)
    stopped = service.stopService()
    assert all(transport.disconnecting for transport in transports)
    protocols[0].connectionLost(Failure(ConnectionDone()))
    assert not stopped.called
    protocols[1].connectionLost(Failure(ConnectionDone()))
    assert stopped.called


def test_a_port_in_use_is_an_error() -> None:
    _, service = make(Refusing())
    with pytest.raises(CannotListenError):
        service.startService()
    assert not service.running
    assert service.stopService().called
