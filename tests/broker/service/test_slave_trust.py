"""Which slaves count: those that know the secret, and those whose log was compared with their master's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from mqbroker.broker.broker_service import BrokerService
from mqbroker.config import BrokerRole
from mqbroker.ha.divergence import LogComparison
from mqbroker.ha.link import HEADER, REPORT
from mqbroker.ha.master import UNCOMPARED_SECONDS, MasterFactory
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import send_command
from tests.broker.service.group import Group
from tests.broker.service.pair import NAMESRV, Member, Pair
from tests.broker.service.test_slave import info, sent
from tests.remoting.logs import Logged, log_kept

SYNC = {"role": BrokerRole.SYNC_MASTER}
OK, NONE = [ResponseCode.SUCCESS], [ResponseCode.SLAVE_NOT_AVAILABLE]


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path / "pair")
    yield made
    for peer in PEERS:
        peer.connection.connectionLost()
    PEERS.clear()
    made.close()


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "secret"
    path.write_bytes(b"of 32 random bytes, or of letters\n")
    return {"ha_secret_file": str(path)}


class Transport(StringTransport):
    def setTcpNoDelay(self, enabled: bool) -> None:
        pass


@attrs.define
class Peer:
    """Connects to a master's port for replication, and says what it wants."""

    connection: Any
    transport: Transport

    def report(self, offset: int) -> None:
        self.connection.dataReceived(REPORT.pack(offset))

    def pieces(self) -> list[tuple[int, int]]:
        """What was sent, without heartbeats: offsets and sizes."""
        data, found = self.transport.value(), []
        while data:
            offset, size = HEADER.unpack_from(data)
            if size:
                found.append((offset, size))
            data = data[HEADER.size + size :]
        return found


PEERS: list[Peer] = []


def connect(master: Member, host: str = "10.0.0.2") -> Peer:
    factory = master.cluster.network.servers[master.addresses[1]]
    assert isinstance(factory, MasterFactory)
    connection = factory.buildProtocol(IPv4Address("TCP", host, 40000))
    assert connection is not None
    peer = Peer(connection, Transport())
    connection.makeConnection(peer.transport)
    PEERS.append(peer)
    return peer


def fill(master: Member, count: int, body: bytes = b"x" * 2000) -> None:
    master.client().ask_all(*(send_command("T", body) for _ in range(count)))


def why_not(master: Member) -> list[str]:
    """Why the slaves of a master do not count; empty of those that do."""
    return [value.split(",", 4)[4] for key, value in info(master).items() if key.startswith("haSlave_")]


def refused(master: Member, host: str = "10.0.0.2") -> str:
    return info(master).get(f"haRefused_{host}", "")


def compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves follow at once, as those of the Java system."""

    async def check(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(LogComparison, "check", check)


# --- by comparison


def test_a_slave_that_comes_back_counts_once_its_last_record_was_compared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_nothing(monkeypatch)
    master, _ = pair.master(**SYNC), pair.slave()
    pair.turn(2)
    assert sent(master) == OK
    pair.stop("slave1")
    fill(master, 3)
    slave = pair.slave()
    pair.turn(3)
    assert (why_not(master), sent(master)) == ([""], OK)
    assert slave.log() == master.log()


@pytest.mark.parametrize("body", [b"other", b"another of another length"])
def test_a_slave_with_another_log_is_refused_and_does_not_count(
    pair: Pair, logged: Logged, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """As a Java master that becomes a slave: it follows whatever it is sent."""
    compare_nothing(monkeypatch)
    other = pair.start("other")
    fill(other, 20, body)
    pair.stop("other")
    master = pair.master(**SYNC)
    fill(master, 20, b"whose")
    fill(master, 20, b"whose log is longer")
    before = master.log()
    slave = pair.slave(root=other.root)
    pair.turn(6)
    assert sent(master) == NONE
    assert ("it has what this master never had" in refused(master), why_not(master)) == (True, [])
    assert before[1].find(slave.log()[1]) < 0
    assert slave.store.max_offset("T", 0) == 20
    assert any("the replication link to 10.0.0.2:40000 is closed: its log" in line for line in logged.lines)


def test_a_slave_whose_log_is_one_record_longer_is_refused_and_does_not_count(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_nothing(monkeypatch)
    master, _ = pair.master(**SYNC), pair.slave()
    pair.turn(2)
    fill(master, 3)
    pair.turn(2)
    pair.stop("slave1")
    log_end = master.store.log_end
    pair.stop("master")
    former = pair.start("former", root=pair.members["slave1"].root)
    fill(former, 1)
    pair.stop("former")
    master = pair.master(**SYNC)
    assert master.store.log_end == log_end
    slave = pair.slave(root=former.root)
    pair.turn(3)
    assert sent(master) == NONE  # now the master's log is the longer one, and has another record there
    pair.turn(10)
    assert slave.store.log_end > log_end
    assert (sent(master), why_not(master)) == (NONE, [])
    assert "it has what this master never had" in refused(master)


def test_a_peer_that_no_name_server_knows_does_not_count(pair: Pair, logged: Logged) -> None:
    master = pair.master(**SYNC)
    fill(master, 3)
    peer = connect(master)
    peer.report(master.store.log_end)
    assert sent(master) == NONE
    [why] = why_not(master)
    assert why.endswith("the name servers know no slave of this broker at its address")
    line = f"nothing that slave 10.0.0.2:40000 reports counts: {why}"
    assert [each for each in logged.lines if each == line] == [line]
    assert peer.pieces() == []
    pair.turn(UNCOMPARED_SECONDS + 1)
    assert peer.pieces() != []
    peer.report(master.store.log_end)
    assert sent(master) == NONE


def test_a_peer_does_not_count_for_another_slave_at_its_address(pair: Pair) -> None:
    master, slave = pair.master(**SYNC), pair.slave()
    pair.turn(2)
    fill(master, 3)
    pair.turn(2)
    begun = master.store.log_end
    assert slave.store.log_end == begun
    pair.network.blocked.add(master.addresses[1])
    pair.network.cut(master.addresses[1])
    pair.turn(1)
    fill(master, 3)
    peer = connect(master)
    peer.report(master.store.log_end)
    pair.turn(3)
    assert f"says that its log ends at {begun}" in why_not(master)[0]
    assert sent(master) == NONE


def test_while_nobody_says_where_a_slave_is_it_does_not_count_and_then_it_does(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_nothing(monkeypatch)
    master, _ = pair.master(**SYNC), pair.slave()
    pair.turn(2)
    fill(master, 3)
    pair.turn(2)
    pair.network.blocked.add(NAMESRV)
    pair.network.cut(master.addresses[1], NAMESRV)
    pair.turn(4)
    assert "does not say where its broker can be asked" in why_not(master)[0]
    assert sent(master) == NONE
    pair.network.blocked.clear()
    pair.turn(20)
    assert (why_not(master), sent(master)) == ([""], OK)


# --- by a secret


def test_slaves_that_know_the_secret_count_without_being_asked(
    pair: Pair, secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    master = pair.master(**SYNC, **secret)
    pair.slave(**secret)
    pair.turn(2)
    assert sent(master) == OK
    pair.stop("slave1")
    fill(master, 3)
    slave = pair.slave(**secret)
    pair.network.cut(NAMESRV)
    pair.turn(3)
    assert (why_not(master), sent(master)) == ([""], OK)
    assert slave.log() == master.log()


def test_a_slave_that_knows_the_secret_and_has_another_log_is_refused(
    pair: Pair, secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_nothing(monkeypatch)
    other = pair.start("other")
    fill(other, 20, b"other")
    pair.stop("other")
    master = pair.master(**SYNC, **secret)
    fill(master, 21, b"whose")
    pair.slave(root=other.root, **secret)
    pair.turn(3)
    assert "its log and this one differ at" in refused(master)
    assert sent(master) == NONE


def test_without_the_secret_nobody_counts(pair: Pair, secret: dict[str, Any], logged: Logged) -> None:
    master, slave = pair.master(**SYNC, **secret), pair.slave()
    pair.turn(2)
    assert sent(master) == NONE
    assert "does not prove that it knows the secret of this broker" in refused(master)
    peer = connect(master, "10.0.0.7")
    peer.report(0)
    assert peer.transport.disconnecting
    peer = connect(master, "10.0.0.7")
    peer.report(0)
    assert sent(master) == NONE
    assert not any("any peer that connects to port" in line for line in logged.lines)
    assert slave.store.log_end == 0


def test_a_slave_of_the_java_system_may_be_excepted(pair: Pair, secret: dict[str, Any]) -> None:
    master = pair.master(**SYNC, **secret, ha_white_remote_addresses="10.0.0.2")
    pair.slave()
    pair.turn(2)
    assert sent(master) == OK
    peer = connect(master, "10.0.0.7")
    peer.report(0)
    assert peer.transport.disconnecting


@pytest.mark.parametrize("has_secret", [True, False])
def test_a_slave_with_a_secret_follows_no_master_that_does_not_know_it(
    pair: Pair, secret: dict[str, Any], tmp_path: Path, has_secret: bool
) -> None:
    (tmp_path / "another").write_text("of 32 other bytes, or of letters")
    master = pair.master(**SYNC, **({"ha_secret_file": str(tmp_path / "another")} if has_secret else {}))
    slave = pair.slave(**secret)
    pair.turn(2)
    assert (sent(master), slave.store.log_end) == (NONE, 0)
    says = "the master knows another secret" if has_secret else "ends the link rather than prove that it knows the sec"
    assert says in info(slave)[f"haMaster_{master.addresses[1]}"]


def test_with_access_control_a_secret_opens_the_port(pair: Pair, secret: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "home" / "conf").mkdir(parents=True)
    (tmp_path / "home" / "conf" / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: ['*']\n")
    master = pair.master(**SYNC, **secret, acl_enable=True, rocketmq_home=str(tmp_path / "home"))
    pair.slave(**secret)
    pair.turn(2)
    assert sent(master) == OK


def test_a_sync_master_that_would_count_anybody_says_so(pair: Pair, logged: Logged) -> None:
    master = pair.master(**SYNC)
    port = master.addresses[1].rpartition(":")[2]
    [line] = [each for each in logged.lines if "counts as a slave" in each]
    assert (
        f"any peer that connects to port {port} counts as a slave: set haSecretFile on all brokers of this name" in line
    )
    peer = connect(master, "10.0.0.7")
    peer.report(0)
    assert "haSlave_10.0.0.7:40000" in info(master)


def test_a_group_whose_brokers_know_the_secret_gets_in_sync_and_no_other_broker_does(
    secret: dict[str, Any], tmp_path: Path, logged: Logged
) -> None:
    group = Group(tmp_path / "group", is_disk_simulated=True, **secret)
    for replica_id in (1, 2):
        group.start(replica_id)
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2})
    assert group.client(group.master()).send(send_command("T")).code == ResponseCode.SUCCESS
    group.changes.pop("ha_secret_file")
    group.start(3)
    group.wait(5)
    assert group.in_sync() == {1, 2}
    assert any("does not prove that it knows the secret of this broker" in line for line in logged.lines)
    group.close()


def test_a_broker_whose_secret_cannot_be_read_does_not_start(pair: Pair, tmp_path: Path) -> None:
    pair.master()
    pair.stop("master")
    settings = attrs.evolve(pair.members["master"].service.settings, ha_secret_file=str(tmp_path / "none"))
    service = BrokerService(
        settings, pair.reactor, disk=OsDisk(), rng=Random(1), worker=InlineWorker(), connector=pair.network.connector
    )
    failures: list[Any] = []
    service.startService().addErrback(failures.append)
    assert str(failures[0].value).startswith(f"haSecretFile: {tmp_path / 'none'}: No such file")
