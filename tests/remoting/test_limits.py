"""Hostile peers: what they can make us keep, and how much they can make us write."""

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel

from mqbroker.config import NettySettings
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.remoting.limits import Limits, Shares
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.remoting.server import WATCH_SECONDS, RemotingServerFactory
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from tests.remoting.link import End, Link, Peer, raw_link, serve
from tests.remoting.logs import Logged

ECHO, LATER, BATCH = RequestCode.HEART_BEAT, RequestCode.QUERY_MESSAGE, RequestCode.PULL_MESSAGE


def request(code: int = ECHO, body: bytes = b"", opaque: int = 1, flag: int = 0, **ext: str) -> bytes:
    return encode_command(RemotingCommand(code, ext, body, opaque=opaque, flag=flag))


@pytest.fixture
def held() -> list[Any]:
    return []


@pytest.fixture
def table(held: list[Any]) -> HandlerTable:
    def hold(
        request: RemotingCommand | list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection
    ) -> Deferred[Any]:
        held.append(Deferred())
        return held[-1]

    table = HandlerTable()
    table.register(ECHO, lambda request, connection: RemotingCommand.response(request, body=request.body))
    table.register(LATER, hold)
    table.register_batch(BATCH, hold)
    return table


def connect(factory: RemotingServerFactory, host: str = "10.0.0.2", port: int = 40000) -> tuple[Peer, Link]:
    peer = Peer()
    link = Link(peer, factory.buildProtocol(None), near_address=IPv4Address("TCP", host, port))
    link.pump()
    return peer, link


def advance(clock: Clock, seconds: float) -> None:
    while seconds > 0:
        clock.advance(min(1.0, seconds))
        seconds -= 1.0


def test_the_settings_that_set_them() -> None:
    server = NettySettings(connections_max=7, connections_per_address_max=3, unsent_bytes_max=100_000)
    limits = Limits.of(server)
    assert (limits.connections_max, limits.connections_per_address_max, limits.unsent_bytes_max) == (7, 3, 100_000)
    assert Limits.of(server, 900).files_max == 900


# --- connections


