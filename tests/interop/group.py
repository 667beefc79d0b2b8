"""A group of three brokers with an etcd of three members, and what can happen to it."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import attrs

from mqbroker.ha.master import LINKS_MAX
from mqbroker.wire.bodies import ClusterInfo, KVTable
from mqbroker.wire.codes import RequestCode
from tests.daemons.small_disks import SmallDisk
from tests.interop.bad_slaves import BadSlaves, greetings
from tests.interop.etcd import Etcd
from tests.interop.fleet import HERE, Broker, Fleet, Namesrv, Place, log_files
from tests.interop.load import Load
from tests.interop.network import Direction, Host
from tests.interop.processes import eventually
from tests.interop.raw import Line
from tests.interop.set_clock import SetClock

#: In which processes are killed and suspended, clocks are set and replication ports are attacked.
PROCESSES = (
    *("kill master", "suspend master", "kill replica", "suspend replica", "kill etcd", "suspend etcd"),
    *("set clock-of-master", "set clock-of-replica", "attack master"),
)
#: In which what was stored is lost.
LOSSES = ("empty replica", "empty replica master", "set-back etcd")
#: In which the network is cut, and a disk is filled.
NETWORK = (
    *("cut master replicas", "cut master etcd", "cut master all"),
    *("cut replica master", "cut replica etcd", "cut replica all", "cut etcd all"),
    "fill replica",
)
DIRECTIONS: tuple[Direction, ...] = ("both", "in", "out")
HOUR_S = 3600
#: Longer than a lease in etcd lasts.
LEASE_S = 4.0
_ELECTED = re.compile(r"this broker is elected master of epoch (\d+)")


@attrs.frozen
class Machine:
    """What a broker and a member of etcd run on, as far as something can happen to it."""

    place: Place = HERE
    clock: SetClock | None = None
    disk: SmallDisk | None = None
    host: Host | None = None
    etcd_host: Host | None = None


class Three:
    """The brokers of the group, by their ids, which count from 1."""

    def __init__(
        self, fleet: Fleet, namesrv: Namesrv, etcd: Etcd, machines: Sequence[Machine], **settings: str
    ) -> None:
        self.fleet, self.namesrv, self.etcd = fleet, namesrv, etcd
        self.machines = dict(enumerate(machines, 1))
        self.brokers = {number: self._start(number, settings) for number in self.machines}
        #: The broker that cannot be asked.
        self.away = 0
        eventually("all three are in sync", lambda: self.is_whole, patience_s=60)

    def _start(self, number: int, settings: dict[str, Any]) -> Broker:
        machine = self.machines[number]
        disk = machine.disk
        broker = self.fleet.broker(
            "ours",
            self.namesrv,
            store=None if disk is None else disk.path / "store",
            place=machine.place,
            brokerName="group-a",
            brokerId=str(number),
            brokerRole="SYNC_MASTER",
            etcdEndpoints=self.etcd.endpoints,
            **{"syncFlushTimeout": "2000", **settings},
        )
        if disk is not None:
            broker.store = disk.seen / "store"
        return broker

    def info(self, broker: Broker) -> dict[str, str]:
        with closing(Line(broker.addr)) as line:
            return KVTable.from_json(line.one(RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def info_or_none(self, broker: Broker) -> dict[str, str] | None:
        """None while it ends or begins."""
        try:
            return self.info(broker)
        except (OSError, EOFError, AssertionError):
            return None

    def _masters_info(self) -> tuple[int, dict[str, str]]:
        """The master's id, and what it says; (0, {}) while nobody serves as master."""
        for number, broker in self.brokers.items():
            if number == self.away:
                continue
            info = self.info_or_none(broker)
            if info is not None and not any(key.startswith("haMaster_") for key in info) and not info["groupWhyNot"]:
                return number, info
        return 0, {}

    def in_sync(self) -> tuple[int, set[str]]:
        """The master's id, and the in-sync set that it says."""
        number, info = self._masters_info()
        return number, set(info.get("groupInSync", "").split())

    @property
    def is_whole(self) -> bool:
        return self.in_sync()[1] == {"1", "2", "3"}

    @property
    def master(self) -> int:
        number: int = eventually("there is a master", lambda: self.in_sync()[0], patience_s=30)
        return number

    @property
    def epoch(self) -> int:
        return int(eventually("there is a master", lambda: self._masters_info()[1], patience_s=30)["groupEpoch"])

    def why_not(self) -> dict[int, str]:
        """Why each broker that takes no part does not."""
        found = {number: self.info_or_none(broker) for number, broker in self.brokers.items()}
        return {number: info["groupWhyNot"] for number, info in found.items() if info and info["groupWhyNot"]}

    def not_whole(self, number: int) -> str:
        """Why a broker's store is not whole; empty if it is, or is not known yet."""
        return (self.info_or_none(self.brokers[number]) or {}).get("groupNotWhole", "")

    def messages(self, topic: str, queues: int) -> dict[tuple[int, int], str]:
        """The digest of each message that the master has, by queue id and offset."""
        with closing(Line(self.brokers[self.master].addr)) as line:
            records = [record for queue_id in range(queues) for record in line.read(topic, queue_id)]
        return {(record.queue_id, record.queue_offset): sha256(record.body).hexdigest() for record in records}

    def require_same_logs(self) -> None:
        """Of all brokers, byte for byte, with the same history of epochs."""
        first, *others = self.brokers.values()
        log, epochs = log_files(first), (first.store / "config" / "epochs.json").read_bytes()
        for other in others:
            eventually("all logs are the same", lambda: log_files(other) == log)  # noqa: B023
            assert (other.store / "config" / "epochs.json").read_bytes() == epochs

    def elections(self) -> list[int]:
        """The epoch of each, as all brokers have logged it."""
        return [int(epoch) for epoch in _ELECTED.findall(self.logs())]

    def logs(self) -> str:
        """What brokers have logged in all their lives."""
        return "".join(path.read_text() for path in sorted(self.fleet.scratch.glob("ours-broker*.stderr")))

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.brokers[number].process.kill()

    def restart(self, *numbers: int) -> None:
        for number in numbers:
            self.fleet.restart(self.brokers[number])

    def rebuild(self) -> str:
        """`mq ha rebuild`, by the settings of the first broker; returns what it printed."""
        mq, conf = str(Path(sys.executable).parent / "mq"), str(self.brokers[1].conf)
        command = [mq, "ha", "rebuild", "-c", conf, "-n", self.namesrv.addr, "--yes"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def registered_master(self) -> str | None:
        """The master's address as the name server has it."""
        with closing(Line(self.namesrv.addr)) as line:
            found = ClusterInfo.from_json(line.one(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        data = found.broker_addr_table.get("group-a")
        return data.broker_addrs.get(0) if data is not None else None


class Faults:
    """Has something happen to the group while messages are sent, and heals it."""

    def __init__(self, three: Three, load: Load, rng: Random, backup: Path | None = None) -> None:
        """`backup`: where etcd is backed up now, to be set back to that later."""
        self.three, self.load, self._rng, self._backup = three, load, rng, backup
        if backup is not None:
            three.etcd.back_up(backup)

    def cause(self, event: str) -> str:
        """Returns what happened, and for how long there was no master, if it was to be replaced."""
        what, who, *whom = event.split()
        three = self.three
        master = three.master
        replica = self._rng.choice([other for other in three.brokers if other != master])
        number = master if who.endswith("master") else replica
        if what == "cut":
            told = self._cut(self._rng.randrange(3) + 1 if who == "etcd" else number, who, whom[0])
        elif what == "set":
            told = self._set_clock(number)
        elif what == "attack":
            told = self._attack(master)
        elif what == "cut-and-kill":
            told = self._cut_and_kill(master)
        elif what == "empty":
            told = self._empty(number, master if whom else 0)
        elif what == "set-back":
            told = self._set_back_etcd()
        elif what == "fill":
            told = self._fill(number)
        elif who == "etcd":
            told = self._stop_etcd(what, self._rng.randrange(3))
        else:
            told = self._stop_broker(what, number, number == master)
        began = time.monotonic()
        self.load.wait_until_it_goes_on()
        self.load.wait("all three are in sync again", lambda: three.is_whole, patience_s=60)
        return f"{event}{told}, whole again after {time.monotonic() - began:.1f} s"

    def _replaced(self, broker: Broker) -> str:
        """Wait for another master."""
        began = time.monotonic()
        self.load.wait(
            "another master is registered",
            lambda: self.three.registered_master() not in (None, broker.addr),
            patience_s=30,
        )
        return f", {time.monotonic() - began:.1f} s without a master"

    def _stop_etcd(self, what: str, number: int) -> str:
        process = self.three.etcd.members[number]
        (process.kill if what == "kill" else process.suspend)()
        self.load.wait_for(LEASE_S)
        self.three.etcd.restart(number)
        return ""

    def _stop_broker(self, what: str, number: int, is_master: bool) -> str:
        three, broker, told = self.three, self.three.brokers[number], ""
        three.away = number
        (broker.process.kill if what == "kill" else broker.process.suspend)()
        if is_master:
            told = self._replaced(broker)
        else:
            self.load.wait_for(LEASE_S)
        if what == "kill":
            three.fleet.restart(broker)
        else:
            broker.process.resume()
        three.away = 0
        return told

    def _cut_and_kill(self, master: int) -> str:
        """Kill a master that has messages that no replica has, nor the network."""
        machines = self.three.machines
        host = machines[master].host
        host.cut_off([machine.host for number, machine in machines.items() if number != master], "both")
        try:
            self.load.wait_for(1)
            return self._stop_broker("kill", master, is_master=True)
        finally:
            host.heal()

    def _empty(self, number: int, master: int) -> str:
        """Start a broker with an empty store; and kill the master as soon as the first of its log is there."""
        three, broker = self.three, self.three.brokers[number]
        three.away = number
        broker.process.kill()
        self.load.wait_until_it_goes_on()
        shutil.rmtree(broker.store)
        three.fleet.restart(broker)
        three.away = 0
        if not master:
            return ""
        self.load.wait("the first is copied", lambda: (broker.store / "commitlog").is_dir())
        return self._stop_broker("kill", master, is_master=True)

    def _set_back_etcd(self) -> str:
        """Where an epoch is lost with it, the group waits for a person."""
        three, load, told = self.three, self.load, ""
        assert self._backup is not None
        three.etcd.set_back(self._backup)
        load.wait_for(LEASE_S)  # by then a master that has not heard of it has lost its own
        before = load.count()
        load.wait(
            "it is noticed, or not",
            lambda: load.count() > before + 50 or "restored from an older" in str(three.why_not()),
        )
        if load.count() <= before + 50:
            told = ", rebuilt"
            three.rebuild()
        return told

    def _set_clock(self, number: int) -> str:
        """Nobody is elected because of it."""
        clock = self.three.machines[number].clock
        assert clock is not None
        epoch, seconds = self.three.epoch, self._rng.choice([HOUR_S, -HOUR_S])
        for jump in (seconds, -2 * seconds):
            clock.jump(jump)
            self.load.wait_for(LEASE_S)
            self.load.wait_until_it_goes_on()
        assert self.three.epoch == epoch
        return f" by {seconds:+} s and {-2 * seconds:+} s"

    def _attack(self, master: int) -> str:
        """Nothing is acknowledged by it, and what the replicas acknowledge is."""
        three, load, broker = self.three, self.load, self.three.brokers[master]
        ids, epoch = list(three.brokers), three.epoch
        forged = list(greetings("Interop", "group-a", epoch, ids))
        replicas = [other.process for number, other in three.brokers.items() if number != master]
        with closing(BadSlaves(broker.ha_address)) as bad:
            for process in replicas:
                process.suspend()
            try:
                load.wait_for(0.3)  # answers that were under way
                before = load.count()
                bad.say_all(self._rng, forged)
                load.wait_for(1)
                assert load.count() == before
            finally:
                for process in replicas:
                    process.resume()
            load.wait_until_it_goes_on()
            bad.say_all(self._rng, forged)
            # Those with the ids of the replicas end their links; they must find room when they connect again.
            bad.never_read(LINKS_MAX - 4)
            for greeting in forged:
                bad.say(greeting)
            bad.never_read(LINKS_MAX)
            load.wait_for(LEASE_S)
            load.wait_until_it_goes_on(patience_s=10)
        return "" if three.epoch == epoch else f", and there is epoch {three.epoch}"

    def _cut(self, number: int, who: str, whom: str) -> str:
        """Drop packets between a broker, or member of etcd, and others."""
        three, load = self.three, self.load
        machine, broker = three.machines[number], three.brokers[number]
        others = [other for other in three.machines.values() if other is not machine]
        hosts = {
            "replicas": [other.host for other in others],
            "etcd": [other.etcd_host for other in three.machines.values()],
            "master": [three.machines[three.master].host],
        }
        host = machine.etcd_host if who == "etcd" else machine.host
        direction = self._rng.choice(DIRECTIONS)
        told = f", {direction}"
        host.cut_off(hosts.get(whom), direction)
        three.away = 0 if who == "etcd" else number
        try:
            if (who, whom) == ("master", "replicas"):
                self._acknowledges_nothing()
            elif who == "master":
                told += self._replaced(broker)
                load.wait_until_it_goes_on()
            else:
                load.wait_for(LEASE_S)
                load.wait_until_it_goes_on()
        finally:
            host.heal()
            three.away = 0
        return told

    def _acknowledges_nothing(self) -> None:
        """A master without replicas takes messages, and promises nothing."""
        self.load.wait_for(1)
        before = self.load.count()
        self.load.wait_for(LEASE_S)
        assert self.load.count() == before

    def _fill(self, number: int) -> str:
        """The group goes on without the replica, whose log can grow no more."""
        three, disk, began = self.three, self.three.machines[number].disk, time.monotonic()
        assert disk is not None
        disk.fill()
        try:
            self.load.wait("it is out of the set", lambda: str(number) not in three.in_sync()[1] and three.in_sync()[0])
            out_after = time.monotonic() - began
            self.load.wait_until_it_goes_on()
        finally:
            disk.free()
        return f", out of the in-sync set after {out_after:.1f} s"
