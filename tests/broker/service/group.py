"""A group of brokers with a name server and etcd in memory. Each broker has a clock of its own, so that it can be
stopped as by SIGSTOP; between two hosts either direction can be cut."""

from __future__ import annotations

import json
import math
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocolFactory
from twisted.python.failure import Failure

from mqbroker.broker.broker_service import BrokerService
from mqbroker.config import BrokerRole, NamesrvSettings, NettySettings, TlsMode, TlsSettings
from mqbroker.namesrv.namesrv_service import ExpiryService, Namesrv, make_namesrv
from mqbroker.store.disk import IDisk
from mqbroker.store.message_store import MessageStore
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, encode_command
from mqbroker.wire.record import BLANK_MAGIC, SIZE_AND_MAGIC, Record, decode_record
from tests.broker.bench import make_settings
from tests.broker.service.running import Port, Reactor
from tests.commands import decode_commands
from tests.ha.etcd_model import EtcdModel, ModelClient
from tests.remoting.link import CLIENT, SERVER, Endpoint, Link, Peer
from tests.store.simulation.disk import SimDisk

STEP_S = 0.05
NAMESRVS = ("10.0.0.8", "10.0.0.9")
PORT, HA_PORT = 10_911, 10_912
ETCD = "etcd"
#: So much of what either end of a replication link sends is recorded.
RECORDED_BYTES = 2_000
#: In place of the group's state where etcd has none.
_NO_STATE = b'{"in_sync": []}'


class HostReactor(Reactor):
    """The reactor of one host: what listens there can be reached at its address."""

    #: As the daemons' reactor tells where no connection waits for another; brokers would ask ten times a second.
    turn_began = math.inf

    def __init__(self, host: str, servers: dict[str, Any]) -> None:
        #: Whether what runs here has ended its process.
        self.is_ended = False
        super().__init__()
        self._host, self._servers = host, servers

    def stop(self) -> None:
        self.is_ended = True

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:
        made, address = super().listenTCP(port, factory, backlog, interface), f"{self._host}:{port}"
        self._servers[address] = factory
        stop = made.stopListening

        def stop_listening() -> None:
            if self._servers.get(address) is factory:
                del self._servers[address]
            stop()

        made.stopListening = stop_listening
        return made


@attrs.define
class Recorded:
    """The beginning of what both ends of a replication link sent. `ended_at`: when the process at its origin ended."""

    origin: str
    target: str
    ended_at: float = math.inf
    sent: bytes = b""
    received: bytes = b""

    def note(self, sent: bytearray, received: bytearray) -> None:
        if len(self.sent) < RECORDED_BYTES:
            self.sent = bytes(sent[:RECORDED_BYTES])
        if len(self.received) < RECORDED_BYTES:
            self.received = bytes(received[:RECORDED_BYTES])


@attrs.define
class Wire:
    """A connection between two hosts."""

    origin: str
    target: str
    link: Link
    port: int = 0
    #: Of what each end has written, how much was there when: (time, bytes), the oldest first.
    sent: tuple[deque[tuple[float, int]], deque[tuple[float, int]]] = attrs.field(factory=lambda: (deque(), deque()))
    #: The ends that have heard that it is closed, or whose processes have ended.
    dead: set[int] = attrs.field(factory=set)
    recorded: Recorded | None = None

    def arrived(self, near: int, now: float, delay_s: float) -> int:
        """How many bytes of what the end has written are at the other one after such a delay."""
        sent, waiting = self.sent[near], len(self.link.ends[near].outbox)
        known = sum(count for _, count in sent)
        if waiting > known:
            sent.append((now, waiting - known))
        while known > waiting:  # they were moved, or given up
            at, count = sent.popleft()
            known -= count
            if known < waiting:
                sent.appendleft((at, waiting - known))
                known = waiting
        return sum(count for at, count in sent if at + delay_s <= now + 1e-9)

    def leave(self, near: int) -> Any:
        """Nobody is at this end any more; returns who was."""
        protocols: list[Any] = list(self.link.protocols)
        was, protocols[near] = protocols[near], Peer()
        self.link.protocols = (protocols[0], protocols[1])
        self.dead.add(near)
        self.link.lost = len(self.dead) == 2
        return was


