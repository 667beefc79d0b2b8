"""Telling the consumers of groups that these have changed: once for what changes together, and a few in each turn."""

from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.broker.client_registry import SECONDS_EACH, TURN_CONSUMERS, Notifications
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.bench import FakeConnection


class Told(FakeConnection):
    """Only counts."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.count = 0

    def invoke_oneway(self, command: RemotingCommand) -> None:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        self.count += 1


@pytest.fixture
def groups() -> dict[str, list[Any]]:
    return {"CG": [], "Other": []}


@pytest.fixture
def notifications(clock: Clock, groups: dict[str, list[Any]]) -> Notifications:
    return Notifications(clock, lambda name: groups.get(name, ()))


def consumers(count: int) -> list[Told]:
    return [Told(f"10.0.0.2:{n}") for n in range(count)]


def counts(connections: list[Told]) -> list[int]:
    return [connection.count for connection in connections]


def run(clock: Clock, seconds: int) -> None:
    for _ in range(round(seconds / SECONDS_EACH / 10)):
        clock.advance(SECONDS_EACH * 10)


def test_what_changes_before_they_are_told_is_told_once(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    groups["CG"] = consumers(3)
    for _ in range(1000):
        notifications.changed("CG")
    clock.advance(0)
    assert counts(groups["CG"]) == [1, 1, 1]
    run(clock, 1)
    assert counts(groups["CG"]) == [1, 1, 1]
    notifications.changed("CG")
    clock.advance(0)
    assert counts(groups["CG"]) == [2, 2, 2]


def test_three_thousand_that_leave_at_once_cost_what_they_are_and_not_their_square(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    everybody = groups["CG"] = consumers(3000)
    for left in range(3000):
        groups["CG"] = everybody[left + 1 :]
        notifications.changed("CG")
        if left % 300 == 0:  # all that the reactor saw at once
            clock.advance(0)
    run(clock, 1)
    assert sum(counts(everybody)) <= 3000


def test_no_turn_tells_more_than_some(clock: Clock, groups: dict[str, list[Any]], notifications: Notifications) -> None:
    groups["CG"] = consumers(3 * TURN_CONSUMERS)
    notifications.changed("CG")
    for turn in range(1, 4):
        clock.advance(0 if turn == 1 else TURN_CONSUMERS * SECONDS_EACH)
        assert sum(counts(groups["CG"])) == turn * TURN_CONSUMERS
    run(clock, 1)
    assert counts(groups["CG"]) == [1] * (3 * TURN_CONSUMERS)


def test_a_change_while_they_are_told_is_told_to_all_again(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    groups["CG"] = consumers(2 * TURN_CONSUMERS)
    notifications.changed("CG")
    clock.advance(0)
    newcomer = Told("new")
    groups["CG"].append(newcomer)
    notifications.changed("CG")
    run(clock, 1)
    assert counts(groups["CG"]) == [2] * (2 * TURN_CONSUMERS) + [1]


def test_groups_are_told_in_turn(clock: Clock, groups: dict[str, list[Any]], notifications: Notifications) -> None:
    groups["CG"], groups["Other"] = consumers(TURN_CONSUMERS), consumers(1)
    notifications.changed("CG")
    notifications.changed("Other")
    clock.advance(0)
    notifications.changed("CG")
    clock.advance(TURN_CONSUMERS * SECONDS_EACH)
    assert counts(groups["Other"]) == [1]  # before the other is told again
    run(clock, 1)
    assert counts(groups["CG"]) == [2] * TURN_CONSUMERS


def test_one_that_flips_what_it_wants_does_not_keep_the_broker_busy(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    """A heartbeat for each ms: the consumers of its group hear of it as often as there is time for."""
    groups["CG"] = consumers(TURN_CONSUMERS)
    for _ in range(1000):
        notifications.changed("CG")
        clock.advance(0.001)
    run(clock, 1)
    assert sum(counts(groups["CG"])) <= 1.1 / SECONDS_EACH


def test_a_group_that_is_gone_is_told_nothing(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    notifications.changed("CG")
    notifications.changed("Nobody")
    clock.advance(0)
    assert clock.getDelayedCalls() == []


def test_after_a_stop_nobody_is_told(clock: Clock, groups: dict[str, list[Any]], notifications: Notifications) -> None:
    groups["CG"] = consumers(2 * TURN_CONSUMERS)
    notifications.changed("CG")
    clock.advance(0)
    notifications.stop()
    notifications.changed("CG")
    run(clock, 1)
    assert sum(counts(groups["CG"])) == TURN_CONSUMERS
    assert clock.getDelayedCalls() == []


def test_a_consumer_that_is_told_and_goes_spoils_nothing(
    clock: Clock, groups: dict[str, list[Any]], notifications: Notifications
) -> None:
    """As one whose connection breaks in the write."""

    class Broken(Told):
        def invoke_oneway(self, command: RemotingCommand) -> None:
            super().invoke_oneway(command)
            notifications.changed("CG")
            groups["CG"] = [each for each in groups["CG"] if each is not self]

    groups["CG"] = [Broken("a"), *consumers(2)]
    notifications.changed("CG")
    run(clock, 1)
    assert counts(groups["CG"]) == [2, 2]
