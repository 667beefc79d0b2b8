"""What once destroyed acknowledged messages of a group, or had consumers skip some, with real daemons and a real etcd:
nothing that was acknowledged is missing afterwards, and all logs are the same.

`tests/broker/service/test_group_schedules.py` has the same on simulated disks and links.
"""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from mqbroker.ha.master import LINKS_MAX
from tests.interop.bad_slaves import Forger, greetings
from tests.interop.etcd import BINARY, Etcd
from tests.interop.fleet import Fleet, Place, log_files
from tests.interop.group import LEASE_S, Machine, Three
from tests.interop.history import bound_here_s, check
from tests.interop.load import JavaSender, Load, OurSender
from tests.interop.processes import Event, ProcessFailed, eventually
from tests.interop.readers import both_readers, wait_for_all
from tests.interop.systemd import RESTART_S, Systemd
from tests.interop.traffic import produce

#: As many as a topic gets that a new master does not know yet.
QUEUES = 8
#: How often Java's clients ask for routes by default.
JAVA_POLL_MS = 30_000

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no etcd: install etcd-server, or build it with Go")


class Schedule:
    """A group, and what it has acknowledged."""

    def __init__(
        self, fleet: Fleet, etcd: Etcd, topic: str, machines: Sequence[Machine] = (Machine(),) * 3, **settings: str
    ) -> None:
        self.fleet, self.topic, self.namesrv = fleet, topic, fleet.namesrv("ours")
        self.three = Three(fleet, self.namesrv, etcd, machines, **settings)
        self.acknowledged: list[Event] = []
        master = self.three.brokers[self.three.master]
        fleet.peer("createtopic", self.namesrv, topic=topic, broker=master.addr, queues=QUEUES).finish()

    @property
    def master(self) -> int:
        return self.three.master

    @property
    def replicas(self) -> list[int]:
        master = self.master
        return [number for number in self.three.brokers if number != master]

    def store(self, number: int) -> Path:
        return self.three.brokers[number].store

    def send(self, prefix: str, count: int, **options: object) -> None:
        """Have the Java producer send messages, each of which must be acknowledged."""
        self.acknowledged += produce(self.fleet, self.namesrv, self.topic, prefix=prefix, count=count, **options)

    def wait_in_sync(self, *numbers: int) -> None:
        wanted = set(map(str, numbers or self.three.brokers))
        eventually(f"in sync are {wanted}", lambda: self.three.in_sync()[1] == wanted)

    def finish(self) -> None:
        """Everybody is in sync again, and has all."""
        self.wait_in_sync()
        self.send("last", 20)
        check(self.acknowledged, {}, self.three.messages(self.topic, QUEUES), self.three.elections())
        self.three.require_same_logs()
        self.fleet.check_logs()


