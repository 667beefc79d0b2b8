"""One broker's part in the election of its group's master, with etcd in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.ha.candidacy import Holdings
from mqbroker.ha.election import UNCLEAN_SECONDS, GroupMember, GroupSettings, Role
from mqbroker.ha.epochs import Epoch, EpochHistory
from mqbroker.ha.etcd import Compare, EtcdError, Put
from mqbroker.ha.group_keys import GroupError, GroupState, Identity, Member, Remainder
from mqbroker.ha.member_note import SeenInSync
from tests.ha.etcd_model import EtcdModel, ModelClient
from tests.remoting.logs import Logged

PREFIX = "/mqbroker/C/B/"
STATE = f"{PREFIX}state"
#: Of an epoch that a test makes.
LATER_LEASE = 99


class Store:
    """A store that has the epochs that its broker has seen, if it is not told another."""

    def __init__(self, replica_id: int, epoch: int) -> None:
        self.name, self.nonces = f"{replica_id:032x}", 0
        self.is_open, self.is_new, self.generation = True, False, 1
        self.holdings = Holdings(EpochHistory((Epoch(epoch, 0, 1),) if epoch else ()))
        self.lost: list[str] = []
        self.seen = SeenInSync()

    def note_seen(self, seen: SeenInSync) -> None:
        self.seen = seen

    @property
    def identity(self) -> Identity:
        return Identity(self.name, self.generation, self.holdings.committed, self.holdings.epoch)

    def begin(self) -> None:
        """Each has been counted."""

    def lose(self, why: str) -> None:
        self.lost.append(why)
        self.name = f"{int(self.name, 16) + 1000:032x}"
        self.has(why_not_whole=why, has_lost_power=False)

    def new_nonce(self) -> str:
        self.nonces += 1
        return f"{self.name} {self.nonces}"

    def has(self, **changes: Any) -> None:
        self.holdings = attrs.evolve(self.holdings, **changes)

    def is_lossy(self, epoch: int, end: int) -> None:
        """A power cut has left the log up to `end`, written last in `epoch`."""
        history = self.holdings.history
        if epoch > self.holdings.epoch:
            history = EpochHistory((*history.epochs, Epoch(epoch, 0, LATER_LEASE)))
        elif epoch < self.holdings.epoch:
            history = EpochHistory((Epoch(epoch, 0, 1), Epoch(self.holdings.epoch, end + 1, self.holdings.lease)))
        self.has(history=history, end=end, why_not_whole="its machine lost power", has_lost_power=True)

    def is_whole(self) -> None:
        self.has(why_not_whole="", has_lost_power=False)


class World:
    """Members of a group that only note which roles they get."""

    def __init__(self) -> None:
        self.etcd = EtcdModel(Random(1))
        self.members: dict[int, GroupMember] = {}
        self.roles: dict[int, list[Role]] = {}
        self.stores: dict[int, Store] = {}
        self.clients: dict[int, ModelClient] = {}
        self.clocks: dict[int, Clock] = {}
        self.now = 0.0
        self.frozen: set[int] = set()

    def join(self, replica_id: int, *, known_epoch: int = 0, place: int = 0, **settings: Any) -> GroupMember:
        """Add a member, found here under its id or another `place`."""
        place = place or replica_id
        clock = self.clocks[place] = Clock()
        etcd = self.clients[place] = ModelClient(self.etcd, clock, first=replica_id - 1)
        chosen = {"cluster": "C", "broker": "B", "replica_id": replica_id, "ttl_s": 3, **settings}
        roles = self.roles[place] = []
        if known_epoch or place not in self.stores:
            self.stores[place] = Store(replica_id, known_epoch)
        store = self.stores[place]

        def take(role: Role) -> None:
            roles.append(role)
            if role.epoch > store.holdings.epoch and (role.is_master or role.master is not None):
                store.is_whole()
                store.has(history=EpochHistory((*store.holdings.history.epochs, Epoch(role.epoch, 0, role.lease))))

        member = GroupMember(etcd, clock, lambda: self.now, GroupSettings(**chosen), store, take)
        member.join(f"10.0.0.{replica_id}:10911", f"10.0.0.{replica_id}:10912")
        self.members[place] = member
        return member

    def turn(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.etcd.clock.advance(0.05)
            self.etcd.look()
            for replica_id, clock in self.clocks.items():
                if replica_id not in self.frozen:
                    clock.advance(0.05)
            for _ in range(3):
                self.etcd.clock.advance(0)
                for replica_id, clock in self.clocks.items():
                    if replica_id not in self.frozen:
                        clock.advance(0)

    def lose(self, replica_id: int) -> None:
        """A member whose process has ended."""
        self.clients[replica_id]._passes = lambda way: False
        self.frozen.add(replica_id)

    @property
    def masters(self) -> list[int]:
        return [number for number, member in self.members.items() if member.is_master and number not in self.frozen]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.etcd.items[STATE].value)
        return found

    def wait_for_master(self, other_than: int = 0) -> int:
        for _ in range(200):
            if self.masters and self.masters != [other_than]:
                [master] = self.masters
                return master
            self.turn(0.05)
        raise AssertionError([member.why_not for member in self.members.values()])


def group(*replicas: int, in_sync: set[int] | None = None) -> World:
    """A group whose first replica is master of epoch 1."""
    world = World()
    for replica_id in replicas:
        world.join(replica_id)
        world.turn(1)
    assert world.masters == [replicas[0]]
    proposed = Deferred.fromCoroutine(world.members[replicas[0]].propose(frozenset(in_sync or replicas)))
    world.turn(1)
    assert proposed.result is True
    return world


def who(role: Role) -> tuple[int, str, str]:
    """The master that is to be followed."""
    assert role.master is not None
    return role.master.replica_id, role.master.address, role.master.ha_address


def test_the_first_is_master_and_the_others_follow_it() -> None:
    world = group(1, 2, 3)
    assert world.state() | {"lease": 0} == {
        "cluster": "C", "broker": "B", "epoch": 1, "master": 1, "lease": 0, "in_sync": [1, 2, 3], "committed": 0,
        "lowered": 0, "switched": 0, "unclean": 0, "version": 1,
    }  # fmt: skip
    assert who(world.roles[2][-1]) == (1, "10.0.0.1:10911", "10.0.0.1:10912")
    assert [member.why_not for member in world.members.values()] == ["", "", ""]


def test_another_is_elected_when_the_lease_has_expired_and_not_before() -> None:
    world = group(1, 2, 3)
    expires_at = world.etcd.leases[world.state()["lease"]].expires_at
    world.lose(1)
    began = world.now
    new = world.wait_for_master(1)
    assert world.etcd.clock.seconds() >= expires_at
    assert world.now - began <= 4.5
    assert new in (2, 3)
    state = world.state()
    assert (state["epoch"], state["master"], state["in_sync"]) == (2, new, [2, 3])


def test_only_one_of_those_in_sync_is_elected() -> None:
    world = group(1, 2, 3, in_sync={1, 3})
    world.lose(1)
    assert world.wait_for_master(1) == 3
    other = group(1, 2, 3, in_sync={1, 3})
    other.lose(1)
    other.lose(3)
    other.turn(60)
    assert not other.masters
    assert other.members[2].why_not == "there is no master, and this broker is not in sync: it waits for one of [1, 3]"


def lose_all(world: World, *replicas: int) -> None:
    """Their processes end, and their leases expire."""
    for replica_id in replicas:
        world.lose(replica_id)
    world.turn(4)


def again(world: World, replica_id: int, lossy: tuple[int, int] | None, **settings: Any) -> GroupMember:
    """A member that starts again; `lossy`: the epoch and the end of a log that may lack something."""
    world.frozen.discard(replica_id)
    if lossy is not None:
        world.stores[replica_id].is_lossy(*lossy)
    return world.join(replica_id, **settings)


def test_one_that_lost_power_waits_for_one_in_sync_that_did_not() -> None:
    world = group(1, 2, 3)
    lose_all(world, 1, 2, 3)
    first = again(world, 1, (1, 100))
    world.turn(30)
    assert not world.masters
    assert "lost power" in first.why_not
    assert "waits for all of [1, 2, 3], of which 2 has not reported what it has" in first.why_not
    again(world, 2, (1, 200))
    world.turn(30)
    assert not world.masters
    again(world, 3, None)
    assert world.wait_for_master() == 3


def test_of_those_that_all_lost_power_the_longest_log_of_the_newest_epoch_is_elected() -> None:
    world = group(1, 2, 3)
    world.etcd.put(STATE, json.dumps(world.state() | {"epoch": 2, "lease": LATER_LEASE}).encode())
    lose_all(world, 1, 2, 3)
    for replica_id, log in ((1, (1, 900)), (2, (2, 500)), (3, (2, 400))):
        again(world, replica_id, log)
        world.turn(3)
    assert world.wait_for_master() == 2
    assert any("remainder" in json.loads(value) for _, key, value in world.etcd.history if key.endswith("members/3"))


def test_of_equal_logs_that_all_lost_power_one_is_elected() -> None:
    world = group(1, 2, 3)
    lose_all(world, 1, 2, 3)
    for replica_id in (3, 2, 1):
        again(world, replica_id, (1, 100))
        world.turn(1)
    assert world.wait_for_master() == 1
    assert world.state()["in_sync"] == [1, 2, 3]


def test_what_one_said_of_its_log_before_it_followed_another_master_counts_no_more() -> None:
    world = group(1, 2, 3)
    lose_all(world, 1, 2, 3)
    again(world, 1, (1, 100))
    second = again(world, 2, (1, 200))
    world.turn(3)
    world.frozen.add(2)  # it would say that it follows another master
    world.etcd.leases[second._lease].expires_at = 1e9
    again(world, 3, (1, 300))
    assert world.wait_for_master() == 3
    assert world.state()["in_sync"] == [2, 3]
    lose_all(world, 3)
    third = again(world, 3, (1, 250))
    world.turn(10)
    assert not world.masters
    assert "waits for all of [2, 3], of which 2 has not reported what it has" in third.why_not
    world.frozen.discard(2)
    world.stores[2].is_whole()
    assert world.wait_for_master() == 2


def test_a_log_that_is_whole_again_may_be_elected() -> None:
    world = group(1, 2, 3)
    lose_all(world, 1, 2, 3)
    again(world, 1, (1, 100))
    world.turn(5)
    assert not world.masters
    world.stores[1].is_whole()
    assert world.wait_for_master() == 1


def test_with_unclean_election_one_that_lost_power_is_elected_after_a_while() -> None:
    world = group(1, 2, 3)
    lose_all(world, 1, 2, 3)
    again(world, 1, (1, 100), is_unclean_allowed=True)
    world.turn(UNCLEAN_SECONDS - 1)
    assert not world.masters
    world.turn(5)
    assert (world.masters, world.state()["in_sync"]) == ([1], [1])


def test_a_set_that_would_be_too_small_keeps_the_former_master() -> None:
    world = World()
    for replica_id in (1, 2):
        world.join(replica_id, min_in_sync=2)
        world.turn(1)
    Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 2])))
    world.turn(1)
    world.lose(1)
    assert world.wait_for_master(1) == 2
    assert world.state()["in_sync"] == [1, 2]


def test_unclean_election_waits_and_says_so() -> None:
    world = World()
    for replica_id in (1, 2):
        world.join(replica_id, is_unclean_allowed=True)
        world.turn(1)
    world.lose(1)
    world.turn(UNCLEAN_SECONDS)
    assert not world.masters
    world.turn(6)
    assert world.masters == [2]
    assert world.state()["in_sync"] == [2]


def test_a_master_without_its_lease_is_none_before_another_is_elected() -> None:
    world = group(1, 2, 3)
    world.clients[1]._passes = lambda way: False
    while not (elected := [number for number in world.masters if number != 1]):
        world.turn(0.05)
    assert not world.members[1].is_master
    assert elected
    world.clients[1]._passes = lambda way: True
    world.turn(3)
    assert who(world.roles[1][-1]) == (elected[0], f"10.0.0.{elected[0]}:10911", f"10.0.0.{elected[0]}:10912")


def test_one_that_was_suspended_is_no_master_when_it_goes_on() -> None:
    world = group(1, 2, 3)
    world.frozen.add(1)
    world.wait_for_master(1)
    world.frozen.discard(1)
    assert world.members[1].role.is_master  # it has not heard of it
    assert not world.members[1].is_master


def test_a_lease_that_was_lost_makes_no_master_of_the_next_one() -> None:
    world = group(1)
    world.etcd.revoke(world.state()["lease"])
    while world.members[1].role.is_master:
        assert world.state()["epoch"] == 1
        world.turn(0.05)
        if world.members[1]._lease != world.state()["lease"]:
            assert not world.members[1].is_master
    world.turn(3)
    assert world.state()["epoch"] == 2
    assert world.masters == [1]


def test_a_stop_gives_the_lease_back() -> None:
    world = group(1, 2)
    stopped = world.members[1].stopService()
    world.turn(1)
    assert stopped.called
    assert world.masters == [2]
    assert world.members[1].stopService().called  # once more


def test_two_of_one_id_do_not_both_take_part() -> None:
    world = group(1, 2)
    again = world.join(2, place=22)
    world.turn(10)
    assert "a broker at 10.0.0.2:10911 is running with brokerId=2" in again.why_not
    assert world.roles[22] == []
    assert world.members[2].why_not == ""
    world.lose(2)
    world.turn(6)
    assert again.why_not == ""  # it takes its place


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "does not hold the state of a group"),
        (b"\0" * 1_000_000, "does not hold the state of a group"),
        (b"[]", "does not hold the state"),
        (b"{}", "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":-1,"master":1,"lease":1,"in_sync":[1]}', "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":1e3,"master":1,"lease":1,"in_sync":[1]}', "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":1,"master":1,"lease":1,"in_sync":[]}', "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":1,"master":1,"lease":1,"in_sync":["1"]}', "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":9223372036854775808,"master":1,"lease":1,"in_sync":[1]}', "not hold"),
        (json.dumps({"epoch": 1, "master": 1, "lease": 1, "in_sync": list(range(1, 1000))}).encode(), "does not hold"),
        (json.dumps({"epoch": 1, "master": 1, "lease": 1, "in_sync": list(range(1, 66))}).encode(), "does not hold"),
        (b'{"cluster":"C","broker":"B","epoch":0,"master":1,"lease":1,"in_sync":[1]}', "does not hold the state"),
        (b'{"cluster":"C","broker":"B","epoch":1,"master":1,"lease":1,"in_sync":[1],"committed":-1}', "does not hold"),
        (b'{"cluster":"C","broker":"B","epoch":1,"master":1,"lease":1,"in_sync":[1],"lowered":2.5}', "does not hold"),
        (b'{"version":2,"cluster":"C","broker":"B"}', "of version 2, which a later mqbroker wrote"),
        (b'{"cluster":"C","broker":"Z","epoch":1,"master":1,"lease":1,"in_sync":[1]}', "is of C/Z"),
    ],
)
def test_what_others_wrote_under_our_keys_is_told_and_nothing_is_done(value: bytes, why: str) -> None:
    world = group(1, 2)
    good = world.etcd.items[STATE].value
    world.etcd.put(STATE, value)
    world.turn(20)
    for member in world.members.values():
        assert why in member.why_not
    assert world.etcd.items[STATE].value == value
    assert world.masters == [1]  # as before
    world.etcd.put(STATE, good)
    world.turn(2)
    assert [member.why_not for member in world.members.values()] == ["", ""]
    assert world.masters == [1]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "it is not a JSON object"),
        (b"{}", "an id or address is missing"),
        (b'{"replica_id":0,"address":"a:1","ha_address":"a:2"}', "an id or address is missing"),
        (b'{"replica_id":2,"address":"a:1","ha_address":"a:2"}', "it is of broker 2"),
        (b'{"replica_id":1,"address":"a:1","ha_address":"a:2","nonce":null}', "its nonce is not text"),
        (b'{"replica_id":1,"address":"a:1","ha_address":"a:2","committed":-1}', "not in whole numbers"),
        (b'{"replica_id":1,"address":"a:1","ha_address":"a:2","version":2}', "of version 2"),
    ],
)
def test_what_is_no_member_under_a_members_key_is_told_and_nothing_is_done(value: bytes, why: str) -> None:
    world = group(1, 2)
    item = world.etcd.items[f"{PREFIX}members/1"]
    world.etcd.items[f"{PREFIX}members/1"] = type(item)(value, item.created, item.modified, item.lease)
    world.turn(3)
    assert "members/1 in etcd does not hold a member of the group" in world.members[2].why_not
    assert why in world.members[2].why_not
    assert world.state()["epoch"] == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\0", "it is not a JSON object"),
        (b"{}", "the name of the store is missing"),
        (b'{"name":"%s"}' % (b"a" * 31), "the name of the store is missing"),
        (b'{"name":"%s","generation":-1}' % (b"a" * 32), "not in whole numbers"),
        (b'{"name":"%s","version":2}' % (b"a" * 32), "of version 2, which a later mqbroker wrote"),
    ],
)
def test_what_is_no_identity_is_told_and_no_store_counts_as_lost(value: bytes, why: str) -> None:
    world = group(1, 2)
    key = f"{PREFIX}identities/2"
    good, lost = world.etcd.items[key].value, list(world.stores[2].lost)
    world.etcd.put(key, value)
    world.turn(10)
    assert all(
        f"the key {key} in etcd does not hold the identity of a store" in each.why_not
        for each in world.members.values()
    )
    assert why in world.members[2].why_not
    assert world.stores[2].lost == lost
    world.etcd.put(key, good)
    world.turn(2)
    assert [member.why_not for member in world.members.values()] == ["", ""]
    assert world.masters == [1]


def test_a_group_whose_state_is_gone_is_not_founded_anew() -> None:
    world = group(1, 2)
    world.etcd.delete(STATE)
    world.turn(10)
    assert STATE not in world.etcd.items
    assert "is gone from etcd" in world.members[2].why_not
    late = world.join(3, known_epoch=1)
    world.turn(10)
    assert "etcd has nothing at" in late.why_not
    assert STATE not in world.etcd.items


def test_an_etcd_from_an_old_backup_elects_nobody_who_knows_better() -> None:
    world = group(1, 2)
    world.lose(1)
    world.stores[2].has(history=EpochHistory((Epoch(5, 0, 9),)))
    world.turn(20)
    assert not world.masters
    assert "restored from an older state" in world.members[2].why_not


def test_an_older_state_of_the_same_epoch_is_noticed_by_who_was_in_sync_later() -> None:
    world = group(1, 2, 3)
    world.lose(3)
    backup = world.etcd.backup()
    proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 2])))
    world.turn(1)
    assert proposed.result is True
    assert world.stores[2].seen.members == {1, 2}
    for number in (1, 2):
        world.lose(number)
    world.turn(6)
    world.etcd.restore(backup)
    world.turn(6)
    for number in (1, 2):
        world.frozen.discard(number)
        world.join(number)
    world.turn(10)
    assert world.masters == []
    for number in (1, 2):
        assert f"and this broker has seen {world.stores[2].seen.revision}: etcd was restored from an older state" in (
            world.members[number].why_not
        )
    assert world.state()["in_sync"] == [1, 2, 3]


def test_an_etcd_that_goes_back_while_the_group_runs_elects_nobody_until_it_is_restored() -> None:
    world = group(1, 2, 3)
    kept = [(key, item) for key, item in world.etcd.items.items()], world.etcd.revision
    for _ in range(3):
        world.members[1].wake()
        proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 2])))
        world.turn(1)
        assert proposed.result is True
        present = dict(world.etcd.items), world.etcd.revision
        world.etcd.items, world.etcd.revision = dict(kept[0]), kept[1]
        world.turn(1.5)
        assert all("restored from an older state" in member.why_not for member in world.members.values())
        assert world.state()["in_sync"] == [1, 2, 3], "whoever is elected by this may lack what was acknowledged"
        world.etcd.items, world.etcd.revision = present
        world.turn(3)
        assert [member.why_not for member in world.members.values()] == ["", "", ""]
        assert world.masters == [1]


def test_a_proposal_of_a_former_master_changes_nothing() -> None:
    world = group(1, 2)
    world.frozen.add(1)
    world.wait_for_master(1)
    before = world.etcd.items[STATE]
    world.frozen.discard(1)
    proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1])))
    world.turn(1)
    assert proposed.result is False
    assert world.etcd.items[STATE] == before


class ShortLeases(EtcdModel):
    """Grants leases that have expired when they are asked for."""

    ttl_s = 0

    def keep_alive(self, lease: int) -> int:
        super().keep_alive(lease)
        return self.ttl_s


class ForgetsMembers(EtcdModel):
    """Confirms what it does not store."""

    def _put(self, put: Put) -> None:
        if "/members/" not in put.key:
            super()._put(put)


class RefusesMembers(ShortLeases):
    def txn(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int | None:
        return None


class NegativeLeases(RefusesMembers):
    ttl_s = -1


@pytest.mark.parametrize("model", [ShortLeases, ForgetsMembers, RefusesMembers, NegativeLeases])
def test_an_etcd_whose_leases_do_not_last_is_asked_at_most_ten_times_a_second(model: type[EtcdModel]) -> None:
    world = World()
    world.etcd = model(Random(1))
    asked = dict.fromkeys(("grant", "read", "keep_alive", "txn"), 0)

    def counted(name: str) -> Any:
        ask = getattr(world.etcd, name)

        def call(*args: Any) -> Any:
            asked[name] += 1
            return ask(*args)

        return call

    for name in asked:
        setattr(world.etcd, name, counted(name))
    member = world.join(1)
    client = world.clients[1]
    client.out_s = 0.0
    for _ in range(7 * 200):
        world.now += 0.005
        world.etcd.clock.advance(0.005)
        world.clocks[1].advance(0.005)
    assert not member.is_master
    assert max(asked.values()) <= 2 * 7 * 10 + 20, asked
    assert asked["read"] >= 7


def test_etcd_that_is_away_is_told_once_and_comes_back() -> None:
    world = group(1, 2)
    world.etcd.is_down = True
    world.turn(2)
    assert world.masters == [1]  # its lease stands
    world.turn(3)
    assert world.masters == []
    assert world.members[1].role.is_master  # nobody else is
    world.etcd.is_down = False
    world.turn(5)
    assert len(world.masters) == 1


def test_a_proposal_that_etcd_does_not_answer_fails() -> None:
    world = group(1, 2)
    world.etcd.is_down = True
    proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1])))
    failed: list[Any] = []
    proposed.addErrback(failed.append)
    world.turn(2)
    assert failed[0].check(EtcdError)


def test_names_cannot_reach_another_groups_keys() -> None:
    other = GroupSettings(cluster="C/B", broker="../x", replica_id=1, ttl_s=3)
    assert other.prefix == "/mqbroker/C%2FB/..%2Fx/"


def test_states_and_members_are_read_as_written() -> None:
    state = GroupState("C", "B", 3, 1, 77, frozenset({3, 1}))
    assert GroupState.from_json(state.to_json()) == state
    member = Member(2, "10.0.0.2:1", "10.0.0.2:2")
    assert Member.from_json(member.to_json()) == member
    lossy = Member(2, "10.0.0.2:1", "10.0.0.2:2", Remainder(4, 3, 1000))
    assert Member.from_json(lossy.to_json()) == lossy
    for remainder in ("1", "{}", '{"of":1,"epoch":1}', '{"of":1,"epoch":1,"end":-1}', '{"of":"1","epoch":1,"end":1}'):
        with pytest.raises(GroupError):
            Member.from_json(b'{"replica_id":1,"address":"a","ha_address":"b","remainder":%s}' % remainder.encode())
    with pytest.raises(GroupError):
        Member.from_json(b"{")


# --- answers that overtake each other


def check_keys(world: World) -> None:
    """What holds at every moment, whatever arrives when."""
    assert len(world.masters) <= 1
    members = {key: item for key, item in world.etcd.items.items() if "/members/" in key}
    assert all(item.lease for item in members.values()), "the key of a member goes with its lease"


def epochs_of(world: World) -> dict[int, tuple[int, int]]:
    """The master of each epoch, and its lease, of which each has one."""
    found: dict[int, tuple[int, int]] = {}
    for _, key, value in world.etcd.history:
        if key == STATE:
            state = json.loads(value)
            who = state["master"], state["lease"]
            assert found.setdefault(state["epoch"], who) == who
    return found


def starve(world: World, replica_id: int) -> None:
    """Have a member's lease run out: its renewals do not arrive."""
    client = world.clients[replica_id]
    before = client.delays_of
    client.delays_of = lambda what: (100.0, 0.005) if what == "keep_alive" else before(what)


