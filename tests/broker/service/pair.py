"""A name server, a master and its slaves in memory, on one clock: links move bytes when a test lets them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocolFactory

from mqbroker.broker.broker_service import BrokerService
from mqbroker.config import BrokerRole, NamesrvSettings, NettySettings, TlsMode, TlsSettings
from mqbroker.ha.master import MasterFactory
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.store.disk import IDisk
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker, IWorker
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import UpdateConsumerOffsetRequestHeader
from tests.broker.bench import Client, make_settings
from tests.broker.service.running import Reactor
from tests.remoting.link import CLIENT, SERVER, Endpoint, Link, Network

NAMESRV_PORT = 9876
NAMESRV = f"10.0.0.9:{NAMESRV_PORT}"


class Wires(Network):
    """Connections by the address that they were made to; those to a `blocked` one are refused, and move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.by_address: list[tuple[str, Any]] = []
        #: Where those come from who connect at the moment, by the id of their factory.
        self.sources: dict[int, IPv4Address] = {}
        self.blocked: set[str] = set()

    def connector_of(self, host: str) -> Callable[[str, int], Endpoint]:
        """Connects from `host`."""

        def connector(to: str, port: int) -> Endpoint:
            endpoint = self.connector(to, port)
            connect = endpoint.connect

            def connect_from(factory: IProtocolFactory) -> Deferred[Any]:
                self.sources[id(factory)] = IPv4Address("TCP", host, 40000)
                return connect(factory)

            endpoint.connect = connect_from
            return endpoint

        return connector

    def let_through(self) -> None:
        held, self._held = self._held, []
        for address, factory, deferred in held:
            if address not in self.servers or address in self.blocked:
                deferred.errback(ConnectionRefusedError("nobody there"))
                continue
            source = self.sources.pop(id(factory), CLIENT)
            near, far = factory.buildProtocol(SERVER), self.servers[address].buildProtocol(source)
            if far is None:
                deferred.errback(ConnectionRefusedError("not accepted"))
                continue
            self.by_address.append((address, Link(near, far)))
            deferred.callback(near)

    def pump(self, chunk: int = 1 << 30) -> None:
        self.by_address = [(address, link) for address, link in self.by_address if not link.lost]
        for address, link in self.by_address:
            if address not in self.blocked:
                link.pump(chunk)
            elif any(end.closing is not None for end in link.ends):
                link.cut()

    def cut(self, *addresses: str) -> None:
        """Lose the connections to these addresses."""
        for address, link in self.by_address:
            if address in addresses and not link.lost:
                link.cut()


@attrs.define
class Member:
    """One broker: `client` reaches it by its factory."""

    cluster: Pair
    name: str
    service: BrokerService
    factory: RemotingServerFactory
    addresses: tuple[str, ...]
    root: Path
    is_dead: bool = False

    def turn(self, seconds: float = 0.0) -> None:
        self.cluster.turn(seconds)

    def client(self) -> Client:
        client = Client(self, CLIENT)  # type: ignore[arg-type]
        self.cluster.clients.append(client)
        return client

    @property
    def parts(self) -> Any:
        """The broker's parts (`Assembly`)."""
        return self.service._assembly

    @property
    def store(self) -> MessageStore:
        store: MessageStore = self.parts._store
        return store

    def log(self) -> tuple[int, bytes]:
        """Where the log begins, and its bytes."""
        raw, data = self.store.raw_log, b""
        while raw.start + len(data) < raw.end:
            data += self.log_from(raw.start + len(data))
        return raw.start, data

    def log_from(self, offset: int) -> bytes:
        """The bytes of the log from `offset` to the end of its segment."""
        raw = self.store.raw_log
        end = min(raw.end, offset - offset % raw.segment_bytes + raw.segment_bytes)
        found = raw.read(offset, end - offset)
        if isinstance(found, Deferred):  # pages that nobody touched are not resident
            read: list[bytes] = []
            found.addCallback(read.append)
            return read[0]
        return bytes(found)


