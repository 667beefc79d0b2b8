"""The procedures of docs/howto/operate-a-group.rst, each step by step, by the functions of the commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import Deferred

from mqbroker.cli.ha import cause_of, members_of
from mqbroker.cli.ha_members import remove_member, switch_master
from mqbroker.wire.bodies import ClusterInfo
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.service.group import NAMESRVS, Group
from tests.broker.service.simulation.disks import copied, emptied
from tests.broker.service.test_group_rebuild import Net as Brokers
from tests.broker.service.test_group_rebuild import rebuild
from tests.broker.service.test_group_stores import bodies, make_group, rot, send, with_many_messages
from tests.ha.etcd_model import EMPTY
from tests.sources import ROOT
from tests.store.simulation.disk import SimDisk

__all__ = ["make_group"]
T = TypeVar("T")
#: Procedures whose tests are called otherwise than their headings.
TESTS = {
    "Back up a group": "test_a_backup_of_a_replica_is_a_whole_group_again",
    "Restore a group from a backup": "test_a_backup_of_a_replica_is_a_whole_group_again",
    "After etcd was restored from an older state": "test_after_etcd_was_set_back",
}


class Net(Brokers):
    """Asks the name server, too, and lets time pass."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if address.partition(":")[0] not in NAMESRVS:
            return await super().invoke(address, command, timeout_ms)
        assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return RemotingCommand(0, body=ClusterInfo(self._group.broker_tables()[0]).to_json())

    def now(self) -> float:
        return self._group.now

    async def sleep(self, seconds: float) -> None:
        self._group.wait(seconds)


def result(asking: Coroutine[Any, Any, T]) -> T:
    found: list[T] = []
    Deferred.fromCoroutine(asking).addCallbacks(found.append, lambda failure: failure.raiseException())
    return found[0]


def status(group: Group) -> str:
    """The line of `mq ha status` on standard error; empty where all is well."""
    return cause_of(result(members_of(Net(group), [f"{NAMESRVS[0]}:9876"], "broker-a")))  # type: ignore[arg-type]


def wait_until_all_is_well(group: Group, seconds: float = 60) -> None:
    began = group.now
    while status(group):
        assert group.now < began + seconds, status(group)
        group.wait(0.5)


def switch(group: Group, to: int) -> list[str]:
    return result(switch_master(Net(group), [f"{NAMESRVS[0]}:9876"], "broker-a", to))  # type: ignore[arg-type]


def remove(group: Group, name: str, broker_id: int | None) -> list[str]:
    asking = remove_member(Net(group), [f"{NAMESRVS[0]}:9876"], name, broker_id)  # type: ignore[arg-type]
    return result(asking)


def other_than(group: Group) -> int:
    return group.master().replica_id % 3 + 1


def test_each_procedure_of_the_page_has_a_test() -> None:
    page = (ROOT / "docs" / "howto" / "operate-a-group.rst").read_text()
    headings = re.findall(r"^(.+)\n-+$", page, re.MULTILINE)
    assert len(headings) > 7
    names = {heading: TESTS.get(heading, f"test_{heading.lower().replace(' ', '_')}") for heading in headings}
    assert [heading for heading, name in names.items() if name not in globals()] == []


def test_make_another_broker_the_master(make_group: Callable[..., Group]) -> None:
    group = make_group()
    wait_until_all_is_well(group)
    send(group, b"one")
    former, to = group.master().replica_id, other_than(group)
    assert switch(group, to) == [f"broker-a: broker {to} is the master of epoch 2"]
    wait_until_all_is_well(group)
    group.stop(former)
    send(group, b"two")
    assert bodies(group.master()) == [b"one", b"two"]


def test_stop_a_broker_for_a_while(make_group: Callable[..., Group]) -> None:
    group = make_group()
    wait_until_all_is_well(group)
    for _ in range(3):
        former = group.master().replica_id
        switch(group, other_than(group))
        wait_until_all_is_well(group)
        group.stop(former)
        group.wait(2)
        assert status(group) == f"broker {former} of broker-a is down: start it, or see `mq ha remove`"
        send(group, b"meanwhile")
        group.start(former)
        wait_until_all_is_well(group)
    assert [bodies(each) for each in group.alive()] == [[b"meanwhile"] * 3] * 3


def test_replace_a_disk(make_group: Callable[..., Group]) -> None:
    group = make_group()
    wait_until_all_is_well(group)
    send(group, b"one")
    former = group.master().replica_id
    switch(group, other_than(group))
    group.stop(former)
    send(group, b"two")
    replica = group.replicas[former]
    replica.disk = emptied(replica.disk)
    group.start(former)
    wait_until_all_is_well(group)
    assert bodies(group.replicas[former]) == [b"one", b"two"]