@pytest.mark.parametrize("slow", ["read", "txn", "grant", "keep_alive"])
@pytest.mark.parametrize("replica_id", [1, 2])
def test_a_lease_that_ends_while_an_answer_is_on_its_way_is_replaced(
    logged: Logged, slow: str, replica_id: int
) -> None:
    world = group(1, 2, 3)
    for offset in range(25):
        world.turn(3 + 0.05 * offset)
        lease = world.etcd.items[f"{PREFIX}members/{replica_id}"].lease
        starve(world, replica_id)
        while lease in world.etcd.leases:
            world.turn(0.05)
            check_keys(world)
        world.clients[replica_id].delays_of = lambda what: (0.005, 0.8 if what == slow else 0.005)
        for _ in range(100):
            world.turn(0.05)
            check_keys(world)
        assert world.etcd.items[f"{PREFIX}members/{replica_id}"].lease in world.etcd.leases
        assert world.masters
        assert [member.why_not for member in world.members.values()] == ["", "", ""]
    epochs_of(world)
    assert not [line for line in logged.lines if "is running with brokerId" in line], "nobody else has its id"


@pytest.mark.parametrize("what", ["grant", "keep_alive"])
def test_a_lease_counts_from_the_request_for_it_however_late_the_answer_is(what: str) -> None:
    world = group(1)
    client, member = world.clients[1], world.members[1]
    for _ in range(3):
        client.delays_of = lambda asked: (0.001, 0.9 if asked == what else 0.001)
        world.turn(5)
        if what == "grant":
            world.etcd.revoke(world.state()["lease"])
            while member.is_master:
                world.turn(0.05)
        while not member.is_master:
            world.turn(0.05)
            # A new one, too, before its first renewal.
            assert member._deadline <= max((held.expires_at for held in world.etcd.leases.values()), default=0.0)
        world.etcd.is_down = True  # nothing is renewed any more
        since = world.now
        while member.is_master:
            world.turn(0.05)
        assert world.etcd.clock.seconds() <= max(held.expires_at for held in world.etcd.leases.values()), since
        world.etcd.is_down = False
        client.be_even()
        world.turn(8)


