"""`mq ha switch` and `mq ha remove` at the brokers of a group: a planned change of the master, during which no send
fails, also of clients that still take the former master for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from mqbroker.broker.sends_to_master import HANDED_ON
from mqbroker.config import FlushDiskType
from mqbroker.ha.group_keys import Identity
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.bench import send_command
from tests.broker.service.group import Client, Group, Replica
from tests.broker.service.simulation.disks import emptied
from tests.broker.service.test_group_stores import STATE, bodies, make_group, send

__all__ = ["make_group"]


def asked(code: RequestCode, replica_id: int) -> RemotingCommand:
    return RemotingCommand.request(code, None, b"%d" % replica_id)


def switch(group: Group, to: int) -> RemotingCommand:
    return group.client(group.master()).send(asked(RequestCode.SWITCH_GROUP_MASTER, to))


def state(group: Group) -> Any:
    return json.loads(group.etcd.items[STATE].value)


def other_than(master: Replica) -> int:
    return master.replica_id % 3 + 1


class Producer:
    """Sends to one broker without a pause over one connection, as many at a time as were not answered."""

    def __init__(self, group: Group, replica: Replica, name: bytes) -> None:
        self.client: Client = group.client(replica)
        self.name, self.sent, self.answers = name, 0, dict[int, tuple[float, int, str]]()
        self.group, self.sent_at = group, dict[int, float]()

    def step(self) -> None:
        self.look()
        command = send_command("T", b"%s%d" % (self.name, self.sent))
        self.client.tell(command)
        self.sent_at[command.opaque] = self.group.now
        self.sent += 1

    def look(self) -> None:
        for answer in self.client.heard():
            took_s = self.group.now - self.sent_at[answer.opaque]
            self.answers[answer.opaque] = took_s, answer.code, answer.remark or ""


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_no_send_fails_while_the_master_is_changed_though_clients_stay_with_the_former_one(
    make_group: Callable[..., Group], flush: str
) -> None:
    group = make_group(store={"flush_disk_type": FlushDiskType(flush)}, min_in_sync_replicas=2)
    former = group.master()
    to = other_than(former)
    producers = [Producer(group, former, name) for name in (b"a", b"b")]
    admin = group.client(former)
    for step in range(240):
        for producer in producers:
            producer.step() if step < 200 else producer.look()
        if step == 20:
            admin.tell(asked(RequestCode.SWITCH_GROUP_MASTER, to))
        group.step()
    [answer] = admin.heard()
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, f"broker {to} is the master of epoch 2")
    assert group.master().replica_id == to
    for producer in producers:
        producer.look()
        assert not producer.client.link.lost
        assert {code for _, code, _ in producer.answers.values()} == {ResponseCode.SUCCESS}
        assert len(producer.answers) == producer.sent
        assert max(took for took, _, _ in producer.answers.values()) < 2.5
    found = [body for body in bodies(group.master()) if body[:1] in (b"a", b"b")]
    assert sorted(found) == sorted(b"%s%d" % (each.name, n) for each in producers for n in range(each.sent))
    group.wait_for(lambda: len({each.log() for each in group.alive()}) == 1)
    assert group.in_sync() == {1, 2, 3}


def test_the_former_master_is_a_replica_and_name_servers_always_have_a_master(make_group: Callable[..., Group]) -> None:
    group = make_group()
    former = group.master()
    to = other_than(former)
    admin = group.client(former)
    admin.tell(asked(RequestCode.SWITCH_GROUP_MASTER, to))
    seen: list[str] = []
    for _ in range(600):
        group.step()
        for table in group.broker_tables():
            address = table["broker-a"].broker_addrs.get(0, "none")
            if not seen or seen[-1] != address:
                seen.append(address)
    masters = [f"{former.host}:10911", f"{group.replicas[to].host}:10911"]
    assert [each for number, each in enumerate(seen) if each not in seen[:number]] == masters
    assert {table["broker-a"].broker_addrs[0] for table in group.broker_tables()} == {masters[1]}
    assert all(set(table["broker-a"].broker_addrs.values()) >= {masters[0]} for table in group.broker_tables())
    assert group.in_sync() == {1, 2, 3}
    assert not former.is_master
    assert (state(group)["epoch"], state(group)["switched"], state(group)["master"]) == (2, 2, to)


def test_a_switch_goes_there_and_back_over_the_same_connections(make_group: Callable[..., Group]) -> None:
    group = make_group()
    first = group.master()
    producer = Producer(group, first, b"a")
    for to in (other_than(first), first.replica_id, other_than(first)):
        assert switch(group, to).code == ResponseCode.SUCCESS
        for _ in range(100):
            producer.step()
            group.step()
        assert group.master().replica_id == to
    group.wait_for(lambda: producer.look() or len(producer.answers) == producer.sent)
    assert {code for _, code, _ in producer.answers.values()} == {ResponseCode.SUCCESS}
    assert not producer.client.link.lost


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("itself", "is already the master"),
        ("unknown", "is not in sync"),
        ("killed", "is not connected|is not in sync"),
        ("other killed", "does not follow"),
        ("emptied", "is not in sync|is incomplete|is not connected"),
    ],
)
def test_a_switch_that_might_lose_something_is_refused_and_changes_nothing(
    make_group: Callable[..., Group], case: str, says: str
) -> None:
    group = make_group()
    master = group.master()
    to = other_than(master)
    other = ({1, 2, 3} - {master.replica_id, to}).pop()
    if case == "killed":
        group.kill(to)
        group.wait(0.2)
    elif case == "other killed":
        group.kill(other)
        group.wait(1.1)
    elif case == "emptied":
        group.kill(to)
        replica = group.replicas[to]
        replica.disk = emptied(replica.disk)
        for way in ((master.host, replica.host), (replica.host, master.host)):
            group.wires.widths[way] = 200
        group.start(to)
        group.wait(0.7)
    answer = switch(group, {"itself": master.replica_id, "unknown": 9}.get(case, to))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert re.search(says, answer.remark or ""), answer.remark
    assert state(group)["epoch"] == 1
    assert group.master() is master
    group.wait(3)
    send(group, b"it goes on")


def test_a_switch_that_takes_too_long_is_given_up_and_no_send_fails(make_group: Callable[..., Group]) -> None:
    group = make_group(min_in_sync_replicas=2)
    master = group.master()
    to = other_than(master)
    group.wires.delays[group.replicas[to].host, master.host] = 1.9  # what it acknowledges
    producer = Producer(group, master, b"a")
    admin = group.client(master)
    for step in range(100):
        producer.step()
        if step == 4:
            admin.tell(asked(RequestCode.SWITCH_GROUP_MASTER, to))
        group.step()
    [answer] = admin.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not all brokers in sync have all messages" in (answer.remark or "")
    assert group.master() is master
    group.wires.delays.clear()
    group.wait_for(lambda: producer.look() or len(producer.answers) == producer.sent)
    assert {code for _, code, _ in producer.answers.values()} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize("is_lost", [True, False])
def test_where_etcd_does_not_say_whether_it_changed_the_master_there_is_one(
    make_group: Callable[..., Group], is_lost: bool
) -> None:
    """Either the request to etcd is lost, or its answer; then etcd can be reached again."""
    group = make_group()
    former = group.master()
    to = other_than(former)
    admin = group.client(former)
    way = (former.host, "etcd") if is_lost else ("etcd", former.host)
    admin.tell(asked(RequestCode.SWITCH_GROUP_MASTER, to))
    group.wires.cut.add(way)
    for _ in range(30):
        group.step()
        assert len(group.masters) <= 1
    group.wires.cut.clear()
    for _ in range(200):
        group.step()
        assert len(group.masters) <= 1
    send(group, b"it goes on")
    assert group.in_sync() == {1, 2, 3}


def test_only_the_master_of_a_group_is_asked(make_group: Callable[..., Group]) -> None:
    group = make_group()
    master = group.master()
    replica = group.replicas[other_than(master)]
    for code in (RequestCode.SWITCH_GROUP_MASTER, RequestCode.REMOVE_GROUP_MEMBER):
        answer = group.client(replica).send(asked(code, master.replica_id))
        assert (answer.code, "not the master" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_what_was_handed_on_once_is_not_handed_on_again(make_group: Callable[..., Group]) -> None:
    group = make_group()
    replica = group.replicas[other_than(group.master())]
    answer = group.client(replica).send(send_command("T", b"by a replica"))
    assert answer.code == ResponseCode.SUCCESS
    answer = group.client(replica).send(attrs.evolve(send_command("T", b"again"), remark=HANDED_ON))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bodies(group.master()) == [b"by a replica"]


# --- members that will not come back


def remove(group: Group, replica_id: int) -> RemotingCommand:
    return group.client(group.master()).send(asked(RequestCode.REMOVE_GROUP_MEMBER, replica_id))


def identities(group: Group) -> set[int]:
    return {int(key.rpartition("/")[2]) for key in group.etcd.items if "/identities/" in key}


def test_a_member_that_will_not_come_back_is_removed_once_it_is_not_needed(make_group: Callable[..., Group]) -> None:
    group = make_group()
    send(group, b"one")
    gone = other_than(group.master())
    answer = remove(group, gone)
    assert (answer.code, "is running, or was a moment ago" in (answer.remark or "")) == (1, True)
    group.kill(gone)
    group.wait_for(lambda: gone not in group.in_sync())
    group.wait(5)
    assert remove(group, 9).remark == f"etcd has no broker 9 of this group; it has {[1, 2, 3]}"
    answer = remove(group, gone)
    assert (answer.code, answer.remark) == (
        0,
        f"broker {gone} was removed; if it comes back, it is treated as a new one",
    )
    assert identities(group) == {1, 2, 3} - {gone}
    send(group, b"two")
    group.replicas[gone].disk = emptied(group.replicas[gone].disk)
    group.start(gone)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert identities(group) == {1, 2, 3}
    assert bodies(group.replicas[gone])[:2] == [b"one", b"two"]


def test_a_member_is_not_removed_that_has_one_of_the_copies_that_must_be(make_group: Callable[..., Group]) -> None:
    group = make_group(min_in_sync_replicas=2)
    master = group.master()
    for other in {1, 2, 3} - {master.replica_id}:
        group.kill(other)
    group.wait(5)
    [gone] = group.in_sync() - {master.replica_id}
    answer = remove(group, gone)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "have all that was acknowledged. Start another broker" in (answer.remark or "")
    assert remove(group, master.replica_id).code == ResponseCode.SYSTEM_ERROR
    assert identities(group) == {1, 2, 3}


def test_a_member_whose_store_has_more_than_the_masters_is_not_removed(make_group: Callable[..., Group]) -> None:
    group = make_group()
    gone = other_than(group.master())
    group.kill(gone)
    group.wait_for(lambda: gone not in group.in_sync())
    group.wait(5)
    key = f"/mqbroker/DefaultCluster/broker-a/identities/{gone}"
    known = Identity.from_json(group.etcd.items[key].value)
    group.etcd.put(key, attrs.evolve(known, committed=10_000).to_json())
    answer = remove(group, gone)
    assert (answer.code, "has acknowledged messages up to 10000" in (answer.remark or "")) == (1, True)
    assert identities(group) == {1, 2, 3}
