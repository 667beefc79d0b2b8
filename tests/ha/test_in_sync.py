"""The in-sync set: who is waited for, and when a replica is taken in or out."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.client.options import ProducerOptions
from mqbroker.ha.etcd import EtcdError
from mqbroker.ha.in_sync import GONE_SECONDS, LOOK_SECONDS, InSyncSet, InSyncSettings
from mqbroker.ha.link import Greeting
from tests.broker.bench import make_settings


class Link:
    def __init__(self) -> None:
        self.acknowledged = 1000
        self.greeting = Greeting(b"12345678", 1, 1)


class Connection:
    """A replica's link; `caught_up_at` as `SlaveConnection` has it."""

    def __init__(self) -> None:
        self.link = Link()
        self.caught_up_at = -1.0
        self.is_whole = True


class Log:
    end = 0


class Slaves:
    def __init__(self) -> None:
        self.log = Log()
        self.links: dict[int, Connection] = {}
        self.on_acknowledged: list[Any] = []

    def replicas(self) -> dict[int, Connection]:
        return self.links

    def notify(self) -> None:
        for listener in self.on_acknowledged:
            listener()


class World:
    """A master with the id 1 at an epoch that began at 1000."""

    def __init__(self, members: set[int], **settings: Any) -> None:
        self.clock, self.slaves = Clock(), Slaves()
        self.clock.advance(100)
        self.slaves.log.end = 1000
        self.is_master = True
        self.proposals: list[tuple[set[int], Deferred[bool]]] = []
        limits = {"min_replicas": 2, "replicas_max": 3, "lag_s": 3.0, **settings}
        self.set = InSyncSet(
            self.slaves,  # type: ignore[arg-type]
            self.clock,
            self.clock.seconds,
            InSyncSettings(**limits),
            1,
            frozenset(members),
            1000,
            lambda: self.is_master,
            self.propose,
        )
        self.set.start()

    async def propose(self, members: frozenset[int], committed: int) -> bool:
        self.proposed_committed = committed
        answer: Deferred[bool] = Deferred()
        self.proposals.append((set(members), answer))
        return await answer

    def connect(self, replica: int) -> None:
        self.slaves.links[replica] = Connection()

    def acknowledge(self, replica: int, offset: int) -> None:
        connection = self.slaves.links[replica]
        connection.link.acknowledged = offset
        connection.caught_up_at = self.clock.seconds()
        self.slaves.notify()

    def turn(self, seconds: float = LOOK_SECONDS) -> None:
        while seconds > 0:
            self.clock.advance(LOOK_SECONDS)
            seconds -= LOOK_SECONDS


def test_all_members_must_have_it() -> None:
    world = World({1, 2, 3})
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    assert world.set.reached() == 1000
    assert not world.set.confirm(1000, 1100)
    world.acknowledge(3, 1100)
    assert world.set.confirm(1000, 1100)
    assert not world.set.confirm(1000, 1101)


def test_a_suspended_replica_keeps_no_send_waiting_until_clients_give_up() -> None:
    """By default, and with half a second for etcd and the way."""
    lag_s = make_settings("store").ha_max_time_slave_not_catchup_ms / 1000
    world = World({1, 2, 3}, lag_s=lag_s)
    for replica in (2, 3):
        world.connect(replica)
        world.acknowledge(replica, 1000)
    world.slaves.log.end = 1100
    waited = 0.0
    while not world.proposals:
        world.turn()
        world.acknowledge(2, 1100)
        waited += LOOK_SECONDS
    assert [members for members, _ in world.proposals] == [{1, 2}]
    assert waited + 0.5 <= ProducerOptions().send_timeout_s
    world.proposals[0][1].callback(True)
    assert world.set.confirm(1000, 1100)


def test_too_few_members_confirm_nothing() -> None:
    world = World({1})
    world.slaves.log.end = 1100
    assert (world.set.reached(), world.set.is_near(1100)) == (-1, False)
    alone = World({1}, min_replicas=1)
    alone.slaves.log.end = 1100
    assert alone.set.confirm(1000, 1100)


def test_without_the_lease_nothing_is_confirmed_and_then_what_waited() -> None:
    world = World({1, 2})
    world.connect(2)
    world.slaves.log.end = 1100
    world.is_master = False
    world.acknowledge(2, 1100)
    assert not world.set.confirm(1000, 1100)
    assert world.set.is_near(1100)  # it may come back
    world.turn()
    told: list[int] = []
    world.slaves.on_acknowledged.append(lambda: told.append(world.set.reached()))
    world.is_master = True
    world.turn()
    assert told == [1100]


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_member_that_does_not_follow_is_taken_out_before_it_counts_no_more(is_connected: bool) -> None:
    world = World({1, 2, 3})
    world.connect(2)
    if is_connected:
        world.connect(3)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    world.turn(2 if is_connected else GONE_SECONDS - LOOK_SECONDS)
    assert not world.proposals
    world.acknowledge(2, 1100)
    world.turn(1.5)
    [(wanted, answer)] = world.proposals
    assert wanted == {1, 2}
    assert not world.set.confirm(1000, 1100)  # etcd has it still
    answer.callback(True)
    assert world.set.confirm(1000, 1100)
    assert world.set.members == {1, 2}


