"""Plain requests, which a handler takes from the bytes of a read before these are split into frames."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.errors import Refused
from mqbroker.remoting.connection import RemotingProtocol
from mqbroker.remoting.fair_scheduler import ALL_AT_ONCE_S, AT_ONCE_S
from mqbroker.remoting.handlers import Answered, Asked, HandlerTable, PlainRead, Taken
from mqbroker.remoting.limits import Limits
from mqbroker.remoting.responses import write_each
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.remoting.tcp import ImmediateWriteServer
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import JSON, RESPONSE_FLAG, RemotingCommand, encode_command
from tests.remoting.link import Link, Peer, raw_link, serve, take_together
from tests.remoting.logs import Logged
from tests.remoting.requests import BATCH, ECHO, echo, request
from tests.remoting.test_tcp import Reactor, drain, read

Answer = Callable[[int], "bytes | Deferred[bytes]"]


class Plain:
    """Takes the frames at the beginning that have no body, one at a time."""

    def __init__(self) -> None:
        self.opaques: list[int] = []
        #: What was asked in each of the reads that were taken last.
        self.asked: list[list[Asked]] = []
        self.answer: Answer = lambda opaque: encode_command(RemotingCommand(0, opaque=opaque, flag=RESPONSE_FLAG))

    def take(self, reads: Sequence[PlainRead]) -> Taken | Answered | None:
        found = [self._take_one(data, at) for data, at, _ in reads]
        if not any(count for _, count, _, _ in found):
            return None
        answers: Any = [answer for _, _, answer, _ in found]
        places = [(stop, count) for stop, count, _, _ in found]
        self.asked = [asked for *_, asked in found]
        if not any(isinstance(answer, Deferred) for answer in answers):
            return places, answers
        [awaited] = [answer.addCallback(lambda data: [data]) for answer in answers]
        return Taken(places, awaited, lambda number: self.asked[number])

    def _take_one(self, data: bytes, at: int) -> tuple[int, int, Any, list[Asked]]:
        size = 4 + int.from_bytes(data[at : at + 4], "big")
        head = int.from_bytes(data[at + 4 : at + 8], "big")
        if len(data) - at < 8 or size > len(data) - at or size != 8 + head:
            return at, 0, b"", []
        opaque = int(data[at : at + size].partition(b'"opaque":')[2].partition(b",")[0])
        self.opaques.append(opaque)
        return at + size, 1, self.answer(opaque), [(opaque, 0, JSON)]


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
def table(plain: Plain) -> HandlerTable:
    table = HandlerTable()
    table.register(ECHO, echo)
    table.register_plain(BATCH, plain.take)
    return table


def frame(opaque: int, body: bytes = b"") -> bytes:
    return request(ECHO, opaque, body, x="y")


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000, 1 << 20])
def test_each_request_is_handled_once_however_the_bytes_come(
    clock: Clock, table: HandlerTable, plain: Plain, chunk: int
) -> None:
    peer, link = raw_link(serve(clock, table))
    bodies = [b"", b"", b"body", b"", b"b" * 300, b"", b"", b"x"]
    peer.transport.write(b"".join(frame(opaque, body) for opaque, body in enumerate(bodies)))
    link.pump(chunk)
    assert sorted(answer.opaque for answer in peer.answers) == list(range(len(bodies)))
    assert plain.opaques == [opaque for opaque in plain.opaques if not bodies[opaque]]


def test_a_stream_whose_reads_end_within_frames_is_not_taken_for_a_stalled_one(
    clock: Clock, table: HandlerTable, plain: Plain
) -> None:
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    data, size = b"".join(frame(1000 + number) for number in range(1000)), len(frame(1000))
    for second in range(100):
        peer.transport.write(data[max(0, 2 * size * second - 20) : 2 * size * (second + 1) - 20])
        link.pump()
        assert link.protocols[1].overdue(clock.seconds()) is None
        clock.advance(1)
    assert len(plain.opaques) == 199
    clock.advance(30)
    assert "a frame was incomplete" in str(link.protocols[1].overdue(clock.seconds()))


def test_answers_that_come_later_count_as_requests_in_flight(clock: Clock, table: HandlerTable, plain: Plain) -> None:
    waiting: list[Deferred[bytes]] = []

    def later(opaque: int) -> Deferred[bytes]:
        waiting.append(Deferred())
        return waiting[-1]

    plain.answer = later
    factory = serve(clock, table)
    peer, link = raw_link(factory)
    peer.transport.write(frame(1) + frame(2))
    link.pump()
    assert factory.load.requests == 2
    waiting[0].callback(encode_command(RemotingCommand(0, opaque=1, flag=RESPONSE_FLAG)))
    waiting[1].errback(Refused(ResponseCode.SYSTEM_BUSY, "no"))
    link.pump()
    assert [(answer.opaque, answer.code) for answer in peer.answers] == [(1, 0), (2, ResponseCode.SYSTEM_BUSY)]
    assert factory.load.requests == 0


def test_nothing_is_handled_after_the_connection_was_closed(clock: Clock, table: HandlerTable, plain: Plain) -> None:
    handled: list[Any] = []
    table.register_batch(BATCH, lambda raws, connection: handled.extend(raws) or b"")
    peer, link = raw_link(serve(clock, table))

    def close(opaque: int) -> bytes:
        link.protocols[1].close("enough")
        return b""

    plain.answer = close
    peer.transport.write(frame(1) + request(BATCH, 2, b"body", x="y"))
    link.pump()
    assert (plain.opaques, handled, link.lost) == ([1], [], True)


def test_what_is_refused_is_not_taken(table: HandlerTable) -> None:
    table.refuse([ECHO], Refused(ResponseCode.SYSTEM_BUSY, "no"))
    assert BATCH in table.plain
    table.refuse([BATCH], Refused(ResponseCode.SYSTEM_BUSY, "no"))
    assert not table.plain


# --- of several connections together


class Together(Plain):
    """Keeps the connections of each call, and answers when `later` fires if that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[object]] = []
        self.later: Deferred[Any] | None = None
        self.on_take: Callable[[], Any] = lambda: None

    def take(self, reads: Sequence[PlainRead]) -> Taken | Answered | None:
        assert all(at == 0 for _, at, _ in reads) or len(reads) == 1
        self.calls.append([connection for *_, connection in reads])
        self.on_take()
        taken = super().take(reads)
        if taken is None or self.later is None:
            return taken
        places, answers, *_ = taken
        return Taken(places, self.later.addCallback(lambda _: answers), lambda number: self.asked[number])


