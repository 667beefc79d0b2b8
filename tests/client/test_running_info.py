import sys
import threading
from typing import Any

import pytest

from mqbroker.client.running_info import CHARACTERS_MAX, FRAMES_MAX, ConsumerStats, Sums, describe_error, thread_stacks


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> Any:
        return self.now


@pytest.fixture
def clock() -> Any:
    return Clock()


def test_sums_forget_what_is_older_than_their_steps() -> None:
    sums = Sums(10.0, 6, began=0.0)
    assert sums.totals(0) == [0, 0, 0]
    for now in (5, 15, 25, 65):
        sums.add(now, 1, now, -now)
    assert sums.totals(65) == [4, 110, -110]
    assert sums.totals(70) == [3, 105, -105]
    assert sums.totals(129) == [1, 65, -65]
    assert sums.totals(130) == [0, 0, 0]
    assert (sums.seconds(3), sums.seconds(40), sums.seconds(65), sums.seconds(75)) == (10, 40, 65, 65)


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    sums = Sums(10.0, 6, began=1000.0)
    sums.add(1005, 1, 0, 0)
    sums.add(500, 1, 0, 0)
    assert sums.totals(1005) == [2, 0, 0]
    assert sums.seconds(500) == 10


def test_memory_does_not_grow_with_time() -> None:
    sums = Sums(1.0, 3, began=0.0)
    for now in range(1000):
        sums.add(now, 1, 0, 0)
    assert sums.totals(999)[0] == 4
    assert len(sums._steps) == 4


def test_a_meter_tells_rates_of_the_minute_and_failures_of_the_hour(clock: Any) -> None:
    meter = ConsumerStats(clock).of("T")
    for _ in range(30):
        meter.pulled(5.0, 10)
        meter.consumed(2.0, 1, 0)
    meter.consumed(4.0, 0, 1)
    clock.now += 30
    status = meter.status()
    assert (status.pull_rt, status.pull_tps, status.consume_ok_tps) == (5.0, 10.0, 1.0)
    assert (round(status.consume_rt, 3), status.consume_failed_msgs) == (2.065, 1)
    assert round(status.consume_failed_tps, 3) == 0.033
    clock.now += 100
    status = meter.status()
    assert (status.pull_rt, status.pull_tps, status.consume_ok_tps, status.consume_failed_tps) == (0, 0, 0, 0)
    # As Java's: where the minute knows of none, the hour tells.
    assert (round(status.consume_rt, 3), status.consume_failed_msgs) == (2.065, 1)
    meter.consumed(10.0, 1, 0)
    assert meter.status().consume_rt == 10.0
    clock.now += 4200
    assert (meter.status().consume_rt, meter.status().consume_failed_msgs) == (0, 0)


def test_running_info_keep_one_for_each_topic(clock: Any) -> None:
    stats = ConsumerStats(clock)
    assert stats.of("T") is stats.of("T")
    assert stats.of("U") is not stats.of("T")


def deep(n: Any, reached: Any, leave: Any) -> None:
    if n:
        deep(n - 1, reached, leave)
    else:
        reached.set()
        leave.wait(30)


def test_stacks_name_threads_and_places_innermost_first() -> None:
    reached, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=deep, args=(2, reached, leave), name="some-listener")
    thread.start()
    try:
        assert reached.wait(30)
        stacks = thread_stacks()
    finally:
        leave.set()
        thread.join()
    mine = next(part for part in stacks.split("\n\n") if part.startswith("some-listener"))
    first, *places = mine.splitlines()
    assert first == f"{'some-listener':<40}TID: {thread.native_id}"
    assert all(place.startswith(f"{'some-listener':<40}") for place in places)
    deeps = [place for place in places if ".deep(test_running_info.py:" in place]
    assert len(deeps) == 3
    assert places.index(deeps[-1]) > places.index(deeps[0]) > 0
    assert any("threading.Thread.run(threading.py:" in place for place in places[-3:])
    assert ".test_stacks_name_threads_and_places_innermost_first(test_running_info.py:" in stacks


def test_stacks_are_bounded_in_depth_and_size() -> None:
    limit = sys.getrecursionlimit()
    reached, leave = threading.Event(), threading.Event()
    threads = [
        threading.Thread(target=deep, args=(limit // 2, reached, leave), name="x" * 1000 + str(n)) for n in range(3)
    ]
    for thread in threads:
        reached.clear()
        thread.start()
        assert reached.wait(30)
    try:
        stacks = thread_stacks()
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    assert len(stacks) < CHARACTERS_MAX + 100
    assert stacks.endswith("further threads are left out\n")
    parts = [part for part in stacks.split("\n\n") if part.startswith("x")]
    assert parts
    assert all(len(part.splitlines()) == FRAMES_MAX + 1 for part in parts)


def test_an_error_is_told_in_one_line_with_its_place() -> None:
    def raise_it(text: Any) -> None:
        raise KeyError(text)

    def outer(text: Any) -> None:
        raise_it(text)

    with pytest.raises(KeyError) as caught:
        outer("k")
    told = describe_error(caught.value)
    assert told.startswith("KeyError: 'k', tests.client.test_running_info.")
    assert "raise_it(test_running_info.py:" in told
    assert len(describe_error(ValueError("x" * 10_000))) == 1024
