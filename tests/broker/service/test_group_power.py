"""Brokers of a group whose machines lose power, or their disks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqbroker.config import FlushDiskType
from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import send_command
from tests.broker.service.group import Group
from tests.store.simulation.disk import SimDisk

LOSSY = "/store/lossy"


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[[FlushDiskType], Group]]:
    """A started group on simulated disks; with one message that all have just got."""
    made: list[Group] = []

    def make(flush: FlushDiskType) -> Group:
        group = Group(tmp_path / "group", is_disk_simulated=True, store={"flush_disk_type": flush})
        made.append(group)
        for replica_id in (1, 2, 3):
            group.start(replica_id)
        group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3})
        assert group.client(group.master()).send(send_command("T", b"one")).code == ResponseCode.SUCCESS
        return group

    yield make
    for group in made:
        group.close()


def has_one(group: Group) -> bool:
    return [record.body for record in group.master().records().values()][:1] == [b"one"]


def test_a_master_that_lost_power_is_not_elected_with_less(make_group: Callable[[FlushDiskType], Group]) -> None:
    group = make_group(FlushDiskType.ASYNC_FLUSH)
    master = group.master()
    for other in {1, 2, 3} - {master.replica_id}:
        group.wires.cut |= {(f"10.0.0.{other}", "etcd"), ("etcd", f"10.0.0.{other}")}
    group.cut_power(master.replica_id)
    again = group.start(master.replica_id)
    group.wait(10)
    assert not group.masters
    assert "lost power" in group.member(again).why_not
    assert again.disk.exists(LOSSY)
    group.kill(master.replica_id)  # which is no reason to trust it
    again = group.start(master.replica_id)
    group.wait(10)
    assert not group.masters
    group.wires.cut.clear()
    assert group.master() is not again
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert has_one(group)
    group.wait(2)
    group.stop(group.master().replica_id)
    assert len({group.master().log(), again.log()}) == 1


def test_a_log_is_trusted_again_once_it_has_what_its_master_had(make_group: Callable[[FlushDiskType], Group]) -> None:
    group = make_group(FlushDiskType.ASYNC_FLUSH)
    master = group.master()
    replica_id = min({1, 2, 3} - {master.replica_id})
    group.cut_power(replica_id)
    again = group.start(replica_id)
    assert again.disk.exists(LOSSY)
    group.wait(3)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    for other in {1, 2, 3} - {replica_id}:
        group.kill(other)
    assert group.master() is again
    assert not again.disk.exists(LOSSY)
    assert has_one(group)


def test_when_all_lost_power_all_must_be_there_to_elect_the_longest(
    make_group: Callable[[FlushDiskType], Group],
) -> None:
    group = make_group(FlushDiskType.ASYNC_FLUSH)
    group.wait(2)  # the message is on all disks
    for replica_id in (1, 2, 3):
        group.cut_power(replica_id)
    for replica_id in (1, 2):
        group.start(replica_id)
    group.wait(15)
    assert not group.masters
    group.start(3)
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3})
    assert has_one(group)


@pytest.mark.parametrize("survivor", [1, 2, 3])
def test_with_synchronous_flushes_any_of_those_that_lost_power_has_all(
    make_group: Callable[[FlushDiskType], Group], survivor: int
) -> None:
    group = make_group(FlushDiskType.SYNC_FLUSH)
    for replica_id in (1, 2, 3):
        group.cut_power(replica_id)
    group.start(survivor)
    assert group.master().replica_id == survivor
    assert has_one(group)


def test_one_that_lost_its_store_is_not_elected(make_group: Callable[[FlushDiskType], Group]) -> None:
    group = make_group(FlushDiskType.SYNC_FLUSH)
    for replica_id in (1, 2, 3):
        group.kill(replica_id)
    again = group.start(1, disk=SimDisk())
    group.wait(15)
    assert not group.masters
    assert "its disk was emptied or replaced" in group.member(again).why_not
    group.start(2)
    group.wait_for(lambda: group.masters and group.in_sync() >= {1, 2})
    assert has_one(group)
