"""Two ends of a connection in memory: bytes move only when a test says so, in pieces of its choosing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint, ITCPTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.kernel import compiled
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import AddressLoad, Limits, Load
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.wire.command import FrameDecoder, RemotingCommand
from tests.commands import decode_commands

SERVER = IPv4Address("TCP", "10.0.0.1", 10911)
CLIENT = IPv4Address("TCP", "10.0.0.2", 40000)

#: As much may wait in an end before its producer is paused.
UNREAD_MAX = 64 * 1024


def _nothing() -> None:
    pass


@implementer(ITCPTransport)
class End:  # type: ignore[misc] # what is asked of a transport here, not all
    """The transport of one protocol. What it wrote waits in `outbox` until the link moves it."""

    def __init__(self, peer: IPv4Address, host: IPv4Address) -> None:
        self.outbox = bytearray()
        self.written = bytearray()
        self.reading = True
        self.closing: Failure | None = None
        self.producer: Any = None
        self.paused_producer = False
        self.disconnecting = False
        #: Called when there is something to move or to close.
        self.on_change: Callable[[], None] = _nothing
        self._peer, self._host = peer, host

    # what Twisted's descriptors keep of what they did not send

    offset = _tempDataLen = 0  # noqa: N815

    @property
    def dataBuffer(self) -> bytearray:  # noqa: N802
        return self.outbox

    # what protocols call

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if self.closing is None:
            self.outbox += data
            self.written += data
            if len(self.outbox) > UNREAD_MAX and self.producer is not None and not self.paused_producer:
                self.paused_producer = True
                self.producer.pauseProducing()
            self.on_change()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.closing = self.closing or Failure(ConnectionDone())
        self.disconnecting = True
        self.on_change()

    def abortConnection(self) -> None:
        self.outbox.clear()
        self.closing = self.closing or Failure(ConnectionAborted())
        self.disconnecting = True
        self.on_change()

    def getPeer(self) -> IPv4Address:
        return self._peer

    def getHost(self) -> Any:
        return self._host

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = enabled

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None
        self.paused_producer = False

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        assert self.closing is None
        self.reading = True
        self.on_change()

    def stopProducing(self) -> None:
        self.loseConnection()

    # what the link calls

    def taken(self, count: int) -> bytes:
        """Move `count` bytes out; the producer goes on when all are gone."""
        data = bytes(self.outbox[:count])
        del self.outbox[:count]
        if not self.outbox and self.paused_producer:
            self.paused_producer = False
            self.producer.resumeProducing()
        return data


class Link:
    """Joins two protocols. Nothing happens between `pump`s."""

    def __init__(
        self,
        near: RemotingProtocol | Peer,
        far: RemotingProtocol,
        *,
        near_address: Any = CLIENT,
        far_address: IPv4Address = SERVER,
        far_end: type[End] = End,
    ) -> None:
        self.protocols = (near, far)
        self.ends = (End(far_address, near_address), far_end(near_address, far_address))
        self.paused = False
        self.lost = False
        # The server's side first, as its kernel has it.
        far.makeConnection(self.ends[1])
        near.makeConnection(self.ends[0])

    @property
    def can_move(self) -> bool:
        """Whether `pump` would do anything."""
        if self.lost:
            return False
        near, far = self.ends
        return bool(
            (near.outbox and far.reading and far.closing is None and not self.paused)
            or (far.outbox and near.reading and near.closing is None and not self.paused)
            or (near.closing is not None and not near.outbox)
            or (far.closing is not None and not far.outbox)
        )

    def pump(self, chunk: int = 1 << 30) -> None:
        """Move bytes both ways, `chunk` at a time, until nothing moves; then carry out what was closed."""
        moved = True
        while moved and not self.lost:
            moved = self._close() or any([self._move(0, 1, chunk), self._move(1, 0, chunk)])

    def _move(self, source: int, target: int, chunk: int) -> bool:
        end, receiver = self.ends[source], self.ends[target]
        if self.paused or not end.outbox or not receiver.reading or receiver.closing is not None:
            return False
        self.protocols[target].dataReceived(end.taken(chunk))
        return True

    def _close(self) -> bool:
        for closer, end in enumerate(self.ends):
            if end.closing is not None and not end.outbox:
                self.lost = True
                self.ends[1 - closer].loseConnection()
                self.protocols[closer].connectionLost(end.closing)
                self.protocols[1 - closer].connectionLost(Failure(ConnectionDone()))
                return True
        return False

    def cut(self) -> None:
        """Lose the connection at once, and what was under way."""
        self.ends[0].abortConnection()
        self.pump()


class Peer:
    """A raw end: writes any bytes, collects what comes back."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = False
        self.transport: Any = None
        self._decoder, self._decoded = FrameDecoder(), 0
        self._answers: list[RemotingCommand] = []

    def makeConnection(self, transport: End) -> None:
        self.transport = transport

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Failure) -> None:
        self.lost = True

    @property
    def answers(self) -> list[RemotingCommand]:
        """Everything received so far, as commands."""
        fresh, self._decoded = bytes(self.received[self._decoded :]), len(self.received)
        self._answers += decode_commands(self._decoder.feed(fresh))
        return list(self._answers)


