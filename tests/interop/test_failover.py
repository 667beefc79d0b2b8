"""A group of three brokers with an etcd of three members, under load from the Java producer, while any of them is
killed or suspended: nothing that was acknowledged is missing.

What happens comes from a seed, printed; MQBROKER_FAILOVER_SEED chooses another, MQBROKER_FAILOVER_ROUNDS how many times
something happens.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from mqbroker.wire.bodies import ClusterInfo, KVTable
from mqbroker.wire.codes import RequestCode
from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Broker, Fleet, Namesrv
from tests.interop.peers import Peer
from tests.interop.processes import ProcessFailed, eventually
from tests.interop.raw import Line
from tests.interop.test_replication import log_files
from tests.interop.traffic import bodies, consumer, stop_consumer

ROUNDS = int(os.environ.get("MQBROKER_FAILOVER_ROUNDS", "4"))
EVENTS = ("kill master", "suspend master", "kill replica", "suspend replica", "kill etcd", "suspend etcd")

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.stop_all()


class Three:
    """The brokers of the group, by their ids."""

    def __init__(self, fleet: Fleet, namesrv: Namesrv, etcd: Etcd) -> None:
        self.fleet, self.namesrv, self.etcd = fleet, namesrv, etcd
        self.brokers = {
            number: fleet.broker(
                "ours",
                namesrv,
                brokerName="group-a",
                brokerId=str(number),
                brokerRole="SYNC_MASTER",
                etcdEndpoints=etcd.endpoints,
                syncFlushTimeout="2000",
            )
            for number in (1, 2, 3)
        }
        self.suspended = 0
        self.wait_until_whole()

    def info(self, broker: Broker) -> dict[str, str]:
        with closing(Line(broker.addr)) as line:
            return KVTable.from_json(line.one(RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def in_sync(self) -> tuple[int, set[str]]:
        """The master's id, and the in-sync set that it says; (0, {}) while nobody serves as master."""
        for number, broker in self.brokers.items():
            if number == self.suspended:
                continue
            try:
                info = self.info(broker)
            except (OSError, EOFError, AssertionError):
                continue
            if not any(key.startswith("haMaster_") for key in info) and not info["groupWhyNot"]:
                return number, set(info["groupInSync"].split())
        return 0, set()

    def wait_until_whole(self) -> None:
        eventually("all three are in sync", lambda: self.in_sync()[1] == {"1", "2", "3"}, patience_s=60)

    @property
    def master(self) -> int:
        number: int = eventually("there is a master", lambda: self.in_sync()[0], patience_s=30)
        return number

    def registered_master(self) -> str | None:
        """The master's address as the name server has it."""
        with closing(Line(self.namesrv.addr)) as line:
            found = ClusterInfo.from_json(line.one(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        data = found.broker_addr_table.get("group-a")
        return data.broker_addrs.get(0) if data is not None else None

    def cause(self, event: str, rng: Random) -> float | None:
        """Have something happen, and heal it; returns how long there was no master, in seconds."""
        what, who = event.split()
        master, missing = self.master, None
        if who == "etcd":
            number = rng.randrange(3)
            process = self.etcd.members[number]
            (process.kill if what == "kill" else process.suspend)()
            time_passes(self.fleet, 4)
            self.etcd.restart(number)
        else:
            number = master if who == "master" else rng.choice([other for other in self.brokers if other != master])
            broker = self.brokers[number]
            began, self.suspended = time.monotonic(), number
            (broker.process.kill if what == "kill" else broker.process.suspend)()
            if who == "master":
                eventually(
                    "another master is registered",
                    lambda: self.registered_master() not in (None, broker.addr),
                    patience_s=30,
                )
                missing = time.monotonic() - began
            else:
                time_passes(self.fleet, 4)
            if what == "kill":
                self.fleet.restart(broker)
            else:
                broker.process.resume()
            self.suspended = 0
        self.wait_until_whole()
        return missing


def time_passes(fleet: Fleet, seconds: float) -> None:
    """Let the load go on."""
    end = time.monotonic() + seconds
    eventually("time passes", lambda: time.monotonic() > end, patience_s=seconds + 10)


def acknowledged(producer: Peer) -> list[dict[str, object]]:
    return [event for event in producer.events("sent") if event["status"] == "SEND_OK"]


def test_nothing_acknowledged_is_lost_whoever_fails(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    seed = int(os.environ.get("MQBROKER_FAILOVER_SEED", "5"))
    rng = Random(seed)
    namesrv = fleet.namesrv("ours")
    three = Three(fleet, namesrv, etcd)
    producer = fleet.peer(
        "produce", namesrv, topic=topic, prefix="load", count=10_000_000, interval_ms=2, timeout_ms=3000, poll_ms=500
    )
    eventually("messages are acknowledged", lambda: len(acknowledged(producer)) > 100)
    events = [rng.choice(EVENTS) for _ in range(ROUNDS)]
    events[0] = "kill master"
    for number, event in enumerate(events):
        before = len(acknowledged(producer))
        missing = three.cause(event, rng)
        eventually("messages are acknowledged again", lambda: len(acknowledged(producer)) > before + 50)  # noqa: B023
        without = "" if missing is None else f", {missing:.1f} s without a master"
        print(f"seed {seed}, round {number}: {event}{without}, {len(acknowledged(producer))} acknowledged")
    producer.close_stdin()
    producer.finish()
    sent = acknowledged(producer)
    process = consumer(fleet, namesrv, topic, "survivors")
    wanted = bodies(sent)
    try:
        process.wait_until("all that was acknowledged", lambda _: not wanted - bodies(process.events("message")))
    except ProcessFailed:
        missing_bodies = wanted - bodies(process.events("message"))
        pytest.fail(f"{sum(missing_bodies.values())} of {len(sent)} acknowledged messages are missing")
    stop_consumer(process)
    logs = [log_files(broker) for broker in three.brokers.values()]
    assert logs[0] == logs[1] == logs[2]
