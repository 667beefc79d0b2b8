"""Brokers of a group whose stores know themselves: what is cut, what is kept, and who takes no part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from mqbroker.ha.group_keys import GroupState
from mqbroker.store.cut_tails import cut_tails
from mqbroker.store.logscan import Damage
from mqbroker.wire.bodies import KVTable
from mqbroker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from mqbroker.wire.record import decode_records
from tests.broker.bench import pull_header, send_command
from tests.broker.service.group import Group, Replica
from tests.broker.service.simulation.disks import LOG, copied, set_back, without
from tests.remoting.logs import log_kept

STATE = "/mqbroker/DefaultCluster/broker-a/state"


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """A group of three on simulated disks, all in sync."""
    made: list[Group] = []

    def make(**settings: Any) -> Group:
        group = Group(tmp_path / "group", is_disk_simulated=True, **settings)
        made.append(group)
        for replica_id in (1, 2, 3):
            group.start(replica_id)
        group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3})
        return group

    yield make
    for group in made:
        group.close()


def send(group: Group, *bodies: bytes) -> None:
    for body in bodies:
        assert group.client(group.master()).send(send_command("T", body)).code == ResponseCode.SUCCESS


def with_a_message_of_the_master_alone(group: Group, first: bytes) -> tuple[Replica, list[Replica]]:
    """All have `first`; then the master is cut off from the others, and takes one that nobody acknowledges. Returns the
    master and the others."""
    master = group.master()
    send(group, first)
    others = [each for each in group.alive() if each is not master]
    for other in others:
        group.wires.cut |= {(master.host, other.host), (other.host, master.host)}
    group.client(master).tell(send_command("T", b"only here"))
    group.wait(0.3)
    return master, others


def bodies(replica: Replica) -> list[bytes]:
    return [record.body for record in replica.records().values()]


def info(group: Group, replica: Replica) -> dict[str, str]:
    return KVTable.from_json(group.client(replica).ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def set_state(group: Group, **changes: Any) -> None:
    """Write the group's state as nobody who keeps the rules would."""
    state = GroupState.from_json(group.etcd.items[STATE].value)
    group.etcd.put(STATE, attrs.evolve(state, **changes).to_json())


def elect_wrongly(group: Group, replica_id: int) -> Replica:
    """Have one that lacks messages elected, in epoch 2, by an older in-sync set; the others are away."""
    for other in {1, 2, 3} - {replica_id}:
        if not group.replicas[other].is_dead:
            group.kill(other)
    group.wait(5)
    for key in [key for key in group.etcd.items if "/identities/" in key]:
        group.etcd.delete(key)
    set_state(group, in_sync=frozenset({1, 2, 3}), committed=0)
    return group.master()


def lagging(group: Group) -> tuple[Replica, int]:
    """The master, and a replica that lacks what the others have acknowledged."""
    master = group.master()
    behind = min({1, 2, 3} - {master.replica_id})
    send(group, b"all have it")
    group.wires.cut |= {(master.host, f"10.0.0.{behind}"), (f"10.0.0.{behind}", master.host)}
    send(group, b"two have it", b"this, too")
    group.wait(2)
    return master, behind


def test_nobody_cuts_what_was_acknowledged_and_a_wrong_master_steps_down(make_group: Callable[..., Group]) -> None:
    group = make_group()
    former, behind = lagging(group)
    wrong = elect_wrongly(group, behind)
    assert wrong.replica_id == behind
    group.wires.cut.clear()
    again = group.start(former.replica_id)
    group.wait(8)
    assert bodies(again) == [b"all have it", b"two have it", b"this, too"]
    assert not group.masters or group.master() is again
    group.start(6 - behind - former.replica_id)
    group.wait(5)
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3}, 60)
    assert all(bodies(each) == [b"all have it", b"two have it", b"this, too"] for each in group.alive())


