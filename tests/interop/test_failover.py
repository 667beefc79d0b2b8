"""A group of three brokers with an etcd of three members, under load from the Java producer, while something fails:
nothing that was acknowledged is missing.

What happens comes from a seed, printed; MQBROKER_FAILOVER_SEED chooses another, MQBROKER_FAILOVER_ROUNDS how many times
something happens.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.daemons.small_disks import SmallDisk
from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet, Place
from tests.interop.group import NETWORK, PROCESSES, Faults, Machine, Three
from tests.interop.load import JavaSender, Load
from tests.interop.network import Network
from tests.interop.processes import ProcessFailed
from tests.interop.set_clock import SetClock
from tests.interop.traffic import bodies, consumer, stop_consumer

ROUNDS = int(os.environ.get("MQBROKER_FAILOVER_ROUNDS", "4"))
#: Begins with a fault of each kind.
SEED = int(os.environ.get("MQBROKER_FAILOVER_SEED", "849"))
DISK_BYTES = (64 + 32 * ROUNDS) << 20

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(6)
    yield network
    network.remove()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[SmallDisk]]:
    """One for each broker."""
    disks: list[SmallDisk] = []
    try:
        for number in (1, 2, 3):
            folder = tmp_path / f"disk{number}"
            folder.mkdir()
            disks.append(SmallDisk("tmpfs", folder, DISK_BYTES))
        yield disks
    finally:
        for disk in disks:
            disk.end()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.stop_all()


@pytest.fixture
def etcd_in_network(network: Network, tmp_path: Path) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path, [Place(host.address, host.wrapper) for host in network.hosts[3:]])
    yield etcd
    etcd.stop_all()


def events(kinds: Sequence[str], rng: Random) -> Iterator[str]:
    """All of them in an order by chance, again and again."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def run(three: Three, topic: str, kinds: Sequence[str], **options: object) -> None:
    """Have something happen so many times, then compare what was acknowledged with what there is."""
    fleet, namesrv, rng = three.fleet, three.namesrv, Random(SEED)
    load = Load(JavaSender.start(fleet, namesrv, topic, **options))
    load.wait_until_it_goes_on()
    faults = Faults(three, load, rng)
    for number, event in zip(range(ROUNDS), events(kinds, rng), strict=False):
        load.longest_pause_s()
        told = faults.cause(event)
        pause = f"{load.longest_pause_s():.1f} s without an acknowledgement"
        print(f"seed {SEED}, round {number}: {told}, {pause}, {load.count()} acknowledged", flush=True)
    sent = load.end()
    process = consumer(fleet, namesrv, topic, "survivors")
    wanted = bodies(sent)
    try:
        process.wait_until("all that was acknowledged", lambda _: not wanted - bodies(process.events("message")))
    except ProcessFailed:
        missing_bodies = wanted - bodies(process.events("message"))
        pytest.fail(f"{sum(missing_bodies.values())} of {len(sent)} acknowledged messages are missing")
    stop_consumer(process)
    three.require_same_logs()
    fleet.check_logs()


def test_nothing_acknowledged_is_lost_whoever_fails(fleet: Fleet, etcd: Etcd, tmp_path: Path, topic: str) -> None:
    kinds, machines = list(PROCESSES), [Machine()] * 3
    try:
        clocks = [SetClock(tmp_path, str(number)) for number in (1, 2, 3)]
        machines = [Machine(Place(environment=clock.environment), clock) for clock in clocks]
    except pytest.skip.Exception as reason:
        print(f"no clock is set: {reason}")
        kinds = [kind for kind in kinds if not kind.startswith("set ")]
    run(Three(fleet, fleet.namesrv("ours"), etcd, machines), topic, kinds)


def test_nothing_acknowledged_is_lost_whatever_is_cut_off(
    network: Network, disks: list[SmallDisk], etcd_in_network: Etcd, fleet: Fleet, topic: str
) -> None:
    namesrv = fleet.namesrv("ours")
    machines = []
    for host, etcd_host, disk in zip(network.hosts[:3], network.hosts[3:], disks, strict=True):
        place = Place(host.address, [*host.wrapper, *disk.wrapper(fleet.scratch)])
        machines.append(Machine(place, disk=disk, host=host, etcd_host=etcd_host))
    settings = {
        "namesrvAddr": f"{network.address}:{namesrv.addr.rpartition(':')[2]}",
        # Small, so that a full disk is soon noticed.
        "mappedFileSizeCommitLog": "1048576",
        # Else a broker whose disk is full makes room by deleting the oldest messages.
        "cleanFileForciblyEnable": "false",
    }
    run(Three(fleet, namesrv, etcd_in_network, machines, **settings), topic, NETWORK, size=1000)
