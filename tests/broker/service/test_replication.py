"""Sends to a SYNC_MASTER, with a slave that a test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from mqbroker.config import BrokerRole, FlushDiskType
from mqbroker.ha.link import HEADER, REPORT
from mqbroker.ha.master import MasterFactory
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import Client, send_command
from tests.broker.service.running import Running
from tests.fakes import SteppedWorker


class Transport(StringTransport):
    """Calls `on_write` before it takes anything."""

    on_write: Callable[[], object] = staticmethod(lambda: None)

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.on_write()
        super().write(data)


class Slave:
    """Reads what a master sends, and acknowledges it when told to."""

    def __init__(self, running: Running) -> None:
        [factory] = [made[1] for made in running.reactor.tcpServers if isinstance(made[1], MasterFactory)]
        connection = factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 7))
        assert connection is not None
        self.connection, self.transport = connection, Transport()
        connection.makeConnection(self.transport)
        connection.dataReceived(REPORT.pack(0))

    def acknowledge(self) -> None:
        data, end = self.transport.value(), 0
        while data:
            offset, size = HEADER.unpack_from(data)
            end, data = offset + size, data[HEADER.size + size :]
        self.connection.dataReceived(REPORT.pack(end))


@pytest.fixture
def sync_master(make: Callable[..., Running]) -> Running:
    return make(store={"broker_role": BrokerRole.SYNC_MASTER}).start()


def code_of(client: Client, **fields: Any) -> int | None:
    answers = client.ask_all(send_command("T", **fields))
    return answers[0].code if answers else None


def late_codes(client: Client) -> list[int]:
    return [answer.code for answer in client.heard()]


def test_a_send_is_answered_once_a_slave_has_the_message(sync_master: Running) -> None:
    slave, client = Slave(sync_master), sync_master.client()
    assert code_of(client) is None
    slave.acknowledge()
    assert late_codes(client) == [ResponseCode.SUCCESS]


def test_a_send_without_a_slave_is_stored_and_says_so(sync_master: Running) -> None:
    assert code_of(sync_master.client()) == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_send_that_no_slave_confirms_says_so_in_time(sync_master: Running) -> None:
    Slave(sync_master)
    client = sync_master.client()
    assert code_of(client) is None
    sync_master.turn(5)
    assert late_codes(client) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


def test_a_send_that_does_not_want_to_wait_is_answered_at_once(sync_master: Running) -> None:
    Slave(sync_master)
    assert code_of(sync_master.client(), properties="WAIT\x01false") == ResponseCode.SUCCESS


def test_with_sync_flush_both_must_have_it(make: Callable[..., Running]) -> None:
    worker = SteppedWorker()
    store = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
    running = make(worker=worker, store=store).start()
    slave, client = Slave(running), running.client()
    assert code_of(client) is None
    slave.acknowledge()
    assert late_codes(client) == [ResponseCode.SUCCESS]
    worker.at_once = False
    assert code_of(client) is None
    slave.acknowledge()
    assert late_codes(client) == []
    worker.at_once = True
    worker.work()
    running.turn()
    assert late_codes(client) == [ResponseCode.SUCCESS]


def test_a_slave_is_sent_a_message_before_its_master_dispatches_it(sync_master: Running) -> None:
    slave, client = Slave(sync_master), sync_master.client()
    store, ends = sync_master.service._assembly._store, []
    slave.transport.on_write = lambda: ends.append((store.dispatched, store.log_end > 0))
    assert code_of(client) is None
    assert ends == [(0, True)]
    assert store.max_offset("T", 0) == 1