def test_a_wrong_master_that_has_acknowledged_others_stays_none_and_all_is_kept(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    former, behind = lagging(group)
    third = 6 - behind - former.replica_id
    elect_wrongly(group, behind)
    group.wires.cut.clear()
    set_state(group, in_sync=frozenset({behind}))
    group.wait(2)
    again = group.start(former.replica_id)
    group.wait(10)
    assert not group.masters
    why_not = group.member(group.replicas[behind]).why_not
    assert f"broker {former.replica_id} has messages that the group has acknowledged" in why_not
    assert "`mq ha rebuild`" in why_not
    assert bodies(again)[1:] == [b"two have it", b"this, too"]
    group.start(third)
    group.wait(5)
    assert bodies(group.replicas[third])[1:] == [b"two have it", b"this, too"]


def test_after_an_unclean_election_who_has_more_is_told_what_to_do(make_group: Callable[..., Group]) -> None:
    group = make_group(unclean_election_enable=True)
    former, behind = lagging(group)
    for other in {1, 2, 3} - {behind}:
        group.kill(other)
    group.wires.cut.clear()
    assert group.master(60).replica_id == behind
    state = json.loads(group.etcd.items[STATE].value)
    assert state["unclean"] == state["lowered"] == state["epoch"]
    again = group.start(former.replica_id)
    group.wait(5)
    assert "elected by uncleanElectionEnable" in again.service._slave._service.status.why_not
    assert bodies(again)[1:] == [b"two have it", b"this, too"]
    assert group.master().replica_id == behind


def test_what_nobody_acknowledged_is_kept_when_it_is_cut_off(make_group: Callable[..., Group]) -> None:
    group = make_group()
    master, others = with_a_message_of_the_master_alone(group, b"all have it")
    end, cut_from = master.store.log_end, others[0].store.log_end
    group.kill(master.replica_id)
    group.wires.cut.clear()
    group.master()
    again = group.start(master.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    [tail] = cut_tails(again.disk, "/store")
    assert (tail.start, tail.end) == (cut_from, end)
    assert b"only here" in again.disk.read(f"{tail.path}/commitlog/{0:020d}")
    assert bodies(again) == [b"all have it"]


def test_the_commit_point_reaches_replicas_their_notes_and_etcd(make_group: Callable[..., Group]) -> None:
    group = make_group()
    send(group, b"one", b"two")
    end = group.master().store.log_end
    group.wait(0.2)
    assert [each.service._group.store.note.committed for each in group.alive()] == [end] * 3
    group.wait(3)
    identities = [json.loads(item.value) for key, item in group.etcd.items.items() if "/identities/" in key]
    assert [(each["committed"], each["epoch"]) for each in identities] == [(end, 1)] * 3
    table = info(group, group.master())
    assert (table["groupCommitted"], table["groupNotWhole"], table["groupLogEpoch"]) == (str(end), "", "1")
    group.kill(group.master().replica_id)
    group.master()
    assert json.loads(group.etcd.items[STATE].value)["committed"] == end


@pytest.mark.parametrize("beyond", [1, 2**62])
def test_a_commit_point_beyond_the_log_of_a_replica_counts_up_to_its_end(
    make_group: Callable[..., Group], beyond: int
) -> None:
    group = make_group()
    send(group, b"one")
    group.wait(2)
    replica_id = min({1, 2, 3} - {group.master().replica_id})
    replica = group.replicas[replica_id]
    part: Any = replica.service._group
    end = replica.store.log_end
    assert part.store.committed == end
    part.progressed(end + beyond, end)
    assert (part.store.committed, part.store.note.committed) == (end, end)
    send(group, b"two")
    group.wait(2)
    assert part.store.committed == part.store.note.committed == replica.store.log_end > end


def test_a_store_that_is_not_whole_says_so_and_is_filled_up(make_group: Callable[..., Group]) -> None:
    group = make_group()
    send(group, b"one")
    replica_id = min({1, 2, 3} - {group.master().replica_id})
    copy = copied(group.replicas[replica_id].disk, group.rng)
    send(group, b"two", b"three")
    group.kill(replica_id)
    replica = group.replicas[replica_id]
    replica.disk = set_back(replica.disk, copy, (LOG,))
    again = group.start(replica_id)
    assert "its log ends at" in info(group, again)["groupNotWhole"]
    group.wait(2)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert bodies(again) == [b"one", b"two", b"three"]
    group.wait(1.5)
    assert info(group, again)["groupNotWhole"] == ""


def test_a_store_that_is_not_whole_and_has_what_the_group_has_not_is_put_aside(
    make_group: Callable[..., Group],
) -> None:
    """The log of a former master from before its end was cut off, with messages that nobody acknowledged."""
    group = make_group()
    master, _ = with_a_message_of_the_master_alone(group, b"one")
    copy = copied(master.disk, group.rng)
    group.kill(master.replica_id)
    group.wires.cut.clear()
    group.master()
    group.start(master.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    send(group, b"two" * 100)
    group.kill(master.replica_id)
    replica = group.replicas[master.replica_id]
    replica.disk = set_back(replica.disk, copy, (LOG,))
    again = group.start(master.replica_id)
    group.wait(5)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3}, 40)
    assert bodies(again) == [b"one", b"two" * 100]
    assert [name for name in again.disk.names("/store") if name.startswith("commitlog.diverged-")]


@pytest.mark.parametrize("has_marks", [True, False])
def test_a_log_with_a_gap_is_not_elected_by_an_unclean_election_either(
    make_group: Callable[..., Group], has_marks: bool
) -> None:
    """No replica could follow it, not even with an empty disk. Where the marks of the log are lost, too, the zeros at
    its end tell."""
    group = make_group(unclean_election_enable=True)
    send(group, b"one")
    copy = copied(group.replicas[1].disk, group.rng)
    send(group, b"two", b"three")
    group.wait(2)
    for replica_id in (1, 2, 3):
        group.cut_power(replica_id)
    replica = group.replicas[1]
    replica.disk = set_back(replica.disk, copy, (LOG,))
    if not has_marks:
        replica.disk = without(replica.disk, "segments.json")
    again = group.start(1)
    group.wait(40)
    assert not group.masters
    assert "its log has no message from" in again.why_not_whole
    assert "beyond its gap" in group.member(again).why_not
    assert not again.disk.exists("/store/cut")
    for replica_id in (2, 3):
        group.start(replica_id)
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3}, 60)
    assert [bodies(each) for each in group.alive()] == [[b"one", b"two", b"three"]] * 3