def test_an_answer_about_a_former_lease_says_nothing_of_the_present_one(logged: Logged) -> None:
    """The renewal of the former one is asked last, and answered when there is a new one."""
    world = group(1, 2)
    client, member = world.clients[2], world.members[2]
    for _ in range(3):
        former = member._lease
        client.delays_of = lambda what: (0.001, 0.9 if what == "keep_alive" else 0.001)
        renewals = client.count["keep_alive"]
        world.etcd.revoke(former)
        while client.count["keep_alive"] == renewals:
            world.turn(0.05)
        member._lose_lease("as where the lease was asked for by another way")
        world.turn(0.2)
        present = member._lease
        assert present not in (0, former)
        world.turn(3)
        assert member._lease == present
        client.be_even()
        world.turn(3)


def test_a_state_that_is_read_before_a_proposal_and_comes_after_it_is_old() -> None:
    world = group(1, 2, 3)
    client, member = world.clients[1], world.members[1]
    told: list[frozenset[int]] = []
    member.on_in_sync = told.append
    for wanted in (frozenset([1]), frozenset([1, 2]), frozenset([1, 2, 3])):
        client.delays_of = lambda what: (0.001, 0.8 if what == "read" else 0.001)
        reads = client.count["read"]
        while client.count["read"] == reads:
            world.turn(0.05)
        proposed = Deferred.fromCoroutine(member.propose(wanted))
        world.turn(0.1)
        assert proposed.result is True
        world.turn(0.9)  # the answer to the read is here
        assert member._state is not None
        assert (member._state.in_sync, member.role.in_sync) == (wanted, wanted)
        client.be_even()
        world.turn(2)
        assert (member._state.in_sync, world.state()["in_sync"]) == (wanted, sorted(wanted))
    assert told == [], "each revision was known when it was read"


