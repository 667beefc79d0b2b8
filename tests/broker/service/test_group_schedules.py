"""Schedules of a group of three that have cost acknowledged messages, each with what it has of it at every moment.

What happens to the group, and what must hold of it, is the simulation's; here it is not by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import pytest

from mqbroker.broker import replica_store
from mqbroker.broker.offset_table import OffsetTable
from mqbroker.store.disk import IDisk
from tests.broker.service.group import HA_PORT, Replica
from tests.broker.service.simulation.cluster import Cluster
from tests.broker.service.simulation.disks import (
    FROM_LOG,
    LOG,
    TABLES,
    copied,
    emptied,
    set_back,
    with_segment_of,
    with_zeros,
    without,
)
from tests.broker.service.simulation.forger import Forger, Impostor, made_up_greeting, recorded_sessions
from tests.broker.service.simulation.logs import SEGMENT_BYTES, note_cut
from tests.broker.service.simulation.offsets import note_queue_end
from tests.broker.service.simulation.readers import HELD
from tests.broker.service.simulation.steps import ARE_READERS_STRICT, ENABLED
from tests.ha.etcd_model import EMPTY, Backup
from tests.remoting.logs import Logged
from tests.store.simulation.disk import SimDisk

OPTIONS = {"seed": 7, "flush": "ASYNC_FLUSH", "chunk": 1 << 30}


def needs(kind: str) -> pytest.MarkDecorator:
    """Of a schedule of a kind that brokers do not stand yet, see `steps`."""
    return pytest.mark.skipif(kind not in ENABLED, reason=f"brokers do not stand schedules of {kind} yet")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Schedule]:
    with patch.object(OffsetTable, "lower_to", note_queue_end), patch.object(replica_store, "cut_log", note_cut):
        yield Schedule(tmp_path / "group", {**OPTIONS, "readers": ARE_READERS_STRICT})


class Schedule(Cluster):
    """A cluster with names for what schedules do to it."""

    @property
    def master(self) -> Replica:
        return self.group.master()

    def now(self, replica: Replica) -> Replica:
        """A replica as it was started last."""
        return self.group.replicas[replica.replica_id]

    def end(self, victim: Replica, *, has_power: bool = True) -> bool:
        return super().end(self.now(victim), has_power=has_power)

    def change(self, victim: Replica, changed: Callable[[IDisk], SimDisk]) -> None:
        """Do that to its disk."""
        self.damage(self.now(victim), changed(self.now(victim).disk))

    def copy_of(self, replica: Replica) -> SimDisk:
        return copied(self.now(replica).disk, self.rng)

    def other(self, *than: Replica) -> Replica:
        """A replica that is not one of these."""
        ids = {replica.replica_id for replica in than}
        return next(each for each in self.group.replicas.values() if each.replica_id not in ids)

    def send_many(self, times: int = 10, master: Replica | None = None) -> None:
        """Messages, and the time in which they are acknowledged where they can be."""
        for _ in range(times):
            self.send_to(master or self.master)
        self.wait(0.5)

    def wait_in_sync(self, *ids: int, seconds: float = 20) -> None:
        began = self.group.now
        while self.group.in_sync() != set(ids) or not self.group.masters:
            assert self.group.now - began < seconds, self.group.in_sync()
            self.wait(0.1)

    def start_in_order(self, *replicas: Replica, seconds: float = 8) -> None:
        for replica in replicas:
            self.bring_back(self.now(replica))
            self.wait(seconds)

    def set_etcd_back(self, backup: Backup) -> None:
        """That takes longer than leases live."""
        self.group.etcd.is_down = True
        self.wait(6)
        self.restore(backup)
        self.group.etcd.is_down = False

    def read_all(self) -> None:
        for _ in range(10):
            self.read()
            self.wait(0.1)


def prepared(cluster: Schedule) -> tuple[Replica, Replica, Replica]:
    """Master, a replica in sync with it, and one that went away before most messages: in sync are the first two."""
    cluster.wait_in_sync(1, 2, 3)
    master = cluster.master
    away = cluster.other(master)
    with_it = cluster.other(master, away)
    cluster.send_many(2)
    cluster.end(away)
    cluster.wait_in_sync(master.replica_id, with_it.replica_id)
    cluster.send_many()
    return master, with_it, away


def ended_well(cluster: Schedule, *, waits: bool | None = False) -> None:
    """All come back, and nothing is lost; `waits`: whether there is no master in the end, for a reason."""
    cluster.finish()
    if waits is not None:
        assert bool(cluster.counts["waits"]) == waits


# --- disks


@needs("disks")
@pytest.mark.parametrize("catch_up_s", [1.0, 3.0, 5.0, 7.0])
def test_an_emptied_replica_is_not_elected_with_the_part_that_it_has_copied(
    cluster: Schedule, catch_up_s: float
) -> None:
    master, emptied_one, _ = prepared(cluster)
    cluster.end(emptied_one)
    cluster.change(emptied_one, emptied)
    cluster.group.wires.widths[master.host, emptied_one.host] = 1_000
    cluster.start_in_order(emptied_one, seconds=catch_up_s)
    cluster.end(master)
    cluster.wait(10)
    assert not cluster.group.masters
    ended_well(cluster)


def test_an_emptied_replica_that_comes_back_first_is_not_elected(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    cluster.kill_all()
    cluster.change(with_it, emptied)
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


@needs("disks")
@pytest.mark.parametrize("is_booted", [False, True])
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (1, 0, 2), (0, 1, 2)])
def test_a_replica_whose_log_was_replaced_is_not_elected_with_an_empty_one(
    cluster: Schedule, order: tuple[int, ...], is_booted: bool
) -> None:
    three = prepared(cluster)
    cluster.kill_all()
    cluster.change(three[1], lambda disk: without(disk, LOG, *FROM_LOG, is_booted=is_booted))
    cluster.start_in_order(*[three[number] for number in order])
    ended_well(cluster)


@needs("disks")
@pytest.mark.parametrize("names", [(), (LOG, *FROM_LOG)], ids=["store", "log"])
def test_a_replica_that_is_set_back_to_an_older_copy_is_not_elected(cluster: Schedule, names: tuple[str, ...]) -> None:
    master, with_it, away = prepared(cluster)
    copy = cluster.copy_of(with_it)
    cluster.send_many()
    cluster.wait(2)  # etcd is told of commit points each second: a copy that is younger looks like a kill
    cluster.kill_all()
    cluster.change(with_it, lambda disk: set_back(disk, copy, names))
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


@needs("disks")
@pytest.mark.parametrize("set_back_one", [1, 2])
def test_a_log_with_a_gap_is_not_elected_where_all_have_lost_power(cluster: Schedule, set_back_one: int) -> None:
    """Its tables and its checkpoint say that the log was on the disk where there are zeros now, as after no power
    cut."""
    cluster.wait_in_sync(1, 2, 3)
    victim = cluster.group.replicas[set_back_one]
    cluster.send_many(2)
    copy = cluster.copy_of(victim)
    cluster.send_many()
    cluster.wait(2)  # all of it is on the disks
    cluster.power_of_all()
    cluster.change(victim, lambda disk: set_back(disk, copy, (LOG,)))
    cluster.start_in_order(*cluster.group.replicas.values())
    assert not cluster.group.masters
    assert "its log has no message from" in cluster.now(victim).why_not_whole
    ended_well(cluster, waits=True)


def with_many_messages(cluster: Schedule) -> None:
    """So many that the log has some segments, and a second passes in each."""
    while len(cluster.agreed) < 4 * SEGMENT_BYTES:
        cluster.send_many(2)
    cluster.wait(2)


@needs("disks")
@pytest.mark.parametrize("order", [(1, 2, 0), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("numbers", [(1,), (0,), (1, 2)], ids=str)
def test_a_replica_with_zeros_in_the_middle_of_its_log_is_not_elected(
    cluster: Schedule, numbers: tuple[int, ...], order: tuple[int, ...]
) -> None:
    three = prepared(cluster)
    with_many_messages(cluster)
    cluster.kill_all()
    cluster.change(three[1], lambda disk: with_zeros(disk, numbers))
    cluster.start_in_order(*[three[number] for number in order[:2]])
    if 0 not in order[:2]:
        assert not cluster.group.masters
        assert "its log has no message from" in cluster.now(three[1]).why_not_whole
    cluster.start_in_order(three[order[2]])
    ended_well(cluster)


@needs("disks")
def test_a_replica_with_one_segment_that_was_set_back_is_not_elected(cluster: Schedule) -> None:
    """It ends with zeros then, and the segments behind it are as they were."""
    master, with_it, away = prepared(cluster)
    copy = cluster.copy_of(with_it)
    before = len(copy.names("/store/commitlog"))
    with_many_messages(cluster)
    cluster.kill_all()
    cluster.change(with_it, lambda disk: with_segment_of(disk, copy, before - 1))
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


@needs("disks")
@pytest.mark.parametrize("starts", [0, 1])
def test_a_copy_from_before_the_last_start_is_not_elected_however_short_that_was(
    cluster: Schedule, starts: int
) -> None:
    """No commit point of that time has reached etcd. `starts`: how often the copy is started before it asks etcd."""
    master, with_it, away = prepared(cluster)
    cluster.end(with_it)
    copy = cluster.copy_of(with_it)
    cluster.wait(4)  # its lease has expired
    cluster.start_in_order(with_it, seconds=1)
    cluster.group.etcd.is_down, before = True, cluster.counts["acknowledged"]
    cluster.send_many()
    assert cluster.counts["acknowledged"] > before
    cluster.kill_all()
    cluster.change(with_it, lambda disk: set_back(disk, copy, ()))
    for _ in range(starts):
        cluster.start_in_order(with_it, seconds=1)
        cluster.end(with_it)
    cluster.group.etcd.is_down = False
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


@needs("disks")
def test_a_replica_with_older_tables_and_its_own_log_loses_nothing(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    copy = cluster.copy_of(with_it)
    cluster.end(master)
    cluster.wait(8)
    cluster.start_in_order(master, away)
    cluster.send_many()
    cluster.kill_all()
    cluster.change(with_it, lambda disk: set_back(disk, copy, (TABLES,)))
    cluster.start_in_order(with_it, away, master)
    ended_well(cluster)


@needs("disks")
def test_a_copy_of_another_replicas_disk_is_not_taken_for_ones_own(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    copy = cluster.copy_of(away)
    cluster.kill_all()
    cluster.change(with_it, lambda disk: copy)
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


def test_a_replica_that_went_away_whole_is_not_pushed_out_by_one_that_is_emptied(cluster: Schedule) -> None:
    """Of two that were in sync the one that ran last is emptied; the one that has all is away."""
    master, with_it, _ = prepared(cluster)
    cluster.end(with_it)
    cluster.wait(1)
    cluster.end(master)
    cluster.change(master, emptied)
    cluster.start_in_order(master)
    cluster.wait(10)
    assert not cluster.group.masters
    cluster.start_in_order(with_it)
    ended_well(cluster)


def test_one_whole_copy_is_enough_where_two_disks_are_lost(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    cluster.start_in_order(away)
    cluster.wait_in_sync(1, 2, 3)
    cluster.kill_all()
    for lost in (with_it, away):
        cluster.change(lost, emptied)
    cluster.start_in_order(with_it, away)
    assert not cluster.group.masters
    cluster.start_in_order(master)
    ended_well(cluster)


@needs("disks")
def test_where_all_whole_copies_are_gone_nobody_is_cut(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    cluster.kill_all()
    for lost in (master, with_it):
        cluster.change(lost, emptied)
    cluster.start_in_order(master, with_it, away)
    ended_well(cluster, waits=True)


ORDERS = list(permutations(range(3)))


@needs("disks")
@pytest.mark.parametrize("orders", [*zip(ORDERS, ORDERS[1:] + ORDERS[:1], ORDERS[3:] + ORDERS[:3], strict=True)])
def test_members_that_come_back_in_any_order_again_and_again_lose_nothing(
    cluster: Schedule, orders: tuple[tuple[int, ...], ...]
) -> None:
    """Each time one of them has another disk than before: emptied, then set back to a copy, then without its log."""
    three = prepared(cluster)
    copies = [cluster.copy_of(each) for each in three]
    changes: list[Callable[[int, IDisk], SimDisk]] = [
        lambda number, disk: emptied(disk),
        lambda number, disk: set_back(disk, copies[number]),
        lambda number, disk: without(disk, LOG, *FROM_LOG),
    ]
    for order, changed in zip(orders, changes, strict=True):
        cluster.kill_all()
        changed_one = order[0]
        cluster.change(three[changed_one], partial(changed, changed_one))
        cluster.start_in_order(*[three[number] for number in order], seconds=3)
        cluster.wait(10)
        for master in cluster.group.masters:
            cluster.send_many(2, master)
        cluster.wait(3)  # etcd is told of commit points each second
    ended_well(cluster, waits=None)


@needs("disks")
@pytest.mark.parametrize("second", ORDERS)
@pytest.mark.parametrize("first", [(0, 1, 2), (2, 1, 0)])
def test_members_that_are_killed_while_they_come_back_lose_nothing(
    cluster: Schedule, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """All are killed twice, the second time as soon as there is a master again, of which one has been emptied."""
    three = prepared(cluster)
    cluster.kill_all()
    cluster.change(three[2], emptied)
    for number in first:
        cluster.start_in_order(three[number], seconds=0.5)
    cluster.group.master()
    cluster.look()
    cluster.kill_all()
    cluster.start_in_order(*[three[number] for number in second], seconds=2)
    ended_well(cluster)


# --- etcd


@needs("etcd")
@pytest.mark.parametrize("order", [None, (2, 0, 1), (2, 1, 0), (1, 2, 0), (0, 1, 2)])
def test_an_older_state_of_etcd_makes_nobody_cut(cluster: Schedule, order: tuple[int, ...] | None) -> None:
    """The snapshot is of the first epoch, in which all were in sync; one replica has nothing of the second.

    :param order: in which they are started then; None where those with the second epoch run all the time.
    """
    cluster.wait_in_sync(1, 2, 3)
    backup = cluster.group.etcd.backup()
    first = cluster.master
    cluster.send_many(2)
    cluster.end(first)
    cluster.wait(8)
    second = cluster.master
    third = cluster.other(first, second)
    cluster.send_many()
    if order is not None:
        cluster.kill_all()
    cluster.set_etcd_back(backup)
    three = second, third, first
    cluster.start_in_order(*[three[number] for number in order or [2]])
    ended_well(cluster, waits=None)


@needs("etcd")
@pytest.mark.parametrize("is_first_again", [False, True])
def test_what_was_acknowledged_a_moment_before_is_not_cut_when_etcd_forgets_who_was_in_sync(
    cluster: Schedule, is_first_again: bool
) -> None:
    """One is in sync when etcd is backed up, and goes away; another takes its place, which is told of the commit point
    50 ms after what is acknowledged last. All are killed before that.

    :param is_first_again: whether that one is back before the other is elected.
    """
    cluster.wait_in_sync(1, 2, 3)
    first = cluster.master
    away = cluster.other(first)
    cluster.end(first)
    cluster.end(away)
    cluster.wait(8)
    second = cluster.master
    backup = cluster.group.etcd.backup()
    assert cluster.group.in_sync() == {second.replica_id, away.replica_id}
    cluster.start_in_order(first)
    cluster.wait_in_sync(first.replica_id, second.replica_id)
    before = cluster.counts["acknowledged"]
    cluster.send_to(second)
    while cluster.counts["acknowledged"] == before:
        cluster.wait(0.05)
    cluster.kill_all()
    cluster.set_etcd_back(backup)
    cluster.start_in_order(*([first, away] if is_first_again else [away, first]))
    again = cluster.now(first)
    assert cluster.common(again) == len(cluster.agreed)
    if not is_first_again:
        assert again.service._group is not None
        assert again.service._group.store.committed == again.store.log_end, "so that nobody cuts it later, too"
    cluster.start_in_order(second)
    ended_well(cluster, waits=None)


def test_an_empty_etcd_makes_nobody_cut(cluster: Schedule) -> None:
    master, with_it, away = prepared(cluster)
    cluster.kill_all()
    cluster.set_etcd_back(EMPTY)
    cluster.start_in_order(away, with_it, master)
    ended_well(cluster, waits=True)


# --- forged members


@needs("forgers")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("none", "it did not prove that it is the broker {} of etcd: it does not count as a replica"),
        ("another's", "it did not prove that it is the broker {} of etcd: it does not count as a replica"),
        ("old", "it did not prove that it is the broker {} of etcd: it does not count as a replica"),
        ("recorded", "it says that it is broker {}, and its greeting was recorded on another connection"),
    ],
)
def test_nobody_is_counted_who_does_not_prove_who_it_is(
    cluster: Schedule, logged: Logged, kind: str, says: str
) -> None:
    """A stranger reports what a replica is sent, again whenever that one connects; it says nothing that is right, or
    knows the nonce of another broker, or what an earlier process of the replica has said, or the one that runs."""
    cluster.wait_in_sync(1, 2, 3)
    replica = cluster.other(cluster.master)
    cluster.end(replica)
    cluster.wait(8)
    cluster.start_in_order(replica)
    third = cluster.other(cluster.master, replica)
    cluster.end(third)
    master = cluster.master
    cluster.wait_in_sync(master.replica_id, replica.replica_id)
    greeted = cluster.group.member(master).role.epoch, replica.replica_id
    made_up = made_up_greeting(*greeted)
    said = {"none": made_up, "another's": made_up_greeting(*greeted, cluster.group.member(third).nonce)}
    for name, are_old in (("recorded", False), ("old", True)):
        found = recorded_sessions(cluster.group, are_old=are_old)
        said[name] = [data for data in found if data[24:32] == made_up[24:32]][-1]
    link = cluster.now(master).parts.slaves.replicas()[replica.replica_id]
    for _ in range(5):
        cluster.forgers.append(Forger(cluster.group, master, said[kind]))
        cluster.wait(0.2)
        cluster.send_many(2)
    assert all(forger.is_gone for forger in cluster.forgers)
    assert not link.is_closed
    told = [line for line in logged.lines if says.format(replica.replica_id) in line]
    assert len(told) == 5
    cluster.end(master)
    ended_well(cluster)


@needs("forgers")
def test_a_recorded_master_is_not_followed(cluster: Schedule) -> None:
    """Somebody has the address of a master that was killed, and answers as that one did."""
    cluster.wait_in_sync(1, 2, 3)
    master, wires = cluster.master, cluster.group.wires
    cluster.send_many()
    recorded = [each.received for each in wires.recorded if each.target == master.host]
    replica = cluster.other(master)
    cluster.end(cluster.other(master, replica))
    impostors: list[Impostor] = []

    class Factory:
        def buildProtocol(self, address: object) -> Impostor:
            impostors.append(Impostor(recorded[len(impostors) % len(recorded)]))
            return impostors[-1]

    cluster.end(master)
    wires.servers[f"{master.host}:{HA_PORT}"] = Factory()
    before = replica.log()
    cluster.wait(2)
    assert any(each.has_answered for each in impostors)
    assert replica.log() == before
    status = replica.service._slave._service.status
    assert "or its response was recorded on another connection: nothing is copied from it" in status.why_not
    cluster.wait(6)
    ended_well(cluster)


# --- consumers


@needs("strict")
def test_consumers_get_nothing_that_is_not_confirmed(cluster: Schedule) -> None:
    """The master alone takes messages, and is killed; those that come next take the same places."""
    master, with_it, away = prepared(cluster)
    cluster.read_all()
    cluster.end(with_it)
    for _ in range(3):
        cluster.send_many(2, master)
        cluster.read_all()
    cluster.end(master)
    cluster.start_in_order(with_it, away)
    cluster.send_many(3)
    cluster.read_all()
    ended_well(cluster)


@needs("strict")
def test_a_deposed_master_serves_nothing_after_a_pause(cluster: Schedule) -> None:
    cluster.wait_in_sync(1, 2, 3)
    master = cluster.master
    cluster.send_many(2)
    cluster.wait(12)
    cluster.read_all()
    cluster.wait(4)  # nothing is delayed any more, and no pull held
    cluster.group.freeze(master.replica_id)
    cluster.readers.read(cluster.rng, [HELD])
    cluster.send_to(master)
    cluster.wait(8)
    cluster.send_many(3, next(each for each in cluster.group.masters if each is not master))
    cluster.group.thaw(master.replica_id)
    cluster.wait(8)
    cluster.read_all()
    ended_well(cluster)
