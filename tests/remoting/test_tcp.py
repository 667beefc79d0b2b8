"""The prompt transport on real sockets; nothing here waits for longer than the kernel takes on one machine."""

import socket

import pytest
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock

from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.tcp import PromptServer
from tests.remoting.link import CLIENT, SERVER, End, NoOwner


class Reactor(Clock):
    """Keeps who wants to read and write, and moves nothing by itself."""

    def __init__(self):
        super().__init__()
        self.readers, self.writers = set(), set()

    def addReader(self, reader):  # noqa: N802
        self.readers.add(reader)

    def removeReader(self, reader):  # noqa: N802
        self.readers.discard(reader)

    def addWriter(self, writer):  # noqa: N802
        self.writers.add(writer)

    def removeWriter(self, writer):  # noqa: N802
        self.writers.discard(writer)


@pytest.fixture
def reactor():
    return Reactor()


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def server(pair, reactor):
    protocol = Protocol()
    server = PromptServer(pair[0], protocol, ("127.0.0.1", 1), None, 0, reactor)
    protocol.makeConnection(server)
    return server


def read(theirs):
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


def drain(server, theirs, reactor):
    """Read as a slow peer would, the reactor writing whenever it may."""
    found = read(theirs)
    while server in reactor.writers:
        server.doWrite()
        found += read(theirs)
    return found


def test_it_sends_without_a_turn_of_the_reactor(server, pair, reactor):
    server.write_at_once(b"now")
    assert read(pair[1]) == b"now"
    assert server not in reactor.writers


def test_plain_write_waits_for_the_reactor_and_is_not_overtaken(server, pair, reactor):
    server.write(b"first ")
    server.write_at_once(b"second ")
    assert read(pair[1]) == b""
    server.write_at_once(b"third")
    assert drain(server, pair[1], reactor) == b"first second third"
    server.write_at_once(b"again at once")
    assert read(pair[1]) == b"again at once"


def test_what_the_socket_does_not_take_follows_in_order(server, pair, reactor):
    pieces = [bytes([65 + i]) * 30_000 for i in range(10)]
    for piece in pieces:
        server.write_at_once(piece)
    assert server in reactor.writers
    assert drain(server, pair[1], reactor) == b"".join(pieces)


def test_a_full_socket_takes_nothing_and_nothing_is_lost(server, pair, reactor):
    whole = b""
    for i in range(60):
        piece = bytes([i]) * 1000
        server.write_at_once(piece)
        whole += piece
        if i == 40:
            assert server in reactor.writers
            server.doWrite()
    assert drain(server, pair[1], reactor) == whole


def test_what_is_half_sent_is_not_overtaken_once_there_is_room(server, pair, reactor):
    whole = bytes(range(256)) * 2000
    server.write_at_once(whole)
    server.doWrite()
    found = read(pair[1])
    assert server in reactor.writers
    server.write_at_once(b"the end")
    assert found + drain(server, pair[1], reactor) == whole + b"the end"


def test_a_producer_is_paused_by_what_waits(server, pair, reactor):
    class Producer:
        calls = ()

        def pauseProducing(self):
            self.calls += ("pause",)

        def resumeProducing(self):
            self.calls += ("resume",)

        def stopProducing(self):
            self.calls += ("stop",)

    producer = Producer()
    server.registerProducer(producer, True)
    server.write_at_once(bytes(server.bufferSize + 100_000))
    assert producer.calls == ("pause",)
    assert len(drain(server, pair[1], reactor)) == server.bufferSize + 100_000
    assert producer.calls == ("pause", "resume")


def test_a_broken_socket_raises_nothing_and_the_reactor_finds_out(server, pair, reactor):
    pair[1].close()
    server.write_at_once(b"to nobody")
    assert server in reactor.writers
    assert server.doWrite() is not None


def test_nothing_is_sent_after_the_end(server, pair, reactor):
    server.loseConnection()
    server.write_at_once(b"late")
    assert read(pair[1]) == b""


class Wrapper:
    """As Twisted's TLS is: what it does not have itself, it hands out from the transport beneath."""

    def __init__(self, below):
        self._below = below

    def write(self, data):
        self._below.write(b"encrypted:" + data)

    def __getattr__(self, name):
        return getattr(self._below, name)


def test_a_wrapped_transport_is_never_written_around():
    class Prompt(End):
        def write_at_once(self, data):
            self.write(b"plain:" + data)

    end = Prompt(CLIENT, SERVER)
    protocol = RemotingProtocol(HandlerTable(), Clock(), Limits(), NoOwner())
    protocol.makeConnection(Wrapper(end))
    protocol.write(b"secret")
    assert end.written == b"encrypted:secret"
