"""Nobody waits long for what others ask: handlers here take time of the test's clock."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from mqbroker.remoting.fair_scheduler import ALL_AT_ONCE_S, AT_ONCE_S, SLICE_S, WAITING_S, FairScheduler
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import AddressLoad, Limits
from mqbroker.remoting.server import RemotingServerFactory
from mqbroker.wire.command import RemotingCommand
from tests.remoting.link import Link, Peer, raw_link, serve
from tests.remoting.logs import Logged
from tests.remoting.requests import BATCH, ECHO, LATER, echo, request


class WorkingClock(Clock):
    """Time also passes while something is done."""

    def work(self, seconds: float) -> None:
        self.rightNow += seconds

    def turn(self) -> None:
        """Make the calls that are due now; those that they ask for are due in the next turn, as in a reactor."""
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in due:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


@pytest.fixture
def clock() -> WorkingClock:
    clock = WorkingClock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture
def table(clock: WorkingClock) -> HandlerTable:
    """LATER takes 4 ms, BATCH 0.1 ms for each of its requests."""

    def slow(asked: RemotingCommand, connection: IConnection) -> RemotingCommand:
        clock.work(0.004)
        return echo(asked, connection)

    def batch(requests: list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection) -> bytes:
        clock.work(0.0001 * len(requests))
        return b""

    table = HandlerTable()
    table.register(ECHO, echo)
    table.register(LATER, slow)
    table.register_batch(BATCH, batch, 10)
    return table


def connect(factory: RemotingServerFactory, host: str = "10.0.0.2", port: int = 40000) -> tuple[Peer, Link]:
    peer = Peer()
    link = Link(peer, factory.buildProtocol(None), near_address=IPv4Address("TCP", host, port))
    return peer, link


def took(clock: WorkingClock, step: Callable[..., Any]) -> float:
    began = clock.seconds()
    step()
    return clock.seconds() - began


def test_of_one_read_as_much_is_handled_as_its_turn_allows(clock: WorkingClock, table: HandlerTable) -> None:
    peer, link = connect(serve(clock, table))
    peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(100)))
    assert took(clock, link.pump) < AT_ONCE_S + 0.004
    assert not link.ends[1].reading
    assert len(peer.answers) == 3
    turns = 0
    while len(peer.answers) < 100:
        assert took(clock, clock.turn) < WAITING_S + 0.004
        link.pump()
        turns += 1
    assert 15 <= turns <= 25
    assert [answer.opaque for answer in peer.answers] == list(range(100))
    assert link.ends[1].reading
    assert clock.getDelayedCalls()[1:] == []  # only the server's watch is left


def test_batches_are_cut_where_the_turn_ends(clock: WorkingClock, table: HandlerTable) -> None:
    peer, link = connect(serve(clock, table))
    peer.transport.write(b"".join(request(BATCH, opaque, x="") for opaque in range(1000)))
    assert took(clock, link.pump) < AT_ONCE_S + 0.002
    assert not link.ends[1].reading
    while not link.ends[1].reading:
        assert took(clock, clock.turn) < WAITING_S + 0.002


def test_what_comes_while_frames_wait_comes_after_them(clock: WorkingClock, table: HandlerTable) -> None:
    """As TLS brings it, which has read on already."""
    peer, link = connect(serve(clock, table))
    peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(5)))
    link.pump()
    connection = link.protocols[1]
    connection.dataReceived(request(ECHO, 5) + request(ECHO, 6)[:10])
    connection.dataReceived(request(ECHO, 6)[10:])
    clock.turn()
    link.pump()
    assert [answer.opaque for answer in peer.answers] == list(range(7))


def test_others_are_served_between_the_parts_of_one(clock: WorkingClock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    greedy, greedy_link = connect(factory)
    modest, modest_link = connect(factory, port=40001)
    greedy.transport.write(b"".join(request(LATER, opaque) for opaque in range(1000)))
    greedy_link.pump()
    for count in range(1, 20):
        clock.turn()
        modest.transport.write(request(LATER, count))
        modest_link.pump()
        assert len(modest.answers) == count


def test_many_connections_of_one_address_have_no_more_than_one(clock: WorkingClock, table: HandlerTable) -> None:
    """All reads of one turn of the reactor together take a bounded time, and the newcomer's is not the last."""
    factory = serve(clock, table)
    crowd = [connect(factory, port=port) for port in range(1, 201)]
    for peer, _ in crowd:
        peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(10)))
    assert took(clock, lambda: [link.pump() for _, link in crowd]) < AT_ONCE_S + 0.004
    modest, modest_link = connect(factory, "10.0.0.3")
    modest.transport.write(request(LATER, 1) * 3)
    waited = took(clock, lambda: [modest_link.pump(), clock.turn(), modest_link.pump()])
    assert len(modest.answers) == 3
    assert waited < AT_ONCE_S + WAITING_S + 0.008


def test_many_addresses_have_a_bounded_part_of_a_turn(clock: WorkingClock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    crowd = [connect(factory, f"10.0.1.{host}") for host in range(1, 101)]
    for peer, _ in crowd:
        peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(10)))
    assert took(clock, lambda: [link.pump() for _, link in crowd]) < ALL_AT_ONCE_S + 0.004


