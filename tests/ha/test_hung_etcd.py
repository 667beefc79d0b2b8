"""A group whose etcd hangs, in part or as a whole, or runs by another clock: what that costs."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.ha.election import TTL_MAX_SECONDS
from mqbroker.ha.etcd import Compare, EtcdError, Put
from tests.ha.etcd_model import MEMBERS, EtcdModel
from tests.ha.test_election import STATE, World, group


@pytest.mark.parametrize("hung", MEMBERS)
@pytest.mark.parametrize("offset_s", [0.0, 0.2, 0.45, 0.55, 0.8])
def test_one_hung_member_of_three_costs_no_election_and_no_moment_without_a_master(hung: str, offset_s: float) -> None:
    world = group(1, 2, 3)
    world.turn(offset_s)
    for _ in range(3):
        world.etcd.hang(hung)
        for _ in range(200):
            world.turn(0.05)
            assert world.masters == [1]
        world.etcd.go_on(hung)
        world.turn(1)
    assert world.state()["epoch"] == 1
    assert [member.why_not for member in world.members.values()] == ["", "", ""]


@pytest.mark.parametrize("hung", MEMBERS)
def test_the_in_sync_set_changes_while_a_member_hangs(hung: str) -> None:
    world = group(1, 2, 3)
    world.etcd.hang(hung)
    proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 2])))
    world.turn(0.45)
    assert proposed.result is True
    written = world.etcd.items[STATE]
    assert world.state()["in_sync"] == [1, 2]
    world.etcd.go_on(hung)  # it does now what it was asked
    world.turn(2)
    assert world.etcd.items[STATE] == written


def test_a_change_that_was_made_by_a_member_that_hung_before_it_said_so_is_known_to_be_made() -> None:
    world = group(1, 2, 3)
    client = world.clients[1]
    client.delays_of = lambda what: (0.001, 0.9)
    proposed = Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 3])))
    world.turn(0.1)
    assert world.state()["in_sync"] == [1, 3]
    world.etcd.hang("m1")
    client.be_even()
    world.turn(0.3)
    assert proposed.result is True
    revision = world.etcd.items[STATE].modified
    assert world.members[1]._state_revision == revision
    assert Deferred.fromCoroutine(world.members[1].propose(frozenset([1, 2, 3])))
    world.turn(0.3)
    assert world.state()["in_sync"] == [1, 2, 3]


def test_a_watch_leaves_a_member_that_hangs() -> None:
    world = group(1, 2, 3)
    world.turn(2)
    assert [list(client.watches.values()) for client in world.clients.values()] == [["m1"], ["m2"], ["m3"]]
    world.etcd.hang("m1")
    world.turn(3)
    assert [list(client.watches.values()) for client in world.clients.values()] == [["m2"], ["m2"], ["m3"]]
    world.etcd.go_on("m1")
    world.turn(12)
    assert list(world.clients[1].watches.values()) == ["m2"], "a watch stays where requests go to"


def test_a_member_that_hung_when_a_master_died_delays_the_election_by_less_than_a_second() -> None:
    for hung in MEMBERS:
        world = group(1, 2, 3)
        world.etcd.hang(hung)
        world.turn(0.1)
        world.lose(1)
        began = world.now
        world.wait_for_master(1)
        assert world.now - began <= 4.5


@pytest.mark.parametrize("offset_s", [0.0, 0.3, 0.6, 0.9])
def test_a_group_goes_on_soon_after_all_members_of_etcd_hung(offset_s: float) -> None:
    world = group(1, 2, 3)
    world.turn(offset_s)
    for hung in MEMBERS:
        world.etcd.hang(hung)
    world.turn(2.6)
    assert world.masters == []
    for hung in MEMBERS:
        world.etcd.go_on(hung)
    world.turn(0.5)  # its lease stands: etcd did not count it meanwhile, or only until then
    world.turn(1)
    assert len(world.masters) == 1


@pytest.mark.parametrize("rate", [0.92, 1.0, 1.08])
def test_a_master_is_none_before_its_lease_ends_by_a_clock_of_another_rate(rate: float) -> None:
    world = group(1, 2, 3)
    lease = world.state()["lease"]
    world.clients[1]._passes = lambda way: False
    moments = 0
    for _ in range(100):
        for clock in (world.etcd.clock, *world.clocks.values()):
            clock.advance(0.05 * (1.0 if clock is world.etcd.clock else rate))
        world.now += 0.05 * rate
        world.etcd.look()
        if world.members[1].is_master:
            assert lease in world.etcd.leases
            moments += 1
    assert moments * 0.05 > 1.5


class LongLeases(EtcdModel):
    """Says that leases last for years, whatever was asked for."""

    def grant(self, ttl_s: int) -> tuple[int, int]:
        lease, _ = super().grant(ttl_s)
        return lease, 2**62

    def keep_alive(self, lease: int) -> int:
        return 2**62 if super().keep_alive(lease) else 0


def test_a_lease_of_years_is_not_believed() -> None:
    world = World()
    world.etcd = LongLeases(Random(1))
    member = world.join(1)
    world.turn(2)
    assert member.is_master
    world.etcd.is_down = True
    world.turn(TTL_MAX_SECONDS)
    assert not member.is_master


def test_a_renewal_that_fails_is_followed_by_the_next_at_once() -> None:
    """Whatever else comes: those that were due meanwhile are not left out."""
    world = group(1)
    client = world.clients[1]
    begun: list[float] = []
    send = client._send

    def noted(member: str, what: str, act: Any) -> Any:
        if what == "keep_alive" and member == client.endpoints.current:
            begun.append(world.now)
        return send(member, what, act)

    client._send = noted
    world.turn(1)
    client.delays_of = lambda what: (0.005, 0.95 if what == "keep_alive" else 0.005)
    world.turn(10)
    assert all(later - earlier <= 1.05 for earlier, later in pairwise(begun[3:])), begun
    assert world.masters == [1]


def test_leases_are_asked_for_twice_a_second_at_most() -> None:
    world = group(1)
    client, asked = world.clients[1], world.clients[1].count["grant"]
    for _ in range(100):
        for lease in list(world.etcd.leases):
            world.etcd.revoke(lease)
        world.turn(0.1)
    assert 3 <= client.count["grant"] - asked <= 22


def test_leases_of_no_time_are_asked_for_twice_a_second_at_most() -> None:
    world = group(1)
    asked = []

    async def refused(ttl_s: int) -> tuple[int, int]:
        asked.append(world.now)
        raise EtcdError("etcd granted no lease")

    world.clients[1].grant = refused
    for lease in list(world.etcd.leases):
        world.etcd.revoke(lease)
    world.turn(10)
    assert len(asked) >= 10
    assert all(later - earlier >= 0.49 for earlier, later in pairwise(asked)), asked


def test_a_transaction_without_a_comparison_is_sent_to_one_member() -> None:
    world = World()
    world.join(1)
    client = world.clients[1]
    world.turn(4)
    before = client.count["txn"]
    world.etcd.hang("m1")
    asking = Deferred.fromCoroutine(client.txn([Compare("/a", 0)], [Put("/b", b"x")]))
    asking.addErrback(lambda _: "unknown")
    world.turn(1.2)
    assert asking.result == "unknown"
    assert client.count["txn"] - before == 1
