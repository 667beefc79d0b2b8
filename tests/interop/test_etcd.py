"""A group of three brokers with a real etcd: one of its members hangs, or it wants accounts or certificates."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet
from tests.interop.group import LEASE_S, Machine, Three
from tests.interop.load import Load
from tests.interop.processes import eventually
from tests.interop.raw import Line, create_topic, send
from tests.remoting.certificates import Authority

TRIES = 5
#: The longest time without SEND_OK. etcd needs 1 to 2 s to elect a leader, for which a master's lease lasts.
PAUSE_SECONDS = 1.0

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.stop_all()


def test_a_member_of_etcd_that_hangs_costs_no_election_and_no_long_pause(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    three = Three(fleet, fleet.namesrv("ours"), etcd, [Machine()] * 3)
    load = Load(fleet.peer("produce", three.namesrv, topic=topic, prefix="load", count=10_000_000, interval_ms=2))
    load.wait_until_it_goes_on()
    epoch, pauses = three.epoch, list[float]()
    for number in range(TRIES):
        # The first of a broker each time, and what leads.
        member = etcd.leader if number % 2 else number % 3
        who = "the leader" if member == etcd.leader else "a follower"
        load.longest_pause_s()
        etcd.members[member].suspend()
        load.wait_for(LEASE_S)
        etcd.restart(member)
        load.wait_for(LEASE_S)
        pauses.append(load.longest_pause_s())
        print(f"try {number}: m{member}, {who}, hung: {pauses[-1]:.2f} s without an acknowledgement", flush=True)
        assert three.epoch == epoch
    assert max(pauses) <= PAUSE_SECONDS, pauses
    load.end()


def sends_over_an_election(fleet: Fleet, three: Three, topic: str) -> None:
    """Messages are acknowledged, and again after the master's end."""
    for _ in range(2):
        number = three.master
        with closing(Line(three.brokers[number].addr)) as line:
            line.ask_well([create_topic(topic, 1)])
            line.ask_well([send(topic, 0, b"x", {})])
        three.away = number
        three.brokers[number].process.kill()
        # It asks the others, who say that they are master once they serve as such.
        assert three.master != number
        three.away = 0
        fleet.restart(three.brokers[number])
        eventually("all three are in sync", lambda: three.is_whole, patience_s=60)


def test_a_group_has_an_account_of_etcd_that_may_use_its_keys_alone(
    fleet: Fleet, etcd: Etcd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("secret\n")
    etcd.enable_accounts("mq", "secret", "/mqbroker/")
    machines = [Machine()] * 3
    settings = {"etcdUsername": "mq", "etcdPasswordFile": str(tmp_path / "password")}
    three = Three(fleet, fleet.namesrv("ours"), etcd, machines, **settings)
    sends_over_an_election(fleet, three, topic)
    epoch = three.epoch
    for number in range(3):  # it has forgotten the tokens
        etcd.members[number].kill()
        etcd.restart(number)
    eventually("all three are in sync", lambda: three.is_whole, patience_s=60)
    assert three.epoch == epoch
    sends_over_an_election(fleet, three, topic)


def test_a_group_shows_certificates_to_etcd(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("broker")
    etcd = Etcd(tmp_path, authority=authority)
    try:
        settings = {"etcdCaFile": authority.path, "etcdCertFile": cert, "etcdKeyFile": key}
        three = Three(fleet, fleet.namesrv("ours"), etcd, [Machine()] * 3, **settings)
        sends_over_an_election(fleet, three, topic)
    finally:
        etcd.stop_all()