class Wires:
    """Connections between hosts. `cut` holds the directions in which nothing moves: (from, to)."""

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}
        self.wires: list[Wire] = []
        self.cut: set[tuple[str, str]] = set()
        self.frozen: set[str] = set()
        #: How long what is sent takes, seconds: from, to.
        self.delays: dict[tuple[str, str], float] = {}
        #: How many bytes pass in a step: from, to.
        self.widths: dict[tuple[str, str], int] = {}
        self._left: dict[tuple[str, str], int] = {}
        #: What both ends of replication links said first, as somebody between them records it.
        self.recorded: list[Recorded] = []
        self.now = 0.0
        self._asked: list[tuple[str, str, IProtocolFactory, Deferred[Any]]] = []

    def connector(self, origin: str) -> Callable[[str, int], Endpoint]:
        asked = self._asked

        class From:
            def connect(self, address: str, factory: IProtocolFactory) -> Deferred[Any]:
                deferred: Deferred[Any] = Deferred()
                asked.append((origin, address, factory, deferred))
                return deferred

        return lambda host, port: Endpoint(From(), f"{host}:{port}")  # type: ignore[arg-type]

    def passes(self, origin: str, target: str) -> bool:
        return (origin, target) not in self.cut and not self.frozen & {origin, target}

    def begin_step(self, now: float) -> None:
        self.now, self._left = now, dict(self.widths)

    def pump(self, chunk: int = 1 << 30) -> bool:
        """Move what can be moved; returns whether that was anything."""
        asked, self._asked[:] = list(self._asked), []
        for origin, address, factory, deferred in asked:
            target, _, port = address.partition(":")
            if deferred.called:
                continue
            if not (self.passes(origin, target) and self.passes(target, origin)):
                self._asked.append((origin, address, factory, deferred))
            elif (far := self.servers.get(address) and self.servers[address].buildProtocol(CLIENT)) is None:
                deferred.errback(ConnectionRefusedError("nobody there"))
            else:
                near: Any = factory.buildProtocol(SERVER)
                self.wires.append(Wire(origin, target, Link(near, far), int(port)))
                deferred.callback(near)
        self.wires = [wire for wire in self.wires if not wire.link.lost]
        has_moved = len(self._asked) < len(asked)
        for wire in self.wires:
            near, far = wire.link.ends
            if near.outbox or far.outbox or near.closing or far.closing:
                self._pump(wire, chunk)
                has_moved = True
        return has_moved

    def _pump(self, wire: Wire, chunk: int) -> None:
        near, far = wire.link.ends
        if wire.port == HA_PORT and wire.recorded is None:
            wire.recorded = Recorded(wire.origin, wire.target)
            self.recorded.append(wire.recorded)
        if wire.recorded is not None:
            wire.recorded.note(near.written, far.written)
        there, back = self.passes(wire.origin, wire.target), self.passes(wire.target, wire.origin)
        link, moved = wire.link, wire.link.can_move
        while moved and not link.lost:
            moved = (there and back and link._close()) or any(
                [there and self._move(wire, 0, chunk), back and self._move(wire, 1, chunk)]
            )
        if not (there and back) and not link.lost:
            self._close_one(wire)

    def _move(self, wire: Wire, near: int, chunk: int) -> bool:
        ways = (wire.origin, wire.target), (wire.target, wire.origin)
        delay_s = self.delays.get(ways[near], 0.0)
        if ways[near] in self._left:
            chunk = min(chunk, self._left[ways[near]])
            if not chunk:
                return False
            self._left[ways[near]] -= min(chunk, len(wire.link.ends[near].outbox))
        if delay_s or wire.sent[near]:
            chunk = min(chunk, wire.arrived(near, self.now, delay_s))
        return chunk > 0 and wire.link._move(near, 1 - near, chunk)

    def _close_one(self, wire: Wire) -> None:
        """An end that closes hears so at once; the other one when something passes again."""
        for near, end in enumerate(wire.link.ends):
            host = (wire.origin, wire.target)[near]
            if end.closing is not None and host not in self.frozen and near not in wire.dead:
                wire.leave(near).connectionLost(end.closing)

    def lose(self, host: str) -> None:
        """A process has ended: the others hear that, and nobody asks it anything."""
        for address in [address for address in self.servers if address.startswith(f"{host}:")]:
            del self.servers[address]
        self._asked[:] = [asked for asked in self._asked if asked[0] != host]
        for recorded in self.recorded:
            if recorded.origin == host:
                recorded.ended_at = min(recorded.ended_at, self.now)
        for wire in self.wires:
            if host in (wire.origin, wire.target) and not wire.link.lost:
                dead = 0 if wire.origin == host else 1
                wire.leave(dead)
                wire.link.ends[dead].abortConnection()


