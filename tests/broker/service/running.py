"""A broker on a reactor in memory, and what name server, files and the disk's worker notice of it, in this order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock

from mqbroker.broker.broker_service import BrokerService
from mqbroker.errors import StoreLocked
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.store.layout import lock_file
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker, IWorker
from mqbroker.wire.command import RemotingCommand
from tests.broker.bench import Client, make_settings
from tests.fakes import QuickClock
from tests.remoting.link import CLIENT

NAMESRV = "10.0.0.8:9876"


class Port:
    """A listening port that starts and stops its factory, as a real one does."""

    def __init__(self, reactor: Reactor, address: IPv4Address, factory: RemotingServerFactory) -> None:
        self._reactor, self._address, self._factory = reactor, address, factory

    def getHost(self) -> IPv4Address:
        return self._address

    def stopReading(self) -> None:  # noqa: N802
        self._reactor.heard.append("pause")

    def startReading(self) -> None:  # noqa: N802
        self._reactor.heard.append("resume")

    def stopListening(self) -> None:  # noqa: N802
        self._reactor.heard.append("port closed")
        self._factory.doStop()


class Reactor(QuickClock, MemoryReactorClock):
    """Gives out ports unless `taken`; what others notice goes to `heard`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []
        self.registered: list[RemotingCommand] = []
        self.taken = False
        self.taken_ports: set[Any] = set()
        self.advance(1_700_000_000)

    def listenTCP(self, port: int, factory: RemotingServerFactory, backlog: int = 50, interface: str = "") -> Port:
        if self.taken or port in self.taken_ports:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        made = super().listenTCP(port, factory, backlog, interface)
        factory.doStart()
        return Port(self, made.getHost(), factory)


class Recording(InlineWorker):
    """Notes what is written, by the names of files."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def run(self, function: Callable[..., Any]) -> Deferred[Any]:
        self.heard.append("disk")
        return super().run(function)


def _no_names(name: str) -> str:
    raise OSError(2, "Name or service not known")


class Running:
    """A broker on a reactor, with clients."""

    def __init__(
        self,
        reactor: Reactor,
        network: Any,
        root: Path,
        *,
        worker: IWorker | None = None,
        namesrv: tuple[str, ...] = (NAMESRV,),
        resolve: Callable[[str], str] = _no_names,
        **changes: Any,
    ) -> None:
        self.reactor, self.network = reactor, network
        self.root = root
        changes = {"vip_port_enable": False, **changes}
        self.settings = attrs.evolve(make_settings(root, **changes), namesrv_addr=namesrv)
        self.worker = worker or InlineWorker()
        self.service = BrokerService(
            self.settings,
            reactor,
            disk=OsDisk(),
            rng=Random(1),
            worker=self.worker,
            connector=network.connector,
            resolve=resolve,
        )
        self.clients: list[Any] = []

    def start(self) -> Running:
        self.service.startService()
        self.turn()
        return self

    @property
    def factory(self) -> RemotingServerFactory:
        return [made[1] for made in self.reactor.tcpServers if isinstance(made[1], RemotingServerFactory)][-1]

    def client(self) -> Client:
        self.clients.append(Client(self, CLIENT))
        return self.clients[-1]

    def turn(self, seconds: float = 0.0) -> None:
        self.reactor.advance(0)
        while seconds > 0:
            self.reactor.advance(min(0.5, seconds))
            seconds -= 0.5
        self.network.pump()
        for client in self.clients:
            client.link.pump()
        self.reactor.advance(0)

    def stop(self) -> Deferred[Any]:
        """Stop, and pump until it has; the Deferred."""
        done = self.service.stopService()
        for _ in range(10):
            self.turn()
        return done


def is_locked(root: Path) -> bool:
    try:
        lock_file(str(root / "lock")).release()
    except StoreLocked:
        return True
    return False