class Server:
    """A server, and peers of it that each have an address of their own."""

    def __init__(self, clock: Clock, plain: Plain) -> None:
        table = HandlerTable()
        table.register(ECHO, echo)
        table.register_plain(BATCH, plain.take)
        self.factory = serve(clock, table, Limits(requests_under_way_max=100, requests_in_flight_max=70))
        self.links: list[Link] = []

    def connect(self, count: int, host: str = "") -> list[RemotingProtocol]:
        return [self._connect_one(host) for _ in range(count)]

    def _connect_one(self, host: str) -> RemotingProtocol:
        address = IPv4Address("TCP", host or f"10.0.1.{len(self.links)}", 40_000 + len(self.links))
        connection = self.factory.buildProtocol(address)
        self.links.append(Link(Peer(), connection, near_address=address))
        return connection

    def take(self, connections: Sequence[object], *reads: bytes) -> list[bytes]:
        return take_together(self.factory, connections, reads)

    @property
    def answers(self) -> list[list[tuple[int, int]]]:
        """What each peer was answered: opaque and code."""
        for link in self.links:
            link.pump()
        return [[(each.opaque, each.code) for each in cast(Peer, link.protocols[0]).answers] for link in self.links]


@pytest.fixture
def together() -> Together:
    return Together()


@pytest.fixture
def server(clock: Clock, together: Together) -> Server:
    return Server(clock, together)