@attrs.define
class Replica:
    """One broker of the group."""

    replica_id: int
    host: str
    #: The directory of its store, on `disk`.
    root: Path
    reactor: HostReactor
    service: BrokerService
    etcd: ModelClient
    disk: IDisk
    is_dead: bool = False
    is_frozen: bool = False

    @property
    def parts(self) -> Any:
        return self.service._assembly

    @property
    def is_running(self) -> bool:
        return not self.is_dead and bool(self.service.running)

    @property
    def is_master(self) -> bool:
        """Whether it serves as master."""
        role = self.service.settings.store.broker_role
        return self.is_running and role is BrokerRole.SYNC_MASTER and f"{self.host}:{PORT}" in self.service_servers

    @property
    def service_servers(self) -> dict[str, Any]:
        return self.reactor._servers

    @property
    def why_not(self) -> str:
        """Why it takes no part in its group, or does not follow the master."""
        group, slave = self.service._group, self.service._slave
        assert group is not None
        following = "" if slave is None else slave._service.status.why_not
        return group.member.why_not or following

    @property
    def why_not_whole(self) -> str:
        """Why its store may lack what it has acknowledged."""
        assert self.service._group is not None
        return self.service._group.store.why_not_whole

    @property
    def store(self) -> MessageStore:
        store: MessageStore = self.parts._store
        return store

    def log(self) -> tuple[int, bytes]:
        """Where the log begins, and its bytes."""
        raw, data = self.store.raw_log, b""
        while raw.start + len(data) < raw.end:
            offset = raw.start + len(data)
            end = min(raw.end, offset - offset % raw.segment_bytes + raw.segment_bytes)
            found: Any = raw.read(offset, end - offset)
            if isinstance(found, Deferred):
                read: list[bytes] = []
                found.addCallback(read.append)
                found = read[0]
            data += bytes(found)
        return raw.start, data

    def records(self) -> dict[int, Record]:
        """The records of the log by their offset."""
        start, data = self.log()
        found, at, segment = {}, 0, self.store.raw_log.segment_bytes
        while at < len(data):
            size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                assert (at + size) % segment == 0
            else:
                found[start + at] = decode_record(data, at)
            at += size
        return found


