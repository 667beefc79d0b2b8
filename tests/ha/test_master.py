"""The master's port: what slaves are sent, when a link ends, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from mqbroker.config import BrokerRole
from mqbroker.errors import StoreBusy, StoreError
from mqbroker.ha.link import GREETING, HEADER, REPORT, BadPeer, Greeting, encode_confirmation
from mqbroker.ha.master import (
    DRAIN_SECONDS_MAX,
    LINKS_MAX,
    HaSettings,
    MasterService,
    SlaveConnection,
    Slaves,
    SlaveStatus,
)
from tests.broker.bench import make_settings
from tests.remoting.logs import Logged

SEGMENT = 4096


@attrs.define
class Log:
    """A log in memory; what lies below `cold` has to be read first."""

    data: bytes = b""
    start: int = 0
    cold: int = 0
    segment_bytes: int = SEGMENT
    on_growth: list[Callable[[], None]] = attrs.field(factory=list)
    reads: list[tuple[Deferred[bytes], int, int]] = attrs.field(factory=list)
    is_busy: bool = False

    @property
    def end(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        if self.is_busy:
            raise StoreBusy("too many reads wait")
        if offset >= self.cold:
            return memoryview(self.data)[offset : offset + size]
        self.reads.append((Deferred(), offset, size))
        return self.reads[-1][0]

    def grow(self, data: bytes) -> None:
        self.data += data
        for listener in list(self.on_growth):
            listener()


class Transport(StringTransport):
    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def received(self) -> list[tuple[int, bytes]]:
        """The pieces that were sent since this was last called."""
        data, found = self.value(), []
        self.clear()
        while data:
            offset, size = HEADER.unpack_from(data)
            found.append((offset, data[HEADER.size : HEADER.size + size]))
            data = data[HEADER.size + size :]
        return found


@pytest.fixture
def reactor() -> MemoryReactorClock:
    return MemoryReactorClock()


@pytest.fixture
def source() -> Log:
    return Log(bytes(n % 251 for n in range(10_000)))


@pytest.fixture
def master(reactor: MemoryReactorClock, source: Log) -> MasterService:
    service = MasterService(reactor, Slaves(source), HaSettings(listen_port=10912, piece_bytes_max=1000))
    service.startService()
    return service


@pytest.fixture
def slave(master: MasterService) -> Callable[[int], tuple[SlaveConnection, Transport]]:
    def connect(reported: int) -> tuple[SlaveConnection, Transport]:
        connection = master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 40000))
        assert connection is not None
        transport = Transport()
        connection.makeConnection(transport)
        connection.dataReceived(REPORT.pack(reported))
        return connection, transport

    return connect


def test_a_slave_is_sent_what_it_lacks_and_then_what_comes(
    reactor: MemoryReactorClock, master: MasterService, source: Log, slave: Any
) -> None:
    _, transport = slave(7900)
    pieces = transport.received()
    assert [offset for offset, _ in pieces] == [7900, 8192, 9192]
    assert b"".join(data for _, data in pieces) == source.data[7900:]
    for more in (b"first", b"second", b"third"):
        source.grow(more)
    assert transport.received() == [(10_000, b"first")]
    reactor.advance(0)
    assert transport.received() == [(10_005, b"secondthird")]
    source.grow(b"fourth")
    assert transport.received() == [(10_016, b"fourth")]


def test_the_log_is_sent_once_in_a_pause_also_when_a_slave_acknowledges(
    reactor: MemoryReactorClock, master: MasterService, source: Log, slave: Any
) -> None:
    master.factory.settings = attrs.evolve(master.factory.settings, pause_s=0.5)
    connection, transport = slave(10_000)
    for more in (b"first", b"second", b"third"):
        source.grow(more)
        reactor.advance(0)
        connection.dataReceived(REPORT.pack(10_005))
    assert transport.received() == [(10_000, b"first")]
    reactor.advance(0.4)
    assert transport.received() == []
    reactor.advance(0.1)
    assert transport.received() == [(10_005, b"secondthird")]


@pytest.mark.parametrize(("role", "is_paused"), [("ASYNC_MASTER", True), ("SYNC_MASTER", False)])
def test_there_is_no_pause_where_senders_wait_for_slaves(role: str, is_paused: bool) -> None:
    settings = make_settings("store", store={"broker_role": BrokerRole(role)})
    assert (HaSettings.of(settings).pause_s > 0) is is_paused


def test_what_is_on_the_disk_is_waited_for_and_comes_in_order(source: Log, slave: Any) -> None:
    source.cold = 9500
    connection, transport = slave(9000)
    assert transport.received() == []
    waiting, offset, size = source.reads[0]
    connection.send()
    assert len(source.reads) == 1
    waiting.callback(source.data[offset : offset + size])
    assert b"".join(data for _, data in transport.received()) == source.data[9000:]


def test_what_is_read_at_once_comes_behind_what_is_in_memory(
    source: Log, slave: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Log, offset: int, size: int) -> Deferred[bytes] | memoryview:
        found = self.data[offset : offset + size]
        return succeed(found) if offset >= 9000 else memoryview(found)

    monkeypatch.setattr(Log, "read", read)
    _, transport = slave(7900)
    pieces = transport.received()
    assert [offset for offset, _ in pieces] == [7900, 8192, 9192]
    assert b"".join(data for _, data in pieces) == source.data[7900:]


def test_a_slave_that_does_not_read_is_sent_nothing_more(source: Log, slave: Any) -> None:
    connection, transport = slave(10_000)
    connection.pauseProducing()
    source.data += b"new"
    connection.send()
    assert transport.received() == []
    connection.resumeProducing()
    assert transport.received() == [(10_000, b"new")]


def test_heartbeats_come_where_nothing_else_does_and_a_silent_slave_is_dropped(
    reactor: MemoryReactorClock, slave: Any
) -> None:
    connection, transport = slave(10_000)
    reactor.pump([1.0] * 4)
    assert transport.received() == []
    reactor.pump([1.0] * 2)
    assert transport.received() == [(10_000, b"")]
    connection.dataReceived(REPORT.pack(10_000))
    reactor.pump([1.0] * 20)
    assert not transport.disconnecting
    reactor.pump([1.0] * 2)
    assert transport.disconnecting


@pytest.mark.parametrize("report", [-5, 10_001, 2**63 - 1])
def test_a_report_that_cannot_be_ends_the_link(slave: Any, report: int) -> None:
    connection, transport = slave(10_000)
    connection.dataReceived(REPORT.pack(report))
    assert transport.disconnecting
    assert connection.link.acknowledged == 10_000


def test_a_read_that_fails_ends_the_link(source: Log, slave: Any) -> None:
    source.cold = 10_000
    _, transport = slave(9000)
    source.reads[0][0].errback(StoreError("no"))
    assert transport.disconnecting


def test_what_was_deleted_meanwhile_ends_the_link(source: Log, slave: Any) -> None:
    connection, transport = slave(9000)
    connection.link.sent = 8000
    source.start = 8192
    connection.send()
    assert transport.disconnecting


def test_so_many_links_and_no_more(master: MasterService, slave: Any) -> None:
    for _ in range(LINKS_MAX):
        slave(10_000)
    assert master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1)) is None


def test_links_that_report_nothing_keep_no_slave_out(master: MasterService, slave: Any) -> None:
    slave(10_000)
    transports = []
    for _ in range(10_000):
        connection = master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1))
        assert connection is not None
        transports.append(Transport())
        connection.makeConnection(transports[-1])
        for link in [link for link in master.factory.slaves.links if link.is_closed]:
            link.connectionLost()
    _, transport = slave(9000)
    assert transport.received() == [(9000, master.factory.log.read(9000, 1000))]
    assert sum(not each.disconnecting for each in transports) == LINKS_MAX - 2
    assert len(master.factory.slaves.states()) == 2


def test_who_may_not_connect_is_refused(reactor: MemoryReactorClock, source: Log, logged: Logged) -> None:
    master = MasterService(reactor, Slaves(source), HaSettings(listen_port=1), lambda host: host == "10.0.0.2")
    assert master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 7)) is None
    assert master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 7)) is not None
    why = "haWhiteRemoteAddresses does not have its address"
    assert logged.lines == [f"a replication link from 10.0.0.3:7 is refused: {why}"]


def test_a_store_that_is_busy_is_asked_again(reactor: MemoryReactorClock, source: Log, slave: Any) -> None:
    source.is_busy = True
    _, transport = slave(9000)
    assert transport.received() == []
    source.is_busy = False
    reactor.advance(1)
    assert b"".join(data for _, data in transport.received()) == source.data[9000:]


def test_a_stop_waits_until_slaves_have_the_log(master: MasterService, slave: Any) -> None:
    connection, transport = slave(9500)
    stopping = master.stopService()
    assert not transport.disconnecting
    connection.dataReceived(REPORT.pack(10_000))
    assert transport.disconnecting
    assert not stopping.called
    connection.connectionLost()
    assert stopping.called


def test_a_stop_waits_for_no_slave_that_reports_nothing(
    reactor: MemoryReactorClock, master: MasterService, slave: Any
) -> None:
    connection, transport = slave(9500)
    stopping = master.stopService()
    reactor.advance(DRAIN_SECONDS_MAX)
    assert transport.disconnecting
    connection.connectionLost()
    assert stopping.called
    assert not reactor.getDelayedCalls()


def test_a_stop_waits_for_no_slave_that_leaves(reactor: MemoryReactorClock, master: MasterService, slave: Any) -> None:
    connection, _ = slave(9500)
    stopping = master.stopService()
    connection.connectionLost()
    assert stopping.called
    assert not reactor.getDelayedCalls()


def test_how_far_slaves_are_behind_is_logged_each_minute(
    reactor: MemoryReactorClock, master: MasterService, slave: Any, logged: Logged
) -> None:
    connection, _ = slave(9500)
    unheard = master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 40001))
    assert unheard is not None
    unheard.makeConnection(Transport())
    for _ in range(60):
        connection.dataReceived(REPORT.pack(9600))
        unheard.heard_at = reactor.seconds()
        reactor.advance(1)
    assert [line for line in logged.lines if "behind" in line] == [
        "slave 10.0.0.2:40000 is 400 bytes and 60 s behind, and gets 0 bytes a second"
    ]
    assert master.factory.slaves.states() == [SlaveStatus("10.0.0.2:40000", 9600, 400, 60.0)]


def test_how_many_bytes_a_second_a_slave_gets(reactor: MemoryReactorClock, master: MasterService, slave: Any) -> None:
    connection, _ = slave(9000)
    assert connection.status().rate == 0
    for number in range(1, 5):
        connection.dataReceived(REPORT.pack(9000 + 200 * number))
        reactor.advance(1)
    assert connection.status().rate == 200
    for _ in range(6):
        reactor.advance(1)
    assert connection.status().rate == 80
    for _ in range(10):
        connection.dataReceived(REPORT.pack(9800))
        reactor.advance(1)
    assert connection.status().rate == 0


def test_for_how_long_a_slave_is_behind(
    reactor: MemoryReactorClock, master: MasterService, source: Log, slave: Any
) -> None:
    connection, _ = slave(10_000)
    reactor.advance(5)
    assert connection.status() == SlaveStatus("10.0.0.2:40000", 10_000, 0, 0.0)
    source.data += b"new"
    reactor.pump([1.0] * 3)
    assert connection.status() == SlaveStatus("10.0.0.2:40000", 10_000, 3, 3.0)
    connection.dataReceived(REPORT.pack(10_003))
    assert attrs.evolve(connection.status(), rate=0) == SlaveStatus("10.0.0.2:40000", 10_003, 0, 0.0)


PROOF = bytes(range(32))


class OneGroup:
    """A group that knows replicas of epoch 7."""

    def answer(self, greeting: Greeting, log_end: int) -> Deferred[tuple[bytes, bytes]]:
        if greeting.epoch != 7:
            return fail(BadPeer("another epoch"))
        return succeed((b"history to %d" % log_end, PROOF))


@pytest.mark.parametrize("group", [None, OneGroup()])
def test_a_greeting_that_is_not_for_this_broker_ends_the_link(
    reactor: MemoryReactorClock, source: Log, group: OneGroup | None
) -> None:
    service = MasterService(reactor, Slaves(source), HaSettings(listen_port=10912), group=group)
    service.startService()
    connection, transport = greeted(service, Greeting(b"x" * 8, 6, 2))
    assert transport.disconnecting
    assert not transport.value()
    assert connection.is_closed


def greeted(
    service: MasterService, greeting: Greeting, confirmation: bytes = encode_confirmation(PROOF)
) -> tuple[SlaveConnection, Transport]:
    connection = service.factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 40000))
    assert connection is not None
    transport = Transport()
    connection.makeConnection(transport)
    connection.dataReceived(greeting.encode())
    if confirmation:
        connection.dataReceived(confirmation)
    return connection, transport


def test_a_replica_that_connects_again_takes_its_former_links_place(reactor: MemoryReactorClock, source: Log) -> None:
    slaves = Slaves(source)
    service = MasterService(reactor, slaves, HaSettings(listen_port=10912), group=OneGroup())
    service.startService()
    first, transport = greeted(service, Greeting(b"x" * 8, 7, 2))
    assert transport.received() == [(GREETING, b"history to 10000")]
    assert slaves.replicas() == {}  # it has reported nothing yet
    first.dataReceived(REPORT.pack(500))
    assert slaves.replicas() == {2: first}
    other, _ = greeted(service, Greeting(b"x" * 8, 7, 3))
    second, _ = greeted(service, Greeting(b"x" * 8, 7, 2))
    assert (first.is_closed, other.is_closed) == (True, False)
    second.dataReceived(REPORT.pack(10_000))
    assert slaves.replicas() == {2: second}


def test_a_recorded_greeting_closes_no_link_and_counts_for_nothing(
    reactor: MemoryReactorClock, source: Log, logged: Logged
) -> None:
    slaves = Slaves(source)
    service = MasterService(reactor, slaves, HaSettings(listen_port=10912), group=OneGroup())
    service.startService()
    first, _ = greeted(service, Greeting(b"x" * 8, 7, 2))
    first.dataReceived(REPORT.pack(500))
    for recorded in (b"", encode_confirmation(PROOF[::-1]) + REPORT.pack(10_000), REPORT.pack(10_000)):
        connection, transport = greeted(service, Greeting(b"x" * 8, 7, 2), recorded)
        assert transport.received() == [(GREETING, b"history to 10000")]
        assert (slaves.replicas(), first.is_closed) == ({2: first}, False)
        assert not slaves.confirm(500, 10_000, 1)
        assert connection.is_closed == bool(recorded)
    why = "it says that it is broker 2, and its greeting was recorded on another connection: nothing of it counts"
    closed = [line for line in logged.lines if "is closed" in line]
    assert closed == [f"the replication link to 10.0.0.2:40000 is closed: {why}"] * 2


@pytest.mark.parametrize("size", [1, 8, 9, 111])
def test_a_greeting_that_is_cut_short_is_given_up(
    reactor: MemoryReactorClock, source: Log, logged: Logged, size: int
) -> None:
    service = MasterService(reactor, Slaves(source), HaSettings(listen_port=10912), group=OneGroup())
    service.startService()
    connection, transport = greeted(service, Greeting(b"x" * 8, 7, 2), b"")
    cut_short = service.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1))
    assert cut_short is not None
    cut_short.makeConnection(Transport())
    cut_short.dataReceived(Greeting(b"x" * 8, 7, 3).encode()[:size])
    assert transport.received() == [(GREETING, b"history to 10000")]
    reactor.pump([1.0] * 22)
    assert (connection.is_closed, cut_short.is_closed) == (True, True)  # that one never confirmed its own
    why = "nothing was heard from it for 20 s"
    assert [line for line in logged.lines if "10.0.0.3:1" in line] == [
        f"the replication link to 10.0.0.3:1 is closed: {why}"
    ]


def test_links_of_no_replica_keep_no_replica_out(reactor: MemoryReactorClock, source: Log, logged: Logged) -> None:
    service = MasterService(reactor, Slaves(source), HaSettings(listen_port=10912), group=OneGroup())
    service.startService()
    first, _ = greeted(service, Greeting(b"x" * 8, 7, 2))
    first.dataReceived(REPORT.pack(10_000))
    strangers = []
    for _ in range(LINKS_MAX - 1):
        link = service.factory.buildProtocol(IPv4Address("TCP", "10.0.0.3", 1))
        link.makeConnection(Transport())
        link.dataReceived(REPORT.pack(0))
        strangers.append(link)
    second, transport = greeted(service, Greeting(b"x" * 8, 7, 3))
    assert transport.received() == [(GREETING, b"history to 10000")]
    assert [link.is_closed for link in [first, second, *strangers]] == [False, False, True] + [False] * (LINKS_MAX - 2)
    why = "it is of no replica of the group, and others connect"
    assert logged.lines[-1] == f"the replication link to 10.0.0.3:1 is closed: {why}"


def test_when_a_slave_had_all_that_there_was(reactor: MemoryReactorClock, source: Log, slave: Any) -> None:
    connection, _ = slave(9_000)
    assert connection.caught_up_at < 0
    reactor.advance(1)
    connection.dataReceived(REPORT.pack(10_000))
    assert connection.caught_up_at == reactor.seconds()
    # Under load it never has the whole log, and is close behind all the same.
    for step in range(5):
        source.data += bytes(1000)
        reactor.advance(0.5)
        connection.link.sent = source.end
        connection.dataReceived(REPORT.pack(10_500 + 1000 * step))
    assert reactor.seconds() - 1 <= connection.caught_up_at < reactor.seconds()


def test_slaves_come_and_go_as_often_as_they_like(
    reactor: MemoryReactorClock, master: MasterService, source: Log, slave: Any
) -> None:
    for _ in range(3):
        end = source.end
        connection, transport = slave(end)
        source.grow(b"more")
        reactor.advance(1)
        assert [piece for piece in transport.received() if piece[1]] == [(end, b"more")]
        assert len(source.on_growth) == 1
        connection.connectionLost(Failure(ConnectionLost()))
        assert (source.on_growth, master.factory.slaves.links) == ([], [])


def test_links_that_end_after_all_were_closed_are_no_error(master: MasterService, slave: Any) -> None:
    for _ in range(3):
        connection, _ = slave(0)
        closed = master.factory.close()
        assert not closed.called
        connection.connectionLost(Failure(ConnectionLost()))
        assert closed.called
        late, _ = slave(0)  # accepted before the port was closed
        late.connectionLost(Failure(ConnectionLost()))