def test_short_reads_are_handled_together(server: Server, together: Together) -> None:
    connections = server.connect(3)
    assert server.take(connections, frame(1), frame(2) + b"rest", frame(3) + frame(4)) == [b"", b"rest", frame(4)]
    assert together.calls == [connections]
    assert server.answers == [[(1, 0)], [(2, 0)], [(3, 0)]]


def test_what_is_left_is_answered_behind(server: Server, together: Together) -> None:
    connections = server.connect(2)
    left = server.take(connections, frame(1) + frame(2, b"body"), frame(3) + frame(4) + frame(5))
    for connection, data in zip(connections, left, strict=True):
        connection.dataReceived(data)
    assert server.answers == [[(1, 0), (2, 0)], [(3, 0), (4, 0), (5, 0)]]


def test_a_read_that_begins_with_another_request_is_left_whole(server: Server, together: Together) -> None:
    reads = [frame(1), frame(2, b"body") + frame(3), frame(4)[:-1], b"", frame(5)]
    assert server.take(server.connect(5), *reads) == [b"", *reads[1:4], b""]
    assert server.answers == [[(1, 0)], [], [], [], [(5, 0)]]


def test_where_nothing_is_plain_all_is_left(server: Server, together: Together) -> None:
    reads = [frame(1, b"body"), frame(2)[:10]]
    assert server.take(server.connect(2), *reads) == reads
    assert server.answers == [[], []]


def test_without_a_plain_handler_all_is_left(clock: Clock) -> None:
    factory = serve(clock)
    _, link = raw_link(factory)
    assert take_together(factory, [link.protocols[1]], [frame(1)]) == [frame(1)]


def be_half_received(server: Server, connection: RemotingProtocol) -> bytes:
    connection.dataReceived(frame(8, b"body")[:-1])
    return frame(1)


def be_closed(server: Server, connection: RemotingProtocol) -> bytes:
    connection.close("enough")
    return frame(1)


def be_unknown(server: Server, connection: RemotingProtocol) -> bytes:
    connection.sniff = cast(Any, pytest.fail)
    connection.makeConnection(cast(Any, connection.transport))
    return frame(1)


def be_at_its_limit(server: Server, connection: RemotingProtocol) -> bytes:
    server.factory._limits = Limits(requests_under_way_max=10_000)
    connection.begin_requests(70)
    return frame(1)


def have_no_room(server: Server, connection: RemotingProtocol) -> bytes:
    connection.begin_requests(65)
    assert not connection.has_room_for_requests()
    return frame(1)


def have_an_address_without_room(server: Server, connection: RemotingProtocol) -> bytes:
    for beside in server.connect(7, connection.remote_addr.split(":")[0]):
        beside.begin_requests(10)
    assert not connection.has_room_for_requests()
    return frame(1)


def not_read_its_answers(server: Server, connection: RemotingProtocol) -> bytes:
    connection.pauseProducing()
    return frame(1)


def have_used_its_time(server: Server, connection: RemotingProtocol) -> bytes:
    server.factory.scheduler.spent(connection.from_address, AT_ONCE_S)
    return frame(1)


CASES: list[Callable[[Server, RemotingProtocol], bytes]] = [
    *(be_half_received, be_closed, be_unknown, be_at_its_limit),
    *(have_no_room, have_an_address_without_room, not_read_its_answers, have_used_its_time),
]


@pytest.mark.parametrize("prepare", CASES)
def test_who_may_not_be_handled_together_is_left_whole(
    server: Server, together: Together, prepare: Callable[[Server, RemotingProtocol], bytes]
) -> None:
    before, connection, behind = server.connect(3)
    data = prepare(server, connection)
    together.calls.clear()
    assert server.take([before, connection, behind], frame(2), data, frame(3)) == [b"", data, b""]
    assert together.calls == [[before, behind]]
    assert server.answers[:3] == [[(2, 0)], [], [(3, 0)]]
    assert together.opaques == [2, 3]
    assert server.take([connection], data) == [data]
    assert together.calls == [[before, behind]]


