"""The master's port: what slaves are sent, when a link ends, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock, StringTransport

from mqbroker.errors import StoreError
from mqbroker.ha.link import HEADER, REPORT
from mqbroker.ha.master import LINKS_MAX, HaSettings, MasterService, SlaveConnection

SEGMENT = 4096


@attrs.define
class Log:
    """A log in memory; what lies below `cold` has to be read first."""

    data: bytes = b""
    start: int = 0
    cold: int = 0
    segment_bytes: int = SEGMENT
    reads: list[tuple[Deferred[bytes], int, int]] = attrs.field(factory=list)

    @property
    def end(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> Deferred[bytes] | memoryview:
        if offset >= self.cold:
            return memoryview(self.data)[offset : offset + size]
        self.reads.append((Deferred(), offset, size))
        return self.reads[-1][0]


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
    service = MasterService(reactor, source, HaSettings(listen_port=10912, piece_bytes_max=1000))
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
    source.data += b"new"
    master.log_has_grown()
    master.log_has_grown()
    assert transport.received() == []
    reactor.advance(0)
    assert transport.received() == [(10_000, b"new")]


def test_what_is_on_the_disk_is_waited_for_and_comes_in_order(source: Log, slave: Any) -> None:
    source.cold = 9500
    connection, transport = slave(9000)
    assert transport.received() == []
    waiting, offset, size = source.reads[0]
    connection.send()
    assert len(source.reads) == 1
    waiting.callback(source.data[offset : offset + size])
    assert b"".join(data for _, data in transport.received()) == source.data[9000:]


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