def test_a_replica_is_taken_in_once_it_has_what_was_acknowledged() -> None:
    world = World({1, 2})
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.log.end = 2000
    world.acknowledge(2, 2000)
    world.acknowledge(3, 1500)
    world.turn()
    assert not world.proposals
    # It counts already, so that what it must have stays where it is.
    world.slaves.log.end = 2500
    world.acknowledge(2, 2500)
    assert world.set.reached() == 1500
    world.acknowledge(3, 2000)
    world.turn()
    [(wanted, _)] = world.proposals
    assert wanted == {1, 2, 3}


def test_a_proposal_whose_outcome_is_unknown_counts_until_etcd_says() -> None:
    world = World({1, 2})
    for replica in (2, 3):
        world.connect(replica)
        world.acknowledge(replica, 1000)
    world.turn()
    [(_, answer)] = world.proposals
    answer.errback(EtcdError("no answer"))
    del world.slaves.links[3]
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    world.turn()
    assert not world.set.confirm(1000, 1100)  # 3 may be in etcd's set, and be elected
    world.set.stands(frozenset({1, 2}))
    world.acknowledge(2, 1100)
    world.turn(2)
    assert world.set.confirm(1000, 1100)


def test_not_more_than_the_replication_factor() -> None:
    world = World({1, 2}, replicas_max=2)
    for replica in (2, 3):
        world.connect(replica)
        world.acknowledge(replica, 1000)
    world.turn()
    assert not world.proposals
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    assert world.set.confirm(1000, 1100)


def test_fewer_than_the_minimum_are_never_in_sync_once_there_were_as_many() -> None:
    world = World({1, 2, 3})
    for replica in (2, 3):
        world.connect(replica)
        world.acknowledge(replica, 1000)
    world.turn(0.5)
    del world.slaves.links[2]
    world.turn(0.5)
    del world.slaves.links[3]
    world.turn(4)
    wanted, answer = world.proposals[-1]
    assert wanted == {1, 3}  # which was the last to go
    answer.callback(True)
    world.turn(4)
    assert world.set.members == {1, 3}
    world.slaves.log.end = 1100
    assert (world.set.reached(), world.set.is_near(1100)) == (1000, False)
    world.connect(2)  # which may take the place of the other one
    world.acknowledge(2, 1100)
    world.turn()
    assert world.proposals[-1][0] == {1, 2}


def test_no_proposal_after_the_stop_or_without_the_lease() -> None:
    world = World({1, 2}, min_replicas=1)
    world.is_master = False
    world.turn(5)
    assert not world.proposals
    world.is_master = True
    world.turn()
    [(_, answer)] = world.proposals
    world.set.stop()
    assert answer.called
    world.turn(5)
    assert len(world.proposals) == 1


def committing(members: set[int], **changes: Any) -> tuple[World, list[int]]:
    world = World(members, **changes)
    told: list[int] = []
    world.set.on_committed = told.append
    return world, told


def test_at_the_beginning_of_an_epoch_nothing_is_committed_that_a_member_has_not_reported() -> None:
    """The log of the new master may end with what the others never had."""
    world, told = committing({1, 2, 3})
    for replica, has in ((2, 950), (3, 900)):
        world.connect(replica)
        world.acknowledge(replica, has)
    assert told == [900]
    assert world.set.committed == 900
    world.acknowledge(3, 1000)
    assert told == [900, 950]


def test_what_is_committed_never_goes_back_and_needs_the_lease() -> None:
    world, told = committing({1, 2})
    world.connect(2)
    world.slaves.log.end = 1200
    world.acknowledge(2, 1100)
    world.slaves.links[2].link.acknowledged = 1050
    world.slaves.notify()
    world.is_master = False
    world.acknowledge(2, 1200)
    assert told == [1100]


def test_what_is_committed_is_on_this_brokers_disk_where_that_is_promised() -> None:
    world, told = committing({1, 2})
    world.set.durable = lambda: 1040
    world.connect(2)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    assert told == [1040]
    assert world.set.confirmed == 1100
    world.set.durable = lambda: 1100
    world.turn()
    assert told == [1040, 1100]


def test_the_commit_point_goes_to_etcd_with_the_set() -> None:
    world, _ = committing({1, 2, 3})
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    world.acknowledge(3, 1100)
    del world.slaves.links[3]
    world.turn(GONE_SECONDS + 1)
    assert world.proposals[0][0] == {1, 2}
    assert world.proposed_committed == 1100


def test_a_replica_whose_store_is_not_whole_is_taken_out_and_not_in() -> None:
    world = World({1, 2})
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.links[2].is_whole = False
    world.acknowledge(2, 10)
    world.acknowledge(3, 1000)
    world.turn()
    assert world.proposals[0][0] == {1, 3}
    world = World({1, 3})
    for replica in (2, 3):
        world.connect(replica)
        world.acknowledge(replica, 1000)
    world.slaves.links[2].is_whole = False
    world.acknowledge(2, 1000)
    world.turn(2)
    assert not [members for members, _ in world.proposals if 2 in members]


def test_the_minimum_is_filled_by_the_one_that_has_more_not_by_the_one_that_was_seen_last() -> None:
    world = World({1, 2, 3})
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    world.acknowledge(3, 1000)
    world.slaves.links.clear()
    world.set._seen_at[3] += 0.1
    world.turn(GONE_SECONDS + 1)
    assert world.proposals[-1][0] == {1, 2}
