"""`mq ha rebuild`: the state of a group is written anew by what its brokers have, after etcd was lost or set back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.cli.failures import Failure
from mqbroker.cli.group_copies import Copy, GroupKeys, copies_of, copy_lines, new_state, read_keys, write_state
from mqbroker.ha.group_keys import NO_LEASE, GroupState, Identity, Member
from mqbroker.wire.command import RemotingCommand
from tests.broker.service.group import Group, Replica
from tests.broker.service.simulation.disks import LOG, copied, emptied, set_back
from tests.broker.service.test_group_stores import bodies, elect_wrongly, lagging, make_group, send, set_state
from tests.ha.etcd_model import EMPTY, ModelClient

__all__ = ["make_group"]
PREFIX = "/mqbroker/DefaultCluster/broker-a/"


class Net:
    """Asks the brokers of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        [replica] = [each for each in self._group.alive() if each.host == address.partition(":")[0]]
        return self._group.client(replica).send(command)


def done(group: Group, clock: Clock, asking: Any) -> Any:
    """The result of what is asked of etcd."""
    result: list[Any] = []
    Deferred.fromCoroutine(asking).addBoth(result.append)
    for _ in range(200):
        if result:
            return result[0]
        group.step()
        clock.advance(0.05)
    raise AssertionError("etcd does not answer")


def rebuild(group: Group, keep: int | None = None) -> tuple[list[str], GroupState]:
    """What the command does; returns what it shows, and what it writes."""
    clock = Clock()
    etcd = ModelClient(group.etcd, clock)
    keys = done(group, clock, read_keys(etcd, PREFIX))
    copies = done(group, clock, copies_of(Net(group), keys))  # type: ignore[arg-type]
    state = new_state("DefaultCluster", "broker-a", keys, copies, keep)
    assert done(group, clock, write_state(etcd, PREFIX, state, keys.revision)) is None
    return copy_lines(copies, on_terminal=False), state


def outage_of_etcd(group: Group, restored: Any) -> None:
    group.etcd.is_down = True
    group.wait(6)
    group.etcd.restore(restored)
    group.etcd.is_down = False
    group.wait(8)


def names(group: Group) -> dict[int, list[bytes]]:
    return {each.replica_id: bodies(each) for each in group.alive()}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("kind", ["empty", "older"])
def test_after_etcd_was_lost_or_set_back_the_group_goes_on_with_all_that_it_acknowledged(
    make_group: Callable[..., Group], kind: str, is_restarted: bool
) -> None:
    group = make_group()
    backup = EMPTY if kind == "empty" else group.etcd.backup()
    send(group, b"one")
    group.kill(group.master().replica_id)
    send(group, b"two")
    group.start(min({1, 2, 3} - {each.replica_id for each in group.alive()}))
    group.wait(2)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    send(group, b"three")
    outage_of_etcd(group, backup)
    if is_restarted:
        for replica_id in (1, 2, 3):
            group.kill(replica_id)
        group.wait(4)
        for replica_id in (1, 2, 3):
            group.start(replica_id)
        group.wait(5)
    assert not group.masters
    assert all("mq ha rebuild" in group.member(each).why_not for each in group.alive())
    shown, state = rebuild(group)
    assert [line.split("\t")[2:4] for line in shown] == [["whole", "2"]] * 3
    assert (state.epoch, state.in_sync) == (3, {1, 2, 3})
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3}, 40)
    send(group, b"four")
    group.wait(3)
    assert set(map(tuple, names(group).values())) == {(b"one", b"two", b"three", b"four")}


def test_the_one_that_is_kept_is_elected_though_others_have_more(make_group: Callable[..., Group]) -> None:
    group = make_group()
    former, behind = lagging(group)
    elect_wrongly(group, behind)
    group.wires.cut.clear()
    set_state(group, in_sync=frozenset({behind}))
    group.wait(2)
    group.start(former.replica_id)
    group.wait(10)
    assert not group.masters
    with pytest.raises(Failure, match="--keep ID"):
        rebuild(group)
    _, state = rebuild(group, keep=former.replica_id)
    assert state.in_sync == {former.replica_id}
    master: Replica = group.master(40)
    assert master.replica_id == former.replica_id
    assert bodies(master)[1:] == [b"two have it", b"this, too"]
    group.wait_for(lambda: group.in_sync() >= {former.replica_id, behind}, 40)
    assert bodies(group.replicas[behind]) == bodies(master)


def test_the_one_that_is_kept_is_elected_though_its_store_is_not_whole(make_group: Callable[..., Group]) -> None:
    """An older copy is all that is left."""
    group = make_group()
    send(group, b"one")
    group.wait(2)
    copy = copied(group.replicas[1].disk, group.rng)
    send(group, b"two", b"three")
    group.wait(2)
    for replica_id in (1, 2, 3):
        group.kill(replica_id)
        disk = group.replicas[replica_id].disk
        group.replicas[replica_id].disk = set_back(disk, copy) if replica_id == 1 else emptied(disk)
    for replica_id in (1, 2, 3):
        group.start(replica_id)
    group.wait(10)
    assert not group.masters
    with pytest.raises(Failure, match="no running broker has a complete store: start the others, or choose"):
        rebuild(group)
    _, state = rebuild(group, keep=1)
    assert (state.master, state.in_sync) == (1, {1})
    assert group.master(40).replica_id == 1
    group.wait_for(lambda: group.in_sync() == {1, 2, 3}, 40)
    send(group, b"four")
    group.wait(3)
    assert list(names(group).values()) == [[b"one", b"four"]] * 3
    assert [each.why_not_whole for each in group.alive()] == [""] * 3


