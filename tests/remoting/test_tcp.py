"""The prompt transport on real sockets; nothing here waits for longer than the kernel takes on one machine."""

import gc
import socket
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from twisted.internet import tcp
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mqbroker.config import NettySettings
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.fair_scheduler import FairScheduler
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.tcp import (
    NO_BUFFERS,
    Buffers,
    ImmediateWritePort,
    ImmediateWriteServer,
    unsent_bytes,
    write_at_once,
    write_parts_at_once,
)
from mqbroker.wire.command import RemotingCommand, encode_command
from tests.remoting.link import CLIENT, SERVER, End, NoOwner
from tests.remoting.logs import Logged


class Reactor(Clock):
    """Keeps who wants to read and write, and moves nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.readers, self.writers = set[Any](), set[Any]()

    def addReader(self, reader: ImmediateWriteServer) -> None:  # noqa: N802
        self.readers.add(reader)

    def removeReader(self, reader: ImmediateWriteServer) -> None:  # noqa: N802
        self.readers.discard(reader)

    def addWriter(self, writer: ImmediateWriteServer) -> None:  # noqa: N802
        self.writers.add(writer)

    def removeWriter(self, writer: ImmediateWriteServer) -> None:  # noqa: N802
        self.writers.discard(writer)


@pytest.fixture
def reactor() -> Reactor:
    return Reactor()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def server(pair: tuple[socket.socket, socket.socket], reactor: Reactor) -> ImmediateWriteServer:
    protocol = Protocol()
    server = ImmediateWriteServer(pair[0], protocol, ("127.0.0.1", 1), None, 0, cast(Any, reactor))
    protocol.makeConnection(server)
    return server


def read(theirs: socket.socket) -> bytes:
    """All that is there now."""
    found = b""
    while True:
        try:
            data = theirs.recv(1 << 20)
        except BlockingIOError:
            return found
        if not data:
            return found
        found += data


def drain(server: ImmediateWriteServer, theirs: socket.socket, reactor: Reactor) -> bytes:
    """Read as a slow peer would, the reactor writing whenever it may."""
    found = read(theirs)
    while server in reactor.writers:
        server.doWrite()
        found += read(theirs)
    return found


def test_it_sends_without_a_turn_of_the_reactor(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    server.write_at_once(b"now")
    assert read(pair[1]) == b"now"
    assert server not in reactor.writers


def test_plain_write_waits_for_the_reactor_and_is_not_overtaken(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    server.write(b"first ")
    server.write_at_once(b"second ")
    assert read(pair[1]) == b""
    server.write_at_once(b"third")
    assert drain(server, pair[1], reactor) == b"first second third"
    server.write_at_once(b"again at once")
    assert read(pair[1]) == b"again at once"


def test_parts_are_written_in_order_whatever_the_socket_accepts(
    pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    plain = tcp.Connection(pair[0], Protocol(), cast(Any, reactor))
    plain.connected = 1
    parts: list[bytes | memoryview] = [b"head", memoryview(b"x" * 50_000), b"tail", memoryview(b"y" * 50_000)]
    write_parts_at_once(plain, parts[:1])
    write_parts_at_once(plain, parts[1:])
    found = read(pair[1])
    assert 4 < len(found) < 100_008
    write_parts_at_once(plain, [b"behind"])
    while plain in reactor.writers:
        plain.doWrite()
        found += read(pair[1])
    assert found == b"".join(parts) + b"behind"
    many = [b"%03d" % (n % 1000) for n in range(5_000)]  # more than one call takes
    write_parts_at_once(plain, many)
    assert drain(cast(Any, plain), pair[1], reactor) == b"".join(many)


def test_parts_for_a_transport_without_socket_are_joined() -> None:
    transport = StringTransport()
    write_parts_at_once(transport, [b"one ", memoryview(b"and two")])
    assert transport.value() == b"one and two"


def test_bytes_are_written_at_once_to_any_socket_of_twisted(
    pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    plain = tcp.Connection(pair[0], Protocol(), cast(Any, reactor))
    plain.connected = 1
    write_at_once(plain, b"now")
    assert read(pair[1]) == b"now"
    plain.write(b"first ")
    write_at_once(plain, b"second")
    assert read(pair[1]) == b""
    plain.doWrite()
    assert read(pair[1]) == b"first second"
    write_at_once(plain, b"x" * 100_000)
    found = read(pair[1])
    while plain in reactor.writers:
        plain.doWrite()
        found += read(pair[1])
    assert found == b"x" * 100_000


def test_what_the_socket_does_not_take_follows_in_order(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    pieces = [bytes([65 + i]) * 30_000 for i in range(10)]
    for piece in pieces:
        server.write_at_once(piece)
    assert server in reactor.writers
    assert drain(server, pair[1], reactor) == b"".join(pieces)


def test_a_full_socket_takes_nothing_and_nothing_is_lost(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    whole = b""
    for i in range(60):
        piece = bytes([i]) * 1000
        server.write_at_once(piece)
        whole += piece
        if i == 40:
            assert server in reactor.writers
            server.doWrite()
    assert drain(server, pair[1], reactor) == whole


def test_what_is_half_sent_is_not_overtaken_once_there_is_room(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    whole = bytes(range(256)) * 2000
    server.write_at_once(whole)
    server.doWrite()
    found = read(pair[1])
    assert server in reactor.writers
    server.write_at_once(b"the end")
    assert found + drain(server, pair[1], reactor) == whole + b"the end"


def test_a_producer_is_paused_by_what_waits(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    class Producer:
        calls: tuple[str, ...] = ()

        def pauseProducing(self) -> None:
            self.calls += ("pause",)

        def resumeProducing(self) -> None:
            self.calls += ("resume",)

        def stopProducing(self) -> None:
            self.calls += ("stop",)

    producer = Producer()
    server.registerProducer(producer, True)
    server.write_at_once(bytes(server.bufferSize + 100_000))
    assert producer.calls == ("pause",)
    assert len(drain(server, pair[1], reactor)) == server.bufferSize + 100_000
    assert producer.calls == ("pause", "resume")


def test_a_broken_socket_raises_nothing_and_the_reactor_finds_out(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    pair[1].close()
    server.write_at_once(b"to nobody")
    assert server in reactor.writers
    assert server.doWrite() is not None


def test_nothing_is_sent_after_the_end(
    server: ImmediateWriteServer, pair: tuple[socket.socket, socket.socket], reactor: Reactor
) -> None:
    server.loseConnection()
    server.write_at_once(b"late")
    assert read(pair[1]) == b""


class Wrapper:
    """As Twisted's TLS is: what it does not have itself, it hands out from the transport beneath."""

    def __init__(self, below: End) -> None:
        self._below = below

    def write(self, data: bytes) -> None:
        self._below.write(b"encrypted:" + data)

    def __getattr__(self, name: str) -> Callable[..., IPv4Address | None]:
        return getattr(self._below, name)


