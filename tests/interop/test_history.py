"""A group of three brokers with an etcd of three members while anything fails, seen by its clients alone: producers and
consumers of both systems, whose history must hold in the end.

What happens comes from a seed, printed; MQBROKER_HISTORY_SEED chooses the first, MQBROKER_HISTORY_ROUNDS how many
rounds there are, MQBROKER_HISTORY_FAULTS how often something happens in each. The first two rounds begin with the kinds
that every run is to meet.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import attrs
import pytest

from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet, Place
from tests.interop.group import LOSSES, Faults, Machine, Three
from tests.interop.history import Pause, check, longest_pause_s
from tests.interop.load import JavaSender, Load, OurSender, Sender
from tests.interop.network import Network
from tests.interop.readers import both_readers, wait_for_all

ROUNDS = int(os.environ.get("MQBROKER_HISTORY_ROUNDS", "2"))
FAULTS = int(os.environ.get("MQBROKER_HISTORY_FAULTS", "2"))
SEED = int(os.environ.get("MQBROKER_HISTORY_SEED", "7606"))
#: As many as a topic gets that a new master does not know yet.
QUEUES = 8
KINDS = (
    *("kill master", "suspend master", "kill replica", "suspend replica", "kill etcd", "suspend etcd"),
    *LOSSES,
)
#: Of these the first round begins with the first ones, the second with the next ones.
ALWAYS = ("kill master", "suspend etcd", "suspend master", "cut master replicas")
CUTS = (
    "cut-and-kill master replicas",
    "cut master replicas",
    "cut master all",
    "cut replica master",
    "cut replica etcd",
    "cut etcd all",
)

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")


@pytest.fixture
def network() -> Iterator[Network | None]:
    """None where it cannot be made."""
    try:
        network = Network(6)
    except pytest.skip.Exception as reason:
        print(f"no link is cut: {reason}")
        yield None
        return
    yield network
    network.remove()


@pytest.fixture
def three(network: Network | None, fleet: Fleet, tmp_path: Path) -> Iterator[Three]:
    namesrv, machines, places, settings = fleet.namesrv("ours"), [Machine()] * 3, [Place()] * 3, {}
    if network is not None:
        hosts, etcd_hosts = network.hosts[:3], network.hosts[3:]
        machines = [
            Machine(Place(host.address, host.wrapper), host=host, etcd_host=etcd_host)
            for host, etcd_host in zip(hosts, etcd_hosts, strict=True)
        ]
        places = [Place(host.address, host.wrapper) for host in etcd_hosts]
        settings = {"namesrvAddr": f"{network.address}:{namesrv.addr.rpartition(':')[2]}"}
    etcd = Etcd(tmp_path, places)
    try:
        yield Three(fleet, namesrv, etcd, machines, **settings)
    finally:
        etcd.stop_all()


def faults_of(round_number: int, kinds: Sequence[str], rng: Random) -> list[str]:
    """What happens in a round, of these kinds."""
    first = [kind for kind in ALWAYS[round_number * FAULTS :][:FAULTS] if kind in kinds]
    others = [kind for kind in kinds if kind not in first]
    return first + rng.sample(others, min(FAULTS, len(kinds)) - len(first))


@pytest.mark.parametrize("seed", [SEED + number for number in range(ROUNDS)])
def test_what_clients_were_told_holds(
    three: Three, fleet: Fleet, topic: str, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    namesrv, rng = three.namesrv, Random(seed)
    kinds = [*KINDS, *CUTS] if three.machines[1].host is not None else [*KINDS]
    fleet.peer("createtopic", namesrv, topic=topic, broker=three.brokers[three.master].addr, queues=QUEUES).finish()
    with ExitStack() as open_ones:
        readers = both_readers(fleet, namesrv, topic, open_ones)
        java: list[Sender] = [
            JavaSender.start(fleet, namesrv, topic, prefix=f"java{number}", group=f"java{number}", instance="load")
            for number in range(2)
        ]
        ours: list[Sender] = [OurSender(namesrv, topic, f"ours{number}") for number in range(2)]
        load = Load(*java, *ours)
        load.wait_until_it_goes_on()
        faults, began = Faults(three, load, rng, backup=tmp_path / "backup"), []
        load.wait_until_it_goes_on()
        for number, fault in enumerate(faults_of(seed - SEED, kinds, rng)):
            load.longest_pause_s()
            began.append((fault, time.monotonic()))
            told = faults.cause(fault)
            pause = f"{load.longest_pause_s():.1f} s without an acknowledgement"
            print(f"seed {seed}, fault {number}: {told}, {pause}, {load.count()} acknowledged", flush=True)
            load.wait_for(rng.uniform(0, 1))
        acknowledged, ended = load.end(), time.monotonic()
        wait_for_all(readers, acknowledged)
    found = three.messages(topic, QUEUES)
    check(acknowledged, {reader.name: reader.read for reader in readers}, found, three.elections())
    three.require_same_logs()
    for name, senders in (("java", java), ("ours", ours)):
        times = sorted(event["at"] for sender in senders for event in sender.acknowledged)
        for (fault, begin), end in zip(began, [*(at for _, at in began[1:]), ended], strict=True):
            record_property("pause", attrs.astuple(Pause(fault, name, longest_pause_s(times, begin, end))))
    fleet.check_logs()
