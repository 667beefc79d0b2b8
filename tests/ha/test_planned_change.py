"""A master of a group that names the next one."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.ha.etcd import EtcdError
from tests.ha.test_election import World, group


def handing_over(world: World, to: int, committed: int = 0) -> list[Any]:
    told: list[Any] = []
    Deferred.fromCoroutine(world.members[1].hand_over(to, committed)).addBoth(told.append)
    return told


def test_a_master_names_the_next_one_and_nobody_is_between() -> None:
    world = group(1, 2, 3)
    told = handing_over(world, 2, 700)
    world.turn(0.3)
    assert told == [True]
    assert world.masters == [2]
    state = world.state()
    assert (state["epoch"], state["master"], state["committed"], state["switched"]) == (2, 2, 700, 2)
    assert state["in_sync"] == [1, 2, 3]
    world.turn(1)
    assert [world.members[number].role.is_switched for number in (1, 2, 3)] == [True] * 3
    world.turn(10)
    assert world.masters == [2]


@pytest.mark.parametrize(("to", "says"), [(4, "is not running"), (3, "is not in sync")])
def test_a_broker_that_may_lack_something_is_not_named(to: int, says: str) -> None:
    world = group(1, 2, 3, in_sync={1, 2})
    told = handing_over(world, to)
    world.turn(1)
    assert says in str(told[0].value)
    assert (world.masters, world.state()["epoch"]) == ([1], 1)


def test_while_the_answer_about_the_next_master_is_on_its_way_the_former_one_is_none() -> None:
    world = group(1, 2, 3)
    told = handing_over(world, 2)
    while world.state()["epoch"] == 1:
        world.etcd.clock.advance(0.001)
        world.clocks[1].advance(0)
    world.clients[1]._passes = lambda way: way == "out"
    for _ in range(60):
        world.turn(0.05)
        assert world.masters in ([], [2])
    world.clients[1]._passes = lambda way: True
    world.turn(10)
    assert told
    assert world.masters == [2]


def test_a_late_request_for_another_master_does_nothing_once_the_former_one_goes_on() -> None:
    world = group(1, 2, 3)
    late = iter([9.0] * 3)
    world.clients[1].delays_of = lambda what: (next(late, 0.005) if what == "txn" else 0.005, 0.005)
    told = handing_over(world, 2)
    for _ in range(120):
        world.turn(0.05)
        assert world.masters in ([], [1])
    assert isinstance(told[0].value, EtcdError)
    assert world.masters == [1]
    world.turn(10)
    assert (world.masters, world.state()["epoch"]) == ([1], 1)