def test_repair_a_damaged_log(make_group: Callable[..., Group]) -> None:
    group = make_group()
    sent = with_many_messages(group)
    wait_until_all_is_well(group)
    damaged = group.master()
    rot(damaged, 10_000, 10_010)
    group.wait_for(lambda: "its log has no message from" in status(group), 90)
    wait_until_all_is_well(group)
    assert group.master() is not damaged
    [aside] = [name for name in damaged.disk.names("/store") if name.startswith("commitlog.diverged-")]
    group.stop(damaged.replica_id)
    damaged.disk.remove_tree(f"/store/{aside}")
    group.start(damaged.replica_id)
    wait_until_all_is_well(group)
    assert [bodies(each) for each in group.alive()] == [sent] * 3


def test_add_a_member(make_group: Callable[..., Group]) -> None:
    group = make_group()
    wait_until_all_is_well(group)
    send(group, b"one")
    group.changes["replication_factor"] = 4
    for replica_id in (1, 2, 3):
        if group.master().replica_id == replica_id:
            switch(group, other_than(group))
            wait_until_all_is_well(group)
        group.stop(replica_id)
        group.start(replica_id)
        wait_until_all_is_well(group)
    group.start(4)
    group.wait(5)
    wait_until_all_is_well(group)
    assert group.in_sync() == {1, 2, 3, 4}
    assert bodies(group.replicas[4]) == [b"one"]


@pytest.mark.parametrize("has_name", [True, False])
def test_remove_a_member(make_group: Callable[..., Group], has_name: bool) -> None:
    group = make_group()
    wait_until_all_is_well(group)
    gone = group.master().replica_id
    switch(group, other_than(group))
    group.stop(gone)
    group.wait(2)
    assert f"broker {gone} of broker-a is down" in status(group)
    removed = remove(group, "broker-a", gone) if has_name else remove(group, str(gone), None)
    assert removed == [f"broker-a: broker {gone} was removed; if it comes back, it is treated as a new one"]
    wait_until_all_is_well(group)
    send(group, b"one")


def test_a_backup_of_a_replica_is_a_whole_group_again(make_group: Callable[..., Group]) -> None:
    group = make_group(min_in_sync_replicas=2)
    wait_until_all_is_well(group)
    send(group, b"one")
    kept = other_than(group)
    group.stop(kept)
    backup = copied(group.replicas[kept].disk, group.rng)
    group.start(kept)
    wait_until_all_is_well(group)
    send(group, b"after the backup")
    for replica_id in (1, 2, 3):
        group.stop(replica_id)
    group.etcd.restore(EMPTY)
    for replica_id, replica in group.replicas.items():
        replica.disk = backup if replica_id == kept else emptied(replica.disk)
    group.start(kept)
    group.wait(5)
    for replica_id in {1, 2, 3} - {kept}:
        group.start(replica_id)
    group.wait(10)
    assert not group.masters
    assert "has no master, and acknowledges nothing" in status(group)
    rebuild(group)
    group.master(40)
    wait_until_all_is_well(group)
    send(group, b"goes on")
    assert [bodies(each) for each in group.alive()] == [[b"one", b"goes on"]] * 3


def test_a_backup_with_nothing_after_it_needs_nobody_to_choose(make_group: Callable[..., Group]) -> None:
    """Also where etcd is lost with all stores."""
    group = make_group(min_in_sync_replicas=2)
    send(group, b"one")
    kept = other_than(group)
    group.stop(kept)
    backup = copied(group.replicas[kept].disk, group.rng)
    for replica_id in {1, 2, 3} - {kept}:
        group.stop(replica_id)
    group.etcd.restore(EMPTY)
    group.replicas[kept].disk = backup
    group.start(kept)
    group.wait(5)
    for replica_id in {1, 2, 3} - {kept}:
        disk: Any = group.replicas[replica_id].disk
        assert isinstance(disk, SimDisk)
        group.replicas[replica_id].disk = emptied(disk)
        group.start(replica_id)
    group.wait(5)
    assert not group.masters
    rebuild(group)
    group.master(40)
    wait_until_all_is_well(group)
    assert [bodies(each) for each in group.alive()] == [[b"one"]] * 3


def test_after_etcd_was_set_back(make_group: Callable[..., Group]) -> None:
    group = make_group()
    backup = group.etcd.backup()
    send(group, b"one")
    switch(group, other_than(group))
    send(group, b"two")
    wait_until_all_is_well(group)
    group.etcd.is_down = True
    group.wait(6)
    group.etcd.restore(backup)
    group.etcd.is_down = False
    group.wait(8)
    assert "has no master, and acknowledges nothing: etcd is at revision" in status(group)
    rebuild(group)
    group.master(40)
    wait_until_all_is_well(group)
    send(group, b"three")
    assert [bodies(each) for each in group.alive()] == [[b"one", b"two", b"three"]] * 3