class Pair:
    """Brokers of one name: `start` adds them."""

    def __init__(self, root: Path) -> None:
        self.reactor, self.network, self.root = Reactor(), Wires(), root
        root.mkdir(exist_ok=True)
        self.members: dict[str, Member] = {}
        self.clients: list[Client] = []
        self._images = 0
        self._namesrv = make_namesrv(
            NamesrvSettings(
                config_store_path=str(root / "x"),
                kv_config_path=str(root / "kv.json"),
                server=NettySettings(listen_port=NAMESRV_PORT),
                tls=TlsSettings(mode=TlsMode.DISABLED),
            ),
            self.reactor,
            InlineWorker(),
        )
        self._namesrv.startService()
        [(_, factory, *_)] = self.reactor.tcpServers
        self.network.servers[NAMESRV] = factory

    def start(
        self,
        name: str = "master",
        role: BrokerRole = BrokerRole.ASYNC_MASTER,
        broker_id: int = 0,
        *,
        disk: IDisk | None = None,
        worker: IWorker | None = None,
        store: dict[str, Any] | None = None,
        root: Path | None = None,
        **changes: Any,
    ) -> Member:
        """Start a broker, at an address of its own; again with its store, if there was one of its name."""
        number = sorted({*self.members, name}).index(name)
        number = 10 * (1 + len(name) + number)
        host, port = f"10.0.0.{1 + broker_id}", 10_000 + number
        former = self.members.get(name)
        root = root or (former.root if former is not None else self.root / name)
        sizes = {"mapped_file_size_commit_log": 64 * 1024, "max_message_size": 16 * 1024}
        settings = attrs.evolve(
            make_settings(
                root, store={"broker_role": role, **sizes, **(store or {})}, vip_port_enable=False, **changes
            ),
            broker_ip1=host,
            broker_ip2=host,
            broker_id=broker_id,
            ha_listen_port=port + 1,
            server=NettySettings(listen_port=port),
            tls=TlsSettings(mode=TlsMode.DISABLED),
            namesrv_addr=(NAMESRV,),
        )
        service = BrokerService(
            settings,
            self.reactor,
            disk=disk or OsDisk(),
            rng=Random(1),
            worker=worker or InlineWorker(),
            connector=self.network.connector_of(host),
        )
        before = len(self.reactor.tcpServers)
        service.startService()
        self._serve(name, service, root, before)
        self.turn()
        return self.members[name]

    def _serve(self, name: str, service: BrokerService, root: Path, before: int) -> None:
        """Let the network reach a broker that listens since the first `before` listened."""
        host, port = service.settings.broker_ip1, service.settings.server.listen_port
        factories: list[IProtocolFactory] = [made[1] for made in self.reactor.tcpServers[before:]]
        addresses = [f"{host}:{port + isinstance(factory, MasterFactory)}" for factory in factories]
        self.network.servers |= dict(zip(addresses, factories, strict=True))
        remoting = next(factory for factory in factories if isinstance(factory, RemotingServerFactory))
        self.members[name] = Member(self, name, service, remoting, tuple(addresses), root)

    def change(self, name: str, **settings: str) -> RemotingCommand | None:
        """Change settings of a broker as administrators do, and wait for what it does then; returns its answer."""
        member, before = self.members[name], len(self.reactor.tcpServers)
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        answer = member.client().ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        former = {address: self.network.servers.pop(address) for address in member.addresses}
        self._drain()
        if len(self.reactor.tcpServers) > before:
            self._serve(name, member.service, member.root, before)
            self._drain()
        else:
            self.network.servers |= former
        return answer

    def master(self, **changes: Any) -> Member:
        return self.start("master", **changes)

    def slave(self, broker_id: int = 1, **changes: Any) -> Member:
        return self.start(f"slave{broker_id}", BrokerRole.SLAVE, broker_id, **changes)

    def turn(self, seconds: float = 0.0) -> None:
        """Let some time pass, and move bytes meanwhile."""
        self._settle()
        while seconds > 0:
            self.reactor.advance(min(0.5, seconds))
            seconds -= 0.5
            self._settle()

    def _settle(self) -> None:
        for _ in range(6):
            self.network.pump()
            for client in self.clients:
                client.link.pump()
            self.reactor.advance(0.002)

    def kill(self, name: str) -> None:
        """End a broker as SIGKILL does: `start` goes on with the files as they are now."""
        member = self.members[name]
        self._images += 1
        image = self.root / f"{name}-{self._images}"
        shutil.copytree(member.root, image)
        for address in member.addresses:
            self.network.servers.pop(address)
        self.network.cut(*member.addresses)
        member.service.stopService()
        self._drain()
        member.root, member.is_dead = image, True

    def stop(self, name: str) -> None:
        """Stop a broker in order."""
        member = self.members[name]
        for address in member.addresses:
            self.network.servers.pop(address)
        done: Deferred[None] = member.service.stopService()
        self._drain()
        assert done.called
        member.is_dead = True

    def _drain(self) -> None:
        for _ in range(10):
            self.turn(1.0)

    def close(self) -> None:
        self.network.blocked.clear()
        for member in sorted(self.alive(), key=lambda member: member.service.settings.broker_id):
            self.stop(member.name)
        self._namesrv.stopService()

    def alive(self) -> Iterator[Member]:
        return iter([member for member in self.members.values() if not member.is_dead])


def commit(member: Member, topic: str, offset: int, group: str = "CG") -> None:
    """Commit an offset of queue 0, as a consumer does."""
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)
    answer = member.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