def test_a_wrapped_transport_is_never_written_around() -> None:
    class Prompt(End):
        def write_at_once(self, data: bytes) -> None:
            self.write(b"plain:" + data)

    end = Prompt(CLIENT, SERVER)
    protocol = RemotingProtocol(HandlerTable(), Clock(), Limits(), NoOwner())
    protocol.makeConnection(Wrapper(end))
    protocol.write(b"secret")
    assert end.written == b"encrypted:secret"


# --- a peer that does not read


@pytest.fixture
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def table() -> HandlerTable:
    table = HandlerTable()
    table.register(10, lambda request, connection: RemotingCommand.response(request, body=bytes(100_000)))
    table.register_batch(11, lambda requests, connection: bytes(100_000) * len(requests), 1)
    return table


@pytest.fixture
def owner() -> NoOwner:
    return NoOwner()


def connected(
    tcp_pair: tuple[socket.socket, socket.socket],
    reactor: Reactor,
    table: HandlerTable,
    owner: NoOwner,
    **limits: Any,
) -> tuple[RemotingProtocol, ImmediateWriteServer]:
    protocol = RemotingProtocol(table, reactor, Limits(**limits), owner)
    server = ImmediateWriteServer(tcp_pair[0], protocol, ("127.0.0.1", 1), None, 0, cast(Any, reactor))
    server.bufferSize = 200_000
    protocol.makeConnection(server)
    return protocol, server


@pytest.mark.parametrize("code", [10, 11])
def test_of_what_a_peer_asks_and_does_not_read_little_is_answered(
    tcp_pair: tuple[socket.socket, socket.socket], reactor: Reactor, table: HandlerTable, owner: NoOwner, code: int
) -> None:
    owner.scheduler = FairScheduler(reactor)
    protocol, server = connected(tcp_pair, reactor, table, owner)
    protocol.dataReceived(encode_command(RemotingCommand(code, {"x": ""})) * 20)
    for _ in range(10):
        reactor.advance(0)
    assert 200_000 < unsent_bytes(server) < 400_000
    assert server not in reactor.readers
    found = b""
    while server in reactor.writers or reactor.getDelayedCalls():
        found += drain(server, tcp_pair[1], reactor)
        assert unsent_bytes(server) < 400_000
        reactor.advance(0)
    assert len(found) >= 2_000_000
    assert server in reactor.readers