def with_a_gap(group: Group, kind: str) -> None:
    """All have lost power with all on their disks, and the log of the first has a gap."""
    send(group, b"one")
    copy = copied(group.replicas[1].disk, group.rng)
    send(group, b"two", b"three", b"four")
    group.wait(2)
    last, end = max(group.replicas[1].records()), group.replicas[1].store.log_end
    for replica_id in (1, 2, 3):
        group.cut_power(replica_id)
    replica = group.replicas[1]
    if kind == "set back":
        replica.disk = set_back(replica.disk, copy, (LOG,))
    else:
        noise = bytes(end - last) if kind == "zeros" else group.rng.randbytes(end - last)
        replica.disk.write_part(f"/store/commitlog/{0:020d}", last, memoryview(noise))
    for replica_id in (1, 2, 3):
        group.start(replica_id)
    group.wait(10)
    assert not group.masters
    assert "its log has no message from" in group.replicas[1].why_not_whole


@pytest.mark.parametrize("kind", ["set back", "zeros", "rotten"])
def test_a_log_with_a_gap_is_not_kept_and_anothers_is(make_group: Callable[..., Group], kind: str) -> None:
    group = make_group()
    with_a_gap(group, kind)
    with pytest.raises(Failure, match="the log of broker 1 cannot be kept, as no other broker could copy it beyond"):
        rebuild(group, keep=1)
    group.wait(5)
    assert not group.masters
    shown, state = rebuild(group, keep=2)
    assert "its log has no message from" in shown[0]
    assert state.in_sync == {2}
    assert group.master(40).replica_id == 2
    group.wait_for(lambda: group.in_sync() == {1, 2, 3}, 60)
    send(group, b"five")
    group.wait(3)
    assert list(names(group).values()) == [[b"one", b"two", b"three", b"four", b"five"]] * 3
    assert [name for name in group.replicas[1].disk.names("/store") if name.startswith("commitlog.diverged-")]


def test_a_log_with_a_gap_that_was_chosen_by_an_older_command_is_not_elected(make_group: Callable[..., Group]) -> None:
    group = make_group()
    with_a_gap(group, "zeros")
    set_state(group, epoch=7, unclean=7, lowered=7, master=1, lease=NO_LEASE, in_sync=frozenset({1}), committed=0)
    group.wait(10)
    assert not group.masters
    assert "its log has no message from" in group.member(group.replicas[1]).why_not


def test_a_group_with_a_master_is_left_alone(make_group: Callable[..., Group]) -> None:
    group = make_group()
    with pytest.raises(Failure, match="has a master"):
        rebuild(group)


STATE = GroupState("C", "B", 3, 1, 33, frozenset({1, 2}), 500, 0, 0)
KEYS = GroupKeys(STATE, 9, {}, [])


@pytest.mark.parametrize(
    ("copies", "keys", "why"),
    [
        ([], KEYS, "no running broker has a complete store"),
        ([Copy(1, "a", "not whole", 3, 33, 600, 500)], KEYS, "no running broker has a complete store"),
        ([Copy(1, "a", "", 0, 0, 0, 0)], KEYS, "no running broker has a complete store"),
        ([Copy(1, "a", "", 3, 33, 499, 499)], KEYS, "acknowledged its log up to 500"),
        ([Copy(1, "a", "", 3, 33, 600, 500)], GroupKeys(STATE, 9, {}, [Identity("a" * 32, 1, 700, 3)]), "up to 700"),
        ([Copy(1, "a", "", 3, 33, 600, 500), Copy(2, "b", "", 3, 34, 600, 500)], KEYS, "different logs of epoch 3"),
    ],
)
def test_what_is_not_clear_is_not_written(copies: list[Copy], keys: GroupKeys, why: str) -> None:
    with pytest.raises(Failure, match=why):
        new_state("C", "B", keys, copies, None)


def test_those_that_have_all_are_in_sync_in_an_epoch_that_nobody_has_seen() -> None:
    copies = [
        Copy(1, "a", "", 5, 55, 600, 550),
        Copy(2, "b", "", 5, 55, 580, 560),
        Copy(3, "c", "", 5, 55, 559, 400),
        Copy(4, "d", "", 4, 44, 900, 540),
        Copy(5, "e", "no answer"),
    ]
    state = new_state("C", "B", KEYS, copies, None)
    assert (state.epoch, state.master, state.in_sync, state.committed) == (6, 1, {1, 2}, 560)
    kept = new_state("C", "B", KEYS, copies, 4)
    assert (kept.epoch, kept.in_sync, kept.committed, kept.unclean, kept.lowered) == (6, {4}, 540, 6, 6)


def test_what_cannot_be_read_in_etcd_is_passed_over(make_group: Callable[..., Group]) -> None:
    group = make_group()
    for key in ("state", "members/2", "identities/3"):
        group.etcd.put(f"{PREFIX}{key}", b"{")
    clock = Clock()
    keys = done(group, clock, read_keys(ModelClient(group.etcd, clock), PREFIX))
    assert keys.state is None
    assert keys.revision
    assert set(keys.members) == {1, 3}
    assert len(keys.identities) == 2
    assert all(isinstance(member, Member) for member in keys.members.values())
