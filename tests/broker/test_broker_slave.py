"""When a slave fetches its master's tables: each time that it must, however often that was before."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqbroker.broker.broker_slave import FETCH_SECONDS, FETCH_SOON_SECONDS, BrokerSlave
from mqbroker.errors import Refused
from mqbroker.ha.slave import MasterStatus
from tests.remoting.logs import Logged

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


@attrs.define
class Comparison:
    master_addr: str = A


class Service:
    """Follows whom it is told, and knows nothing else."""

    master_end: int | None = None
    status = MasterStatus("", 0, None, "")

    def follow(self, address: str, *, at_once: bool = False) -> None:
        """It is at another address now."""

    def startService(self) -> None:
        """It runs."""

    def stopService(self) -> Deferred[None]:
        return succeed(None)


class Tables:
    """`fetches`: from whom tables are being fetched, with what a test answers."""

    def __init__(self) -> None:
        self.fetches: list[tuple[str, Deferred[int | None]]] = []

    async def fetch(self, address: str) -> int | None:
        self.fetches.append((address, Deferred()))
        return await self.fetches[-1][1]

    def look(self) -> None:
        """Nothing waits."""


class World:
    def __init__(self) -> None:
        self.clock, self.service, self.tables = Clock(), Service(), Tables()
        self.topics = dict[str, object]()
        #: When name servers were asked for the master.
        self.asked: list[float] = []
        ask = lambda: self.asked.append(self.clock.seconds())  # noqa: E731
        parts = self.service, Comparison(), self.tables, self.topics, "", ask
        self.slave = BrokerSlave(self.clock, *cast(Any, parts))
        self.slave.start()

    def arrived(self, topic: str) -> None:
        """A new message of a topic has come."""
        self.slave.arrived(topic)

    def answer(self, end: int = 0) -> None:
        self.tables.fetches[-1][1].callback(end)


@pytest.fixture
def world() -> World:
    return World()


def test_a_topic_that_comes_while_tables_are_fetched_is_fetched_soon_after_them(world: World) -> None:
    for number in range(1, 4):
        world.clock.advance(FETCH_SECONDS - world.clock.seconds() % FETCH_SECONDS)
        count = len(world.tables.fetches)
        assert not world.tables.fetches[-1][1].called
        world.arrived(f"new{number}")
        world.clock.advance(FETCH_SOON_SECONDS)
        assert len(world.tables.fetches) == count
        world.answer()  # as the tables were before the topic
        world.clock.advance(FETCH_SOON_SECONDS)
        assert len(world.tables.fetches) == count + 1
        world.answer()


def test_a_topic_is_fetched_soon_each_time_that_it_is_new(world: World) -> None:
    for number in range(1, 4):
        world.topics.pop("T", None)
        world.arrived("T")
        world.arrived("T")
        world.clock.advance(FETCH_SOON_SECONDS)
        assert len(world.tables.fetches) == number
        world.topics["T"] = object()
        world.answer()
        world.arrived("T")


def test_a_topic_that_the_master_does_not_have_either_is_fetched_soon_once(world: World) -> None:
    for _ in range(3):
        world.arrived("gone")
        world.clock.advance(FETCH_SOON_SECONDS)
        for _, fetch in world.tables.fetches:
            if not fetch.called:
                fetch.callback(0)
    assert len(world.tables.fetches) == 1


def test_tables_of_a_former_master_are_not_waited_for(world: World) -> None:
    world.clock.advance(FETCH_SECONDS)
    for master in (B, A, B):
        former = world.tables.fetches[-1][1]
        world.slave.on_master("", master, is_elected=True)
        address, fetch = world.tables.fetches[-1]
        assert (address, fetch is former) == (master, False)
        assert world.service.master_end is None
    world.answer(7)
    assert world.service.master_end == 7


def test_each_master_that_is_lost_is_looked_for_soon_at_first(world: World) -> None:
    for _ in range(3):
        world.service.status = MasterStatus("", 0, None, "no connection")
        began = world.clock.seconds()
        world.asked.clear()
        for _ in range(40):
            world.clock.advance(1)
        assert [at - began for at in world.asked] == [1, 2, 4, 8, 16, 26, 36]
        world.service.status = MasterStatus("", 0, None, "")
        world.clock.advance(1)


def fail(world: World, count: int) -> None:
    for _ in range(count):
        world.clock.advance(FETCH_SECONDS)
        world.tables.fetches[-1][1].errback(Refused(1, "java.util.NoSuchElementException"))


def test_tables_that_cannot_be_fetched_are_reported_once_unless_their_master_has_just_started_or_is_away(
    world: World, logged: Logged
) -> None:
    world.slave.start()
    fail(world, 1)
    world.clock.advance(FETCH_SECONDS)
    world.tables.fetches[-1][1].callback(0)
    assert logged.lines == []
    world.service.status = MasterStatus("", 0, None, "no connection")
    fail(world, 3)
    assert logged.lines == []
    world.service.status = MasterStatus("", 0, None, "")
    fail(world, 3)
    [line] = logged.lines
    assert line.endswith("cannot be fetched: CODE: 1  DESC: java.util.NoSuchElementException")
    world.clock.advance(FETCH_SECONDS)
    world.tables.fetches[-1][1].callback(0)
    assert logged.lines[1:] == [f"the tables of master {A} are fetched again"]
