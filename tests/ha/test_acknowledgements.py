"""Sends that wait for a slave: who confirms them, who cannot, and when they give up."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqbroker.ha.acknowledgements import Acknowledgements, CountQuorum, SlaveNotAvailable, SlaveTimedOut
from mqbroker.ha.link import MasterLink
from mqbroker.ha.master import Slaves


@attrs.define
class Connection:
    link: MasterLink
    counts: bool = True

    def confirms(self, begin: int, end: int) -> bool:
        return self.link.confirms(begin, end)


class World:
    """Slaves whose reports a test makes, and the results of sends by the end of their messages."""

    def __init__(self, count: int = 1) -> None:
        self.clock = Clock()
        self.slaves = Slaves(cast(Any, None))
        self.acknowledgements = Acknowledgements(self.slaves, CountQuorum(self.slaves, 1000, count), self.clock, 5.0)
        self.results: dict[int, Any] = {}

    def connect(self, acknowledged: int) -> MasterLink:
        link = MasterLink(1 << 20, 1 << 20)
        self.slaves.links.append(Connection(link))  # type: ignore[arg-type]
        link.start = acknowledged
        self.report(link, acknowledged)
        return link

    def report(self, link: MasterLink, acknowledged: int) -> None:
        link.sent = link.acknowledged = acknowledged
        self.slaves.notify()

    def send(self, end: int, size: int = 10) -> Deferred[None]:
        sent = self.acknowledgements.replicated(end - size, end)
        sent.addCallbacks(lambda _: "ok", lambda failure: failure.type).addCallback(
            lambda result: self.results.__setitem__(end, result)
        )
        return sent


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_slave_that_has_the_message_confirms_it(world: World) -> None:
    near, far = world.connect(100), world.connect(50)
    for end in (200, 300):
        world.send(end)
    world.report(far, 150)
    assert world.results == {}
    world.report(near, 299)
    assert world.results == {200: "ok"}
    world.report(far, 400)
    assert world.results == {200: "ok", 300: "ok"}
    world.send(400)
    assert world.results[400] == "ok"


def test_a_slave_that_connects_confirms_nothing_that_was_not_sent_to_it(world: World) -> None:
    """It says that it has the log up to there, and may have another."""
    world.connect(0)
    for end in (100, 110, 120):
        world.send(end)
    newcomer = world.connect(105)
    assert world.results == {}
    world.report(newcomer, 120)
    assert world.results == {120: "ok"}
    world.clock.advance(5)
    assert world.results == {120: "ok", 100: SlaveTimedOut, 110: SlaveTimedOut}


def test_as_many_slaves_as_wanted_must_have_the_message() -> None:
    world = World(2)
    one = world.connect(50)
    world.send(100)
    assert world.results == {100: SlaveNotAvailable}
    other = world.connect(50)
    world.send(110)
    world.report(one, 110)
    assert 110 not in world.results
    world.report(other, 110)
    assert world.results[110] == "ok"
    world.send(120)
    world.report(one, 120)
    world.slaves.links.pop()
    newcomer = world.connect(130)
    world.report(newcomer, 140)
    assert 120 not in world.results


def test_without_a_slave_nobody_waits(world: World) -> None:
    world.send(100)
    assert world.results == {100: SlaveNotAvailable}
    assert not world.clock.getDelayedCalls()


def test_a_link_without_a_report_is_no_slave(world: World) -> None:
    world.slaves.links.append(Connection(MasterLink(1 << 20, 1 << 20)))  # type: ignore[arg-type]
    world.send(100)
    assert world.results == {100: SlaveNotAvailable}


@pytest.mark.parametrize(("end", "result"), [(1099, None), (1100, SlaveNotAvailable)])
def test_a_slave_that_is_too_far_behind_is_not_waited_for(world: World, end: int, result: Any) -> None:
    world.connect(100)
    world.send(end)
    assert world.results.get(end) is result


def test_each_send_gives_up_after_its_own_time(world: World) -> None:
    link = world.connect(0)
    world.send(100)
    world.clock.advance(2)
    world.send(200)
    world.clock.advance(3)
    assert world.results == {100: SlaveTimedOut}
    world.clock.advance(1.9)
    world.report(link, 200)
    assert world.results == {100: SlaveTimedOut, 200: "ok"}
    world.clock.advance(10)
    assert not world.clock.getDelayedCalls()


def test_a_slave_that_leaves_may_come_back_in_time(world: World) -> None:
    world.connect(0)
    world.send(100)
    world.slaves.links.clear()
    world.slaves.notify()
    world.clock.advance(4)
    world.report(world.connect(90), 100)
    assert world.results == {100: "ok"}


def test_a_stop_ends_the_waiting(world: World) -> None:
    world.connect(0)
    world.send(100)
    world.acknowledgements.stop()
    assert world.results == {100: SlaveTimedOut}
    assert not world.clock.getDelayedCalls()