def test_a_replica_with_an_empty_disk_is_not_elected_with_the_part_it_has(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    """Its master is killed while it is filled up, and the third broker was away."""
    schedule = Schedule(fleet, etcd, topic, haTransferBatchSize="1024")
    three, master, (emptied, away) = schedule.three, schedule.master, schedule.replicas
    three.kill(away)
    schedule.wait_in_sync(master, emptied)
    schedule.send("kept", 800, size=4000)
    three.kill(emptied)
    first = schedule.store(emptied) / "commitlog" / "0".zfill(20)

    def has_a_part() -> bool:
        """Empty it, start it, and suspend its master as soon as the first bytes are there."""
        shutil.rmtree(schedule.store(emptied))
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(three.restart, emptied)
            while not (first.exists() and first.read_bytes()[:4].strip(b"\0")) and not starting.done():
                pass
            three.brokers[master].process.suspend()
            starting.result()
        if log_files(three.brokers[emptied]) != log_files(three.brokers[master]):
            return True
        three.brokers[master].process.resume()
        three.kill(emptied)
        return False

    eventually("the replica has a part", has_a_part)
    three.kill(master)
    three.away = master
    eventually("it is not whole", lambda: three.not_whole(emptied))
    three.restart(away)
    with pytest.raises(ProcessFailed):
        eventually("somebody is elected", lambda: three.in_sync()[0], patience_s=2 * LEASE_S)
    three.away = 0
    three.restart(master)
    schedule.finish()


@pytest.mark.thorough
def test_a_replica_whose_log_was_replaced_begins_anew_and_is_not_elected(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    """The advice of the refused start is followed, and this broker is the first one back."""
    schedule = Schedule(fleet, etcd, topic)
    three, replica = schedule.three, schedule.replicas[0]
    others = [number for number in three.brokers if number != replica]
    schedule.send("kept", 800)
    three.kill(*three.brokers)
    shutil.rmtree(schedule.store(replica) / "commitlog")
    with pytest.raises(ProcessFailed, match="ended"):
        three.restart(replica)
    assert "move the whole store away" in three.logs()
    schedule.store(replica).rename(schedule.store(replica).with_name("away"))
    three.restart(replica)
    three.away = others[0]
    with pytest.raises(ProcessFailed):
        eventually("it is elected", lambda: three.registered_master(), patience_s=2 * LEASE_S)
    three.away = 0
    three.restart(*others)
    schedule.finish()


@pytest.mark.thorough
def test_a_member_with_zeros_in_the_middle_of_its_log_is_not_elected_and_takes_it_again(
    fleet: Fleet, etcd: Etcd, topic: str
) -> None:
    """Of a segment whose disk has lost it, and then of a page while the broker is the master."""
    schedule = Schedule(fleet, etcd, topic, mappedFileSizeCommitLog="1048576")
    three, replica = schedule.three, schedule.replicas[0]
    others = [number for number in three.brokers if number != replica]
    schedule.send("kept", 800, size=4000)
    three.kill(*three.brokers)
    (schedule.store(replica) / "commitlog" / "1048576".zfill(20)).write_bytes(bytes(1048576))
    three.restart(replica)
    three.away = others[0]
    with pytest.raises(ProcessFailed):
        eventually("it is elected", lambda: three.registered_master(), patience_s=2 * LEASE_S)
    three.away = 0
    three.restart(*others)

    def took_again(number: int) -> bool:
        aside = list(schedule.store(number).glob("commitlog.diverged-*"))
        return bool(aside) and str(number) in three.in_sync()[1] and not three.not_whole(number)

    eventually("it has all again", lambda: took_again(replica), patience_s=60)
    schedule.wait_in_sync()
    schedule.send("more", 20)
    master = schedule.master
    with (schedule.store(master) / "commitlog" / "1048576".zfill(20)).open("r+b") as segment:
        os.pwrite(segment.fileno(), bytes(4096), 40960)
    eventually("another is the master", lambda: three.in_sync()[0] and schedule.master != master, patience_s=150)
    eventually("it has all again", lambda: took_again(master), patience_s=60)
    schedule.finish()


@pytest.mark.thorough
def test_an_etcd_that_was_set_back_makes_nobody_cut_and_is_rebuilt(
    fleet: Fleet, etcd: Etcd, topic: str, tmp_path: Path
) -> None:
    schedule = Schedule(fleet, etcd, topic)
    three, former = schedule.three, schedule.master
    schedule.send("first", 500)
    etcd.back_up(tmp_path / "backup")
    three.kill(former)
    three.away = former
    eventually("another is registered", lambda: three.registered_master() not in (None, three.brokers[former].addr))
    three.restart(former)
    three.away = 0
    schedule.wait_in_sync()
    schedule.send("second", 300)
    three.require_same_logs()
    logs = {number: log_files(broker) for number, broker in three.brokers.items()}
    etcd.set_back(tmp_path / "backup")
    eventually("all say it", lambda: [w for w in three.why_not().values() if "restored from an older" in w][2:])
    assert {number: log_files(broker) for number, broker in three.brokers.items()} == logs
    assert "one of them will be elected" in three.rebuild()
    schedule.finish()


@pytest.mark.thorough
def test_a_member_whose_store_was_set_back_to_a_backup_is_not_elected(
    fleet: Fleet, etcd: Etcd, topic: str, tmp_path: Path
) -> None:
    schedule = Schedule(fleet, etcd, topic)
    three, replica = schedule.three, schedule.replicas[0]
    others = [number for number in three.brokers if number != replica]
    schedule.send("first", 200)
    three.brokers[replica].process.stop()
    shutil.copytree(schedule.store(replica), tmp_path / "backup")
    three.restart(replica)
    schedule.wait_in_sync()
    schedule.send("second", 200)
    three.kill(*three.brokers)
    shutil.rmtree(schedule.store(replica))
    shutil.copytree(tmp_path / "backup", schedule.store(replica))
    three.restart(replica)
    three.away = others[0]
    eventually("it is not whole", lambda: three.not_whole(replica))
    with pytest.raises(ProcessFailed):
        eventually("it is elected", lambda: three.registered_master(), patience_s=2 * LEASE_S)
    three.away = 0
    three.restart(*others)
    schedule.finish()


@pytest.mark.thorough
def test_consumers_read_only_what_stays(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    """The master alone stores messages that nobody has acknowledged, and those after a failover take their offsets."""
    schedule = Schedule(fleet, etcd, topic, sendsBelowInSync="APPEND")
    three, namesrv, master, replicas = schedule.three, schedule.namesrv, schedule.master, schedule.replicas

    def statuses(prefix: str, count: int) -> set[str]:
        process = fleet.peer("produce", namesrv, topic=topic, prefix=prefix, count=count)
        process.finish()
        return {event["status"] for event in process.events("sent")}

    with ExitStack() as open_ones:
        readers = both_readers(fleet, namesrv, topic, open_ones)
        schedule.send("first", 100)
        wait_for_all(readers, schedule.acknowledged)
        three.kill(*replicas)
        eventually("nothing is acknowledged", lambda: statuses("probe", 1) == {"SLAVE_NOT_AVAILABLE"})
        assert statuses("alone", 200) == {"SLAVE_NOT_AVAILABLE"}
        three.kill(master)
        three.away = master
        three.restart(*replicas)
        eventually("another is registered", lambda: three.registered_master() not in (None, three.brokers[master].addr))
        schedule.wait_in_sync(*replicas)
        schedule.send("after", 260)
        three.restart(master)
        three.away = 0
        schedule.wait_in_sync()
        wait_for_all(readers, schedule.acknowledged)
    read = {reader.name: reader.read for reader in readers}
    check(schedule.acknowledged, read, three.messages(topic, QUEUES), three.elections())
    schedule.finish()


@pytest.mark.thorough
def test_one_suspended_member_of_etcd_costs_no_election_and_all_of_them_no_message(
    fleet: Fleet, etcd: Etcd, topic: str
) -> None:
    schedule = Schedule(fleet, etcd, topic)
    three = schedule.three
    load = Load(JavaSender.start(fleet, schedule.namesrv, topic))
    load.wait_until_it_goes_on()
    for number in range(3):
        epoch = three.epoch
        load.longest_pause_s()
        etcd.members[number].suspend()
        load.wait_for(2 * LEASE_S)
        pause_s = load.longest_pause_s()
        print(f"member {number} of etcd suspended: {pause_s:.1f} s without an acknowledgement", flush=True)
        assert (three.epoch, pause_s < bound_here_s(1.5)) == (epoch, True)
        # If it was etcd's leader it now revokes the leases that it has not heard of: etcd issue 15247, in 3.4 and older
        # 3.5. That costs an election.
        etcd.members[number].resume()
        load.wait_for(1)
        load.wait_until_it_goes_on()
    for member in etcd.members:
        member.suspend()
    load.wait_for(LEASE_S)
    count = load.count()
    load.wait_for(LEASE_S)
    assert load.count() == count
    for member in etcd.members:
        member.resume()
    load.wait_until_it_goes_on()
    pause_s = load.longest_pause_s() - 2 * LEASE_S
    print(f"all members suspended: acknowledged again {pause_s:.1f} s after they went on", flush=True)
    schedule.acknowledged += load.end()
    schedule.finish()


@pytest.mark.thorough
def test_no_send_fails_while_a_replica_is_suspended(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    """With the default settings, and clients that wait 3 s: those under way are answered late, and well."""
    schedule = Schedule(fleet, etcd, topic, syncFlushTimeout="5000")
    three, namesrv = schedule.three, schedule.namesrv
    java, ours = JavaSender.start(fleet, namesrv, topic), OurSender(namesrv, topic, "ours")
    load = Load(java, ours)
    load.wait_until_it_goes_on()
    for number in schedule.replicas:
        load.longest_pause_s()
        three.away = number
        three.brokers[number].process.suspend()
        load.wait_for(LEASE_S)
        load.wait_until_it_goes_on()
        pause_s = load.longest_pause_s()
        print(f"replica {number} suspended: {pause_s:.2f} s without an acknowledgement", flush=True)
        assert 1.5 < pause_s < 3.0
        three.brokers[number].process.resume()
        three.away = 0
        load.wait("all three are in sync", lambda: three.is_whole)
    schedule.acknowledged += load.end()
    assert (java.failed, ours.failed) == ([], [])
    schedule.finish()


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "pause_s_max"), [("killed", 8.0), ("suspended", 12.0), ("suspended for 8 s", 12.0)])
def test_a_java_producer_goes_on_soon_though_it_asks_for_routes_every_30_s(
    fleet: Fleet, etcd: Etcd, topic: str, tmp_path: Path, fault: str, pause_s_max: float
) -> None:
    """The former master hands on what it sends, once systemd has started it again, or it goes on."""
    with ExitStack() as open_ones:
        systemds = [open_ones.enter_context(closing(Systemd(tmp_path / f"notify{number}"))) for number in range(3)]
        machines = [Machine(Place(environment=systemd.environment)) for systemd in systemds]
        schedule = Schedule(fleet, etcd, topic, machines)
        three, former = schedule.three, schedule.master
        broker, systemd = three.brokers[former], systemds[former - 1]
        load = Load(JavaSender.start(fleet, schedule.namesrv, topic, poll_ms=JAVA_POLL_MS))
        load.wait_until_it_goes_on()
        load.longest_pause_s()
        three.away = former
        if fault == "killed":
            broker.process.kill()
        else:
            broker.process.suspend()
        if fault == "suspended for 8 s":
            load.wait_for(8)
            broker.process.resume()
        else:
            load.wait("it ended, or is killed", lambda: systemd.is_over(broker.process))
            load.wait_for(RESTART_S)
            three.restart(former)
        load.wait_until_it_goes_on()
        pause_s = load.longest_pause_s()
        print(f"master {fault}: {pause_s:.1f} s without an acknowledgement for a Java producer", flush=True)
        three.away = 0
        assert three.master != former
        assert pause_s < bound_here_s(pause_s_max)
        schedule.acknowledged += load.end()
        schedule.finish()


@pytest.mark.thorough
def test_a_forged_member_counts_for_nothing_and_pushes_nobody_out(fleet: Fleet, etcd: Etcd, topic: str) -> None:
    schedule = Schedule(fleet, etcd, topic)
    three, master, replicas = schedule.three, schedule.master, schedule.replicas
    load = Load(JavaSender.start(fleet, schedule.namesrv, topic))
    load.wait_until_it_goes_on()
    forged = list(greetings("Interop", "group-a", three.epoch, list(three.brokers)))
    with ExitStack() as open_ones:
        for greeting in (*forged, b""):
            forger = open_ones.enter_context(closing(Forger(three.brokers[master].ha_address, greeting)))
            load.wait_for(0.3)
            assert forger.bytes_got == 0 or not greeting
            assert three.in_sync() == (master, {"1", "2", "3"})
        for number in replicas:
            three.brokers[number].process.suspend()
        load.wait_for(0.5)
        count = load.count()
        for greeting in forged:
            open_ones.enter_context(closing(Forger(three.brokers[master].ha_address, greeting)))
        load.wait_for(LEASE_S)
        assert load.count() == count
        three.kill(master)
        three.away = master
        for number in replicas:
            three.brokers[number].process.resume()
        load.wait_until_it_goes_on()
    schedule.acknowledged += load.end()
    three.restart(master)
    three.away = 0
    schedule.finish()


@pytest.mark.parametrize(
    "setting", ["haSecretFile", pytest.param("haWhiteRemoteAddresses", marks=pytest.mark.thorough)]
)
def test_a_stranger_does_not_count_under_a_plain_sync_master(
    fleet: Fleet, topic: str, tmp_path: Path, setting: str
) -> None:
    secret = tmp_path / "ha.secret"
    secret.write_text("a secret of this test alone\n")
    secret.chmod(0o600)
    value = {"haSecretFile": str(secret), "haWhiteRemoteAddresses": "127.0.0.2"}[setting]
    namesrv = fleet.namesrv("ours")
    settings: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "syncFlushTimeout": "2000", setting: value}
    master = fleet.broker("ours", namesrv, **settings)

    def statuses(prefix: str) -> set[str]:
        process = fleet.peer("produce", namesrv, topic=topic, prefix=prefix, count=3)
        process.finish()
        return {event["status"] for event in process.events("sent")}

    with ExitStack() as open_ones:
        for _ in range(LINKS_MAX + 1):
            forger = open_ones.enter_context(closing(Forger(master.ha_address, b"")))
        assert statuses("stranger") == {"SLAVE_NOT_AVAILABLE"}
        assert forger.bytes_got == 0
        if setting == "haSecretFile":
            settings = {"brokerId": "1", "brokerRole": "SLAVE", "brokerName": master.name, setting: value}
            fleet.broker("ours", namesrv, **settings)
            eventually("the slave counts", lambda: statuses("slave") == {"SEND_OK"}, patience_s=40)