class Group:
    """The brokers of one name, and what they need. `step` lets a moment pass everywhere."""

    def __init__(
        self, root: Path, rng: Random | None = None, *, is_disk_simulated: bool = False, **changes: Any
    ) -> None:
        self.root, self.rng, self.changes = root, rng or Random(1), changes
        self.is_disk_simulated = is_disk_simulated
        root.mkdir(exist_ok=True)
        self.wires, self.etcd = Wires(), EtcdModel(self.rng)
        self.now = 0.0
        #: How fast the clocks of brokers run, by their ids; 1.0 without an entry.
        self.rates: dict[int, float] = {}
        self.chunk = 1 << 30
        self.replicas: dict[int, Replica] = {}
        self.clients: list[Client] = []
        #: Why brokers did not start.
        self.failed: list[Failure] = []
        #: Says whether a broker may refuse to start; then it is dead, as after a kill.
        self.may_refuse: Callable[[int, Failure], bool] = lambda replica_id, why: False
        #: The brokers that have ended their processes themselves.
        self.ended: list[int] = []
        self._images = 0
        #: The in-sync set at a revision of etcd's keys.
        self._in_sync: tuple[object, int, frozenset[int]] = (None, 0, frozenset())
        self.namesrvs = {host: self._make_namesrv(host) for host in NAMESRVS}

    def _make_namesrv(self, host: str) -> tuple[HostReactor, Namesrv]:
        reactor = HostReactor(host, self.wires.servers)
        settings = NamesrvSettings(
            config_store_path=str(self.root / f"{host}-x"),
            kv_config_path=str(self.root / f"{host}-kv.json"),
            server=NettySettings(listen_port=9876),
            tls=TlsSettings(mode=TlsMode.DISABLED),
        )
        service = make_namesrv(settings, reactor, InlineWorker())
        service.startService()
        return reactor, service

    def _root_of(self, replica_id: int) -> Path:
        return Path("/store") if self.is_disk_simulated else self.root / f"broker{replica_id}"

    def _make_disk(self) -> IDisk:
        return SimDisk() if self.is_disk_simulated else OsDisk()

    def start(self, replica_id: int, *, disk: IDisk | None = None) -> Replica:
        """Start a broker; again with its store, if there was one."""
        host = f"10.0.0.{replica_id}"
        former = self.replicas.get(replica_id)
        root = former.root if former is not None else self._root_of(replica_id)
        if disk is None:
            disk = former.disk if former is not None else self._make_disk()
        changes = {"store": {}, **self.changes}
        store = {
            "mapped_file_size_commit_log": 64 * 1024,
            "max_message_size": 16 * 1024,
            "broker_role": BrokerRole.SYNC_MASTER,
            **changes.pop("store"),
        }
        settings = attrs.evolve(
            make_settings(root, store=store, vip_port_enable=False, **changes),
            broker_ip1=host,
            broker_ip2=host,
            broker_id=replica_id,
            etcd_endpoints=("http://10.0.0.8:2379",),
            ha_listen_port=HA_PORT,
            server=NettySettings(listen_port=PORT),
            tls=TlsSettings(mode=TlsMode.DISABLED),
            namesrv_addr=tuple(f"{host}:9876" for host in NAMESRVS),
        )
        reactor = HostReactor(host, self.wires.servers)
        reactor.advance(self.clock_of(replica_id) - reactor.seconds())
        if isinstance(disk, SimDisk):
            disk.now_ms = lambda: int(reactor.seconds() * 1000)

        def passes(way: str) -> bool:
            return self.wires.passes(host, ETCD) if way == "out" else self.wires.passes(ETCD, host)

        etcd = ModelClient(self.etcd, reactor, passes, replica_id - 1)
        service = BrokerService(
            settings,
            reactor,
            disk=disk,
            rng=Random(f"{host} {self.now}"),
            worker=InlineWorker(),
            connector=self.wires.connector(host),
            etcd=etcd,
            steady=lambda: self.now * self.rates.get(replica_id, 1.0),
        )
        replica = self.replicas[replica_id] = Replica(replica_id, host, root, reactor, service, etcd, disk)
        service.startService().addErrback(self._not_started, replica)
        return replica

    def _not_started(self, failure: Failure, replica: Replica) -> None:
        if self.may_refuse(replica.replica_id, failure):
            replica.reactor.is_ended = True
        else:
            self.failed.append(failure)

    def step(self) -> None:
        for failure in self.failed:
            failure.raiseException()
        for replica in self.replicas.values():
            if replica.reactor.is_ended and not replica.is_dead:
                self.kill(replica.replica_id)
                self.ended.append(replica.replica_id)
        self.now += STEP_S
        self.wires.begin_step(self.now)
        self.etcd.clock.advance(STEP_S)
        self.etcd.look()
        for reactor, _ in self.namesrvs.values():
            reactor.advance(STEP_S)
        for replica in self.replicas.values():
            if not (replica.is_dead or replica.is_frozen):
                replica.reactor.advance(STEP_S * self.rates.get(replica.replica_id, 1.0))
        for _ in range(3):
            reactors = [each.reactor for each in self.replicas.values() if not (each.is_dead or each.is_frozen)]
            if not self.wires.pump(self.chunk) and not any(reactor.is_due for reactor in reactors):
                break
            for replica in self.replicas.values():
                if not (replica.is_dead or replica.is_frozen):
                    replica.reactor.advance(0)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.step()

    def wait_for(self, condition: Callable[[], object], seconds: float = 20.0) -> float:
        """Let time pass until the condition holds; returns how much, in seconds."""
        began = self.now
        while not condition():
            assert self.now - began < seconds, "it never came to be"
            self.step()
        return self.now - began

    def broker_tables(self) -> list[dict[str, Any]]:
        """The brokers by their name, as each of the name servers has them."""
        services = [child for _, service in self.namesrvs.values() for child in service._children]
        routes = [child._routes for child in services if isinstance(child, ExpiryService)]
        return [each.cluster_info().broker_addr_table for each in routes]

    @property
    def clock_s(self) -> float:
        """The time on a clock that runs as it should."""
        return next(iter(self.namesrvs.values()))[0].seconds()

    def clock_of(self, replica_id: int) -> float:
        """The time on the clock of a broker's host."""
        return self.clock_s + (self.rates.get(replica_id, 1.0) - 1.0) * self.now

    @property
    def masters(self) -> list[Replica]:
        """The brokers that take themselves for the master, with a lease."""
        return [each for each in self.replicas.values() if each.is_master and self.member(each).is_master]

    def master(self, seconds: float = 20.0) -> Replica:
        """The master, once there is one."""
        self.wait_for(lambda: self.masters, seconds)
        [master] = self.masters
        return master

    def member(self, replica: Replica) -> Any:
        assert replica.service._group is not None
        return replica.service._group.member

    def in_sync(self) -> set[int]:
        """The in-sync set as etcd has it."""
        items, revision, in_sync = self._in_sync
        if items is not self.etcd.items or revision != self.etcd.revision:
            found = next((item.value for key, item in self.etcd.items.items() if key.endswith("/state")), _NO_STATE)
            in_sync = frozenset(json.loads(found)["in_sync"])
            self._in_sync = self.etcd.items, self.etcd.revision, in_sync
        return set(in_sync)

    def kill(self, replica_id: int) -> None:
        """End a broker as SIGKILL does."""
        replica = self.replicas[replica_id]
        if isinstance(replica.disk, SimDisk):
            replica.disk = replica.disk.killed(self.rng)
        else:
            self._images += 1
            image = self.root / f"image{self._images}-{replica_id}"
            shutil.copytree(replica.root, image)
            replica.root = image
        self._end(replica)

    def cut_power(self, replica_id: int) -> None:
        """End a broker and its machine, whether it runs or not: what was not synced may be lost."""
        replica = self.replicas[replica_id]
        assert isinstance(replica.disk, SimDisk)
        replica.disk = replica.disk.crashed(self.rng)
        self._end(replica)

    def _end(self, replica: Replica) -> None:
        replica.is_dead = True
        replica.etcd._passes = lambda way: False
        self.wires.lose(replica.host)

    def stop(self, replica_id: int) -> None:
        """Stop a broker in order."""
        replica = self.replicas[replica_id]
        done: list[object] = []
        replica.service.stopService().addBoth(lambda result: done.append(result))
        self.wait_for(lambda: done)
        replica.is_dead = True
        replica.etcd._passes = lambda way: False
        self.wires.lose(replica.host)

    def freeze(self, replica_id: int) -> None:
        """Stop a broker's process, as SIGSTOP does."""
        replica = self.replicas[replica_id]
        replica.is_frozen = True
        self.wires.frozen.add(replica.host)

    def thaw(self, replica_id: int) -> None:
        """Let it go on: its clock jumps to the present, and it reads what has come meanwhile."""
        replica = self.replicas[replica_id]
        replica.is_frozen = False
        self.wires.frozen.discard(replica.host)
        replica.reactor.advance(self.clock_of(replica_id) - replica.reactor.seconds())
        self.wires.pump(self.chunk)  # before anything can be asked that it does not know

    def client(self, replica: Replica, address: IPv4Address = CLIENT) -> Client:
        """A connection to a broker, which takes it for one from `address`."""
        client = Client(self, replica, address)
        self.clients.append(client)
        return client

    def close(self) -> None:
        self.wires.cut.clear()
        for replica in list(self.replicas.values()):
            if replica.is_frozen:
                self.thaw(replica.replica_id)
        for replica in list(self.replicas.values()):
            if replica.is_running:
                self.stop(replica.replica_id)
        for _, service in self.namesrvs.values():
            service.stopService()

    def alive(self) -> Iterator[Replica]:
        return iter([replica for replica in self.replicas.values() if not replica.is_dead])