def test_connections_leave_files_to_others(
    clock: Clock, table: HandlerTable, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [7, 9, 10, 11, 8]
    monkeypatch.setattr(End, "fileno", lambda end: end.number, raising=False)
    monkeypatch.setattr(End, "number", property(lambda end: numbers[0]), raising=False)
    factory = serve(clock, table, Limits(files_max=10))
    lost = []
    while numbers:
        peer, _ = connect(factory, port=len(numbers))
        lost.append(peer.lost)
        numbers.pop(0)
    assert lost == [False, False, True, True, False]
    assert [line for line in logged.lines if "are open" in line] == [
        "2 connections are open, and no more files may be: no more are taken; raise ulimit -n"
    ]


def test_one_address_has_so_many_connections(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(connections_per_address_max=2))
    links = [connect(factory, port=port) for port in range(1, 5)]
    assert [peer.lost for peer, _ in links] == [False, False, True, True]
    other, _ = connect(factory, "10.0.0.3")
    assert not other.lost
    assert [line for line in logged.lines if "are open" in line] == [
        "2 connections from the address of 10.0.0.2:3 are open: no more are accepted from there"
    ]
    links[0][1].cut()
    again, link_again = connect(factory, port=9)
    assert not again.lost
    for _, link in links[1:2]:
        link.cut()
    assert len(factory.load._addresses) == 2
    link_again.cut()
    assert len(factory.load._addresses) == 1


def test_refusals_are_told_of_once_a_minute(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(connections_max=1))
    connect(factory)
    for _ in range(50):
        connect(factory)
    assert len([line for line in logged.lines if "are open" in line]) == 1
    advance(clock, 60 + WATCH_SECONDS)
    assert "connections refused: 49 more within a minute" in logged.lines
    connect(factory)
    assert len([line for line in logged.lines if "are open" in line]) == 2


def test_closings_are_logged_up_to_so_many_a_minute(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table)
    for port in range(1, 101):
        peer, link = connect(factory, port=port)
        peer.transport.write(b"GET / HTTP/1.1\r\n")
        link.pump()
        assert peer.lost
    assert len([line for line in logged.lines if line.startswith("closing ")]) == 20
    advance(clock, 60 + WATCH_SECONDS)
    assert [line for line in logged.lines if "more" in line] == ["connections closed: 80 more within a minute"]
    advance(clock, 60 + WATCH_SECONDS)
    assert len([line for line in logged.lines if "more" in line]) == 1


def test_a_rate_limited_log_begins_anew_each_minute(clock: Clock, logged: Logged) -> None:
    limited = RateLimitedLog("things", clock.seconds, 2)
    for minute in range(2):
        for _ in range(3):
            limited.say(LogLevel.warn, "in {minute}", minute=minute)
        clock.advance(60)
    limited.look()
    one = "things: 1 more within a minute"
    assert logged.lines == ["in 0", "in 0", one, "in 1", "in 1", one]


def test_a_rate_limited_log_goes_on_after_the_clock_was_set_back(logged: Logged) -> None:
    now = [1000.0]
    limited = RateLimitedLog("things", lambda: now[0], 1)
    for at in (1000.0, 500.0, 400.0, 430.0, 10.0):
        now[0] = at
        limited.say(LogLevel.warn, "at {at:.0f}", at=at)
    assert logged.lines == ["at 1000", "at 500", "at 400", "things: 1 more within a minute", "at 10"]


def test_what_a_rate_limited_log_counts_has_the_level_of_what_it_suppressed(clock: Clock, logged: Logged) -> None:
    limited = RateLimitedLog("things", clock.seconds, 1)
    for levels in ("info info info", "warn info info", "info warn info error info", "error info"):
        for name in levels.split():
            limited.say(LogLevel.lookupByName(name), "a thing")
        clock.advance(60)
    limited.look()
    assert [event["log_level"].name for event in logged if "more" in event["log_format"]] == [
        "info",
        "info",
        "error",
        "info",
    ]


# --- what it sends


def test_unfinished_frames_are_bounded_over_all_connections(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(unfinished_bytes_max=100_000))
    half = request(body=bytes(60_000))[:50_000]
    links = [connect(factory, port=port) for port in range(1, 5)]
    for peer, link in links:
        peer.transport.write(half)
        link.pump()
    assert [peer.lost for peer, _ in links] == [False, False, True, True]
    assert factory.load.kept_bytes == 100_000
    why = "150000 bytes of unfinished frames are kept for all connections, the most of them for it"
    assert f"closing 10.0.0.2:3: {why}" in logged.lines
    first, link = links[0]
    first.transport.write(request(body=bytes(60_000))[50_000:])
    link.pump()
    assert len(first.answers[0].body) == 60_000  # who was within the bound goes on
    assert factory.load.kept_bytes == 50_000
    links[1][1].cut()
    assert factory.load.kept_bytes == 0


def test_what_waits_on_all_connections_is_bounded(clock: Clock, table: HandlerTable, held: list[Any]) -> None:
    factory = serve(clock, table, Limits(requests_under_way_max=3))
    first, second = connect(factory, port=1), connect(factory, port=2)
    for peer, link in (first, second):
        peer.transport.write(request(LATER) + request(BATCH, opaque=2, x=""))
        link.pump()
    assert len(held) == 3
    peer, link = second
    (busy,) = peer.answers
    assert (busy.code, busy.opaque) == (ResponseCode.SYSTEM_BUSY, 2)
    assert busy.remark == "[OVERLOAD]system busy, start flow control for a while"
    peer.transport.write(request(ECHO, opaque=3) + request(BATCH, opaque=4, flag=ONEWAY_FLAG, x=""))
    link.pump()
    assert [(answer.opaque, answer.code) for answer in peer.answers[1:]] == [(3, ResponseCode.SYSTEM_BUSY)]
    held[0].callback(None)
    held[1].callback(b"")
    peer.transport.write(request(ECHO, opaque=5))
    link.pump()
    assert peer.answers[-1].code == 0
    second[1].cut()
    held[2].callback(None)  # that its peer is gone changes nothing
    assert factory.load.requests == 0


# --- what it does not read


def test_answers_that_nobody_reads_are_bounded(
    clock: Clock, table: HandlerTable, held: list[Any], logged: Logged
) -> None:
    factory = serve(clock, table, Limits(unsent_bytes_max=1_000_000))
    peer, link = connect(factory)
    link.ends[0].reading = False
    peer.transport.write(b"".join(request(LATER, opaque=n) for n in range(30)))
    link.pump()
    for n, deferred in enumerate(held):
        deferred.callback(RemotingCommand(0, body=bytes(100_000), opaque=n))
        assert len(link.ends[1].outbox) <= 1_300_000
    link.pump()
    assert peer.lost
    assert not factory.connections
    (line,) = [line for line in logged.lines if line.startswith("closing ")]
    assert "it does not read its answers" in line


def test_of_one_read_no_more_is_answered_than_the_peer_reads(clock: Clock, held: list[Any], logged: Logged) -> None:
    answered = []

    def long_answer(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        answered.append(request)
        return RemotingCommand.response(request, body=bytes(100_000))

    table = HandlerTable()
    table.register(ECHO, long_answer)
    peer, link = connect(serve(clock, table, Limits(unsent_bytes_max=1_000_000)))
    peer.transport.write(request() * 1000)
    link.pump()
    for count in range(1, 50):
        assert len(answered) == count  # of which one is more than the transport likes to keep
        link.pump()
        clock.advance(0)
    link.ends[0].reading = False
    count = len(answered)
    for _ in range(50):
        link.pump()
        clock.advance(0)
    assert len(answered) == count
    assert not peer.lost


def test_what_we_tell_it_unasked_counts_too(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock, table, Limits(unsent_bytes_max=200_000))
    _, link = connect(factory)
    link.ends[0].reading = False
    (connection,) = factory.connections
    for _ in range(10):
        connection.invoke_oneway(RemotingCommand(ECHO, body=bytes(60_000)))
    assert connection.closed
    assert len(link.ends[1].outbox) == 0


def test_a_reader_that_catches_up_begins_anew(clock: Clock, table: HandlerTable) -> None:
    factory = serve(clock, table, Limits(unsent_bytes_max=200_000))
    peer, link = connect(factory)
    (connection,) = factory.connections
    for _ in range(10):
        for _ in range(4):
            connection.invoke_oneway(RemotingCommand(ECHO, body=bytes(40_000)))
        link.pump()
    assert not peer.lost


def test_who_is_told_things_and_reads_nothing_is_closed_in_time(
    clock: Clock, table: HandlerTable, logged: Logged
) -> None:
    """What we send keeps no connection alive whose peer does not read it."""
    factory = serve(clock, table)
    peer, link = connect(factory)
    link.ends[0].reading = False
    (connection,) = factory.connections
    connection.invoke_oneway(RemotingCommand(ECHO, body=bytes(100_000)))
    for _ in range(14):
        connection.invoke_oneway(RemotingCommand(ECHO))
        advance(clock, 10)
    link.pump()
    assert peer.lost
    assert "closing 10.0.0.2:40000: it did not read its answers for 120 s" in logged.lines


def test_a_closed_connection_sends_and_takes_nothing(clock: Clock, table: HandlerTable) -> None:
    peer, link = raw_link(factory := serve(clock, table))
    (connection,) = factory.connections
    connection.close("enough")
    connection.close("twice")
    connection.write(b"x")
    peer.transport.write(request())
    assert len(link.ends[1].outbox) == 0
    link.pump()
    assert peer.lost
    assert not factory.connections


# --- what all share


class Hosted:
    def __init__(self, host: int) -> None:
        self.remote_host = bytes([10, 0, 0, host, 0, 0, 0, 1])


@pytest.mark.parametrize("count", [1, 12, 100])
def test_who_takes_all_it_can_leaves_some_to_a_newcomer(count: int) -> None:
    shares, most = Shares(), 100_000
    crowd = [Hosted(1) for _ in range(count)]
    while sum(shares.acquire(connection, 1, most) for connection in crowd):
        pass
    assert most / 2 < shares.taken < 0.7 * most
    assert sum(shares.acquire(neighbour, 1, most) for neighbour in [Hosted(1)] * 50) >= 50 // count
    newcomer = Hosted(2)
    assert all(shares.acquire(newcomer, 1, most) for _ in range(5000))
    for connection in (*crowd, newcomer):
        shares.give_back(connection, shares.of(connection))


def test_ten_addresses_that_take_all_they_can_leave_some(logged: Logged) -> None:
    shares, most = Shares(), 100_000
    crowd = [Hosted(host) for host in range(10)]
    while sum(shares.acquire(connection, 1, most) for connection in crowd):
        pass
    newcomer = Hosted(99)
    assert all(shares.acquire(newcomer, 1, most) for _ in range(1000))


def test_shares_that_are_given_back_leave_nothing() -> None:
    shares = Shares()
    one, other = Hosted(1), Hosted(1)
    assert shares.acquire(one, 30, 100)
    assert shares.acquire(other, 20, 100)
    assert not shares.acquire(other, 60, 100)
    shares.give_back(one, 30)
    shares.give_back(other, 20)
    assert shares == Shares()


def test_requests_of_twelve_connections_leave_room_for_others(
    clock: Clock, table: HandlerTable, held: list[Any]
) -> None:
    factory = serve(clock, table, Limits(requests_under_way_max=1000, requests_in_flight_max=100))
    greedy = [connect(factory, port=port) for port in range(1, 13)]
    for peer, link in greedy:
        peer.transport.write(request(LATER) * 100)
        link.pump()
    assert 500 < len(held) < 700
    for host in ("10.0.0.3", "10.0.0.4"):
        peer, link = connect(factory, host)
        before = len(held)
        peer.transport.write(request(LATER) * 5)
        link.pump()
        assert len(held) == before + 5
    refused = greedy[-1][0].answers
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}


def test_the_biggest_user_of_half_frames_pays(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(unfinished_bytes_max=1_000_000))
    half = request(body=bytes(60_000))[:50_000]
    greedy = [connect(factory, port=port) for port in range(1, 20)]
    for peer, link in greedy:
        peer.transport.write(half)
        link.pump()
    modest, modest_link = connect(factory, "10.0.0.3")
    modest.transport.write(half)
    modest_link.pump()
    modest.transport.write(request(body=bytes(60_000))[50_000:])
    others = [connect(factory, f"10.0.0.{host}") for host in range(4, 8)]
    for peer, link in (*others, (modest, modest_link)):
        peer.transport.write(half[len(half) - 50_000 :] if peer is not modest else b"")
        link.pump()
    assert len(modest.answers[0].body) == 60_000
    assert not any(peer.lost for peer, _ in others)
    for _, link in greedy:
        link.pump()
    assert sum(peer.lost for peer, _ in greedy) == 4
    assert factory.load.kept_bytes == 950_000


def test_who_has_the_most_connections_makes_room(clock: Clock, table: HandlerTable, logged: Logged) -> None:
    factory = serve(clock, table, Limits(connections_max=10))
    greedy = [connect(factory, port=port) for port in range(1, 11)]
    for number, (peer, link) in enumerate(greedy):
        clock.advance(1)
        if number != 4:
            peer.transport.write(request())
            link.pump()
    modest = [connect(factory, f"10.0.0.{host}") for host in (3, 4)]
    assert not any(peer.lost for peer, _ in modest)
    for _, link in greedy:
        link.pump()
    assert [number for number, (peer, _) in enumerate(greedy) if peer.lost] == [0, 4]
    again, _ = connect(factory, port=99)
    assert again.lost
    assert any("its address has the most of them" in line for line in logged.lines)
