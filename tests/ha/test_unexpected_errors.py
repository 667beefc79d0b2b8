"""What no code expects, such as a lack of memory, ends neither elections, nor replication, nor the in-sync set:
it is logged with its traceback, and tried again."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from mqbroker.ha.master import HaSettings, MasterService, Slaves
from mqbroker.ha.slave import RETRY_SECONDS
from tests.ha import test_election, test_in_sync, test_master, test_slave
from tests.remoting.logs import Logged


def out_of_memory(*_: object) -> Any:
    raise MemoryError


def memory_errors(logged: Logged) -> int:
    return [failure.type for failure in logged.failures].count(MemoryError)


@pytest.mark.parametrize("name", ["_take_state", "_read_members", "_found"])
def test_a_member_that_meets_an_error_follows_the_group_again(
    monkeypatch: pytest.MonkeyPatch, logged: Logged, name: str
) -> None:
    world = test_election.World()
    member = world.join(1)
    for number in (1, 2):  # the second time is as the first
        monkeypatch.setattr(member, name, out_of_memory)
        world.turn(5)
        if name != "_found" or number == 1:
            assert memory_errors(logged) == number, "once, not at each attempt"
            assert member.why_not == "unexpected error (trying again): MemoryError"
        monkeypatch.undo()
        world.turn(2)
        assert member.is_master
        assert member.why_not == ""


def test_a_role_that_the_broker_could_not_take_is_told_again(monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    world = test_election.World()
    member = world.join(1)
    monkeypatch.setattr(member, "_on_role", out_of_memory)
    world.turn(3)
    assert world.roles[1] == []
    assert memory_errors(logged) == 1
    monkeypatch.undo()
    world.turn(4)
    assert [role.is_master for role in world.roles[1]] == [True]


def test_a_slave_that_meets_an_error_connects_again(monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    world = test_slave.World()
    for number in (1, 2):
        connection, _ = world.accept()
        monkeypatch.setattr(world.service, "_say", out_of_memory)
        world.lose(connection)
        assert memory_errors(logged) == number
        monkeypatch.undo()
        attempts = len(world.attempts)
        world.wait(RETRY_SECONDS[-1])
        assert len(world.attempts) == attempts + 1


def test_a_comparison_that_cannot_be_cancelled_does_not_end_replication(
    monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    world = test_slave.World()
    connection, _ = world.accept()
    monkeypatch.setattr(connection._beginning, "cancel", out_of_memory)
    with pytest.raises(MemoryError):
        world.lose(connection)
    attempts = len(world.attempts)
    world.wait(RETRY_SECONDS[0])
    assert len(world.attempts) == attempts + 1


def test_a_proposal_that_fails_at_once_is_followed_by_another(monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    world = test_in_sync.World({1, 2, 3})
    world.set._propose = out_of_memory
    for replica in (2, 3):
        world.connect(replica)
    world.slaves.log.end = 1100
    world.acknowledge(2, 1100)
    for _ in range(40):
        world.turn()
        world.acknowledge(2, 1100)
    assert memory_errors(logged) > 0
    world.set._propose = world.propose
    world.turn()
    assert [members for members, _ in world.proposals] == [{1, 2}]


def test_a_link_that_fails_does_not_keep_the_others_from_the_log(
    monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    reactor, source = MemoryReactorClock(), test_master.Log(b"")
    service = MasterService(reactor, Slaves(source), HaSettings(listen_port=10912))
    service.startService()
    links = []
    for _ in range(2):
        connection = service.factory.buildProtocol(None)
        assert connection is not None
        links.append((connection, test_master.Transport()))
        connection.makeConnection(links[-1][1])
        connection.dataReceived(test_master.REPORT.pack(0))
        links[-1][1].clear()
    failing, (_, other) = links[0][0], links[1]
    for owner, name in ((failing.link, "next_piece"), (failing, "_note_progress")):
        failing._is_closed = False
        monkeypatch.setattr(owner, name, out_of_memory)
        before = memory_errors(logged)
        source.grow(b"more")
        reactor.advance(1)
        assert b"more" in other.value()
        other.clear()
        assert failing.is_closed
        assert memory_errors(logged) > before
        monkeypatch.undo()