def befall(world: World, rng: Random, replica_id: int) -> None:
    """Let something happen to one of the members, or to etcd."""
    match rng.choice(["starve", "feed", "freeze", "thaw", "propose", "wake", "down", "up"]):
        case "starve":
            starve(world, replica_id)
        case "feed":
            world.clients[replica_id].be_uneven(rng, rng.choice([0.2, 0.9, 1.5]))
        case "freeze":
            world.frozen.add(replica_id)
        case "thaw":
            world.frozen.clear()
        case "propose":
            for master in world.masters:
                proposed = Deferred.fromCoroutine(world.members[master].propose(frozenset([master, replica_id])))
                proposed.addErrback(lambda failure: failure.trap(EtcdError))
        case "wake":
            world.members[replica_id].wake()
        case "down" | "up" as way:
            world.etcd.is_down = way == "down"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_overtakes_what_there_is_one_master_and_at_last_all_take_part(logged: Logged, seed: int) -> None:
    rng = Random(seed)
    world = group(1, 2, 3)
    for client in world.clients.values():
        client.be_uneven(rng, rng.choice([0.2, 0.9, 1.5]))
    for _ in range(12):
        replica_id = rng.choice([1, 2, 3])
        befall(world, rng, replica_id)
        for _ in range(round(rng.choice([0.1, 0.5, 2, 4]) / 0.05)):
            world.turn(0.05)
            check_keys(world)
    world.etcd.is_down = False
    world.frozen.clear()
    for client in world.clients.values():
        client.be_even()
    for _ in range(400):
        world.turn(0.05)
        check_keys(world)
    assert world.masters
    assert [member.why_not for member in world.members.values()] == ["", "", ""]
    epochs_of(world)
    assert not [line for line in logged.lines if "is running with brokerId" in line]