def test_who_was_handled_least_goes_first(clock: WorkingClock, table: HandlerTable) -> None:
    factory = serve(clock, table)
    crowd = [connect(factory, f"10.0.1.{host}") for host in range(1, 31)]
    for peer, link in crowd:
        peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(50)))
        link.pump()
    for _ in range(20):
        clock.turn()
    modest, modest_link = connect(factory)
    for host in (2, 3):  # all that may be handled at once in this turn is used when it is read
        peer, link = connect(factory, f"10.0.2.{host}")
        peer.transport.write(request(LATER) * 3)
        link.pump()
    modest.transport.write(request(LATER, 7) * 20)
    modest_link.pump()
    assert len(modest.answers) == 0
    clock.turn()
    modest_link.pump()
    assert len(modest.answers) >= 2  # as much as others at a time, and before all of them


@pytest.mark.parametrize("count", [2, 40])
def test_connections_of_one_address_share_its_part(clock: WorkingClock, table: HandlerTable, count: int) -> None:
    factory = serve(clock, table)
    first, first_link = connect(factory)
    crowd = [(first, first_link)] + [connect(factory, port=port) for port in range(1, count)]
    for peer, link in crowd:
        peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(100)))
        link.pump()
    for _ in range(30 * count // 5):
        clock.turn()
        for _, link in crowd:
            link.pump()
    done = [len(peer.answers) for peer, _ in crowd]
    assert max(done) - min(done) <= 3 + SLICE_S / 0.004 * 2


def test_a_connection_that_closes_while_its_frames_wait_is_forgotten(
    clock: WorkingClock, table: HandlerTable, logged: Logged
) -> None:
    factory = serve(clock, table)
    peer, link = connect(factory)
    peer.transport.write(b"".join(request(LATER, opaque) for opaque in range(100)))
    link.pump()
    assert factory.load.kept_bytes > 9000
    link.cut()
    assert factory.load.kept_bytes == 0
    clock.turn()
    assert clock.getDelayedCalls()[1:] == []
    assert factory.load._addresses == {}


def test_garbage_behind_frames_that_wait_closes_when_its_turn_comes(
    clock: WorkingClock, table: HandlerTable, logged: Logged
) -> None:
    peer, link = connect(serve(clock, table))
    bad = request(LATER).replace(b'"code"', b'"coda"').replace(b'"opaque":0', b'"opaque":[]')
    assert len(bad) == len(request(LATER)) + 1
    bad = (len(bad) - 4).to_bytes(4, "big") + (len(bad) - 8).to_bytes(4, "big") + bad[8:]
    peer.transport.write(request(LATER, 1) * 5 + bad + request(LATER, 2))
    link.pump()
    assert not peer.lost
    clock.turn()
    assert link.ends[1].closing is not None
    link.pump()
    assert peer.lost
    assert "opaque of a command must be a 32-bit integer, not list" in logged.lines[-1]


def test_an_error_closes_the_connection_whose_turn_it_was_and_others_have_theirs(
    clock: WorkingClock, table: HandlerTable, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = serve(clock, table)
    (first, first_link), (second, second_link) = (connect(factory, port=port) for port in (40000, 40001))
    for peer, link in ((first, first_link), (second, second_link)):
        peer.transport.write(request(LATER) * 4 + request(ECHO, 7))
        link.pump()

    def fail(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(first_link.protocols[1], "_handle", fail)
    for _ in range(5):
        clock.turn()
    first_link.pump()
    second_link.pump()
    assert (first.lost, second.lost) == (True, False)
    assert second.answers[-1].opaque == 7
    assert [failure.type for failure in logged.failures] == [MemoryError]
    assert "MemoryError" in logged.lines[-1]


def test_frames_that_wait_count_as_what_is_kept(clock: WorkingClock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(unfinished_bytes_max=100_000))
    greedy, greedy_link = connect(factory)
    greedy.transport.write(b"".join(request(LATER, opaque, bytes(1000)) for opaque in range(70)))
    greedy_link.pump()
    modest, modest_link = connect(factory, "10.0.0.3")
    modest.transport.write(request(LATER, 1, bytes(40_000))[:39_000])
    modest_link.pump()
    greedy_link.pump()
    assert (greedy.lost, modest.lost) == (True, False)
    assert factory.load.kept_bytes == 39_000


@pytest.mark.parametrize("code", [ECHO, BATCH])
def test_the_time_of_what_requests_cause_is_counted_against_who_sent_them(clock: WorkingClock, code: int) -> None:
    table = HandlerTable()
    table.register(ECHO, echo)
    table.register_batch(BATCH, lambda run, connection: b"")
    table.charge = lambda: clock.work(2 * AT_ONCE_S)
    peer, link = raw_link(factory := serve(clock, table))
    (connection,) = factory.connections
    assert factory.scheduler.has_time(connection.from_address)
    peer.transport.write(request(code, 1, x="y"))
    link.pump()
    assert not factory.scheduler.has_time(connection.from_address)


class Connection:
    """Has been queued with work for some turns, or fails."""

    def __init__(self, address: AddressLoad, outcomes: str) -> None:
        self.from_address, self.handled_s = address, 0.0
        self.outcomes = outcomes

    def go_on(self, until: float) -> bool:
        outcome, self.outcomes = self.outcomes[0], self.outcomes[1:]
        if outcome == "x":
            raise MemoryError
        return bool(self.outcomes)


def test_a_connection_whose_end_fails_too_keeps_nobody_waiting() -> None:
    clock = Clock()
    scheduler = FairScheduler(clock)
    shared, other = AddressLoad(b"1"), AddressLoad(b"2")
    for _ in range(3):
        waiting = [Connection(shared, "-x"), Connection(shared, "--"), Connection(other, "x"), Connection(other, "---")]
        for connection in waiting:
            scheduler.wait(connection)
        clock.pump([0] * 8)
        assert [connection.outcomes for connection in waiting] == [""] * 4
        assert not scheduler._addresses