def test_what_a_peer_does_not_read_is_bounded(
    tcp_pair: tuple[socket.socket, socket.socket], reactor: Reactor, table: HandlerTable, owner: NoOwner, logged: Logged
) -> None:
    """The transport says at each write that it has enough."""
    protocol, _ = connected(tcp_pair, reactor, table, owner, unsent_bytes_max=1_000_000)
    for _ in range(9):
        protocol.write(bytes(100_000))
    assert not protocol.closed
    for _ in range(3):
        protocol.write(bytes(100_000))
    assert protocol.closed
    (line,) = [line for line in logged.lines if line.startswith("closing ")]
    assert "it does not read its answers: 10" in line


def test_a_peer_that_reads_slowly_may_ask_on(
    pair: tuple[socket.socket, socket.socket], reactor: Reactor, table: HandlerTable, owner: NoOwner
) -> None:
    """What counts is what is unsent, not all that was written since it had too much."""
    protocol, server = connected(pair, reactor, table, owner, unsent_bytes_max=1_000_000)
    protocol.write(bytes(800_000))
    for _ in range(30):
        before = unsent_bytes(server)
        read(pair[1])
        server.doWrite()
        protocol.write(bytes(before - unsent_bytes(server)))
        assert protocol._answers_unread
    assert not protocol.closed


def test_a_peer_that_reads_nothing_is_overdue(
    tcp_pair: tuple[socket.socket, socket.socket], reactor: Reactor, table: HandlerTable, owner: NoOwner
) -> None:
    protocol, _ = connected(tcp_pair, reactor, table, owner, idle_seconds=100.0)
    protocol.write(bytes(800_000))
    for _ in range(8):
        reactor.advance(30)
        protocol.write(bytes(1000))  # keeps the connection busy
        why = protocol.overdue(reactor.seconds())
        if why:
            break
    assert reactor.seconds() == 120
    assert why == "it did not read its answers for 100 s"


def test_a_peer_that_reads_slowly_is_not_overdue(
    pair: tuple[socket.socket, socket.socket], reactor: Reactor, table: HandlerTable, owner: NoOwner
) -> None:
    protocol, server = connected(pair, reactor, table, owner, idle_seconds=100.0)
    protocol.write(bytes(5_000_000))
    for _ in range(20):
        reactor.advance(30)
        read(pair[1])
        server.doWrite()
        assert protocol.overdue(reactor.seconds()) is None


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_what_is_unsent_goes_with_the_connection(
    tcp_pair: tuple[socket.socket, socket.socket],
    reactor: Reactor,
    table: HandlerTable,
    owner: NoOwner,
    no_collections: None,
    how: str,
) -> None:
    protocol, server = connected(tcp_pair, reactor, table, owner)
    gone: list[Any] = []
    weakref.finalize(protocol, gone.append, "protocol")
    weakref.finalize(server, gone.append, "transport")
    protocol.write(bytes(5_000_000))
    protocol.dataReceived(encode_command(RemotingCommand(10, body=bytes(100_000)))[:90_000])
    if how == "refused":
        protocol.refuse("enough")
        assert owner.load.kept_bytes == 0
        reactor.advance(0)
    else:
        server.connectionLost(Failure(ConnectionLost()))
    assert unsent_bytes(server) == 0  # whoever still has the connection has not what was not sent
    assert protocol._decoder.pending_bytes == 0
    del protocol, server
    assert sorted(gone) == ["protocol", "transport"]


def buffers_of(port: ImmediateWritePort) -> list[int]:
    with port.createInternetSocket() as made:
        return [made.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]


def test_buffers_are_as_large_as_is_set(reactor: Reactor) -> None:
    server = NettySettings(server_socket_snd_buf_size=20_000, server_socket_rcv_buf_size=30_000)
    port, usual = [
        ImmediateWritePort(0, ServerFactory(), 5, "", reactor, each) for each in (Buffers.of(server), NO_BUFFERS)
    ]
    # The kernel gives twice as much, for itself as well.
    assert buffers_of(port) == [40_000, 60_000]
    assert buffers_of(usual) != buffers_of(port)
