"""Locks of queues for those who consume in order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mqbroker.broker import queue_locks as module
from mqbroker.broker.queue_locks import LOCK_SECONDS, QueueLocks
from mqbroker.wire.bodies import MessageQueue


def queue(n: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", n)


@pytest.fixture
def locks(clock: Clock) -> QueueLocks:
    return QueueLocks(clock.seconds)


def held(locks: QueueLocks, client: str, *numbers: int, group: str = "CG") -> set[int]:
    return {q.queue_id for q in locks.lock(group, client, [queue(n) for n in numbers])}


def test_one_client_has_a_queue(locks: QueueLocks) -> None:
    assert held(locks, "a", 0, 1) == {0, 1}
    assert held(locks, "b", 1, 2) == {2}
    assert held(locks, "a", 0, 1, 2) == {0, 1}
    assert held(locks, "b", 0, 1, 2, group="Other") == {0, 1, 2}


def test_a_lock_runs_out_unless_it_is_renewed(locks: QueueLocks, clock: Clock) -> None:
    held(locks, "a", 0, 1)
    clock.advance(LOCK_SECONDS - 1)
    held(locks, "a", 1)
    clock.advance(1.5)
    assert held(locks, "b", 0, 1) == {0}
    assert held(locks, "a", 0, 1) == {1}


def test_only_the_owner_unlocks(locks: QueueLocks) -> None:
    held(locks, "a", 0)
    locks.unlock("CG", "b", [queue(0)])
    assert held(locks, "b", 0) == set()
    locks.unlock("CG", "a", [queue(0), queue(0), queue(7)])
    locks.unlock("Nobody", "a", [queue(0)])
    assert held(locks, "b", 0) == {0}


def test_there_are_so_many_locks_and_those_that_ran_out_make_room(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCKS_MAX", 5)
    assert held(locks, "a", 0, 1, 2) == {0, 1, 2}
    clock.advance(LOCK_SECONDS)
    assert held(locks, "b", 0, 1, 2, group="Other") == {0, 1}
    assert held(locks, "a", 2) == {2}  # renewing takes no room
    clock.advance(1)
    assert held(locks, "b", 2, 3, group="Other") == {2, 3}
    assert held(locks, "a", 0, 1) == set()
    locks.unlock("Other", "b", [queue(2)])
    assert held(locks, "a", 0, 1) == {0} or held(locks, "a", 0, 1) == {1}


@given(st.lists(st.tuples(st.sampled_from("lut"), st.sampled_from("abc"), st.sets(st.integers(0, 3)))))
def test_against_a_plain_model(steps: list[tuple[str, str, set[int]]]) -> None:
    now, model = [0.0], dict[Any, Any]()
    locks = QueueLocks(lambda: now[0])
    for what, client, numbers in steps:
        if what == "t":
            now[0] += 25.0
        elif what == "u":
            locks.unlock("CG", client, [queue(n) for n in numbers])
            model = {n: lock for n, lock in model.items() if n not in numbers or lock[0] != client}
        else:
            wanted = {
                n for n in numbers if n not in model or model[n][0] == client or now[0] - model[n][1] > LOCK_SECONDS
            }
            assert held(locks, client, *numbers) == wanted
            model |= dict.fromkeys(wanted, (client, now[0]))
        assert locks._count == len(model)