def test_a_cloned_machine_takes_no_part_while_the_first_one_runs(make_group: Callable[..., Group]) -> None:
    group = make_group()
    send(group, b"one")
    replica_id = min({1, 2, 3} - {group.master().replica_id})
    first = group.replicas[replica_id]
    clone = group.start(replica_id, disk=copied(first.disk, group.rng))
    group.replicas[9] = first
    group.wait(5)
    assert "its own store, which must not be a copy" in group.member(clone).why_not
    group.replicas[replica_id] = group.replicas.pop(9)
    group.replicas[9] = clone
    clone.service.stopService()
    group.wait(1)
    del group.replicas[9]


def test_a_machine_whose_clone_has_run_meanwhile_is_not_whole_and_is_filled_up(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    send(group, b"one")
    replica_id = min({1, 2, 3} - {group.master().replica_id})
    group.kill(replica_id)
    first = group.replicas[replica_id].disk
    group.wait(5)
    group.start(replica_id, disk=copied(first, group.rng))
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    send(group, b"two")
    group.kill(replica_id)
    group.wait(5)
    again = group.start(replica_id, disk=first)
    group.wait_for(lambda: again.why_not_whole)
    assert "it was restored from an older copy: this broker has started with a newer one since" in again.why_not_whole
    group.wait(1)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3}, 40)
    assert bodies(again) == [b"one", b"two"]


def test_a_master_that_proves_nothing_is_not_followed(make_group: Callable[..., Group]) -> None:
    group = make_group()
    part: Any = group.master().service._group
    answer = part.answer
    part.answer = lambda greeting, end: answer(greeting, end).addCallback(
        lambda found: (found[0][:32] + bytes(32) + found[0][64:], found[1])
    )
    replica_id = min({1, 2, 3} - {group.master().replica_id})
    group.kill(replica_id)
    again = group.start(replica_id)
    group.wait(6)
    assert "did not prove that it is the master" in again.service._slave._service.status.why_not
    del part.answer
    group.wait(10)
    assert again.service._slave._service.status.why_not == ""


def with_many_messages(group: Group) -> list[bytes]:
    """So many that the log has some segments, and is on the disks."""
    sent = [b"%03d" % number * 1000 for number in range(60)]
    for number in range(0, len(sent), 6):
        send(group, *sent[number : number + 6])
        group.wait(0.2)
    group.wait(2)
    return sent


def rot(replica: Replica, begin: int, end: int) -> None:
    """Zeros take the place of a part of the second segment, while the broker runs or not."""
    disk: Any = replica.disk
    inode = disk.inode(f"/store/commitlog/{64 * 1024:020d}")
    inode.memory[begin:end] = bytes(end - begin)