def test_as_much_of_a_long_read_is_handled_together_as_is_taken_in_one_call(server: Server) -> None:
    filler = frame(2, b"body") + bytes(100_000)
    assert server.take(server.connect(2), frame(1) + filler, frame(2)) == [filler, b""]


@pytest.mark.parametrize("how", ["half a frame", "the rest", "answers unread", "answers read", "frames wait", "closed"])
def test_whether_requests_may_be_taken_is_kept(server: Server, clock: Clock, how: str) -> None:
    [connection] = server.connect(1)
    assert connection.may_take_plain
    half = frame(8, b"body")[:-1]
    if how in ("half a frame", "the rest"):
        connection.dataReceived(half)
        assert not connection.may_take_plain
    if how == "the rest":
        connection.dataReceived(frame(8, b"body")[-1:])
    elif how in ("answers unread", "answers read"):
        connection.pauseProducing()
        assert not connection.may_take_plain
        if how == "answers read":
            connection.resumeProducing()
    elif how == "frames wait":
        server.factory.scheduler.spent(connection.from_address, AT_ONCE_S)
        connection.dataReceived(frame(8, b"body"))
        assert not connection.may_take_plain
        clock.advance(0)
    elif how == "closed":
        connection.close("enough")
    assert connection.may_take_plain is (how in ("the rest", "answers read", "frames wait"))


def test_with_many_under_way_those_with_room_are_handled(server: Server, together: Together) -> None:
    many, few = server.connect(2)
    many.begin_requests(60)
    assert server.take([many, few], frame(1), frame(2)) == [frame(1), b""]
    many.end_requests(20)
    assert server.take([many, few], frame(1), frame(2)) == [b"", b""]


def test_when_all_time_is_used_nobody_is_handled(server: Server, together: Together, clock: Clock) -> None:
    connections = server.connect(3)
    for connection in connections[:2]:
        server.factory.scheduler.spent(connection.from_address, ALL_AT_ONCE_S / 2)
    assert server.take(connections, frame(1), frame(2), frame(3)) == [frame(1), frame(2), frame(3)]
    assert together.calls == []
    clock.advance(0)
    assert server.take(connections, frame(1), frame(2), frame(3)) == [b""] * 3


def test_each_address_is_charged_for_its_reads(server: Server, together: Together, clock: Clock) -> None:
    alone, *beside, left = [*server.connect(1), *server.connect(2, "10.0.2.1"), *server.connect(1)]
    together.on_take = lambda: clock.advance(0.003)
    left.pauseProducing()
    server.take([beside[0], alone, left, beside[1]], frame(1), frame(2), bytes(10_000), frame(3))
    assert alone.from_address.turn_s == pytest.approx(0.001, abs=1e-6)
    assert beside[0].from_address is beside[1].from_address
    assert beside[0].from_address.turn_s == pytest.approx(0.002, abs=1e-6)
    assert left.from_address.turn_s == 0
    assert server.factory.scheduler._used_s == pytest.approx(0.003, abs=1e-6)
    clock.advance(0)
    assert server.factory.scheduler._used_s == 0


def test_those_that_are_handled_are_not_idle(server: Server, together: Together, clock: Clock) -> None:
    together.later = Deferred()
    one, other = server.connect(2)
    clock.advance(10)
    other.pauseProducing()
    server.take([one, other], frame(1), frame(2))
    assert (one.last_active, other.last_active) == (clock.seconds(), clock.seconds() - 10)


def test_what_is_answered_with_nothing_is_written_nothing(server: Server, together: Together) -> None:
    connections = server.connect(3)
    together.answer = lambda opaque: b"" if opaque == 2 else Plain().answer(opaque)
    changes: list[int] = []
    server.links[1].ends[1].on_change = lambda: changes.append(1)
    assert server.take(connections, frame(1), frame(2), frame(3)) == [b""] * 3
    assert server.answers == [[(1, 0)], [], [(3, 0)]]
    assert server.take([connections[1]], frame(2)) == [b""]
    assert changes == []


