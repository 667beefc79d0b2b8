"""How much counts grew within the last minute, hour and day."""

import pytest
from twisted.internet.task import Clock

from mqbroker.broker.broker_stats import CountTable, Windows
from mqbroker.wire.bodies import BrokerStatsItem as Growth


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def windows(clock: Clock) -> Windows:
    return Windows(clock.seconds)


@pytest.fixture
def table(windows: Windows) -> CountTable:
    return CountTable(windows, 2)


def pass_seconds(clock: Clock, windows: Windows, seconds: int, step: int = 1) -> None:
    for _ in range(0, seconds, step):
        clock.advance(step)
        windows.tick()


def grown(windows: Windows, table: CountTable, key: str = "T", amount: int = 1) -> list[Growth]:
    counts = table.get(key)
    return [window.growth(counts, amount) for window in (windows.minute, windows.hour, windows.day)]


def test_nothing_is_known_before_the_first_look(clock: Clock, windows: Windows, table: CountTable) -> None:
    table.add("T", 1, 5, 50)
    pass_seconds(clock, windows, 9)
    assert grown(windows, table) == [Growth(), Growth(), Growth()]


def test_a_new_count_was_0_one_step_before(clock: Clock, windows: Windows, table: CountTable) -> None:
    table.add("T", 4, 20, 200)
    pass_seconds(clock, windows, 10)
    assert grown(windows, table)[0] == Growth(20, 2.0, 5.0)
    assert grown(windows, table, amount=2)[0] == Growth(200, 20.0, 50.0)
    pass_seconds(clock, windows, 10)
    assert grown(windows, table)[0] == Growth(20, 1.0, 5.0)


def test_what_is_older_than_a_window_does_not_count(clock: Clock, windows: Windows, table: CountTable) -> None:
    for _ in range(12):
        table.add("T", 1, 10, 0)
        pass_seconds(clock, windows, 10)
    assert grown(windows, table)[0] == Growth(60, 1.0, 10.0)
    pass_seconds(clock, windows, 30)
    assert grown(windows, table)[0] == Growth(30, 0.5, 10.0)
    pass_seconds(clock, windows, 40)
    assert grown(windows, table)[0] == Growth(0, 0.0, 0.0)
    table.add("T", 2, 6, 0)
    pass_seconds(clock, windows, 10)
    assert grown(windows, table)[0] == Growth(6, 0.1, 3.0)


def test_a_count_that_comes_late_is_seen_as_of_then(clock: Clock, windows: Windows, table: CountTable) -> None:
    pass_seconds(clock, windows, 500)
    table.add("T", 1, 30, 0)
    pass_seconds(clock, windows, 30)
    assert grown(windows, table)[0] == Growth(30, 1.0, 30.0)


def test_hours_and_days(clock: Clock, windows: Windows, table: CountTable) -> None:
    table.add("T", 1, 7200, 0)
    pass_seconds(clock, windows, 599)
    assert grown(windows, table)[1:] == [Growth(), Growth()]
    pass_seconds(clock, windows, 1)
    assert grown(windows, table)[1:] == [Growth(7200, 12.0, 7200.0), Growth()]
    pass_seconds(clock, windows, 3000)
    assert grown(windows, table)[1:] == [Growth(7200, 2.0, 7200.0), Growth(7200, 2.0, 7200.0)]
    pass_seconds(clock, windows, 600)
    assert grown(windows, table)[1] == Growth()
    pass_seconds(clock, windows, 82_200, step=600)
    assert grown(windows, table)[2] == Growth(7200, 7200 / 86_400, 7200.0)
    pass_seconds(clock, windows, 3600, step=600)
    assert grown(windows, table)[2] == Growth()


def test_a_look_that_comes_late_counts_by_its_real_time(clock: Clock, windows: Windows, table: CountTable) -> None:
    table.add("T", 1, 10, 0)
    pass_seconds(clock, windows, 10)
    table.add("T", 1, 90, 0)
    clock.advance(45)
    windows.tick()
    assert grown(windows, table)[0] == Growth(100, 100 / 55, 50.0)
    pass_seconds(clock, windows, 5)  # it keeps its pace: at 60 s it looks again
    assert grown(windows, table)[0] == Growth(100, 100 / 60, 50.0)


def test_who_counts_without_times_has_no_average(clock: Clock, windows: Windows, table: CountTable) -> None:
    table.add("T", 0, 10, 0)
    pass_seconds(clock, windows, 10)
    assert grown(windows, table)[0] == Growth(10, 1.0, 0.0)


def test_of_too_many_the_one_that_was_not_counted_for_longest_goes(windows: Windows) -> None:
    table = CountTable(windows, 1, keys_max=2)
    table.add("a", 1, 1)
    table.add("b", 1, 1)
    table.add("a", 1, 1)
    table.add("c", 1, 1)
    assert len(table) == 2
    assert table.get("b") is None
    assert table.get("a").numbers == [2, 2]
    table.add("b", 1, 1)
    assert table.get("b").numbers == [1, 1]


def test_what_is_gone_is_not_kept_for_the_next_look(windows: Windows) -> None:
    table = CountTable(windows, 1, keys_max=1)
    for number in range(100):
        table.add(str(number), 1, 1)
    table.remove(lambda parts: True)
    assert len(table) == 0
    assert [len(window.waiting) for window in (windows.minute, windows.hour, windows.day)] == [0, 0, 0]


def test_keys_are_removed_by_their_parts(windows: Windows) -> None:
    table = CountTable(windows)
    for key in ("T@A", "T@B", "TT@A", "A@T"):
        table.add(key, 1, 1)
    table.remove(lambda parts: parts[0] == "T")
    assert [key for key in ("T@A", "T@B", "TT@A", "A@T") if table.get(key)] == ["TT@A", "A@T"]