def serve(
    clock: Clock,
    table: HandlerTable | None = None,
    limits: Any = None,
    on_event: Callable[..., Any] | None = None,
    extensions: Any = None,
) -> RemotingServerFactory:
    """A started server factory."""
    factory = RemotingServerFactory(table or HandlerTable(), clock, limits or Limits(), on_event, extensions=extensions)
    factory.doStart()
    return factory


def raw_link(factory: RemotingServerFactory) -> tuple[Peer, Link]:
    """A raw peer connected to a server: (peer, link)."""
    peer = Peer()
    return peer, Link(peer, factory.buildProtocol(CLIENT))


class NoOwner:
    """Owns a protocol that stands alone."""

    def __init__(self) -> None:
        self.load = Load()
        self.scheduler = FairScheduler(Clock())
        self.close_log = RateLimitedLog("connections closed", lambda: 0.0, 100)

    def connected(self, connection: IConnection) -> bool:
        return True

    def disconnected(self, connection: IConnection) -> None:
        pass


def protocol_link(
    clock: Clock, factory: RemotingServerFactory, table: HandlerTable | None = None, limits: Any = None
) -> tuple[RemotingProtocol, Link]:
    """A protocol of ours connected to a server: (protocol, link)."""
    near = RemotingProtocol(table or HandlerTable(), clock, limits or Limits(), NoOwner())
    return near, Link(near, factory.buildProtocol(CLIENT))


@implementer(IStreamClientEndpoint)
class Endpoint:
    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        return self.network.connect(self.address, factory)


class Network:
    """Servers by "host:port", and the connections made to them. A held connect waits for `let_through`."""

    def __init__(self) -> None:
        self.servers: dict[Any, Any] = {}
        self.links: list[Any] = []
        self.attempts: list[Any] = []
        self.hold = False
        self._held: list[Any] = []

    def connector(self, host: str, port: int) -> Endpoint:
        return Endpoint(self, f"{host}:{port}")

    def connect(self, address: str, factory: IProtocolFactory) -> Deferred[Any]:
        self.attempts.append(address)
        deferred = Deferred[Any]()
        self._held.append((address, factory, deferred))
        if not self.hold:
            self.let_through()
        return deferred

    def let_through(self) -> None:
        held, self._held = self._held, []
        for address, factory, deferred in held:
            if deferred.called:  # cancelled
                continue
            if address not in self.servers:
                deferred.errback(ConnectionRefusedError("nobody there"))
                continue
            near = factory.buildProtocol(SERVER)
            self.links.append(Link(near, self.servers[address].buildProtocol(CLIENT)))
            deferred.callback(near)

    def pump(self, chunk: int = 1 << 30) -> None:
        for link in list(self.links):
            link.pump(chunk)


def result(deferred: Deferred[Any]) -> Any:
    """What a Deferred came to: its value, its exception, or `waiting`. It has no more to report afterwards."""
    found = []
    deferred.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found[0] if found else waiting


class _Waiting:
    def __repr__(self) -> Any:
        return "waiting"


waiting = _Waiting()


def take_together(factory: RemotingServerFactory, connections: Sequence[Any], reads: Sequence[bytes]) -> list[bytes]:
    """What is left of each read when their connections are read together, as the compiled module does."""
    if compiled is None:
        pytest.skip("the compiled module is not there")
    numbers = [number for number, connection in enumerate(connections) if connection.may_take_plain]
    left, sizes, now = list(reads), Counter[AddressLoad](), factory._clock.seconds()
    for number in numbers:
        connections[number].last_active = now
        sizes[connections[number].from_address] += len(reads[number])
        left[number] = b""
    given = [(reads[number], 0, connections[number]) for number in numbers]
    for at_given, (data, at, connection) in factory.take_together(given, sizes, now) if given else ():
        number = numbers[at_given]
        assert connection is connections[number]
        assert data is reads[number]
        left[number] = data[at:]
    return left