def in_flight(connections: Sequence[RemotingProtocol]) -> list[int]:
    """How many requests of each are, and of its address."""
    assert all(connection.from_address.requests == connection._in_flight for connection in connections)
    return [connection._in_flight for connection in connections]


def test_answers_that_come_later_are_in_flight_for_each(server: Server, together: Together) -> None:
    together.later = Deferred()
    connections = server.connect(3)
    assert server.take(connections, frame(1), frame(2) * 2, frame(3, b"body")) == [b"", frame(2), frame(3, b"body")]
    assert (in_flight(connections), server.factory.load.requests) == ([1, 1, 0], 2)
    assert server.answers == [[], [], []]
    together.later.callback(None)
    assert (in_flight(connections), server.factory.load.requests) == ([0, 0, 0], 0)
    assert server.answers == [[(1, 0)], [(2, 0)], []]


@pytest.mark.parametrize("error", [Refused(ResponseCode.SYSTEM_BUSY, "no"), KeyError("answers")], ids=repr)
def test_answers_that_fail_are_failures_of_each(
    server: Server, together: Together, error: Exception, logged: Logged
) -> None:
    together.later = Deferred()
    connections = server.connect(2)
    server.take(connections, frame(1), frame(2))
    together.later.errback(error)
    assert (in_flight(connections), server.factory.load.requests) == ([0, 0], 0)
    code = getattr(error, "code", ResponseCode.SYSTEM_ERROR)
    assert server.answers == [[(1, code)], [(2, code)]]
    assert {failure.type for failure in logged.failures} == {type(error)} - {Refused}


def test_a_failure_is_nothing_to_a_read_of_which_nothing_was_taken(server: Server, together: Together) -> None:
    later = together.later = Deferred()
    connections = server.connect(2)
    server.take(connections, frame(1), frame(2, b"body"))
    later.errback(Refused(ResponseCode.SYSTEM_BUSY, "no"))
    later.addErrback(lambda _: None)
    assert (server.answers, in_flight(connections)) == ([[(1, ResponseCode.SYSTEM_BUSY)], []], [0, 0])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["closed", "lost"])
def test_a_connection_that_ends_meanwhile_gets_no_answer(
    server: Server, together: Together, fails: bool, how: str
) -> None:
    together.later = Deferred()
    ended, other = server.connect(2)
    address = ended.from_address.address
    server.take([ended, other], frame(1), frame(2))
    if how == "closed":
        ended.close("enough")
    else:
        server.links[0].cut()
    assert address in server.factory.load._addresses
    if fails:
        together.later.errback(Refused(ResponseCode.SYSTEM_BUSY, "no"))
    else:
        together.later.callback(None)
    assert server.answers == [[], [(2, ResponseCode.SYSTEM_BUSY if fails else 0)]]
    assert (in_flight([ended, other]), server.factory.load.requests) == ([0, 0], 0)
    assert address not in server.factory.load._addresses


def test_at_the_limit_reading_waits_for_the_answers(server: Server, together: Together) -> None:
    together.later = Deferred()
    [connection] = server.connect(1)
    connection.begin_requests(69)
    server.factory._limits = connection._limits = Limits(requests_in_flight_max=70)
    server.take([connection], frame(1))
    assert not server.links[0].ends[1].reading
    together.later.callback(None)
    assert server.links[0].ends[1].reading


def test_an_error_of_the_handler_is_for_the_caller(server: Server, together: Together) -> None:
    together.on_take = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        server.take(server.connect(2), frame(1), frame(2))


# --- on sockets


