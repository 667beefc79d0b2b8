"""Leases, links and waits that end and begin again and again: each time is as the first one."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock

from mqbroker.ha.acknowledgements import SlaveTimedOut
from mqbroker.ha.election import UNCLEAN_SECONDS
from mqbroker.ha.link import HEADER, REPORT
from mqbroker.ha.master import COMMITTED_SECONDS, HaSettings, MasterService, SlaveConnection, Slaves
from tests.ha.test_acknowledgements import World as Waits
from tests.ha.test_election import World, group, who
from tests.ha.test_master import Log, Transport

ROUNDS = range(1, 4)


# Leases


@pytest.mark.parametrize("way", ["suspended", "cut off"])
def test_a_lease_is_lost_and_won_again_and_again(way: str) -> None:
    world = group(1, 2, 3)
    master = 1
    for number in ROUNDS:
        if way == "suspended":
            world.frozen.add(master)
        else:
            passes, world.clients[master]._passes = world.clients[master]._passes, lambda _: False
        while not (elected := [each for each in world.masters if each != master]):
            world.turn(0.05)
        if way == "suspended":
            world.frozen.discard(master)
        assert world.members[master].role.is_master or way == "cut off"
        assert not world.members[master].is_master
        if way == "cut off":
            world.clients[master]._passes = passes
        world.turn(5)
        assert world.masters == elected
        assert who(world.roles[master][-1])[0] == elected[0]
        assert [member.why_not for member in world.members.values()] == ["", "", ""]
        assert world.state()["epoch"] == number + 1
        proposed = Deferred.fromCoroutine(world.members[elected[0]].propose(frozenset([1, 2, 3])))
        world.turn(1)
        assert proposed.result is True
        [master] = elected


def test_an_etcd_that_is_away_again_ends_the_master_again_and_it_comes_back() -> None:
    world = group(1, 2)
    for _ in ROUNDS:
        [master] = world.masters
        world.etcd.is_down = True
        world.turn(2)
        assert world.masters == [master], "its lease stands"
        world.turn(3)
        assert world.masters == []
        assert all(member.why_not for member in world.members.values())
        world.etcd.is_down = False
        world.turn(8)
        assert len(world.masters) == 1
        assert [member.why_not for member in world.members.values()] == ["", ""]


def test_an_unclean_election_waits_all_its_time_after_each_loss_of_the_master() -> None:
    world = World()
    for replica_id in (1, 2):  # of which the second is not in sync
        world.join(replica_id, is_unclean_allowed=True)
        world.turn(1)
    passes = world.clients[1]._passes
    for number in ROUNDS:
        world.clients[1]._passes = lambda _: False
        world.turn(UNCLEAN_SECONDS - 5)
        assert world.masters == []
        world.clients[1]._passes = passes
        world.turn(10)
        assert world.masters == [1]
        assert (world.state()["in_sync"], world.state()["epoch"]) == ([1], 1 + number)
    world.lose(1)
    world.turn(UNCLEAN_SECONDS)
    assert world.masters == []
    world.turn(6)
    assert world.masters == [2]


# Senders that wait for slaves


def test_a_send_times_out_each_time_also_where_nobody_waited_in_between() -> None:
    world = Waits()
    link = world.connect(0)
    for number in ROUNDS:
        late, good = 100 * number, 100 * number + 50
        world.send(late)
        world.clock.advance(4.9)
        assert late not in world.results
        world.clock.advance(0.2)
        assert world.results[late] is SlaveTimedOut
        assert not world.clock.getDelayedCalls()
        world.report(link, late)
        world.send(good)
        world.clock.advance(4.9)
        world.report(link, good)
        assert world.results[good] == "ok"
        world.clock.advance(5)


# Links


class Link:
    """A master with one slave that is at the end of its log."""

    def __init__(self) -> None:
        self.reactor, self.source = MemoryReactorClock(), Log(bytes(10_000))
        self.slaves = Slaves(self.source)
        self.master = MasterService(self.reactor, self.slaves, HaSettings(listen_port=10912, piece_bytes_max=1000))
        self.master.startService()
        connection = self.master.factory.buildProtocol(IPv4Address("TCP", "10.0.0.2", 40000))
        assert isinstance(connection, SlaveConnection)
        self.connection, self.transport = connection, Transport()
        connection.makeConnection(self.transport)
        self.report()

    def report(self) -> None:
        self.connection.dataReceived(REPORT.pack(self.source.end))


def test_what_a_slave_lacks_is_read_from_the_disk_again_and_again() -> None:
    link = Link()
    for number in ROUNDS:
        before, new = link.source.end, bytes([number]) * 2500
        link.source.cold = before + len(new)
        link.source.grow(new)
        link.reactor.advance(1)
        reads = 0
        while link.source.reads:
            reads += 1
            [(waiting, offset, size)] = link.source.reads
            link.source.reads.clear()
            waiting.callback(link.source.data[offset : offset + size])
        assert reads >= 3, "one piece at a time"
        pieces = link.transport.received()
        assert pieces[0][0] == before
        assert b"".join(data for _, data in pieces) == new
        link.report()
        link.source.grow(b"in memory")
        link.reactor.advance(1)
        assert b"".join(data for _, data in link.transport.received()) == b"in memory"
        link.report()


def test_a_slave_that_stops_reading_again_is_sent_the_rest_when_it_reads_again() -> None:
    link = Link()
    for number in ROUNDS:
        link.connection.pauseProducing()
        link.source.grow(b"%d" % number)
        link.reactor.pump([1.0] * 10)
        assert link.transport.received() == []
        link.connection.resumeProducing()
        assert [data for _, data in link.transport.received()] == [b"%d" % number]
        link.report()


def test_a_silent_link_has_heartbeats_as_long_as_the_slave_reports() -> None:
    link = Link()
    for _ in ROUNDS:
        link.reactor.pump([1.0] * 4)
        assert link.transport.received() == []
        link.reactor.pump([1.0] * 2)
        assert [data for _, data in link.transport.received()] == [b""]
        link.reactor.pump([1.0] * 10)
        link.transport.received()
        link.report()
        link.source.grow(b"new")
        link.reactor.advance(0)
        assert [data for _, data in link.transport.received()] == [b"new"]
        link.report()
    link.reactor.pump([1.0] * 22)
    assert link.transport.disconnecting


def test_replicas_are_told_of_each_commit_point_though_nothing_is_appended() -> None:
    link = Link()
    link.connection.link.is_proven = True
    for number in ROUNDS:
        for committed in (1000 * number, 1000 * number + 1):
            link.slaves.committed = committed
            link.slaves.notify()
        assert link.transport.value() == b""
        link.reactor.advance(COMMITTED_SECONDS)
        told = link.transport.value()
        link.transport.clear()
        assert len(told) == HEADER.size + REPORT.size
        assert REPORT.unpack(told[HEADER.size :]) == (1000 * number + 1,)
        link.reactor.advance(COMMITTED_SECONDS)
        assert link.transport.value() == b""
