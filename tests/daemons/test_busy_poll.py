"""Waiting for sockets: awake where the last wait was short."""

from functools import partial
from typing import Any

import pytest

from mqbroker.daemons.epoll import BURST_WAITS, SOON_SECONDS, BusyPoll, poll_repeatedly

READY = [(3, 1)]
#: What the sockets are asked for by a wait that does not poll: whether one is ready already, and to wake it up.
ASLEEP = [0, -1]
MICROSECOND = 1e-6


class World:
    """A clock, and sockets of which one is ready `after` microseconds from each wait's beginning."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.time = 0.0
        self.ready_at = 0.0
        self.asked: list[Any] = []
        poll_until = partial(poll_repeatedly, self.poll, self.now, let_others=lambda: self.asked.append("others"))
        self.busy_poll = BusyPoll(self.poll, poll_until, self.now, is_alone=is_alone)

    def now(self) -> float:
        return self.time

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.asked.append(timeout)
        self.time += MICROSECOND
        if self.time >= self.ready_at:
            return READY
        if timeout == 0:
            return []
        if timeout > 0 and self.time + timeout < self.ready_at:
            self.time += timeout
            return []
        self.time = self.ready_at
        return READY

    def wait(self, after_us: int, timeout: float | None = None) -> tuple[list[tuple[int, int]], list[int | str]]:
        """What comes of a wait, and what the sockets were asked for meanwhile."""
        self.asked.clear()
        self.ready_at = self.time + after_us * MICROSECOND
        return self.busy_poll.wait(timeout, 10), list(self.asked)


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_wait_is_asleep(world: World) -> None:
    assert world.wait(20) == (READY, ASLEEP)


def test_after_a_short_wait_the_next_is_awake_and_others_have_the_processor_between_looks(world: World) -> None:
    world.wait(20)
    for _ in range(3):
        found, asked = world.wait(20)
        assert found == READY
        looks = len(asked) // 2 + 1
        assert asked == [0, *["others", 0] * (looks - 1)]
        assert looks in (20, 21)


def test_what_is_long_in_coming_is_waited_for_asleep_and_so_is_the_next(world: World) -> None:
    world.wait(20)
    found, asked = world.wait(500)
    assert (found, asked[-1]) == (READY, -1)
    assert 115 <= asked.count(0) <= SOON_SECONDS / MICROSECOND + 2  # one before the clock is read
    assert world.wait(20) == (READY, ASLEEP)
    assert "others" in world.wait(20)[1]


def test_bursts_with_pauses_between_are_waited_for_asleep(world: World) -> None:
    for _ in range(3):
        world.wait(2000)
        for _ in range(BURST_WAITS + 1):
            assert world.wait(20) == (READY, ASLEEP)
    assert "others" in world.wait(20)[1]


def test_after_a_long_wait_nothing_is_polled_busily(world: World) -> None:
    world.wait(130)
    assert world.wait(20) == (READY, ASLEEP)


def test_what_is_expected_is_waited_for_awake(world: World) -> None:
    world.wait(1000)
    world.busy_poll.expect(300 * MICROSECOND)
    found, asked = world.wait(200)
    assert (found, set(asked)) == (READY, {0, "others"})
    found, asked = world.wait(1000)  # it has come: what is left of that time is waited awake, and no more
    assert (found, asked[-1]) == (READY, -1)
    assert 95 <= asked.count(0) <= 102
    assert world.wait(200) == (READY, ASLEEP)


def test_what_is_expected_within_less_than_the_last_wait_shortens_nothing(world: World) -> None:
    world.wait(20)
    world.busy_poll.expect(10 * MICROSECOND)
    found, asked = world.wait(40)
    assert (found, asked[-1]) == (READY, 0)


def test_where_nothing_is_waited_for_one_look_is_enough(world: World) -> None:
    world.wait(20)
    world.busy_poll.expect(300 * MICROSECOND)
    assert world.wait(20, timeout=0) == ([], [0])
    assert "others" in world.wait(20)[1]  # and that look says nothing of who asks


def test_what_is_ready_already_is_no_short_wait(world: World) -> None:
    """Those who send faster than they are answered are not waited for; what follows may be long in coming."""
    world.wait(1000)
    for _ in range(2 * BURST_WAITS):
        assert world.wait(0) == (READY, [0])
    assert world.wait(20) == (READY, ASLEEP)


def test_a_timed_call_comes_in_time(world: World) -> None:
    world.wait(20)
    began = world.time
    found, asked = world.wait(10_000, timeout=0.001)
    assert (found, asked[-1]) == ([], 0.001)
    assert world.time - began < 0.001 + 2 * SOON_SECONDS


def test_on_the_only_processor_it_is_always_asleep() -> None:
    world = World(is_alone=True)
    for _ in range(3):
        world.busy_poll.expect(300 * MICROSECOND)
        assert world.wait(20) == (READY, ASLEEP)
