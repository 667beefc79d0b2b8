"""Reads for all connections of a port, on real sockets and a reactor that moves nothing by itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, ServerFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.kernel import compiled
from mqbroker.remoting import tcp
from mqbroker.remoting.handlers import PlainRead
from mqbroker.remoting.limits import AddressLoad
from mqbroker.remoting.shared_reads import READS_MAX
from mqbroker.remoting.tcp import NO_BUFFERS, ImmediateWritePort, ImmediateWriteServer
from tests.remoting.logs import Logged
from tests.remoting.read_together import Connections, EndingReactor, Kept
from tests.remoting.test_tcp import read

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

#: The bytes of two such reads are more than one call of the receiver has a buffer for.
LARGE_BYTES = 256 * 1024


@pytest.fixture
def reactor() -> EndingReactor:
    return EndingReactor()


@pytest.fixture
def connections(reactor: EndingReactor) -> Iterator[Connections]:
    made = Connections(reactor)
    yield made
    made.close()


def others(of: Connections, one: Kept) -> list[Kept]:
    return [each for each in of.all if each is not one]


def send_large(kept: Kept, letter: bytes = b"x") -> bytes:
    """As much as the socket holds, of what is more than its share of the buffer."""
    data = letter * LARGE_BYTES
    sent = data[: kept.peer.send(data)]
    assert len(sent) > LARGE_BYTES // 2
    return sent


# --- what is read


def test_what_several_sent_is_handed_on_together_and_only_the_rest_to_each(connections: Connections) -> None:
    made = connections.make(3)
    connections.take = lambda reads: [5] * len(reads)
    for kept, data in zip(made, [b"plain", b"plain and more", b"plain rest"], strict=True):
        kept.peer.send(data)
    called: list[Kept] = []
    made[0].on_data = called.append
    connections.turn()
    assert called == []
    assert connections.protocols == [made]
    assert connections.taken == [[b"plain", b"plain and more", b"plain rest"]]
    assert [kept.received for kept in made] == [b"", b" and more", b" rest"]


def test_only_those_that_sent_are_read(connections: Connections) -> None:
    made = connections.make(5)
    connections.turn()
    for number in (1, 3):
        made[number].peer.send(b"data")
    connections.turn()
    connections.turn()
    assert connections.protocols == [[made[1], made[3]]]
    assert [kept.received for kept in made] == [b"", b"data", b"", b"data", b""]


def test_more_than_one_call_reads(connections: Connections) -> None:
    made = connections.make(2 * READS_MAX + 10)
    for kept in made:
        kept.peer.send(b"data")
    connections.turn()
    assert [len(each) for each in connections.protocols] == [READS_MAX, READS_MAX, 10]
    assert [kept.received for kept in made] == [b"data"] * len(made)


def test_large_reads_all_come_in_one_turn(connections: Connections) -> None:
    made = connections.make(7)
    sent = [send_large(kept, b"%d" % number) for number, kept in enumerate(made)]
    connections.turn()
    assert len(connections.taken) > 2
    assert [kept.received for kept in made] == sent


def test_what_little_the_others_sent_comes_with_the_large_reads(connections: Connections) -> None:
    made = connections.make(READS_MAX + 20)
    sent = [send_large(kept) if number % 10 == 0 else b"little" for number, kept in enumerate(made)]
    for kept, data in zip(made, sent, strict=True):
        if data == b"little":
            kept.peer.send(data)
    connections.turn()
    assert [kept.received for kept in made] == sent


def test_what_one_sends_on_waits_for_the_next_turn(connections: Connections) -> None:
    [one, other] = connections.make(2)
    one.on_data = lambda kept: kept.peer.send(b"again")
    for kept in (one, other):
        kept.peer.send(b"first")
    connections.turn()
    assert (one.received, other.received) == (b"first", b"first")
    connections.turn()
    assert one.received == b"firstagain"


# --- ends


def test_a_peer_that_closed_is_done_and_its_last_bytes_come_before(connections: Connections) -> None:
    closed, other = connections.make(2)
    closed.peer.send(b"last")
    other.peer.send(b"data")
    closed.peer.close()
    connections.turn()
    assert (closed.received, closed.lost) == (b"last", None)
    other.peer.send(b" on")
    connections.turn()
    assert (closed.received, closed.lost) == (b"last", ConnectionDone)
    assert (other.received, other.lost) == (b"data on", None)
    connections.turn()


@implementer(IHalfCloseableProtocol)
class HalfOpen(Kept):
    read_ends = 0

    def readConnectionLost(self) -> None:  # noqa: N802
        self.read_ends += 1

    def writeConnectionLost(self) -> None:  # noqa: N802
        raise AssertionError


def test_a_peer_that_sends_no_more_may_be_answered(connections: Connections) -> None:
    [kept] = connections.make(1, HalfOpen)
    kept.peer.shutdown(socket.SHUT_WR)
    for _ in range(3):
        connections.turn()
    assert (cast(HalfOpen, kept).read_ends, kept.lost) == (1, None)
    kept.server.write_at_once(b"answer")
    assert read(kept.peer) == b"answer"


def test_a_peer_that_reset_is_lost(connections: Connections) -> None:
    reset, other = connections.make(2)
    reset.server.write_at_once(b"unread")
    reset.peer.close()
    other.peer.send(b"data")
    connections.turn()
    assert (reset.lost, other.lost, other.received) == (ConnectionLost, None, b"data")


@pytest.mark.parametrize("end", ["reset", "error"])
def test_what_a_read_has_ended_is_not_written_to(connections: Connections, logged: Logged, end: str) -> None:
    """The reactor writes after it has read where it found a socket ready for both."""
    [kept] = connections.make(1)
    kept.server.write(b"a response that waits")
    if end == "reset":
        kept.server.socket.send(b"unread")
        kept.peer.close()
    else:
        kept.peer.send(b"data")
        kept.on_data = lambda kept: 1 // 0
    assert kept.server.doRead() is None
    assert kept.lost is (ConnectionLost if end == "reset" else ZeroDivisionError)
    assert kept.server.doWrite() is None
    assert len(logged.failures) == (end == "error")


def test_an_error_of_one_closes_it_alone(connections: Connections, logged: Logged) -> None:
    made = connections.make(3)
    made[1].on_data = lambda kept: 1 // 0
    for kept in made:
        kept.peer.send(b"data")
    connections.turn()
    assert [kept.lost for kept in made] == [None, ZeroDivisionError, None]
    assert [kept.received for kept in made] == [b"data"] * 3
    assert [failure.type for failure in logged.failures] == [ZeroDivisionError]
    assert logged.lines == ["unexpected error of a connection, which is closed"]
    assert made[1].peer.recv(1) == b""


def test_an_error_in_what_is_done_together_closes_all_of_the_read(connections: Connections, logged: Logged) -> None:
    made = connections.make(4)
    connections.take = lambda reads: [0] * (1 // 0)
    for kept in made[:2]:
        kept.peer.send(b"data")
    made[2].peer.close()
    connections.turn()
    assert [kept.lost for kept in made] == [ZeroDivisionError, ZeroDivisionError, ConnectionDone, None]
    assert [kept.received for kept in made] == [b""] * 4
    assert [failure.type for failure in logged.failures] == [ZeroDivisionError]
    assert logged.lines == ["unexpected error in requests that were read together"]


def test_after_an_error_the_reads_behind_it_are_handled(connections: Connections, logged: Logged) -> None:
    made = connections.make(READS_MAX + 5)
    connections.take = lambda reads: [0] * (len(reads) if len(connections.taken) > 1 else 1 // 0)
    for kept in made:
        kept.peer.send(b"data")
    connections.turn()
    assert [kept.lost for kept in made].count(ZeroDivisionError) == READS_MAX
    assert [kept.received for kept in made].count(b"data") == 5
    assert len(logged.failures) == 1


def test_an_error_in_the_end_of_one_ends_no_other(connections: Connections, logged: Logged) -> None:
    made = connections.make(4)
    made[1].on_lost = lambda: 1 // 0
    made[1].peer.close()
    made[2].peer.close()
    made[3].peer.send(b"data")
    connections.turn()
    assert [kept.lost for kept in made] == [None, ConnectionDone, ConnectionDone, None]
    assert [failure.type for failure in logged.failures] == [ZeroDivisionError]


def test_without_memory_those_that_would_be_read_are_closed(connections: Connections) -> None:
    made = connections.make(3)
    receiver = connections.reads._receiver
    connections.reads._receiver = Mock(receive=Mock(side_effect=MemoryError))
    for kept in made[:2]:
        kept.peer.send(b"data")
    connections.turn()
    assert [kept.lost for kept in made] == [MemoryError, MemoryError, None]
    assert connections.taken == []
    connections.reads._receiver = receiver
    made[2].peer.send(b"data")
    connections.turn()
    assert made[2].received == b"data"


# --- who is not read


def test_one_that_stopped_reading_gets_what_came_when_it_goes_on(connections: Connections) -> None:
    paused, other = connections.make(2)
    paused.server.pauseProducing()
    paused.server.pauseProducing()
    for kept in (paused, other):
        kept.peer.send(b"data")
    connections.turn()
    assert (paused.received, other.received) == (b"", b"data")
    paused.server.resumeProducing()
    paused.server.resumeProducing()
    connections.turn()
    assert connections.protocols == [[other], [paused]]
    assert paused.received == b"data"


def test_one_that_is_paused_in_the_turn_keeps_what_was_read_and_gets_no_more(connections: Connections) -> None:
    made = connections.make(6)

    def pause_others(one: Kept) -> None:
        for kept in others(connections, one):
            kept.server.pauseProducing()

    for kept in made:
        kept.on_data = pause_others
    sent = [send_large(kept) for kept in made]
    connections.turn()
    [first] = connections.protocols
    assert len(first) < 6
    assert [kept.received for kept in made] == [
        data if kept in first else b"" for kept, data in zip(made, sent, strict=True)
    ]
    for kept in made:
        kept.server.resumeProducing()
        kept.on_data = lambda kept: None
    connections.turn()
    assert [kept.received for kept in made] == sent


ENDS: dict[str, Callable[[ImmediateWriteServer], Any]] = {
    "aborted": ImmediateWriteServer.abortConnection,
    "closed": ImmediateWriteServer.loseConnection,
    "lost": lambda server: server.connectionLost(Failure(ConnectionAborted())),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("is_large", [False, True])
def test_one_that_another_ends_gets_nothing(connections: Connections, how: str, is_large: bool) -> None:
    made = connections.make(6)
    for kept in made:
        kept.on_data = lambda kept: [ENDS[how](each.server) for each in others(connections, kept)]
        if is_large:
            send_large(kept)
        else:
            kept.peer.send(b"data")
    connections.turn()
    [kept] = [kept for kept in made if kept.received]
    assert len(connections.protocols) == 1
    connections.reactor.advance(0)
    for other in others(connections, kept):
        if how == "closed":
            assert other.server.doWrite() is not None
        else:
            assert other.lost is ConnectionAborted
    connections.turn()
    assert [kept for kept in made if kept.received] == [kept]


def test_one_that_ends_in_what_is_done_together_gets_nothing(connections: Connections) -> None:
    one, other = connections.make(2)
    connections.take = lambda reads: other.server.abortConnection() or [0] * len(reads)
    for kept in (one, other):
        kept.peer.send(b"data")
    connections.turn()
    assert (one.received, other.received) == (b"data", b"")


def test_the_end_of_a_peer_is_nothing_to_one_that_was_aborted(connections: Connections, logged: Logged) -> None:
    one, other = connections.make(2)
    one.on_data = lambda kept: other.server.abortConnection()
    one.peer.send(b"data")
    other.peer.close()
    connections.turn()
    assert other.lost is None
    connections.reactor.advance(0)
    assert other.lost is ConnectionAborted
    assert logged.lines == []


def test_a_descriptor_that_is_another_file_now_is_not_read(connections: Connections) -> None:
    """Whoever is handled first ends the others and reuses their descriptors."""
    made = connections.make(5)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.send(b"of nobody here")
    reused: list[int] = []

    def reuse_others(one: Kept) -> None:
        for kept in others(connections, one):
            fd = kept.server.descriptor
            kept.server.connectionLost(Failure(ConnectionDone()))
            reused.append(os.dup2(ours.fileno(), fd))

    for kept in made:
        kept.on_data = reuse_others
        send_large(kept)
    connections.turn()
    connections.turn()
    assert len(reused) == 4
    assert sum(bool(kept.received) for kept in made) == 1
    assert read(ours) == b"of nobody here"
    for fd in reused:
        os.close(fd)
    ours.close()
    theirs.close()


def test_a_new_connection_with_the_descriptor_of_an_old_one_is_read(connections: Connections) -> None:
    [old] = connections.make(1)
    fd = old.server.descriptor
    old.server.connectionLost(Failure(ConnectionDone()))
    [new] = connections.make(1)
    assert new.server.descriptor == fd
    new.peer.send(b"data")
    connections.turn()
    assert (old.received, new.received) == (b"", b"data")


def test_a_connection_of_a_closed_port_may_read_again(connections: Connections) -> None:
    [kept] = connections.make(1)
    for number in range(3):
        kept.server.pauseProducing()
        assert connections.reactor.readers == set()
        kept.peer.send(b"%d" % number)
        connections.turn()
        assert kept.received == b"012"[:number]
        kept.server.resumeProducing()
        connections.turn()
    assert kept.received == b"012"


def test_one_that_the_reactor_cannot_take_is_not_read(connections: Connections) -> None:
    [kept] = connections.make(1)
    kept.server.pauseProducing()
    kept.peer.send(b"data")
    refusing = patch.object(connections.reactor, "addReader", side_effect=OSError("no memory"))
    with refusing, pytest.raises(OSError, match="no memory"):
        kept.server.resumeProducing()
    connections.reads.read([kept.server])
    assert kept.received == b""
    kept.server.resumeProducing()
    connections.turn()
    assert kept.received == b"data"


def test_one_that_is_ready_alone_is_read_at_once(connections: Connections) -> None:
    one, other = connections.make(2)
    for kept in (one, other):
        kept.peer.send(b"data")
    assert one.server.doRead() is None
    assert (one.received, other.received) == (b"data", b"")
    one.peer.close()
    assert one.server.doRead() is None
    assert one.lost is ConnectionDone
    assert one.server.doRead() is None


def test_under_a_reactor_that_hands_over_none_those_of_a_turn_are_read_in_the_next_one(
    connections: Connections, reactor: EndingReactor
) -> None:
    reactor.hands_over_reads = False
    made = connections.make(4)
    for turn in range(2):
        for kept in made[:3]:
            kept.peer.send(b"data")
            assert kept.server.doRead() is None
        assert made[0].received == b"data" * turn
        made[2].server.pauseProducing()
        reactor.advance(0)
        made[2].server.resumeProducing()
    assert connections.protocols == [made[:2]] * 2
    assert [kept.received for kept in made] == [b"datadata"] * 2 + [b""] * 2
    assert not reactor.getDelayedCalls()


def test_one_that_is_found_ready_twice_in_a_turn_is_read_once(connections: Connections, reactor: EndingReactor) -> None:
    """The second read would be taken for the beginning of a frame."""
    reactor.hands_over_reads = False
    one, other = connections.make(2)
    with patch.object(connections.reads, "read") as read:
        for kept in (one, other, one):
            kept.server.doRead()
        reactor.advance(0)
    read.assert_called_once_with([one.server, other.server])


# --- ports


class Together(ServerFactory):
    """A factory whose connections are read together."""

    protocol = Kept
    noisy = False

    def take_together(
        self, reads: list[PlainRead], sizes: Mapping[AddressLoad, int], now: float
    ) -> list[tuple[int, PlainRead]]:
        return [(number, (data, len("plain "), protocol)) for number, (data, _, protocol) in enumerate(reads)]

    def in_time(self, protocols: Sequence[Any]) -> list[bool]:
        return [True] * len(protocols)


def test_a_port_accepts_connections_and_reads_for_them(reactor: EndingReactor) -> None:
    factory, made = Together(), list[Any]()
    build = factory.buildProtocol
    factory.buildProtocol = lambda addr: made.append(build(addr)) or made[-1]
    port = ImmediateWritePort(0, factory, 5, "127.0.0.1", reactor, NO_BUFFERS)
    port.startListening()
    with socket.create_connection(("127.0.0.1", port.getHost().port)) as peer:
        port.doRead()
        [kept] = made
        assert reactor.readers == {port, kept.server}
        assert kept.server.descriptor == kept.server.fileno()
        peer.send(b"plain data")
        reactor.turn()
        assert kept.received == b"data"
        port.connectionLost(Failure(ConnectionDone()))
        peer.send(b"plain more")
        reactor.turn()
        assert kept.received == b"datamore"
        kept.server.connectionLost(Failure(ConnectionDone()))
    assert reactor.readers == set()


@pytest.mark.parametrize("lacking", ["compiled", "take_together"])
def test_without_what_it_takes_each_reads_by_itself(
    reactor: EndingReactor, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "compiled":
        monkeypatch.setattr(tcp, "compiled", None)
    factory = Factory.forProtocol(Kept) if lacking == "take_together" else Together()
    port = ImmediateWritePort(0, cast(Any, factory), 5, "", reactor, NO_BUFFERS)
    assert port.reads is None
    ours, theirs = socket.socketpair()
    server = ImmediateWriteServer(ours, Kept(), ("127.0.0.1", 1), cast(Any, None), 0, cast(Any, reactor))
    assert reactor.readers == {server}
    server.stopReading()
    assert reactor.readers == set()
    server.connectionLost(Failure(ConnectionDone()))
    theirs.close()