class Sockets:
    """Connections of a server on real sockets."""

    def __init__(self, factory: RemotingServerFactory) -> None:
        self.factory, self.reactor = factory, Reactor()
        self.connections: list[RemotingProtocol] = []
        self.peers: list[socket.socket] = []

    def connect(self, count: int) -> list[RemotingProtocol]:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            theirs.setblocking(False)
            connection = self.factory.buildProtocol(None)
            transport = ImmediateWriteServer(ours, connection, ("127.0.0.1", 1), None, 0, cast(Any, self.reactor))
            connection.makeConnection(transport)
            self.connections.append(connection)
            self.peers.append(theirs)
        return self.connections[-count:]

    def received(self) -> list[bytes]:
        return [read(peer) for peer in self.peers]

    def close(self) -> None:
        for connection, peer in zip(self.connections, self.peers, strict=True):
            cast(ImmediateWriteServer, connection.transport).connectionLost(Failure(ConnectionDone()))
            peer.close()


@pytest.fixture
def sockets(server: Server) -> Iterator[Sockets]:
    made = Sockets(server.factory)
    yield made
    made.close()


@pytest.mark.parametrize("count", [1, 2, 30])
def test_answers_are_sent_without_a_turn_of_the_reactor(sockets: Sockets, count: int) -> None:
    answers = [b"%d" % number * (number % 3) for number in range(count)]
    write_each(sockets.connect(count), answers)
    assert sockets.received() == answers
    assert sockets.reactor.writers == set()


def test_what_a_socket_does_not_take_follows(sockets: Sockets) -> None:
    slow, quick = sockets.connect(2)
    large = bytes(range(256)) * 1000
    write_each([slow, quick], [large, b"small"])
    assert sockets.reactor.writers == {slow.transport}
    assert drain(cast(Any, slow.transport), sockets.peers[0], sockets.reactor) == large
    assert read(sockets.peers[1]) == b"small"


def test_what_is_unsent_is_not_overtaken(sockets: Sockets) -> None:
    slow, quick = sockets.connect(2)
    large = bytes(range(256)) * 1000
    slow.write(large)
    begin = read(sockets.peers[0])
    write_each([slow, quick], [b" the end", b"small"])
    assert read(sockets.peers[0]) == b""
    assert begin + drain(cast(Any, slow.transport), sockets.peers[0], sockets.reactor) == large + b" the end"
    write_each([slow, quick], [b"at once", b" again"])
    assert sockets.received() == [b"at once", b"small again"]


def test_an_answer_to_a_peer_that_has_gone_disturbs_no_other(sockets: Sockets) -> None:
    gone, other = sockets.connect(2)
    sockets.peers[0].close()
    write_each([gone, other], [b"to nobody", b"data"])
    assert read(sockets.peers[1]) == b"data"
    assert sockets.reactor.writers == {gone.transport}
    assert cast(ImmediateWriteServer, gone.transport).doWrite() is not None


@pytest.mark.parametrize("how", ["closed", "ended", "ending", "aborted", "lost"])
def test_an_answer_does_not_go_to_who_has_ended_or_has_the_descriptor_now(sockets: Sockets, how: str) -> None:
    ended, *others = sockets.connect(3)
    transport = cast(ImmediateWriteServer, ended.transport)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    fd = transport.descriptor
    if how == "closed":
        ended.close("enough")
    elif how == "aborted":
        transport.abortConnection()
    elif how == "lost":
        transport.connectionLost(Failure(ConnectionDone()))
        os.dup2(ours.fileno(), fd)
    else:
        ended.end()
    if how == "ending":  # as a reactor does with the last of many that end together
        transport.stopWriting()
    write_each([ended, *others], [b"late", b"1", b"2"])
    assert read(theirs) == b""
    assert sockets.received() == [b"", b"1", b"2"]
    if how == "lost":
        os.close(fd)
    ours.close()
    theirs.close()


def test_what_is_unsent_is_not_overtaken_where_writing_was_stopped(sockets: Sockets) -> None:
    ending, other = sockets.connect(2)
    cast(ImmediateWriteServer, ending.transport).write(b"unsent")
    cast(ImmediateWriteServer, ending.transport).stopWriting()
    write_each([ending, other], [b"overtakes", b"data"])
    assert sockets.received() == [b"", b"data"]
