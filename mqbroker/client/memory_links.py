"""Connections without sockets to a server of Twisted that listens on a clock, as the broker in memory is reached by.

All are used on the server's thread, except `Dialled`, which is used on a client's.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint, ITCPTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command

#: Steps of one `move_to`: more are a mistake, such as a call that makes itself due again at once.
_CALLS_MAX = 1_000_000

_numbers = itertools.count(1)


class Server(Protocol):
    """What is reached."""

    def call(self, act: Callable[[], object]) -> None:
        """Have something done on the server's thread."""

    def soon(self, act: Callable[[], object]) -> None:
        """Have something done after what is being done, on the server's thread."""

    def accept(self, addr: str, accepted: Accepted) -> bool:
        """Take a connection; False, and it is closed, if nobody listens."""

    @property
    def has_faults(self) -> bool:
        """Whether something is to be done to requests of some kind."""

    def next_fault(self, code: int) -> Act | None:
        """What is to be done to a request, in place of serving it."""


#: What is done to a request: the connection that it came on, itself, and its frame.
Act = Callable[["Accepted", RemotingCommand, bytes], object]


class Reactor(Clock):
    """The clock of the servers, and what listens, by port."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self.rightNow = now
        self.factories: dict[int, Any] = {}

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> _Port:
        self.factories[port] = factory
        factory.doStart()
        return _Port(self, port)

    def move_to(self, target: float) -> None:
        """Make all calls that are due until then, each at its time."""
        for _ in range(_CALLS_MAX):
            due = min((call.getTime() for call in self.calls), default=target)
            self.advance(max(0.0, min(due, target) - self.rightNow))
            if due >= target:
                return
        raise RuntimeError("calls of the server in memory make each other for ever")


class _Port:
    def __init__(self, reactor: Reactor, port: int) -> None:
        self._reactor, self._port = reactor, port

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self._port)

    def stopListening(self) -> None:  # noqa: N802
        self._reactor.factories.pop(self._port).doStop()

    def startReading(self) -> None:  # noqa: N802
        """Connections are accepted."""

    stopReading = startReading  # noqa: N815


@implementer(ITCPTransport)
class Accepted:  # type: ignore[misc] # what protocols ask of a transport, not all
    """The server's end of a connection; `write` and `lost` are what is called with what it sends, and at its end."""

    #: Unsent bytes, as Twisted's transports keep them.
    dataBuffer, offset, _tempDataLen = b"", 0, 0  # noqa: N815

    def __init__(self, server: Server, write: Callable[[bytes], object], lost: Callable[[], object]) -> None:
        self.disconnecting = False
        self.protocol: Any = None
        self._server, self._write, self._lost = server, write, lost
        self._number = next(_numbers)
        self._decoder = FrameDecoder()
        self._is_reading = True
        self._unread: list[bytes] = []

    def opened(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.makeConnection(self)

    def turn_away(self) -> None:
        """End it before it was opened."""
        self.disconnecting = True
        self._lost()

    def given(self, data: bytes) -> None:
        """Called with what the other server has sent."""
        if not self.disconnecting:
            self.protocol.dataReceived(data)

    def received(self, data: bytes) -> None:
        """Called with what a client has sent."""
        if self.disconnecting:
            return
        if not self._is_reading:
            self._unread.append(data)
            return
        if not (self._server.has_faults or self._decoder.pending_bytes):
            self.protocol.dataReceived(data)
            return
        for serialize_type, header, body in self._decoder.feed(data):
            command = decode_command(serialize_type, header, body)
            frame = encode_command(command)
            fault = None if command.is_response else self._server.next_fault(command.code)
            if fault is None:
                self.protocol.dataReceived(frame)
            else:
                fault(self, command, frame)

    def ended(self) -> None:
        """Called when the client has closed it."""
        if not self.disconnecting:
            self.disconnecting = True
            self.protocol.connectionLost(_failure(ConnectionDone()))

    # what protocols call

    def write(self, data: bytes) -> None:
        if not self.disconnecting:
            self._write(bytes(data))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self._end(ConnectionDone())

    def abortConnection(self) -> None:
        self._end(ConnectionAborted())

    def _end(self, why: Exception) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self._server.soon(lambda: self.protocol.connectionLost(_failure(why)))
            self._lost()

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 20_000 + self._number % 40_000)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 0)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """There is no TCP."""

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Whoever writes is never paused: clients take all at once."""

    def unregisterProducer(self) -> None:
        """It has none."""

    def pauseProducing(self) -> None:
        self._is_reading = False

    def resumeProducing(self) -> None:
        self._is_reading = True
        unread, self._unread = self._unread, []
        self._server.soon(lambda: self.received(b"".join(unread)))


def _failure(why: Exception) -> Failure:
    return Failure(why)  # type: ignore[no-untyped-call]


class Dialled:
    """The client's end, as a transport of `client/connection.py`. Used on the client's thread."""

    def __init__(self, server: Server, addr: str, connection: Any, call_soon: Callable[..., object]) -> None:
        self._server, self._connection, self._call_soon = server, connection, call_soon
        self._is_closing = False
        self._far = Accepted(
            server,
            lambda data: call_soon(lambda: None if self._is_closing else connection.data_received(data)),
            lambda: call_soon(self._lost),
        )
        server.call(lambda: server.accept(addr, self._far))

    def write(self, data: bytes) -> None:
        self._server.call(lambda: self._far.received(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._server.call(self._far.ended)
            self._call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.lost(None)


@implementer(IStreamClientEndpoint)
class Endpoint:
    """How the broker reaches its name server."""

    def __init__(self, server: Server, addr: str) -> None:
        self._server, self._addr = server, addr

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        connected: Deferred[Any] = Deferred()
        self._server.soon(lambda: self._connect(factory, connected))
        return connected

    def _connect(self, factory: IProtocolFactory, connected: Deferred[Any]) -> None:
        soon = self._server.soon
        near: Any = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 0))
        far = Accepted(self._server, lambda data: soon(lambda: ours.received(data)), lambda: soon(lambda: ours.ended()))
        ours = Accepted(self._server, lambda data: soon(lambda: far.received(data)), lambda: soon(lambda: far.ended()))
        if self._server.accept(self._addr, far):
            ours.opened(near)
            connected.callback(near)
        else:
            connected.errback(_failure(OSError(errno.ECONNREFUSED, "nobody listens there")))