class Client:
    """A raw connection to one broker, from a host of its own."""

    HOST = "10.0.0.7"

    def __init__(self, group: Group, replica: Replica, address: IPv4Address) -> None:
        self.group, self.replica = group, replica
        self.peer = Peer()
        self._opaque = 0
        self._decoder = FrameDecoder()
        far = group.wires.servers[f"{replica.host}:{PORT}"].buildProtocol(address)
        self.link = Link(self.peer, far, near_address=address)
        group.wires.wires.append(Wire(self.HOST, replica.host, self.link))

    def tell(self, *commands: RemotingCommand) -> None:
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            self.peer.transport.write(encode_command(command))

    def heard(self) -> list[RemotingCommand]:
        """What came since the last time this was asked."""
        data = bytes(self.peer.received)
        self.peer.received.clear()
        return decode_commands(self._decoder.feed(data)) if data else []

    def ask(self, code: RequestCode, header: Any = None, body: bytes = b"", seconds: float = 10.0) -> RemotingCommand:
        return self.send(RemotingCommand.request(code, header, body), seconds)

    def send(self, command: RemotingCommand, seconds: float = 10.0) -> RemotingCommand:
        """The answer to one command."""
        found: list[RemotingCommand] = []
        self.tell(command)

        def is_there() -> bool:
            found.extend(each for each in self.heard() if each.opaque == command.opaque)
            return bool(found)

        self.group.wait_for(is_there, seconds)
        return found[0]


def started(group: Group, *replicas: int) -> Replica:
    """Start these, or three, and return the master once all are in sync."""
    for replica_id in replicas or (1, 2, 3):
        group.start(replica_id)
    group.master()
    group.wait_for(lambda: group.in_sync() == set(group.replicas))
    return group.master()