def test_a_replica_whose_log_rots_while_it_runs_takes_it_again_and_puts_the_old_one_aside(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    sent = with_many_messages(group)
    replica = group.replicas[min({1, 2, 3} - {group.master().replica_id})]
    rot(replica, 10_000, 10_010)
    group.wait_for(lambda: replica.why_not_whole, 70)
    assert "its log has no message from" in replica.why_not_whole
    group.wait_for(lambda: group.in_sync() == {1, 2, 3} and not replica.why_not_whole, 40)
    assert bodies(replica) == sent
    assert [name for name in replica.disk.names("/store") if name.startswith("commitlog.diverged-")]
    assert info(group, replica)["groupHasGaps"] == "false"


def test_a_master_whose_log_rots_lets_another_one_be_it_and_takes_its_log_again(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    sent = with_many_messages(group)
    master = group.master()
    rot(master, 10_000, 40_000)
    group.wait_for(lambda: group.masters and group.master() is not master, 70)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3} and not master.why_not_whole, 60)
    assert bodies(master) == bodies(group.master()) == sent


def test_a_master_whose_log_rots_serves_on_while_no_other_broker_can(make_group: Callable[..., Group]) -> None:
    group = make_group(min_in_sync_replicas=1)
    with_many_messages(group)
    master = group.master()
    others = {1, 2, 3} - {master.replica_id}
    for other in others:
        group.kill(other)
    group.wait_for(lambda: group.in_sync() == {master.replica_id})
    rot(master, 10_000, 10_010)
    with log_kept() as logged:
        group.wait_for(lambda: info(group, master)["groupHasGaps"] == "true", 70)
        group.wait(1)
    assert "this master's log is damaged, and it continues to serve the rest" in "\n".join(logged.lines)
    assert group.master() is master
    send(group, b"goes on")
    for other in others:
        group.start(other)
    group.wait_for(lambda: group.masters and group.master() is not master, 150)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3} and not master.why_not_whole, 60)
    assert bodies(master)[-1] == b"goes on"


def test_a_consumer_that_meets_damage_of_the_master_gets_the_messages_of_the_next_one(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    sent = with_many_messages(group)
    former = group.master()
    group.kill(former.replica_id)
    group.wait_for(lambda: [each for each in group.masters if each is not former])
    group.start(former.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    master = group.master()  # it has opened its log again: records from before are checked when they are read
    rot(master, 10_000, 10_010)
    offset, read, codes = 0, list[bytes](), set[tuple[int, int]]()
    for _ in range(800):
        asked = group.master() if group.masters else master
        header = pull_header("T", queue_offset=offset, sys_flag=PullSysFlag.SUBSCRIPTION)
        answer = group.client(asked).ask(RequestCode.PULL_MESSAGE, header)
        codes.add((asked.replica_id, answer.code))
        if answer.code == ResponseCode.SUCCESS:
            read += [record.body for record in decode_records(answer.body)]
        offset = int((answer.ext_fields or {}).get("nextBeginOffset", offset))
        group.wait(0.05)
        if offset >= len(sent):
            break
    assert read == sent
    assert (master.replica_id, ResponseCode.SERVICE_NOT_AVAILABLE) in codes
    assert (master.replica_id, ResponseCode.PULL_NOT_FOUND) in codes
    assert group.master() is not master


def test_a_gap_that_was_deleted_by_its_age_is_no_reason_to_let_another_be_the_master(
    make_group: Callable[..., Group],
) -> None:
    group = make_group()
    with_many_messages(group)
    master = group.master()
    part: Any = master.service._group
    part._log_min = lambda: 64 * 1024
    part.store.gaps = [Damage("", 10, 20, "it was rotten")]
    group.wait(3)
    assert group.master() is master
    assert info(group, master)["groupHasGaps"] == "false"


def test_what_one_of_two_damaged_logs_has_is_not_put_aside(make_group: Callable[..., Group]) -> None:
    """Each may have what the other has lost: the replica follows on, and the group acknowledges."""
    group = make_group()
    with_many_messages(group)
    master = group.master()
    replica, third = (group.replicas[each] for each in sorted({1, 2, 3} - {master.replica_id}))
    group.kill(third.replica_id)
    group.wait_for(lambda: group.in_sync() == {master.replica_id, replica.replica_id})
    group.kill(replica.replica_id)
    rot(master, 30_000, 30_010)
    group.wait_for(lambda: info(group, master)["groupHasGaps"] == "true", 70)
    rot(replica, 0, 10)
    replica = group.start(replica.replica_id)
    group.wait(10)
    assert info(group, replica)["groupHasGaps"] == "true"
    send(group, b"goes on")
    assert replica.store.log_end == master.store.log_end
    for each in (master, replica):
        assert not [name for name in each.disk.names("/store") if "diverged" in name]
